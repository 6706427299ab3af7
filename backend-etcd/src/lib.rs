//! A lock backend on etcd 3.4 or later.
//!
//! [`EtcdBackend`] keeps each lock in one key. It has mutexes and elections, with queues and fencing tokens. No clock can
//! break them: a lease ends when another client has *seen* it unrenewed for that long.
//!
//! ```no_run
//! use leasehold_api::LockClient;
//! use leasehold_etcd::EtcdBackend;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = EtcdBackend::connect("etcd://a.example,b.example,c.example").await?;
//! let locks = LockClient::new(backend);
//! let guard = locks.mutex("invoice:42")?.lock().await?;
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Keys
//! All keys begin with `leasehold/PREFIX/`, where a `/` of the prefix is `%2F`. Below that, each lock has `key/NAME`, a session
//! that is woken has `push/…` for a minute, and `floor` is what tokens are above. Its user needs to read and write this
//! range, and nothing else may.
//!
//! # Server
//! - CI tests etcd 3.4.23; 3.5.1 was tested once.
//! - Reads are linearizable and each write is one transaction, so a change of the leader loses no lock.
//! - A restored snapshot is older than what clients know: restore with `--bump-revision`. As with any restore, locks and
//!   tokens since then are lost.
//! - A request has at most 1.5 MB. A key with more is refused.
//!
//! # TLS
//! `etcds://` requires TLS with all servers of the URL, with rustls and ring. Their certificates and
//! host names are always verified, for each connection: the authority is one that the machine knows or that
//! [`Options::root_certificates`] names. [`Options::client_certificate`] is for `--client-cert-auth`; without a login, its common name is
//! the user. If the process has a default `rustls::crypto::CryptoProvider`, the backend uses it instead of ring's.

mod backend;
mod client;
mod connector;
mod rpc;
mod store;
mod watch;

pub use backend::{EtcdBackend, Options};
pub use leasehold_api::{Certificates, ConnectError};
