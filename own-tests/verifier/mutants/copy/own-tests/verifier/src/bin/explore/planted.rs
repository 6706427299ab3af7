//! The mutants of this build.

use leasehold_api::mutants;

/// The names of the mutants that this build contains.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    mutants::all().map(|(name, _)| name)
}

/// Plants this mutant, or none. Returns whether this build contains it.
pub(crate) fn plant(mutant: Option<&str>) -> bool {
    mutants::clear();
    mutant.is_none_or(mutants::plant)
}
