//! Checks a store for what the callers of its backend can't see.

use std::time::Duration;

use leasehold_api::machine::State;
use leasehold_api::{BackendError, Key, ServerTime};

use crate::store::{Store, Version, Write, Written};

const IN_TIME: Duration = Duration::from_secs(5);
const KEEP: Duration = Duration::from_secs(20);
/// How often a write that must be applied is sent. A store may refuse one without a reason.
const TRIES: usize = 50;

/// A write, whether the store must apply it, and what it does.
type Step = (Option<Version>, Version, ServerTime, bool, &'static str);

/// Checks that a store compares the version and the deadline of a write, and keeps the row.
///
/// The key must have no row. It has one afterwards, which may be removed after 20 s.
pub(crate) async fn check_writes(store: &impl Store, key: &Key) -> Result<(), BackendError> {
    if version_of(store, key).await?.is_some() {
        return Err(BackendError::rejected(
            "the check needs a key without a row",
        ));
    }
    let [first, second, other] = [(); 3].map(|()| Version::new(store.runtime().random_u64()));
    let over = store.time().await?.at;
    let later = over.saturating_add(IN_TIME);
    let steps: [Step; 7] = [
        (None, first, over, false, "creates a row after its deadline"),
        (Some(other), first, later, false, "replaces a missing row"),
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
    ];
    for step in steps {
        check_write(store, key, step).await?;
    }
    store.remove_expired().await?;
    match version_of(store, key).await? {
        Some(found) if found == second => Ok(()),
        _ => Err(BackendError::rejected(
            "`remove_expired` removed a row before its `keep_until`",
        )),
    }
}

async fn check_write(store: &impl Store, key: &Key, step: Step) -> Result<(), BackendError> {
    let (expected, version, deadline, is_applied, what) = step;
    let before = version_of(store, key).await?;
    let mut written = Written::NotApplied;
    for _ in 0..if is_applied { TRIES } else { 1 } {
        written = write(store, key, expected, version, deadline).await?;
        if written == Written::Applied {
            break;
        }
    }
    let after = version_of(store, key).await?;
    let right = match is_applied {
        true => written == Written::Applied && after == Some(version),
        false => written == Written::NotApplied && after == before,
    };
    if right {
        return Ok(());
    }
    let wanted = if is_applied { "must" } else { "must not" };
    Err(BackendError::rejected(format!(
        "a write that {what} {wanted} be applied: the store answered {written:?}, and the row has {after:?} \
         after {before:?}"
    )))
}

async fn version_of(store: &impl Store, key: &Key) -> Result<Option<Version>, BackendError> {
    Ok(store.read(key).await?.row.map(|row| row.version))
}

async fn write(
    store: &impl Store,
    key: &Key,
    expected: Option<Version>,
    version: Version,
    deadline: ServerTime,
) -> Result<Written, BackendError> {
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
