//! The families of cases, a file each.

mod claims;
mod exclusion;
mod expiry;
mod ownership;
mod redelivery;
mod redelivery_queue;
mod reentrancy;
mod waiting;

use crate::case::Case;

const FAMILIES: &[&[Case]] = &[
    exclusion::CASES,
    expiry::CASES,
    ownership::CASES,
    redelivery::CASES,
    redelivery_queue::CASES,
    waiting::CASES,
    claims::CASES,
    reentrancy::CASES,
];

/// Every case of the suite.
pub fn all() -> impl Iterator<Item = &'static Case> {
    FAMILIES.iter().copied().flatten()
}
