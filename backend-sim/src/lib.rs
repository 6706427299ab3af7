//! A lock server in memory and in virtual time, for the unit tests of programs that take locks.
//!
//! A [`SimServer`] runs the same state machine that the Redis scripts are a port of. Its clients
//! are [`SimBackend`]s: give one to a lock client, as you would give it a connection to Redis, and
//! keep a clone of it to make things go wrong. All time is tokio's paused clock: hours pass in
//! microseconds, and every time can be asserted exactly.
//!
//! ```
//! use std::time::Duration;
//!
//! use leasehold_api::{Error, LockClient};
//! use leasehold_sim::SimServer;
//!
//! /// The code under test: reports say who wrote them, and two must never be written at once.
//! async fn worker(locks: &LockClient, reports: &std::sync::Mutex<Vec<u64>>) -> Result<(), Error> {
//!     let guard = locks.mutex("report")?.lock().await?;
//!     tokio::time::sleep(Duration::from_secs(20)).await; // the work
//!     if guard.is_valid() {
//!         reports.lock().unwrap().push(guard.fencing_token()?.get());
//!     }
//!     guard.release().await?;
//!     Ok(())
//! }
//!
//! # /*
//! #[tokio::test(start_paused = true)]
//! # */
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() { a_worker_that_hangs_does_not_write().await }
//! async fn a_worker_that_hangs_does_not_write() {
//!     let server = SimServer::new(1);
//!     let machine = server.client("a");
//!     let (a, b) = (LockClient::new(machine.clone()), LockClient::new(server.client("b")));
//!     let reports = std::sync::Mutex::default();
//!
//!     let hang = async {
//!         server.advance(Duration::from_secs(5)).await;
//!         machine.pause(); // a long garbage collection, a closed lid, a debugger
//!         server.advance(Duration::from_secs(60)).await;
//!         machine.resume();
//!     };
//!     // `run` makes the whole worker code of that machine, so that it stands still with it.
//!     let (first, second, ()) =
//!         tokio::join!(machine.run(worker(&a, &reports)), worker(&b, &reports), hang);
//!
//!     first.expect("no failure, but no report either");
//!     second.expect("no failure");
//!     assert_eq!(reports.lock().unwrap().len(), 1);
//!     server.assert_idle();
//! }
//! ```
//!
//! # What can go wrong
//! | | how |
//! |---|---|
//! | a client stands still, then goes on | [`pause`](SimBackend::pause), [`resume`](SimBackend::resume), [`run`](SimBackend::run) |
//! | a client dies | [`kill`](SimBackend::kill) |
//! | one message is lost, late or doubled | [`inject`](SimBackend::inject), [`inject_into`](SimBackend::inject_into) with a [`Fault`] |
//! | a connection breaks | [`drop_connection`](SimBackend::drop_connection) |
//! | nothing gets through, and nobody says so | [`isolate`](SimBackend::isolate), [`rejoin`](SimBackend::rejoin) |
//! | a client's clock runs fast or slow, or jumps | [`set_clock_rate`](SimBackend::set_clock_rate), [`jump_clock`](SimBackend::jump_clock) |
//! | pushes and replies swap places | [`set_unordered_pushes`](SimBackend::set_unordered_pushes) |
//! | messages are slow | [`SimOptions::with_latency`], [`set_latency`](SimBackend::set_latency) |
//! | the server is down, or restarts, with or without its data | [`stop`](SimServer::stop), [`start`](SimServer::start), [`restart`](SimServer::restart) |
//! | a restart loses what was written last | [`restart`](SimServer::restart) with [`Data::AllBut`] |
//! | a replica that lags becomes primary | [`fail_over`](SimServer::fail_over) |
//! | there are two primaries for a while | [`split`](SimServer::split), [`heal`](SimServer::heal) |
//! | the server's clock is stepped | [`step_clock_forward`](SimServer::step_clock_forward), [`step_clock_back`](SimServer::step_clock_back) |
//! | the server publishes nothing, and cannot tell who listens | [`refuse_publish`](SimServer::refuse_publish), [`allow_publish`](SimServer::allow_publish) |
//! | somebody else writes or deletes our key | [`plant_foreign`](SimServer::plant_foreign), [`remove_key`](SimServer::remove_key) |
//!
//! The fault to try first is [`Fault::LoseReply`] of an acquire: the lock *is* taken, and the
//! client does not know.
//!
//! # What can be asserted
//! - Nothing is held or waited for: [`assert_idle`](SimServer::assert_idle).
//! - The fault did happen: [`pending_faults`](SimBackend::pending_faults) is 0.
//! - When: [`elapsed`](SimServer::elapsed). Time is moved by [`advance`](SimServer::advance), or
//!   by whatever the test awaits.
//! - What: [`timeline`](SimServer::timeline) is the whole run as text, [`log`](SimServer::log) as
//!   data.
//!
//! # How it works
//! Every message and timer is an entry of one queue, ordered by virtual time. What comes next of
//! all that is due at the same instant, and which task runs, is drawn from one [`Tape`] of choices;
//! a seed makes the tape, and a tape repeats the run. There are two drivers: [`SimServer::new`]
//! runs inside a tokio test, [`Simulation`] on an executor of its own. The server is a pure
//! function of its log: [`replay`] executes a log again and compares every answer.
//!
//! # Its limits
//! - Only a runtime with a paused clock will do: `#[tokio::test(start_paused = true)]`.
//!   [`SimServer::new`] panics in any other.
//! - Code of your own that runs outside of [`run`](SimBackend::run) does not stand still with its
//!   client; what it awaits of the lock client does.
//! - The server forgets only what it is told to forget.

// Each folder imports only folders above it in this list; `.ci/layers` checks that.
// The folders, from top to bottom; each imports only folders below it, which `.ci/layers` checks.
//
// explore     many runs of a scenario, and making a failing one simpler
// simulation  one run of a scenario, and the determinism check
// handle      what users hold: the server, its clients, tasks
// driver      the lock around a simulation, its clock, and the two drivers
// history     a run as text, as a page, for Perfetto
// network     clients, connections, calls, and their faults
// server      the server's data, clocks and restarts
// engine      choices from a tape, the event queue, the ready queue of tasks
// record      plain data: events, messages, faults, the log
mod driver;
mod engine;
mod explore;
mod handle;
mod history;
mod network;
mod record;
mod server;
mod simulation;

pub use engine::choices::{Divergence, Scheduling};
pub use engine::tape::{Draw, Site, Tape, TapeError};
pub use explore::shrink::{SHRINK_RUNS, Shrunk, StepsAllowed, shrink};
pub use explore::{Exploration, Failure, FaultMix, Verdict};
pub use handle::{JoinHandle, SimBackend, SimServer};
pub use history::History;
pub use network::observer::{Execution, Observer};
pub use network::options::{Latency, SimOptions};
pub use record::{
    Answer, Call, ClientEvent, Content, Data, Entry, Event, Fate, Fault, Message, ServerEvent, Tail,
};
pub use server::replay;
pub use simulation::{Ending, RunReport, Simulation, assert_deterministic};
