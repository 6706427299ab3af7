//! What a key may be, what it shows, and what it remembers.

mod foreign;
mod inspection;
mod limits;
mod listing;
mod names;
mod notes;

use crate::case::Case;

pub(super) const FAMILIES: &[&[Case]] = &[
    names::CASES,
    foreign::CASES,
    limits::CASES,
    inspection::CASES,
    listing::CASES,
    notes::CASES,
];
