//! The measurements. Each one runs on one client library and returns figures. The report runs all
//! of them in several rounds.

mod cost;
mod distinct_keys;
mod free_lock;
pub(crate) mod hand_over;
pub mod held;
pub mod idle;
pub(crate) mod measurement;
mod parked;
mod postgres;
mod rw;
mod semaphore;
mod sequential;
mod server_cpu;
pub(crate) mod sim;
pub(crate) mod steady;
mod topology;

pub use measurement::{Effort, Fixture, Goal, Measurement, Often, Reading, Transport, median};

macro_rules! measurement {
    ($name:literal, $transport:ident, $often:ident, $run:path) => {
        Measurement {
            name: $name,
            transport: Transport::$transport,
            often: Often::$often,
            run: |fixture| Box::pin($run(fixture)),
        }
    };
}

/// All measurements.
pub const ALL: &[Measurement] = &[
    measurement!("sequential", Tcp, EachRound, sequential::measure),
    measurement!("sequential_unix", Unix, EachRound, sequential::measure_unix),
    measurement!("distinct_keys", Tcp, EachRound, distinct_keys::measure),
    measurement!(
        "distinct_keys_unix",
        Unix,
        EachRound,
        distinct_keys::measure_unix
    ),
    measurement!(
        "distinct_keys_threads",
        Tcp,
        EachRound,
        distinct_keys::measure_threads
    ),
    measurement!("free_lock", Tcp, EachRound, free_lock::measure),
    measurement!("server_cpu", Tcp, EachRound, server_cpu::measure),
    measurement!("client", Tcp, EachRound, cost::measure),
    measurement!("hand_over", Tcp, EachRound, hand_over::measure),
    measurement!("zero_hold", Tcp, EachRound, hand_over::measure_rates),
    measurement!("drain", Tcp, EachRound, hand_over::measure_drains),
    measurement!("tasks", Tcp, EachRound, hand_over::measure_tasks),
    measurement!("steady", Tcp, EachRound, steady::measure),
    measurement!("rw_many_readers", Tcp, EachRound, rw::measure_many_readers),
    measurement!("rw_mixed", Tcp, EachRound, rw::measure_mixed),
    measurement!("semaphore", Tcp, EachRound, semaphore::measure),
    measurement!("held", Tcp, Once, held::measure_few),
    measurement!("held.100000", Tcp, EachRound, held::measure_many),
    measurement!("parked", Tcp, Once, parked::measure),
    measurement!("idle", Tcp, EachRound, idle::measure),
    measurement!("topology", Tcp, EachRound, topology::measure),
    measurement!("sim", Tcp, WithoutLibrary, sim::measure),
    measurement!("postgres", Tcp, WithoutLibrary, postgres::measure),
    #[cfg(feature = "peers")]
    measurement!("peer", Tcp, WithoutLibrary, crate::peers::measure),
];
