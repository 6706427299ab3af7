//! Marks handles as plain or reentrant.

mod sealed {
    pub trait Sealed {}
}

/// Whether a handle is [`Plain`] or [`Reentrant`].
pub trait Ownership: sealed::Sealed {}

/// Each acquisition is an owner of its own.
#[derive(Clone, Copy, Debug)]
pub enum Plain {}

/// The handle and its clones are one owner, which may hold several times.
#[derive(Clone, Copy, Debug)]
pub enum Reentrant {}

impl sealed::Sealed for Plain {}
impl sealed::Sealed for Reentrant {}
impl Ownership for Plain {}
impl Ownership for Reentrant {}
