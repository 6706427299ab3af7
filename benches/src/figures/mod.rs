//! The measurements. Each one runs on one client library and returns figures. The report runs all
//! of them in several rounds.

mod distinct_keys;
pub(crate) mod hand_over;
mod held;
pub(crate) mod measurement;
#[cfg(feature = "peers")]
pub mod peers;
#[cfg(feature = "postgres")]
mod postgres;
mod sequential;
#[cfg(feature = "stores")]
mod stores;

pub use measurement::Effort;
pub(crate) use measurement::{Fixture, Measurement, Often, Reading, median};

macro_rules! measurement {
    ($name:literal, $often:ident, $run:path) => {
        Measurement {
            name: $name,
            often: Often::$often,
            run: |fixture| Box::pin($run(fixture)),
        }
    };
}

pub(crate) const ALL: &[Measurement] = &[
    measurement!("sequential", EachLibrary, sequential::measure),
    measurement!("distinct_keys", EachLibrary, distinct_keys::measure),
    measurement!("threads", EachLibrary, distinct_keys::measure_threads),
    measurement!("hand_over", EachLibrary, hand_over::measure),
    measurement!("zero_hold", EachLibrary, hand_over::measure_rates),
    measurement!("drain", EachLibrary, hand_over::measure_drains),
    measurement!("held", EachLibrary, held::measure),
    measurement!("leases", IfNamed, held::measure_leases),
    #[cfg(feature = "postgres")]
    measurement!("postgres", Once, postgres::measure),
    #[cfg(feature = "stores")]
    measurement!("stores", Once, stores::measure),
    #[cfg(feature = "peers")]
    measurement!("peer", Once, peers::measure),
];
