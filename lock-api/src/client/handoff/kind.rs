//! The kinds of guard that can be handed off.

use crate::client::guard::guard_kind::{Exclusive, Read, Write};

/// A kind of guard that can be [handed off](crate::Guard::into_handoff): every kind except permits.
///
/// A hand-off needs a nested hold to make sure that it is adopted only once. The holds of a
/// semaphore don't nest.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, Guard, guard_kind};
/// async fn secret_of<K: guard_kind::Transferable>(guard: Guard<K>) -> Result<String, Error> {
///     Ok(guard.into_handoff().await?.to_secret_text())
/// }
/// ```
pub trait Transferable: sealed::Transferable {}
impl Transferable for Exclusive {}
impl Transferable for Read {}
impl Transferable for Write {}

mod sealed {
    use crate::client::guard::guard_kind::{Exclusive, Read, Write};
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
