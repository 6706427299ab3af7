//! Checks a store for what the callers of its backend can't see.

use std::time::Duration;

use leasehold_api::machine::State;
use leasehold_api::{BackendError, Key};

use crate::store::{Read, Store, Version, Write, Written};

const IN_TIME: Duration = Duration::from_secs(5);
const KEEP: Duration = Duration::from_secs(20);
/// How often a write that must be applied is sent. A store may refuse one without a reason.
const TRIES: usize = 50;

/// A write that the store must apply or refuse.
#[derive(Clone, Copy)]
struct Step {
    what: &'static str,
    is_applied: bool,
    expected: Option<Version>,
    version: Version,
    /// Whether the deadline has passed.
    is_late: bool,
    /// Whether the time of the step is in the future.
    is_early: bool,
}

/// Checks that a store compares the version and the deadline of a write, and keeps the row. If it says that it
/// compares the time of the step ([`Written::AppliedAt`]), checks that too.
///
/// The key must have no row. It has one afterwards, which may be removed after 20 s.
pub(crate) async fn check_writes(store: &impl Store, key: &Key) -> Result<(), BackendError> {
    if store.read(key).await?.row.is_some() {
        return Err(BackendError::rejected(
            "the check needs a key without a row",
        ));
    }
    let [first, second, other] = [(); 3].map(|()| Version::new(store.runtime().random_u64()));
    let create = Step {
        what: "creates a row in time",
        is_applied: true,
        expected: None,
        version: first,
        is_late: false,
        is_early: false,
    };
    let replace = Step {
        what: "replaces the right version in time",
        expected: Some(first),
        version: second,
        ..create
    };
    let refuse = |what, step| Step {
        what,
        is_applied: false,
        ..step
    };
    let [late_create, late_replace] = [create, replace].map(|step| Step {
        is_late: true,
        ..step
    });
    let of_other = |step| Step {
        expected: Some(other),
        ..step
    };
    let again = Step {
        version: second,
        ..create
    };
    for step in [
        refuse("creates a row after its deadline", late_create),
        refuse("replaces a missing row", of_other(create)),
        create,
        refuse("creates a row that exists", again),
        refuse("replaces another version", of_other(replace)),
        refuse("replaces a row after its deadline", late_replace),
    ] {
        check_write(store, key, step).await?;
    }
    if let Written::AppliedAt(_) = check_write(store, key, replace).await? {
        let early = Step {
            expected: Some(second),
            version: first,
            is_early: true,
            ..replace
        };
        check_write(store, key, refuse("is before the time of its step", early)).await?;
    }
    store.remove_expired().await?;
    match version_of(&store.read(key).await?) {
        Some(found) if found == second => Ok(()),
        _ => Err(BackendError::rejected(
            "`remove_expired` removed a row before its `keep_until`",
        )),
    }
}

/// Sends a write. Checks the answer, and the row before and after.
async fn check_write(store: &impl Store, key: &Key, step: Step) -> Result<Written, BackendError> {
    let before = store.read(key).await?;
    let mut written = Written::NotApplied;
    for _ in 0..if step.is_applied { TRIES } else { 1 } {
        written = write(store, key, step).await?;
        if written.is_applied() {
            break;
        }
    }
    let after = store.read(key).await?;
    let wanted = match step.is_applied {
        true => Some(step.version),
        false => version_of(&before),
    };
    let told = match written {
        Written::Applied | Written::NotApplied => true,
        Written::AppliedAt(at) => at.at >= before.stamp.at && at.at <= after.stamp.at,
    };
    if told && written.is_applied() == step.is_applied && version_of(&after) == wanted {
        return Ok(written);
    }
    let must = if step.is_applied { "must" } else { "must not" };
    let what = step.what;
    Err(BackendError::rejected(format!(
        "a write that {what} {must} be applied: the store answered {written:?}, and the row has {after:?} \
         after {before:?}"
    )))
}

fn version_of(read: &Read) -> Option<Version> {
    read.row.as_ref().map(|row| row.version)
}

async fn write(store: &impl Store, key: &Key, step: Step) -> Result<Written, BackendError> {
    let mut stamp = store.time().await?;
    if step.is_early {
        stamp.at = stamp.at.saturating_add(IN_TIME);
    }
    let in_time = stamp.at.saturating_add(IN_TIME);
    let write = Write {
        key,
        expected: step.expected,
        version: step.version,
        bytes: &State::default().to_bytes(),
        keep_until: stamp.at.saturating_add(KEEP),
        deadline: if step.is_late { stamp.at } else { in_time },
        messages: &[],
        stamp,
    };
    store.write(write).await
}
