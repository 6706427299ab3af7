//! What the client promises through the backend.

mod client_batching;
mod client_cancel;
mod client_care;
mod client_jobs;
mod client_locks;
mod client_many;
mod client_push;
mod client_renewal;
mod client_sharing;
mod client_waiting;

use crate::case::Case;

pub(super) const FAMILIES: &[&[Case]] = &[
    client_locks::CASES,
    client_waiting::CASES,
    client_renewal::CASES,
    client_sharing::CASES,
    client_care::CASES,
    client_push::CASES,
    client_cancel::CASES,
    client_batching::CASES,
    client_many::CASES,
    client_jobs::CASES,
];
