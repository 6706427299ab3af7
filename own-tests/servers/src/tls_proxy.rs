//! A proxy that adds TLS to a server that is built without it.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::thread_proxy::{ThreadProxy, connect};
use crate::tls::Identity;

/// Starts a proxy to the server at `upstream`. Its clients use TLS.
pub(crate) fn start(identity: &Identity, upstream: SocketAddr) -> ThreadProxy {
    let acceptor = TlsAcceptor::from(Arc::new(config(identity)));
    ThreadProxy::start(move |client| serve(client, acceptor.clone(), upstream))
}

fn config(identity: &Identity) -> ServerConfig {
    let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes());
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes());
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring's versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.expect("PEM")], key.expect("PEM"))
        .expect("a key that fits")
}

/// Forwards in both directions until either side closes the connection.
async fn serve(client: TcpStream, acceptor: TlsAcceptor, upstream: SocketAddr) {
    let Some(mut server) = connect(&client, upstream).await else {
        return;
    };
    if let Ok(mut client) = acceptor.accept(client).await {
        // An error ends the connection, which the client sees.
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}
