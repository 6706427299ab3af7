//! A backend that sends each acquire and each release in its own call.

use leasehold_api::{Capabilities, LockBackend, forward_lock_backend};

/// Hides that the wrapped backend accepts batches.
#[derive(Debug)]
pub(crate) struct Single<B>(pub(crate) B);

#[deny(clippy::missing_trait_methods)]
impl<B: LockBackend> LockBackend for Single<B> {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.batches = false;
        capabilities
    }
    forward_lock_backend! {
        |wrapper| wrapper.0;
        runtime hello clock read_clock listen acquire poll renew release convert inspect force_release list write_note close
    }
}
