//! What clients meet in place of a server that is away.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Takes the place of a server that was killed: counts the connections of its clients, and closes each at once.
///
/// Dropping it frees the address for the server.
#[derive(Debug)]
#[must_use = "it listens until it is dropped"]
pub struct ServerAway {
    address: SocketAddr,
    seen: Arc<Seen>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Seen {
    connections: AtomicU64,
    ended: AtomicBool,
}

impl ServerAway {
    /// Listens at the address of a server that doesn't run.
    pub fn listen(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).expect("the address of the server is free");
        let seen = Arc::new(Seen::default());
        let counted = Arc::clone(&seen);
        let accepting = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if counted.ended.load(Ordering::Acquire) {
                    return;
                }
                drop(connection);
                counted.connections.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self {
            address,
            seen,
            accepting: Some(accepting),
        }
    }

    /// The number of connections so far.
    pub fn connections(&self) -> u64 {
        self.seen.connections.load(Ordering::Relaxed)
    }
}

impl Drop for ServerAway {
    fn drop(&mut self) {
        self.seen.ended.store(true, Ordering::Release);
        // Wakes the thread.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}
