//! The mutants of this build.

use leasehold_api::mutants;

/// The mutants that this build contains, and that need no threads: their names, and the rules that they break.
pub(crate) fn mutants() -> impl Iterator<Item = (&'static str, &'static str)> {
    mutants::all().filter(|(name, _)| !mutants::NEED_THREADS.contains(name))
}

/// Plants this mutant, or none. Returns whether this build contains it.
pub(crate) fn plant(mutant: Option<&str>) -> bool {
    mutants::clear();
    mutant.is_none_or(mutants::plant)
}
