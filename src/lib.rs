//! Distributed locks over Redis.

pub use leasehold_api as api;

/// The pages under `docs/` and the README: their code blocks compile and run.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../docs/backend-author.md")]
    mod backend_author {}
}
