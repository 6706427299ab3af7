//! A [`LockBackend`](leasehold_api::LockBackend) for Redis 6.2 or newer, on the
//! [`fred`] crate.
//!
//! ```no_run
//! use leasehold_api::LockClient;
//! use leasehold_fred::FredBackend;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = FredBackend::connect("redis://127.0.0.1:6379").await?;
//! let locks = LockClient::new(backend);
//! let guard = locks.mutex("invoice:42")?.lock().await?;
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Settings
//! Pass [`Options`] to [`FredBackend::connect_with`] or to another constructor:
//!
//! | setting | default | |
//! |---|---|---|
//! | [`key_prefix`](Options::key_prefix) | `leasehold:` | prefix of all keys and channels; must be the same for clients that share locks |
//! | [`call_timeout`](Options::call_timeout) | 1 s | limit of a single call, including the time to connect |
//! | [`connect_timeout`](Options::connect_timeout) | 500 ms | limit of an attempt to connect, including checks of the server |
//! | [`initial_connect_timeout`](Options::initial_connect_timeout) | 5 s | how long `connect` tries |
//! | [`root_certificates`](Options::root_certificates) | the machine's | authorities that may issue the server's certificate |
//! | [`client_certificate`](Options::client_certificate) | none | certificate that the backend shows to the server |
//! | [`server_checks`](Options::server_checks) | warn | what to do about settings of the server that endanger locks |
//! | [`resp`](Options::resp) | RESP3 | protocol version of the connections that the backend opens |
//!
//! # TLS
//! The feature `tls-rustls` adds TLS with rustls and ring, for URLs with `rediss://` and
//! `valkeys://`. Without it, these URLs are refused. Certificates are always verified. If the
//! process has a default `rustls::crypto::CryptoProvider`, the backend uses it instead of ring's.
//!
//! # Connections
//! A backend made from a URL or a `Builder` opens
//! - a connection for commands, at the first call;
//! - a connection for renewals, when it acquires the first lock. A separate thread drives it, so a
//!   program that blocks its runtime keeps its locks;
//! - a connection for each session that listens.
//!
//! Each connection is a separate client without a reconnect policy, and uses RESP3 unless the
//! options say RESP2. A connection that the server closes is replaced at once. A silent one is
//! replaced as soon as another one works. The backend never sends a call twice, except with `EVAL`
//! after the server has said that it doesn't know the script.
//!
//! If the server says that it has become a replica, the backend closes its connections and opens
//! new ones under the same name. This covers a failover behind one name.
//!
//! With a URL of sentinels, each connection leads to the primary that most of them name, and a task
//! asks them twice a second. If the primary has changed, all connections move there. The table of
//! [`FredBackend::connect_with`] shows such a URL.
//!
//! With a URL of a cluster, the backend has these connections to each node that has its locks, and
//! one to each node where it waits. Calls follow the slots of their keys when these move. Waiters
//! learn of their turn by push since Redis 7.0, over RESP3. Pass a URL to
//! [`FredBackend::connect`]: the clustered clients of the library are refused, because they may
//! run a script several times and don't say which node has answered.
//!
//! A backend doesn't work in a forked child. Make another one there, on a runtime of the child.
//!
//! # Bringing your own client
//! | what | constructor |
//! |---|---|
//! | URL | [`connect`](FredBackend::connect) |
//! | `Builder`, `Config` | [`from_builder`](FredBackend::from_builder) |
//! | `Client` | [`from_client`](FredBackend::from_client) |
//! | `Pool` | [`from_pool`](FredBackend::from_pool) |
//!
//! Each of them has push and independent renewal, and recovers from restarts, cuts and silence. The
//! backend takes the configuration of your client or pool, and opens its own connections. So your
//! commands and its calls don't wait for each other. Clustered clients are refused. So are all of them
//! if fred is built without TLS: [`from_builder`](FredBackend::from_builder) says why.
//!
//! # The state of fred
//! fred's last release is of February 2025. This crate works around the problems that its tests have
//! found. If you have the choice, use `leasehold-redis-rs`. Both backends use the same scripts and
//! keys, so processes with either of them share locks.
//!
//! # Errors
//! | what happened | [`BackendError`](leasehold_api::BackendError) |
//! |---|---|
//! | no connection in time, or refused; `READONLY`, `LOADING`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN`, `BUSY`, `OOM`, `NOREPLICAS`, `MISCONF` | `Unavailable`: not executed |
//! | connection broken or silent after the command was sent, no answer in time, a malformed answer | `OutcomeUnknown` |
//! | `NOAUTH`, `WRONGPASS`, `NOPERM` (the text names the missing command, key or channel pattern), other `ERR`, a server older than 6.2, or one of another kind than the URL says | `Rejected` |
//! | another program's value under the key | `ForeignValue`: untouched |
//! | after [`close`](leasehold_api::LockBackend::close), or after the runtime of the backend has shut down | `Closed` |
//!
//! # Rights on the server
//! This user has exactly the rights that a backend needs:
//!
//! ```text
//! ACL SETUSER locks on >secret resetkeys ~leasehold:* resetchannels &leasehold:*
//!     -@all +@connection -@dangerous +client|info +info +time +evalsha +eval +subscribe +publish
//!     +pubsub|numsub +type +get +mget +set +setrange +hget +hmget +hgetall +hlen +hscan +hset +hdel +pexpireat +unlink
//!     +scan
//! ```
//!
//! `+scan` is only for [`LockClient::list`](leasehold_api::LockClient::list), and shows the names of all keys of the
//! server.
//!
//! On the nodes of a cluster, it needs these too:
//!
//! ```text
//! ACL SETUSER locks +cluster|slots +asking
//! ```
//!
//! Since Redis 7.0, and on Valkey, these are for notifications in a cluster:
//!
//! ```text
//! ACL SETUSER locks +ssubscribe +sunsubscribe +spublish +pubsub|shardnumsub
//! ```

mod backend;
mod connection;
mod error;

pub use backend::FredBackend;
/// The client library.
pub use fred;
pub use leasehold_api::{Certificates, ConnectError};
pub use leasehold_redis_common::{Options, RespVersion, ServerChecks};
