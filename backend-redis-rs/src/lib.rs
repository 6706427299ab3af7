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
//! [`Options`], given to [`RedisBackend::connect_with`] and the other constructors:
//!
//! | setting | default | |
//! |---|---|---|
//! | [`with_key_prefix`](Options::with_key_prefix) | `leasehold:` | of all keys and channels; the same for all who share locks |
//! | [`with_call_timeout`](Options::with_call_timeout) | 1 s | longest single call, connecting included |
//! | [`with_connect_timeout`](Options::with_connect_timeout) | 500 ms | longest attempt to connect, checks included |
//! | [`with_resp`](Options::with_resp) | RESP3 | what the connections speak that the backend opens |
//!
//! # Connections
//! Made from a URL or a `redis::Client`, a backend opens a connection for commands, one for
//! renewals (driven by a thread of its own, so that a program that blocks its runtime keeps its
//! locks), and one for each session that listens. The first is opened when it is first needed,
//! that for renewals when the first lock is taken. They are replaced when they break: when the
//! server closes them at once, and when they go silent as soon as another one works. No call is
//! ever sent twice by the backend, save with `EVAL` after the server has said that it does not
//! know the script.
//!
//! Where the server says that it has become a replica, its connections are left for new ones
//! under the same name: that is all there is for a failover behind one name.
//!
//! Nothing of a backend works in a forked child: make another there, on a runtime of the child's.
//!
//! They speak RESP3 unless the options say RESP2. With that a session that listens takes two
//! connections, and the library does not tell when a connection ends: the first call after that
//! has an unknown outcome, the next goes over a new connection.
//!
//! # Bringing your own client
//! | what | constructor | push | independent renewal | finds its way back from |
//! |---|---|---|---|---|
//! | URL | [`connect`](RedisBackend::connect) | yes | yes | restart, cut, silence |
//! | `redis::Client` | [`from_client`](RedisBackend::from_client) | yes | yes | restart, cut, silence |
//! | `ConnectionManager` | [`from_connection`](RedisBackend::from_connection) | no | no | restart, cut |
//! | `MultiplexedConnection` | [`from_connection`](RedisBackend::from_connection) | no | no | nothing: it never reconnects |
//! | other `ConnectionLike + Clone` | [`from_connection`](RedisBackend::from_connection) | no | no | what it can do itself |
//!
//! Without push a waiter learns of its turn when it next polls, at most a second later. Without
//! independent renewal a program that blocks all threads of its runtime for longer than a lease
//! loses its locks.
//!
//! Set such a connection up so:
//! - `ConnectionManagerConfig::set_number_of_retries(0)`: otherwise it is out of use for up to
//!   10 s after the server is back. Calls are bounded in any case.
//! - No response timeout below the call timeout (the default of the library is half of it):
//!   an answer that is not waited for is an unknown outcome.
//! - It must not be blocked by other commands (`BLPOP`, `WAIT`, `MULTI` over a slow network):
//!   renewals go over it too.
//! - It must lead to one server and not to a replica. A library that sends again what it has sent
//!   is safe: every command has one effect, however often it arrives.
//!
//! # Errors
//! | what happened | [`BackendError`](leasehold_api::BackendError) |
//! |---|---|
//! | no connection within its time, or refused; `READONLY`, `LOADING`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN`, `BUSY`, `OOM`, `NOREPLICAS`, `MISCONF` | `Unavailable`: not executed |
//! | connection broken or silent after the command was sent, no answer in time, an answer that makes no sense | `OutcomeUnknown` |
//! | `NOAUTH`, `WRONGPASS`, `NOPERM` (the text names the missing command, key or channel pattern), other `ERR`, a server older than 6.2, or one that is part of a cluster | `Rejected` |
//! | another program's value under the key | `ForeignValue`: untouched |
//! | after [`close`](leasehold_api::LockBackend::close), or when the runtime is gone that it was made in | `Closed` |
//!
//! # Rights on the server
//! A user that may do what is needed, and nothing else:
//!
//! ```text
//! ACL SETUSER locks on >secret resetkeys ~leasehold:* resetchannels &leasehold:*
//!     -@all +@connection -@dangerous +info +time +evalsha +eval +subscribe +publish
//!     +type +get +mget +set +hget +hmget +hgetall +hlen +hscan +hset +hdel +pexpireat +unlink
//! ```

mod backend;
mod connection;
mod error;

pub use backend::RedisBackend;
pub use leasehold_redis_common::connection::ConnectError;
pub use leasehold_redis_common::{Options, RespVersion};
