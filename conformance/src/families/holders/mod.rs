//! Who holds a key, with which token.

mod conversion;
mod exclusion;
mod forced;
mod ownership;
mod readers_writers;
mod reentrancy;
mod semaphores;
mod tokens;

use crate::case::Case;

pub(super) const FAMILIES: &[&[Case]] = &[
    exclusion::CASES,
    ownership::CASES,
    reentrancy::CASES,
    readers_writers::CASES,
    conversion::CASES,
    semaphores::CASES,
    tokens::CASES,
    forced::CASES,
];
