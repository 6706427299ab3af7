//! The families of cases, one file each.

mod batches;
mod client_batching;
mod client_cancel;
mod client_care;
mod client_handoff;
mod client_jobs;
mod client_locks;
mod client_many;
mod client_push;
mod client_renewal;
mod client_sharing;
mod client_waiting;
mod closing;
mod conversion;
mod exclusion;
mod expiry;
mod forced;
mod foreign;
mod inspection;
mod limits;
mod listing;
mod long_spans;
mod names;
mod notes;
mod notifications;
mod offers;
mod outages;
mod ownership;
mod readers_writers;
mod redelivery;
mod redelivery_queue;
mod reentrancy;
mod semaphores;
mod stalls;
mod starvation;
mod tokens;
mod unreachable;
mod waiting;

use crate::case::Case;

const FAMILIES: &[&[Case]] = &[
    exclusion::CASES,
    expiry::CASES,
    ownership::CASES,
    redelivery::CASES,
    redelivery_queue::CASES,
    stalls::CASES,
    closing::CASES,
    outages::CASES,
    waiting::CASES,
    offers::CASES,
    reentrancy::CASES,
    readers_writers::CASES,
    conversion::CASES,
    starvation::CASES,
    semaphores::CASES,
    tokens::CASES,
    names::CASES,
    foreign::CASES,
    limits::CASES,
    inspection::CASES,
    listing::CASES,
    forced::CASES,
    notes::CASES,
    notifications::CASES,
    unreachable::CASES,
    batches::CASES,
    long_spans::CASES,
    client_locks::CASES,
    client_waiting::CASES,
    client_renewal::CASES,
    client_sharing::CASES,
    client_care::CASES,
    client_push::CASES,
    client_cancel::CASES,
    client_batching::CASES,
    client_many::CASES,
    client_handoff::CASES,
    client_jobs::CASES,
];

/// Iterates over every case of the suite.
pub fn all() -> impl Iterator<Item = &'static Case> {
    FAMILIES.iter().copied().flatten()
}
