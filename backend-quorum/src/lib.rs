//! A lock backend over several independent servers. A majority of them grants a lock, so the lock
//! survives the failure of a minority.
//!
//! A server is any other [`LockBackend`](leasehold_api::LockBackend), and you can mix them.
//!
//! The algorithm is [Redlock] with three differences, after its [critique]: partial grants are always
//! taken back, guards have fencing tokens that only grow, and a client that notices the restart of a
//! server waits.
//!
//! [Redlock]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
//! [critique]: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
//!
//! ```
//! use leasehold_api::LockClient;
//! use leasehold_quorum::Quorum;
//! use leasehold_sim::SimServer;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let servers = [SimServer::new(1), SimServer::new(2), SimServer::new(3)];
//! let quorum = Quorum::new(servers.iter().map(|server| server.client("a")))?;
//! let locks = LockClient::new(quorum);
//!
//! servers[1].stop(); // the lock doesn't need this server
//! let guard = locks.mutex("invoice:42")?.lock().await?;
//! let token = guard.fencing_token(); // claim the row with it, before you read
//! println!("UPDATE … SET fence = {token} WHERE … AND fence <= {token} RETURNING …");
//! guard.release().await?;
//! # locks.shutdown().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//! Use it if the failure of one server must not stop your locks, and you want no failover: a failover
//! may lose grants, and a quorum of servers that keep their data does not. It costs a call to each
//! server, and gives up much of what a single server offers:
//!
//! - Only mutexes. Reader/writer locks, semaphores, reentrant handles, conversions,
//!   inspections, listings and forced releases are missing. The client refuses them before any I/O.
//! - No queue and no push. A waiter tries again after a random pause of up to 200 ms, so there is no
//!   order among waiters. If several clients try at the same moment, each may get the votes of a few
//!   servers, and nobody a majority.
//!
//! It doesn't make a lock safe against everything. A process that is paused for longer than its lease
//! still wakes up and writes. No number of servers prevents that; a
//! [fencing token](leasehold_api::Guard::fencing_token) does.
//!
//! # How it works
//! Each command goes to all servers at the same time, as the same operation. The call returns as soon
//! as the outcome is certain; what the other servers answer later changes nothing. So a dead or frozen
//! minority costs no time.
//!
//! - **Acquire.** The lock is granted if a majority grants it with the same fencing token. Otherwise
//!   the operation is released on each server that may have granted it. The call waits for the servers
//!   that did; the others get the release in the background, until they answer it or nothing of the
//!   operation can be left. The client tries again with another operation, so a late release ends no
//!   later grant. This is decided once for each operation, however many calls ask for it.
//! - **Renew.** The lock is renewed if a majority renews it, and lost if a majority has lost it. In
//!   between, the client tries again until its deadline. A server that lacks the lock gets it after the
//!   renewal, with the token that the guard has, or a higher one that counts as the same. So a lock that is held
//!   for long survives one server after another losing it, if there is a renewal in between.
//! - **Release.** All servers get it, now or in the background.
//!
//! # Time
//! The clocks of the servers are never compared with each other. A reply carries the local time when
//! its call was made, and the remaining time that a majority of servers grants at least. The client
//! subtracts the drift allowance, so a guard is valid for lease − elapsed − drift. The clock of each
//! server is assumed to run at the rate of the local clock, within 1 % and 10 ms.
//!
//! A server whose clock jumps forward forgets its locks. That doesn't matter if a majority of the others has
//! them. But if a lock is held at a bare majority, because a message was lost or a server was down, one such
//! server is enough for a second holder. The first renewal after the trouble ends this state; a lock with a
//! [`fixed_lease`](leasehold_api::Mutex::fixed_lease) stays in it.
//!
//! Fencing tokens are the exception. They are taken from the clocks in microseconds. The clocks may differ
//! by at most
//!
//! - a day: a server refuses a token floor that is further ahead;
//! - ten minutes, if a key may be unused for that long: a server then forgets its last token;
//! - [`max_lease`](Quorum::max_lease), if a server may lose its data.
//!
//! # Restarts
//! A server that restarts without its data forgets whom it has granted locks to. With another server's
//! vote, it could grant one of them again, while the guard of the first holder is still valid. **So it
//! must not serve before the last of these leases has ended.** There are two ways:
//!
//! - The server keeps its data. For Redis: `appendonly yes`, `appendfsync always` and `no-appendfsync-on-rewrite no`.
//! - The server stays down for [`max_lease`](Quorum::max_lease), 1 % of it and 10 ms, and 10 s (the delivery
//!   window). With the defaults, that is 40.31 s.
//!
//! A client that knew the server notices the restart by the [id of its
//! clock](leasehold_api::ClockId). For as long, it doesn't count the server's grants, because it can't tell
//! whether data was lost. Errors say which servers don't count, and for how long. This doesn't replace the
//! delay: a client that starts after the restart cannot notice it. If all servers keep their data, say so with
//! [`restarts_keep_data`](Quorum::restarts_keep_data): they may then restart one after the other.
//!
//! The ids also show if two backends have reached the same server, once both have answered. Acquires are then rejected,
//! and a vote of that server counts once. An id below 65,536 is taken for a constant that names no server.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod ballot;
mod fates;
mod floors;
mod repair;
mod server;
mod votes;

pub use backend::Quorum;
