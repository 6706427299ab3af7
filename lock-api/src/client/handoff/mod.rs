//! Passing a hold to another function, client or process without letting it go.

pub(crate) mod kind;
pub(crate) mod text;
pub(crate) mod transfer;
