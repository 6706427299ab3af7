//! The mutants of this build. The copy that `.ci/plant` makes has another file in this place.

/// The mutants that this build contains, and that need no threads: their names, and the rules that they break.
pub(crate) fn mutants() -> impl Iterator<Item = (&'static str, &'static str)> {
    std::iter::empty()
}

/// Plants this mutant, or none. Returns whether this build contains it.
pub(crate) const fn plant(mutant: Option<&str>) -> bool {
    mutant.is_none()
}
