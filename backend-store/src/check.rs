//! Checks a store for what the callers of its backend can't see.

use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::time::Duration;

use leasehold_api::machine::{Message, Payload, State};
use leasehold_api::{BackendError, Key, ServerTime, SessionId};

use crate::lock;
use crate::store::{Read, Store, Tag, Version, Write, Written};

const IN_TIME: Duration = Duration::from_secs(5);
/// How far the time of a step lies in the past.
const BEFORE: Duration = Duration::from_secs(1);
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
    /// Whether the write has a message. A store may have another statement for those.
    has_message: bool,
    /// Whether a session must listen that doesn't.
    needs_listener: bool,
}

impl Step {
    const fn applied(what: &'static str, expected: Option<Version>, version: Version) -> Self {
        Self {
            what,
            is_applied: true,
            expected,
            version,
            is_late: false,
            is_early: false,
            has_message: false,
            needs_listener: false,
        }
    }

    const fn refused(self, what: &'static str) -> Self {
        Self {
            what,
            is_applied: false,
            ..self
        }
    }

    const fn of(mut self, expected: Version) -> Self {
        self.expected = Some(expected);
        self
    }

    const fn late(mut self) -> Self {
        self.is_late = true;
        self
    }

    const fn alone(mut self) -> Self {
        self.needs_listener = true;
        self
    }
}

/// The tags of the versions that were written, if the store has tags. Of a version that was written again, the last one counts.
type Tags = Mutex<Vec<(Version, Tag)>>;

/// Checks that a store compares the version and the deadline of a write, and keeps the row. If it says that it
/// compares the time of the step ([`Written::applied_at`]) or who listens ([`Store::compares_reach`]), checks that too.
/// If it sends the row along with a refusal ([`Store::write_or_read`]), checks the row and the clock.
///
/// The key must have no row. It has one afterwards, which may be removed after 20 s.
pub(crate) async fn check_writes(store: &impl Store, key: &Key) -> Result<(), BackendError> {
    if store.read(key).await?.row.is_some() {
        return Err(BackendError::rejected(
            "the check needs a key without a row",
        ));
    }
    let [first, second, other] = [(); 3].map(|()| Version::new(store.runtime().random_u64()));
    let tags = Tags::default();
    let check = async |step| check_write(store, key, step, &tags).await;
    let with_message = |step| Step {
        has_message: true,
        ..step
    };
    let check_both = async |step| {
        check(step).await?;
        check(with_message(step)).await
    };
    let create = Step::applied("creates a row in time", None, first);
    let replace = Step::applied("replaces the right version in time", Some(first), second);
    check(create.late().refused("creates a row after its deadline")).await?;
    if store.compares_reach() {
        let alone = create.alone();
        check(alone.refused("creates a row for a session that doesn't listen")).await?;
    }
    let created = check(create).await?;
    let missing = Key::new(format!("{key}, missing"))
        .map_err(|error| BackendError::rejected(error.to_string()))?;
    let of_missing = replace.refused("replaces a missing row");
    check_write(store, &missing, of_missing, &tags).await?;
    let again = Step {
        version: second,
        ..create
    };
    check(again.refused("creates a row that exists")).await?;
    check_both(replace.of(other).refused("replaces another version")).await?;
    check_both(replace.late().refused("replaces a row after its deadline")).await?;
    let replaced = check(replace).await?;
    let told =
        |written: &Written| matches!(written, Written::Applied(applied) if applied.at.is_some());
    if told(&created) != told(&replaced) {
        return Err(BackendError::rejected(
            "the store answers `applied_at` to some writes, and `applied` to others",
        ));
    }
    let stale = Step {
        version: other,
        ..replace
    };
    check_both(stale.refused("replaces an earlier version")).await?;
    let mut next = Step {
        version: first,
        ..replace.of(second)
    };
    let early = Step {
        is_early: true,
        ..next
    };
    if told(&replaced) {
        check_both(early.refused("is before the time of its step")).await?;
    } else if check_clock(store, key, early, &tags).await? {
        next = Step {
            version: second,
            ..replace.of(first)
        };
    }
    if store.compares_reach() {
        let alone = next.alone();
        check_both(alone.refused("replaces a row for a session that doesn't listen")).await?;
    }
    check(with_message(next)).await?;
    store.remove_expired().await?;
    match version_of(&store.read(key).await?) {
        Some(found) if found == next.version => Ok(()),
        _ => Err(BackendError::rejected(
            "`remove_expired` removed a row before its `keep_until`",
        )),
    }
}

