//! The families of cases, one file each, in folders by what they promise.

mod client;
mod delivery;
mod holders;
mod keys;
mod leases;
mod queue;

use crate::case::Case;

const FAMILIES: &[&[&[Case]]] = &[
    holders::FAMILIES,
    leases::FAMILIES,
    queue::FAMILIES,
    delivery::FAMILIES,
    keys::FAMILIES,
    client::FAMILIES,
];

/// Iterates over every case of the suite.
pub fn all() -> impl Iterator<Item = &'static Case> {
    FAMILIES.iter().copied().flatten().copied().flatten()
}
