//! The families of cases, a file each.

mod exclusion;
mod expiry;

use crate::case::Case;

const FAMILIES: &[&[Case]] = &[exclusion::CASES, expiry::CASES];

/// Every case of the suite.
pub fn all() -> impl Iterator<Item = &'static Case> {
    FAMILIES.iter().copied().flatten()
}
