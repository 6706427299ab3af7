//! Which kinds of guard can be handed off.

use crate::client::guard::kind::{Exclusive, Read, Write};

/// Kinds of guard that can be [handed off](crate::Guard::into_handoff): all but permits.
///
/// The holds of a semaphore do not nest, and nesting is what makes sure that a hand-off is
/// adopted once.
pub trait Travels: sealed::Travels {}
impl Travels for Exclusive {}
impl Travels for Read {}
impl Travels for Write {}

mod sealed {
    use crate::client::guard::kind::{Exclusive, Read, Write};
    use crate::request::{Kind, Mode};

    pub trait Travels {
        const KIND: Kind;
        const MODE: Mode;
    }

    impl Travels for Exclusive {
        const KIND: Kind = Kind::Mutex;
        const MODE: Mode = Mode::Exclusive;
    }

    impl Travels for Read {
        const KIND: Kind = Kind::RwLock;
        const MODE: Mode = Mode::Shared;
    }

    impl Travels for Write {
        const KIND: Kind = Kind::RwLock;
        const MODE: Mode = Mode::Exclusive;
    }
}
