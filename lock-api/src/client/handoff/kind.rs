//! Which kinds of guard can be handed off.

use crate::client::guard::kind::{Exclusive, Read, Write};

/// Kinds of guard that can be [handed off](crate::Guard::into_handoff): all but permits.
///
/// The holds of a semaphore do not nest, and nesting is what makes sure that a hand-off is
/// adopted once.
pub trait Transferable: sealed::Transferable {}
impl Transferable for Exclusive {}
impl Transferable for Read {}
impl Transferable for Write {}

mod sealed {
    use crate::client::guard::kind::{Exclusive, Read, Write};
    use crate::request::{Kind, Mode};

    pub trait Transferable {
        const KIND: Kind;
        const MODE: Mode;
    }

    impl Transferable for Exclusive {
        const KIND: Kind = Kind::Mutex;
        const MODE: Mode = Mode::Exclusive;
    }

    impl Transferable for Read {
        const KIND: Kind = Kind::RwLock;
        const MODE: Mode = Mode::Shared;
    }

    impl Transferable for Write {
        const KIND: Kind = Kind::RwLock;
        const MODE: Mode = Mode::Exclusive;
    }
}
