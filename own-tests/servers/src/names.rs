//! A name with two addresses.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use tempfile::TempDir;

use crate::clock::compile_shim;

/// A name with two addresses: the first accepts connections and never says anything, the second is a server's. Linux only.
///
/// A program has it by [`environment`](Self::environment). Keep this value as long as the program runs.
#[derive(Debug)]
#[must_use]
pub struct SilentFirstAddress {
    silent: TcpListener,
    folder: TempDir,
}

impl SilentFirstAddress {
    /// Listens beside a server on 127.0.0.1.
    pub fn beside(server: SocketAddr) -> Self {
        let first = (Ipv4Addr::new(127, 0, 0, 2), server.port());
        let folder = tempfile::tempdir().expect("a temporary folder");
        compile_shim(folder.path(), "two_addresses");
        Self {
            silent: TcpListener::bind(first).expect("the server has only 127.0.0.1"),
            folder,
        }
    }

    /// The name and the port.
    pub fn name(&self) -> String {
        let address = self.silent.local_addr().expect("it is bound");
        format!("two.test:{}", address.port())
    }

    /// The variable of the environment that gives this name to a program.
    pub fn environment(&self) -> [(&'static str, PathBuf); 1] {
        [("LD_PRELOAD", self.folder.path().join("two_addresses.so"))]
    }

    /// Whether a client has connected to the first address.
    pub fn was_tried(&self) -> bool {
        self.silent.set_nonblocking(true).expect("a socket");
        self.silent.accept().is_ok()
    }
}
