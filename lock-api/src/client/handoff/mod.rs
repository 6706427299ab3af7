//! Hand-offs: passing a hold to another function, client or process without releasing it.

pub(crate) mod kind;
pub(crate) mod text;
pub(crate) mod transfer;
