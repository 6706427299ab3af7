//! What late, repeated and lost calls do.

mod batches;
mod outages;
mod redelivery;
mod redelivery_queue;
mod unreachable;

use crate::case::Case;

pub(super) const FAMILIES: &[&[Case]] = &[
    redelivery::CASES,
    redelivery_queue::CASES,
    outages::CASES,
    unreachable::CASES,
    batches::CASES,
];
