//! A [`LockBackend`](leasehold_api::LockBackend) for Redis 6.2 or newer, on the
//! [`redis`] crate.
//!
//! ```no_run
//! use leasehold_api::LockClient;
//! use leasehold_redis_rs::RedisBackend;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = RedisBackend::connect("redis://127.0.0.1:6379").await?;
//! let locks = LockClient::new(backend);
//! let guard = locks.mutex("invoice:42")?.lock().await?;
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Settings
//! Pass [`Options`] to [`RedisBackend::connect_with`] or to another constructor:
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
//! A backend made from a URL or a `redis::Client` opens
//! - a connection for commands, at the first call;
//! - a connection for renewals, when it acquires the first lock. A separate thread drives it, so a
//!   program that blocks its runtime keeps its locks;
//! - a connection for each session that listens.
//!
//! A connection that the server closes is replaced at once. A silent one is replaced as soon as
//! another one works. The backend never sends a call twice, except with `EVAL` after the server
//! has said that it doesn't know the script.
//!
//! If the server says that it has become a replica, the backend closes its connections and opens
//! new ones under the same name. This covers a failover behind one name.
//!
//! With a URL of sentinels, each connection leads to the primary that most of them name, and a task
//! asks them twice a second. If the primary has changed, all connections move there. The table of
//! [`RedisBackend::connect_with`] shows such a URL.
//!
//! With a URL of a cluster, the backend has these connections to each node that has its locks, and
//! one to each node where it waits. Calls follow the slots of their keys when these move. Waiters
//! learn of their turn by push since Redis 7.0, over RESP3. Pass a URL to
//! [`RedisBackend::connect`]: the clustered clients of the library are refused, because they may
//! run a script several times and don't say which node has answered.
//!
//! A backend doesn't work in a forked child. Make another one there, on a runtime of the child.
//!
//! Connections use RESP3 unless the options say RESP2. With RESP2, a session that listens has two
//! connections, and the library doesn't report the end of a connection. The first call after the
//! end then has an unknown outcome, and the next one uses a new connection.
//!
//! # Bringing your own client
//! | what | constructor | push | independent renewal | recovers from |
//! |---|---|---|---|---|
//! | URL | [`connect`](RedisBackend::connect) | yes | yes | restart, cut, silence |
//! | `redis::Client` | [`from_client`](RedisBackend::from_client) | yes | yes | restart, cut, silence |
//! | a pool of `deadpool-redis` or `bb8` | [`connect`](RedisBackend::connect) with its URL | yes | yes | restart, cut, silence |
//! | `ConnectionManager` | [`from_connection`](RedisBackend::from_connection) | no | no | restart, cut, but no refused login |
//! | `MultiplexedConnection` | [`from_connection`](RedisBackend::from_connection) | no | no | nothing, because it never reconnects |
//! | other `ConnectionLike + Clone` | [`from_connection`](RedisBackend::from_connection) | no | no | what the type itself recovers from |
//!
//! If you have a `ConnectionManager` or a `MultiplexedConnection`, hand over the `redis::Client` that it
//! was made from. The backend then opens its own connections, as with a URL.
//!
//! Without push, a waiter learns of its grant at its next poll, at most a second later. Without
//! independent renewal, a program that blocks all threads of its runtime for longer than a lease
//! loses its locks.
//!
//! Requirements on your own connection:
//! - Set `ConnectionManagerConfig::set_number_of_retries(0)`. Otherwise the manager may stay
//!   unusable for 10 s after the server is back. Calls are bounded in any case.
//! - A manager (redis 1.8) connects again only after an I/O error. If the server refuses its login once, because of the
//!   password or because it has no room for a client, each later call gets that error: make another manager, and another
//!   backend on it.
//! - Set no response timeout below the call timeout. (The library's default is half of it.) A
//!   call that times out has an unknown outcome.
//! - Don't block the connection with other commands (`BLPOP`, `WAIT`, `MULTI` over a slow
//!   network). Renewals use it too.
//! - Connect it to one server, not to a replica. The library may retry commands: a command has one
//!   effect, however often it arrives.
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
//!     -@all +@connection -@dangerous +info +time +evalsha +eval +subscribe +publish
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
mod source;
mod stream;

pub use backend::RedisBackend;
pub use leasehold_api::{Certificates, ConnectError};
pub use leasehold_redis_common::{Options, RespVersion, ServerChecks};
/// The client library.
pub use redis;
