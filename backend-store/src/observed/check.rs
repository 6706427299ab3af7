//! Checks a store without a clock for what the callers of its backend can't see.

use leasehold_api::BackendError;

use crate::store::Tag;
use crate::tag_store::{Put, TagStore};

/// Checks that a store compares tags, and changes them with each write.
///
/// The name must have no object. It has one afterwards.
pub(super) async fn check_objects(store: &impl TagStore, name: &str) -> Result<(), BackendError> {
    if store.read(name).await?.is_some() {
        return wrong("the check needs a name without an object");
    }
    let Some(first) = write(store, name, None, b"first").await? else {
        return wrong("a write that creates an object must be applied");
    };
    if write(store, name, None, b"again").await?.is_some() {
        return wrong("a write must not create an object that exists");
    }
    let missing = format!("{name}, missing");
    if write(store, &missing, Some(&first), b"missing")
        .await?
        .is_some()
    {
        return wrong("a write must not replace an object that doesn't exist");
    }
    let Some(second) = write(store, name, Some(&first), b"second").await? else {
        return wrong("a write to an object with the expected tag must be applied");
    };
    if write(store, name, Some(&first), b"stale").await?.is_some() {
        return wrong("a write must not replace an object that has changed");
    }
    match store.read(name).await? {
        Some(found) if found.bytes == b"second" && found.tag == second && second != first => Ok(()),
        found => wrong(&format!(
            "the second write, {second:?}, must be read, not {found:?}"
        )),
    }
}

async fn write(
    store: &impl TagStore,
    name: &str,
    expected: Option<&Tag>,
    bytes: &[u8],
) -> Result<Option<Tag>, BackendError> {
    store.write(Put::new(name, expected, bytes)).await
}

fn wrong(what: &str) -> Result<(), BackendError> {
    Err(BackendError::rejected(what))
}
