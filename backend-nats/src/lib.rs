//! A lock backend on NATS JetStream, from NATS 2.10 on.
//!
//! [`NatsBackend`] keeps each lock in one message of a key-value bucket. It has all kinds of locks, queues, fencing tokens and
//! jobs. A waiter learns of its turn by a message.
//!
//! ```no_run
//! use leasehold_api::LockClient;
//! use leasehold_nats::NatsBackend;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = NatsBackend::connect("nats://locks:secret@nats.example").await?;
//! let locks = LockClient::new(backend);
//! let guard = locks.mutex("invoice:42")?.lock().await?;
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # URL
//! `nats://user:password@host:port,host:port/bucket`. The port is 4222 and the bucket `leasehold` unless the URL says otherwise.
//! A user without a password is a token. Name all servers of a cluster: others aren't found. `tls://` requires TLS, and
//! `nats://` uses it if the server asks for it, with the authorities of the machine.
//!
//! # Bucket
//! The backend creates the bucket if there is none: in files, with three replicas on a cluster. Rows are removed three days after their
//! last write. A bucket in memory is refused, as is one that could lose a row earlier, by its age or a limit.
//!
//! # Rights
//! `publish` on `$JS.API.STREAM.INFO.KV_leasehold`, `$JS.API.STREAM.CREATE.KV_leasehold`,
//! `$JS.API.STREAM.MSG.GET.KV_leasehold`, `$KV.leasehold.>` and `_LEASEHOLD.>`; `subscribe` on `_INBOX.>` and `_LEASEHOLD.>`.
//!
//! # Server
//! - Set `sync_interval: always` in the section `jetstream` of each server. By default JetStream answers a write up to two minutes
//!   before it is on the disk, so locks are lost if the machines lose power. A client can't see the setting.
//! - The time is that of the stream's leader. The clocks of all servers agree within 10 ms.
//! - The state of a key is one message: `max_payload`, 1 MB by default, has room for 7,000 waiters.
//! - A client has two connections: one for commands, and one for renewals.

mod backend;
mod bucket;
mod connection;
mod key;
mod listen;
mod store;

pub use backend::{NatsBackend, Options};
pub use leasehold_api::ConnectError;
