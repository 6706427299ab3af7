//! A proxy that adds TLS to a server that is built without it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::tls::Identity;

/// A running proxy. Dropping it closes all its connections.
#[derive(Debug)]
pub(crate) struct TlsProxy {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TlsProxy {
    /// Starts a proxy to the server at `upstream`, on a free port of 127.0.0.1 and a separate
    /// thread.
    pub(crate) fn start(identity: &Identity, upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("bound");
        let acceptor = TlsAcceptor::from(Arc::new(config(identity)));
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, acceptor, upstream) => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// The address for clients with TLS.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for TlsProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has panicked already if this fails.
            let _ = thread.join();
        }
    }
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

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, upstream: SocketAddr) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(client, acceptor.clone(), upstream));
    }
}

/// Forwards in both directions until either side closes the connection.
async fn serve(client: TcpStream, acceptor: TlsAcceptor, upstream: SocketAddr) {
    let (Ok(mut server), Ok(())) = (TcpStream::connect(upstream).await, client.set_nodelay(true))
    else {
        return;
    };
    let _ = server.set_nodelay(true);
    if let Ok(mut client) = acceptor.accept(client).await {
        // An error ends the connection, which the client sees.
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}