/// Sends a write. Checks the answer, and the row before and after.
async fn check_write(
    store: &impl Store,
    key: &Key,
    step: Step,
    tags: &Tags,
) -> Result<Written, BackendError> {
    let before = store.read(key).await?;
    let mut written = Written::NotApplied;
    for _ in 0..if step.is_applied { TRIES } else { 1 } {
        (written, _) = send(store, key, step, tags, false).await?;
        if written.is_applied() {
            break;
        }
    }
    let after = store.read(key).await?;
    let wanted = match step.is_applied {
        true => Some(step.version),
        false => version_of(&before),
    };
    let tag_of = |read: &Read| read.row.as_ref().and_then(|row| row.tag.clone());
    let told = match &written {
        Written::NotApplied => true,
        Written::NotListening => step.needs_listener,
        Written::Applied(applied) => {
            let times = times(store, &before, &after);
            applied.at.is_none_or(|at| times.contains(&at.at)) && applied.tag == tag_of(&after)
        }
    };
    note_tag(tags, step, &written);
    if told && written.is_applied() == step.is_applied && version_of(&after) == wanted {
        if !step.is_applied {
            check_refusal(store, key, step, tags).await?;
        }
        return Ok(written);
    }
    let must = if step.is_applied { "must" } else { "must not" };
    let what = step.what;
    Err(BackendError::rejected(format!(
        "a write that {what} {must} be applied: the store answered {written:?}, and the row has {after:?} \
         after {before:?}"
    )))
}

/// Sends a write whose time is ahead of the store's clock, which the store needn't compare. Fails if the clock goes on
/// from there. Then it is no clock of the store, but the latest of those of its clients: a client that is ahead and only
/// asks for a lock would end the lease of its holder. Returns whether the write was applied.
async fn check_clock(
    store: &impl Store,
    key: &Key,
    early: Step,
    tags: &Tags,
) -> Result<bool, BackendError> {
    let runtime = store.runtime();
    let (began, before) = (runtime.now(), store.time().await?);
    let (written, _) = send(store, key, early, tags, false).await?;
    note_tag(tags, early, &written);
    let after = store.read(key).await?.stamp;
    let went_on = after.at.saturating_since(before.at);
    if went_on > runtime.now().saturating_since(began) + IN_TIME / 2 + store.clock_error() {
        return Err(BackendError::rejected(
            "a write moves the clock to the time of its step: the store has no clock of its own",
        ));
    }
    Ok(written.is_applied())
}

/// Sends a write that must be refused, and checks the row that may come with the refusal.
async fn check_refusal(
    store: &impl Store,
    key: &Key,
    step: Step,
    tags: &Tags,
) -> Result<(), BackendError> {
    let before = store.read(key).await?;
    let (written, found) = send(store, key, step, tags, true).await?;
    let after = store.read(key).await?;
    let version = version_of(&after);
    let is_current = found.as_ref().is_none_or(|found| {
        let times = times(store, &before, &after);
        version_of(found) == version
            && tag_of(found) == tag_of(&after)
            && times.contains(&found.stamp.at)
    });
    if !written.is_applied() && version_of(&before) == version && is_current {
        return Ok(());
    }
    let what = step.what;
    Err(BackendError::rejected(format!(
        "a write that {what} must bring the row and the clock, or nothing: the store answered {written:?} with \
         {found:?}, and the row has {after:?} after {before:?}"
    )))
}

/// Notes the tag of a row that was written.
fn note_tag(tags: &Tags, step: Step, written: &Written) {
    if let Written::Applied(applied) = written {
        let tag = applied.tag.clone();
        lock(tags).extend(tag.map(|tag| (step.version, tag)));
    }
}

/// What the clock may show between two reads.
fn times(store: &impl Store, before: &Read, after: &Read) -> RangeInclusive<ServerTime> {
    let error = store.clock_error();
    earlier(before.stamp.at, error)..=after.stamp.at.saturating_add(error)
}

fn earlier(at: ServerTime, by: Duration) -> ServerTime {
    let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
    ServerTime::from_micros(at.as_micros().saturating_sub(micros))
}

fn version_of(read: &Read) -> Option<Version> {
    read.row.as_ref().map(|row| row.version)
}

fn tag_of(read: &Read) -> Option<&Tag> {
    read.row.as_ref().and_then(|row| row.tag.as_ref())
}

async fn send(
    store: &impl Store,
    key: &Key,
    step: Step,
    tags: &Tags,
    reads: bool,
) -> Result<(Written, Option<Read>), BackendError> {
    let mut stamp = store.time().await?;
    let (now, error) = (stamp.at, store.clock_error());
    // The time of a step in the past tells a store that answers with it, and not with its clock.
    stamp.at = match step.is_early {
        true => now.saturating_add(IN_TIME + error),
        false => earlier(now, BEFORE + 2 * error),
    };
    let in_time = now.saturating_add(2 * IN_TIME + error);
    let mut nobody = [0; 16];
    store.runtime().fill_random(&mut nobody);
    let nobody = SessionId::from_bytes(nobody);
    let message = step.has_message.then_some(Message {
        to: nobody,
        payload: Payload::Revoked { sequence: 1 },
    });
    let listener = step.needs_listener.then_some(nobody);
    let written = lock(tags).clone();
    let mut known = written.iter().rev();
    let tag = known.find(|(version, _)| step.expected == Some(*version));
    let write = Write {
        key,
        expected: step.expected,
        tag: tag.map(|(_, tag)| tag),
        version: step.version,
        bytes: &State::default().to_bytes(),
        keep_until: now.saturating_add(KEEP),
        deadline: if step.is_late {
            earlier(now, error)
        } else {
            in_time
        },
        messages: message.as_slice(),
        listening: listener.as_slice(),
        stamp,
        promises: false,
    };
    match reads {
        true => store.write_or_read(write).await,
        false => Ok((store.write(write).await?, None)),
    }
}
