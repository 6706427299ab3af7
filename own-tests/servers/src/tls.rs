//! Certificates for servers and clients, made for one test.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};

/// A certificate authority.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, as PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Creates an authority with a new key.
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Clients find an authority by its name.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut params = CertificateParams::default();
        let name = format!("authority {number}");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// The authority's certificate, as PEM.
    pub fn certificate(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for a host name or an IP address, or for a user, whom etcd knows by the common name.
    pub fn issue(&self, host: &str) -> Identity {
        let mut params = CertificateParams::new([host.to_owned()]).expect("a host name");
        params.distinguished_name.push(DnType::CommonName, host);
        self.sign(&params)
    }

    /// Issues a certificate that expired long ago.
    pub fn issue_expired(&self, host: &str) -> Identity {
        self.issue_until(host, SystemTime::UNIX_EPOCH)
    }

    /// Issues a certificate that expires at that second.
    pub fn issue_until(&self, host: &str, end: SystemTime) -> Identity {
        let mut params = CertificateParams::new([host.to_owned()]).expect("a host name");
        params.not_before = date_time_ymd(1970, 1, 1);
        params.not_after = end.into();
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Identity {
    /// Writes the certificate and the key into a folder of a server. Returns the paths.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> [String; 2] {
        let key = format!("{name}-key");
        [
            write(folder, name, &self.certificate),
            write(folder, &key, &self.key),
        ]
    }
}

/// Writes a file of a server, and returns its path.
pub(crate) fn write(folder: &Path, name: &str, pem: &str) -> String {
    let path = folder.join(format!("{name}.pem"));
    std::fs::write(&path, pem).expect("a writable folder");
    path.display().to_string()
}

/// How a server uses TLS.
#[derive(Clone, Debug)]
pub(crate) struct ServerTls {
    pub(crate) identity: Identity,
    /// The authority whose clients are accepted. If `None`, clients need no certificate.
    pub(crate) clients: Option<String>,
}

impl ServerTls {
    /// Writes the files of the server into its folder, and returns its arguments.
    pub(crate) fn prepare(&self, folder: &Path, port: u16) -> Vec<String> {
        let authority = self.clients.as_ref().unwrap_or(&self.identity.certificate);
        let files = [
            ("tls-cert-file", &self.identity.certificate),
            ("tls-key-file", &self.identity.key),
            ("tls-ca-cert-file", authority),
        ];
        let wants_certificate = if self.clients.is_some() { "yes" } else { "no" };
        let mut arguments = vec![
            "--tls-port".into(),
            port.to_string(),
            "--tls-auth-clients".into(),
            wants_certificate.into(),
        ];
        for (name, pem) in files {
            arguments.extend([format!("--{name}"), write(folder, name, pem)]);
        }
        arguments
    }
}
