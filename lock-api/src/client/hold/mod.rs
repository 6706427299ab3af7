//! The client's record of an acquisition. Every guard wraps one.

mod note;
mod one;
mod several;

pub(crate) use note::OnRefusal;
pub(crate) use one::{Hold, ReleaseOnDrop, run_until_lost};
pub(crate) use several::{check_all, first_expiring, first_lost, release_all, renew_all};
