//! Certificates for connections with TLS.

use std::fmt;

use crate::error::InvalidInput;

/// Certificates for connections with TLS, as PEM. Backends take them in their options.
///
/// # Examples
/// ```no_run
/// use std::fs::read;
///
/// use leasehold_api::Certificates;
///
/// # fn example() -> std::io::Result<()> {
/// let certificates = Certificates::new()
///     .root_certificates(read("ca.pem")?)
///     .client_certificate(read("client.pem")?, read("client.key")?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Certificates {
    roots: Option<Vec<u8>>,
    /// The client's chain and private key.
    client: Option<(Vec<u8>, Vec<u8>)>,
}

/// Shows which certificates are set, not their contents.
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("roots", &self.roots.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}

impl Certificates {
    /// The authorities of the machine, and no certificate of the client.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            roots: None,
            client: None,
        }
    }

    /// Sets the authorities that may issue the server's certificate: one or more certificates. They
    /// replace those of the machine.
    ///
    /// # Examples
    /// `Certificates::new().root_certificates(read("ca.pem")?)`
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = Some(pem.into());
        self
    }

    /// Sets the certificate that the client shows to the server, and its private key. If the certificate
    /// was not issued by an authority that the server knows, `chain` also has the certificates between the
    /// two.
    ///
    /// # Examples
    /// `certificates.client_certificate(read("client.pem")?, read("client.key")?)`
    #[must_use]
    pub fn client_certificate(
        mut self,
        chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.client = Some((chain.into(), key.into()));
        self
    }

    /// Checks that no certificates are set, where they would have no effect.
    ///
    /// # Errors
    /// [`InvalidInput`] with this reason if there are some.
    ///
    /// # Examples
    /// ```
    /// use leasehold_api::Certificates;
    ///
    /// let some = Certificates::new().root_certificates("…");
    /// let error = some.check_unused("they need a URL with TLS").unwrap_err();
    /// assert_eq!(error.to_string(), "TLS certificates: they need a URL with TLS");
    /// ```
    pub fn check_unused(&self, reason: &str) -> Result<(), InvalidInput> {
        if *self == Self::new() {
            return Ok(());
        }
        Err(InvalidInput::setting("TLS certificates", reason))
    }
}

#[cfg(feature = "tls-rustls")]
mod config {
    use std::sync::Arc;

    use rustls::client::{Resumption, WantsClientCert};
    use rustls::crypto::{CryptoProvider, ring};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

    use super::Certificates;
    use crate::error::InvalidInput;

    const ROOTS: &str = "root certificates";

    impl Certificates {
        /// Returns the configuration of a TLS client, which verifies the server's certificate and host name for each
        /// connection: it resumes no session, because a resumed one would outlive the certificate. It uses the default `CryptoProvider` of the process, or else that of ring. Reads the machine's authorities
        /// if none are set.
        ///
        /// `requires_tls` says whether the client refuses a server without TLS. If it doesn't, a machine without
        /// authorities can still use such a server.
        ///
        /// # Errors
        /// [`InvalidInput`] that names the certificate or key that can't be used, or says that the machine
        /// has no authorities.
        ///
        /// # Examples
        /// ```no_run
        /// # use leasehold_api::{Certificates, InvalidInput};
        /// # fn example() -> Result<(), InvalidInput> {
        /// let config = Certificates::new().client_config(true)?;
        /// # Ok(())
        /// # }
        /// ```
        pub fn client_config(&self, requires_tls: bool) -> Result<ClientConfig, InvalidInput> {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(self.authorities()?);
            if requires_tls && roots.is_empty() {
                let reason = "this machine has none; set them with `root_certificates`";
                return Err(InvalidInput::setting(ROOTS, reason));
            }
            let provider = CryptoProvider::get_default().map(Arc::clone);
            let provider = provider.unwrap_or_else(|| Arc::new(ring::default_provider()));
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|error| InvalidInput::setting("TLS", error))?
                .with_root_certificates(roots);
            let mut config = self.add_client(config)?;
            config.resumption = Resumption::disabled();
            Ok(config)
        }

        /// Returns the authorities that may issue the server's certificate: those that are set, or else the machine's.
        /// This is for a library that makes its configuration itself, after [`client_config`](Self::client_config) has checked
        /// the certificates.
        ///
        /// # Errors
        /// [`InvalidInput`] for one that is set and can't be used.
        ///
        /// # Examples
        /// `for authority in certificates.authorities()? { store.add(authority)?; }`
        pub fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, InvalidInput> {
            let mut store = RootCertStore::empty();
            let Some(pem) = &self.roots else {
                let mut all = rustls_native_certs::load_native_certs().certs;
                all.retain(|it| store.add(it.clone()).is_ok());
                return Ok(all);
            };
            let all = certificates(ROOTS, pem)?;
            for certificate in &all {
                let added = store.add(certificate.clone());
                added.map_err(|error| InvalidInput::setting(ROOTS, error))?;
            }
            Ok(all)
        }

        /// Returns the client's chain and its private key, as PEM, for such a library.
        ///
        /// # Examples
        /// `let (chain, key) = certificates.client().unzip();`
        pub fn client(&self) -> Option<(&[u8], &[u8])> {
            let (chain, key) = self.client.as_ref()?;
            Some((chain, key))
        }

        fn add_client(
            &self,
            config: ConfigBuilder<ClientConfig, WantsClientCert>,
        ) -> Result<ClientConfig, InvalidInput> {
            let Some((chain, key)) = &self.client else {
                return Ok(config.with_no_client_auth());
            };
            let what = "client certificate";
            let chain = certificates(what, chain)?;
            // The library's error could show a part of the key.
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
                InvalidInput::setting("key of the client certificate", "it is not a key in PEM")
            })?;
            config
                .with_client_auth_cert(chain, key)
                .map_err(|error| InvalidInput::setting(what, error))
        }
    }

    fn certificates(
        what: &'static str,
        pem: &[u8],
    ) -> Result<Vec<CertificateDer<'static>>, InvalidInput> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match all {
            Ok(all) if !all.is_empty() => Ok(all),
            Ok(_) => Err(InvalidInput::setting(
                what,
                "there is no certificate in the PEM text",
            )),
            Err(error) => Err(InvalidInput::setting(what, error)),
        }
    }
}
