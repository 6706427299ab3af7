//! Who waits, in which order, and how they hear of their turn.

pub(super) mod notifications;
mod offers;
mod starvation;
mod waiting;

use crate::case::Case;

pub(super) const FAMILIES: &[&[Case]] = &[
    waiting::CASES,
    offers::CASES,
    starvation::CASES,
    notifications::CASES,
];
