//! A simulated lock server in memory and in virtual time, for tests of programs that take locks.
//!
//! A [`SimServer`] runs the state machine that the Redis scripts are a port of. Its clients are
//! [`SimBackend`]s. Give one to a lock client, as you would give it a connection to Redis, and keep
//! a clone to inject faults. Time is virtual: hours pass in microseconds, and a test can assert
//! every time exactly.
//!
//! ```
//! use std::time::Duration;
//!
//! use leasehold_api::{Error, LockClient};
//! use leasehold_sim::SimServer;
//!
//! /// The code under test. Two workers must never write the same report.
//! async fn worker(locks: &LockClient, reports: &std::sync::Mutex<Vec<u64>>) -> Result<(), Error> {
//!     let guard = locks.mutex("report")?.lock().await?;
//!     tokio::time::sleep(Duration::from_secs(20)).await; // the work
//!     if guard.is_valid() { // a pause may follow: a real write is fenced too
//!         reports.lock().unwrap().push(guard.fencing_token().get());
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
//!     // `run` also stops the worker's own code while its machine is paused.
//!     let (first, second, ()) =
//!         tokio::join!(machine.run(worker(&a, &reports)), worker(&b, &reports), hang);
//!
//!     assert!(matches!(first, Err(Error::Lost { .. }))); // it is told so, and wrote no report
//!     second.expect("no error");
//!     assert_eq!(reports.lock().unwrap().len(), 1);
//!     server.assert_idle();
//! }
//! ```
//!
//! To run a scenario thousands of times, with other faults and another order of events each time,
//! use an [`Exploration`].
//!
//! # Faults
//! | fault | method |
//! |---|---|
//! | a client is paused | [`pause`](SimBackend::pause), [`resume`](SimBackend::resume), [`run`](SimBackend::run) |
//! | a client dies | [`kill`](SimBackend::kill) |
//! | one message is lost, delayed or duplicated | [`inject`](SimBackend::inject), [`inject_into`](SimBackend::inject_into) with a [`Fault`] |
//! | a connection breaks | [`drop_connection`](SimBackend::drop_connection) |
//! | all messages are lost without an error | [`isolate`](SimBackend::isolate), [`rejoin`](SimBackend::rejoin) |
//! | the server refuses a client, as with a wrong password | [`deny`](SimBackend::deny), [`admit`](SimBackend::admit) |
//! | a client's clock runs fast or slow, or jumps | [`set_clock_rate`](SimBackend::set_clock_rate), [`jump_clock`](SimBackend::jump_clock) |
//! | pushes and replies overtake each other | [`set_unordered_pushes`](SimBackend::set_unordered_pushes) |
//! | messages are slow | [`SimOptions::latency`], [`set_latency`](SimBackend::set_latency) |
//! | the server is down, or restarts, with or without its data | [`stop`](SimServer::stop), [`start`](SimServer::start), [`restart`](SimServer::restart) |
//! | the server answers, but refuses every call, as while it loads its data | [`begin_loading`](SimServer::begin_loading), [`end_loading`](SimServer::end_loading) |
//! | a restart loses the latest writes | [`restart`](SimServer::restart) with [`Data::AllBut`] |
//! | a replica that lags becomes the primary | [`fail_over`](SimServer::fail_over) |
//! | a replica with all data becomes the primary, relays messages, has another clock | [`switch_over`](SimServer::switch_over), [`follow_primary`](SimBackend::follow_primary), [`set_replication_lag`](SimServer::set_replication_lag) |
//! | a client is led to a replica that lags | [`cut_off_replica`](SimServer::cut_off_replica), [`visit_replica`](SimBackend::visit_replica), [`leave_replica`](SimBackend::leave_replica) |
//! | there are two primaries for a while | [`split`](SimServer::split), [`heal`](SimServer::heal) |
//! | the server's clock is stepped | [`step_clock_forward`](SimServer::step_clock_forward), [`step_clock_back`](SimServer::step_clock_back) |
//! | the server publishes, but doesn't know its subscribers | [`refuse_count`](SimServer::refuse_count), [`allow_count`](SimServer::allow_count) |
//! | the server publishes nothing, and doesn't know its subscribers | [`refuse_publish`](SimServer::refuse_publish), [`allow_publish`](SimServer::allow_publish) |
//! | another program writes or deletes a key | [`plant_foreign`](SimServer::plant_foreign), [`remove_key`](SimServer::remove_key) |
//!
//! Try [`Fault::LoseReply`] of an acquire first: the client holds the lock and doesn't know it.
//!
//! # Assertions
//! - No key has a holder or a waiter: [`assert_idle`](SimServer::assert_idle).
//! - The injected fault happened: [`pending_faults`](SimBackend::pending_faults) is 0.
//! - The time: [`elapsed`](SimServer::elapsed). [`advance`](SimServer::advance) moves it, and so
//!   does every future that the test awaits.
//! - The events: [`timeline`](SimServer::timeline) returns the run as text, [`log`](SimServer::log)
//!   as data.
//!
//! # How it works
//! Messages and timers are events in one queue, ordered by virtual time. If several events are due
//! or several tasks are ready at the same instant, a [`Tape`](tools::Tape) of choices decides which goes first.
//! A seed generates the tape, and a tape repeats the run. There are two drivers: [`SimServer::new`]
//! runs inside a tokio test, and [`Simulation`] has its own executor. The server is a pure function
//! of its log: [`replay`](tools::replay) executes a log again and compares the answers.
//!
//! # Limits
//! - [`SimServer::new`] needs a tokio runtime with a paused clock, as in
//!   `#[tokio::test(start_paused = true)]`. It panics in any other.
//! - [`pause`](SimBackend::pause) stops the lock client's calls and background tasks. It stops your
//!   own code only inside [`run`](SimBackend::run).
//! - The server evicts nothing by itself: use [`remove_key`](SimServer::remove_key).

// The folders, from top to bottom. Each imports only folders below it; `.ci/layers` checks that.
//
// explore     many runs of a scenario, and shrinking a failing one
// simulation  one run of a scenario, and the determinism check
// handle      the public handles: the server, its clients, tasks
// driver      the lock around a simulation, its clock, and the two drivers
// history     a run as text, as a page
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

pub use explore::{Exploration, Explored, FailedRun, FaultMix, Verdict};
pub use handle::{JoinHandle, SimBackend, SimServer};
pub use network::options::{Latency, SimOptions};
pub use record::{Call, Data, Fault, Reads, Tail};
pub use simulation::{Ending, RunReport, Simulation, assert_deterministic};

/// What a tool needs that records, checks, repeats or shrinks runs. A test of a program needs none of it.
pub mod tools {
    pub use crate::engine::choices::{Divergence, Scheduling};
    pub use crate::engine::tape::{Draw, Site, Tape, TapeError};
    pub use crate::explore::shrink::{SHRINK_RUNS, Shrunk, StepsAllowed, shrink};
    pub use crate::history::History;
    pub use crate::network::observer::{Execution, Observer};
    pub use crate::record::{
        ClientEvent, Content, Entry, Event, Fate, Message, ServerAnswer, ServerEvent,
    };
    pub use crate::server::replay;
}
