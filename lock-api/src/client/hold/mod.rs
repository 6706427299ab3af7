//! The client's record of an acquisition. Every guard wraps one.

#[cfg(feature = "tokio-util")]
mod cancellation;
mod note;
mod one;
mod several;

#[cfg(feature = "tokio-util")]
pub(crate) use cancellation::cancellation;
pub(crate) use note::{OnRefusal, Tag};
pub(crate) use one::{Hold, ReleaseOnDrop, run_until_lost};
pub(crate) use several::{check_all, first_expiring, first_lost, release_all, renew_all};
