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
//! [`Options`], given to [`FredBackend::connect_with`] and the other constructors:
//!
//! | setting | default | |
//! |---|---|---|
//! | [`with_key_prefix`](Options::with_key_prefix) | `leasehold:` | of all keys and channels; the same for all who share locks |
//! | [`with_call_timeout`](Options::with_call_timeout) | 1 s | longest single call, connecting included |
//! | [`with_connect_timeout`](Options::with_connect_timeout) | 500 ms | longest attempt to connect, checks included |
//! | [`with_resp`](Options::with_resp) | RESP3 | what the connections speak that the backend opens |
//!
//! # Connections
//! Made from a URL or a `Builder`, a backend opens a connection for commands, one for renewals
//! (driven by a thread of its own, so that a program that blocks its runtime keeps its locks),
//! and one for each session that listens. Each is a client of its own that has no reconnect
//! policy, and speaks RESP3 unless the options say RESP2. The first is opened when it is first
//! needed, that for renewals when the first lock is taken. They are replaced when they break:
//! when the server closes them at once, and when they go silent as soon as another one works. No
//! call is ever sent twice by the backend, save with `EVAL` after the server has said that it
//! does not know the script.
//!
//! Where the server says that it has become a replica, its connections are left for new ones
//! under the same name: that is all there is for a failover behind one name.
//!
//! Nothing of a backend works in a forked child: make another there, on a runtime of the child's.
//!
//! # Bringing your own client
//! | what | constructor | push | independent renewal | finds its way back from |
//! |---|---|---|---|---|
//! | URL | [`connect`](FredBackend::connect) | yes | yes | restart, cut, silence |
//! | `Builder`, `Config` | [`from_builder`](FredBackend::from_builder) | yes | yes | restart, cut, silence |
//! | `Client`, initialised | [`from_client`](FredBackend::from_client) | no | no | restart, cut, silence, if it has a reconnect policy |
//! | `Pool`, initialised | [`from_pool`](FredBackend::from_pool) | no | no | the same |
//!
//! Without push a waiter learns of its turn when it next polls, at most a second later. Without
//! independent renewal a program that blocks all threads of its runtime for longer than a lease
//! loses its locks.
//!
//! Set such a client up so:
//! - A reconnect policy without an end and with short pauses (`new_constant(0, 50)`): it decides
//!   how soon locks work again after the server does. Without a policy the client never does.
//!   A connection that is silent for the time of a call is given up by `force_reconnection`.
//! - Attempts and timeouts need no setting: each command here is sent with one attempt, fails at
//!   once while there is no connection, and has a timeout of its own. `max_command_attempts = 1`
//!   for the rest is still a good idea.
//! - It must not be blocked by other commands (`BLPOP`, `WAIT`): renewals go over it too.
//! - It must lead to one server, and not to a replica. Clustered clients are not supported.
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
//!     -@all +@connection -@dangerous +client|info +info +time +evalsha +eval +subscribe +publish
//!     +type +get +mget +set +hget +hmget +hgetall +hlen +hscan +hset +hdel +pexpireat +unlink
//! ```

mod backend;
mod connection;
mod error;

pub use backend::FredBackend;
pub use leasehold_redis_common::connection::ConnectError;
pub use leasehold_redis_common::{Options, RespVersion};
