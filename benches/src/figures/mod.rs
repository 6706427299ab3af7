//! The measurements. Each one runs on one client library and returns figures. The report runs all
//! of them in several rounds.

mod cost;
mod distinct_keys;
mod free_lock;
pub(crate) mod hand_over;
mod held;
pub mod idle;
pub(crate) mod measurement;
mod parked;
mod postgres;
mod rw;
mod semaphore;
mod sequential;
mod server_cpu;
pub mod sim;
pub(crate) mod steady;
mod topology;

pub use measurement::Effort;
pub(crate) use measurement::{Fixture, Goal, Measurement, Often, Reading, median};

macro_rules! measurement {
    ($name:literal, $often:ident, $run:path) => {
        Measurement {
            name: $name,
            often: Often::$often,
            run: |fixture| Box::pin($run(fixture)),
        }
    };
}

/// All measurements.
pub(crate) const ALL: &[Measurement] = &[
    measurement!("sequential", EachRound, sequential::measure),
    measurement!("sequential_unix", EachRound, sequential::measure_unix),
    measurement!("distinct_keys", EachRound, distinct_keys::measure),
    measurement!("distinct_keys_unix", EachRound, distinct_keys::measure_unix),
    measurement!(
        "distinct_keys_threads",
        EachRound,
        distinct_keys::measure_threads
    ),
    measurement!("free_lock", EachRound, free_lock::measure),
    measurement!("server_cpu", EachRound, server_cpu::measure),
    measurement!("client", EachRound, cost::measure),
    measurement!("hand_over", EachRound, hand_over::measure),
    measurement!("zero_hold", EachRound, hand_over::measure_rates),
    measurement!("drain", EachRound, hand_over::measure_drains),
    measurement!("tasks", EachRound, hand_over::measure_tasks),
    measurement!("steady", EachRound, steady::measure),
    measurement!("rw_many_readers", EachRound, rw::measure_many_readers),
    measurement!("rw_mixed", EachRound, rw::measure_mixed),
    measurement!("semaphore", EachRound, semaphore::measure),
    measurement!("held", Once, held::measure_few),
    measurement!("held.100000", EachRound, held::measure_many),
    measurement!("parked", Once, parked::measure),
    measurement!("idle", EachRound, idle::measure),
    measurement!("topology", EachRound, topology::measure),
    measurement!("sim", WithoutLibrary, sim::measure),
    measurement!("postgres", WithoutLibrary, postgres::measure),
    #[cfg(feature = "peers")]
    measurement!("peer", WithoutLibrary, crate::peers::measure),
];
