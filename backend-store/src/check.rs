//! A check of a store by itself.

use std::error::Error;
use std::time::Duration;

use leasehold_api::machine::State;
use leasehold_api::{Key, ServerTime};

use crate::store::{Store, Version, Write, Written};

const IN_TIME: Duration = Duration::from_secs(5);
const KEEP: Duration = Duration::from_secs(20);

/// Checks that a store compares the version and the deadline of a write. Use it in a test of your store,
/// beside the conformance suite.
///
/// The suite tests a backend. A backend sends a write after its deadline only if its process or the network
/// stalls, which the suite can't cause. A store that ignores deadlines passes the suite.
///
/// # Errors
/// Says what the store did wrong. Also fails with the error of the store, and if the key has a row.
///
/// # Cancel safety
/// Dropping the future may leave a row behind, and so does a check that passes. The row may be removed
/// after 20 s.
///
/// # Examples
/// ```no_run
/// use leasehold_api::Key;
/// use leasehold_store::{Store, check_writes};
///
/// # async fn example(store: impl Store) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// check_writes(&store, &Key::new("a new key")?).await?;
/// # Ok(())
/// # }
/// ```
pub async fn check_writes(
    store: &impl Store,
    key: &Key,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let runtime = store.runtime();
    let [first, second, other] = [(); 3].map(|()| Version::new(runtime.random_u64()));
    let read = store.read(key).await?;
    if read.row.is_some() {
        return Err("the check needs a key without a row".into());
    }
    let now = read.stamp.at;
    let later = now.saturating_add(IN_TIME);
    let over = now;
    for (expected, version, deadline, is_applied, what) in [
        (None, first, over, false, "creates a row after its deadline"),
        (
            Some(other),
            first,
            later,
            false,
            "replaces a row that doesn't exist",
        ),
        (None, first, later, true, "creates a row in time"),
        (None, second, later, false, "creates a row that exists"),
        (
            Some(other),
            second,
            later,
            false,
            "replaces another version",
        ),
        (
            Some(first),
            second,
            over,
            false,
            "replaces a row after its deadline",
        ),
        (
            Some(first),
            second,
            later,
            true,
            "replaces the right version in time",
        ),
    ] {
        let before = store.read(key).await?.row.map(|row| row.version);
        let written = write(store, key, expected, version, deadline).await?;
        let after = store.read(key).await?.row.map(|row| row.version);
        let right = match is_applied {
            true => written == Written::Applied && after == Some(version),
            false => written == Written::NotApplied && after == before,
        };
        if !right {
            let wanted = if is_applied { "must" } else { "must not" };
            return Err(format!(
                "a write that {what} {wanted} be applied: the store answered {written:?}, and the row \
                 has {after:?} after {before:?}"
            )
            .into());
        }
    }
    Ok(())
}

async fn write(
    store: &impl Store,
    key: &Key,
    expected: Option<Version>,
    version: Version,
    deadline: ServerTime,
) -> Result<Written, leasehold_api::BackendError> {
    let stamp = store.time().await?;
    let write = Write {
        key,
        expected,
        version,
        bytes: &State::default().to_bytes(),
        keep_until: stamp.at.saturating_add(KEEP),
        deadline,
        messages: &[],
        stamp,
    };
    store.write(write).await
}
