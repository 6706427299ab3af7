//! How long a hold lasts.

mod closing;
mod expiry;
mod long_spans;
mod stalls;

use crate::case::Case;

pub(super) const FAMILIES: &[&[Case]] = &[
    expiry::CASES,
    stalls::CASES,
    long_spans::CASES,
    closing::CASES,
];
