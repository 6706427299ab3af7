//! Decoding of answers and notifications.
//!
//! Every decoder takes the bytes and the id of the clock behind them. If the bytes come from no
//! script of this crate, the error is [`BackendError::OutcomeUnknown`]. Decoders never panic.

use leasehold_api::{
    AcquireReply, Acquired, BackendError, ClockId, Contended, ConvertReply, EndReason, ForceReply,
    HolderStatus, HolderView, InspectReply, NoteReply, NoteView, Notification, PollReply, Queued,
    Refused, ReleaseReply, RenewReply, ServerTime, Stamp, Stamped, WaiterView,
};

use super::encoding::{Malformed, Reader};
use super::error_class::classify;

/// One element of an answer.
pub type Answer<T> = Result<Stamped<T>, BackendError>;

/// Status: the element was executed. Its reply follows.
pub(super) const DONE: u8 = b'=';
/// Status: the key has a foreign value. Its type or version follows.
pub(super) const FOREIGN: u8 = b'F';
/// Status: the server refused the first write. Its error follows.
pub(super) const REFUSED: u8 = b'E';
/// Status: an error after the first write. It follows.
pub(super) const BROKEN: u8 = b'U';

/// In a watermark: its operation is live, or gone for an unknown reason.
pub(super) const NO_REASON: u8 = b' ';

/// The name that the scripts have for a reason, and the letter that they answer and store. It is not the letter that
/// [`machine::bytes`](leasehold_api::machine) stores.
pub(super) const fn reason_code(reason: EndReason) -> (&'static str, u8) {
    match reason {
        EndReason::Expired => ("REASON_EXPIRED", b'X'),
        EndReason::Forced => ("REASON_FORCED", b'F'),
        EndReason::Released => ("REASON_RELEASED", b'E'),
        EndReason::Unknown => ("REASON_UNKNOWN", b'U'),
    }
}

fn reason_of(letter: u8) -> Option<EndReason> {
    let mut all = EndReason::ALL.iter().copied();
    all.find(|reason| reason_code(*reason).1 == letter)
}

/// In a message: a hold is revoked.
pub(super) const REVOCATION: u8 = b'R';

/// Decodes the answer to [`Protocol::acquire`](super::Protocol::acquire). Always returns `count`
/// elements.
pub fn acquires(bytes: &[u8], count: usize, clock: ClockId) -> Vec<Answer<AcquireReply>> {
    elements(bytes, count, clock, |from| {
        Ok(match from.u8("acquire reply")? {
            b'A' => AcquireReply::Acquired(acquired(from)?),
            b'Q' => AcquireReply::Queued(queued(from)?),
            b'H' => AcquireReply::Contended(contention(from)?),
            b'R' => refused(from)?,
            _ => return malformed("acquire reply"),
        })
    })
}

/// Decodes the answer to [`Protocol::poll`](super::Protocol::poll). Always returns `count`
/// elements.
pub fn polls(bytes: &[u8], count: usize, clock: ClockId) -> Vec<Answer<PollReply>> {
    elements(bytes, count, clock, |from| {
        Ok(match from.u8("poll reply")? {
            b'A' => PollReply::Acquired(acquired(from)?),
            b'Q' => PollReply::Queued(queued(from)?),
            b'G' => PollReply::Gone(reason(from)?),
            _ => return malformed("poll reply"),
        })
    })
}

/// Decodes the answer to [`Protocol::renew`](super::Protocol::renew). Always returns `count`
/// elements.
pub fn renewals(bytes: &[u8], count: usize, clock: ClockId) -> Vec<Answer<RenewReply>> {
    elements(bytes, count, clock, |from| {
        Ok(match from.u8("renew reply")? {
            b'N' => RenewReply::Renewed {
                token: from.token("token")?,
                remaining: from.duration("remaining")?,
            },
            b'L' => RenewReply::Lost(reason(from)?),
            _ => return malformed("renew reply"),
        })
    })
}

/// Decodes the answer to [`Protocol::release`](super::Protocol::release). Always returns `count`
/// elements.
pub fn releases(bytes: &[u8], count: usize, clock: ClockId) -> Vec<Answer<ReleaseReply>> {
    elements(bytes, count, clock, |from| {
        Ok(match from.u8("release reply")? {
            b'R' => {
                let holds_left = from.u32("holds left")?;
                let holder = (holds_left > 0).then(|| holder_status(from));
                let holder = holder.transpose()?;
                ReleaseReply::Released { holds_left, holder }
            }
            b'L' => ReleaseReply::Left,
            b'N' => ReleaseReply::NotHeld(reason(from)?),
            _ => return malformed("release reply"),
        })
    })
}

/// Decodes the answer to [`Protocol::convert`](super::Protocol::convert).
pub fn convert(bytes: &[u8], clock: ClockId) -> Answer<ConvertReply> {
    only(bytes, clock, |from| {
        Ok(match from.u8("convert reply")? {
            b'C' => ConvertReply::Converted {
                token: from.token("token")?,
                remaining: from.duration("remaining")?,
            },
            b'S' => ConvertReply::NotSoleHolder,
            b'W' => ConvertReply::WrongEpoch(holder_status(from)?),
            b'L' => ConvertReply::Lost(reason(from)?),
            _ => return malformed("convert reply"),
        })
    })
}

/// Decodes the answer to [`Protocol::inspect`](super::Protocol::inspect).
pub fn inspect(bytes: &[u8], clock: ClockId) -> Answer<InspectReply> {
    only(bytes, clock, |from| {
        Ok(InspectReply {
            spec: optional(from, "spec flag", |from| from.spec("spec"))?,
            token: optional(from, "token flag", |from| from.token("token"))?,
            holder_count: from.u32("holder count")?,
            weight: from.u32("weight")?,
            holders: list(from, holder)?,
            waiter_count: from.u32("waiter count")?,
            waiters: list(from, waiter)?,
            note: note_view(from)?,
            last_change: None,
        })
    })
}

/// Decodes the answer to [`Protocol::force_release`](super::Protocol::force_release).
pub fn force_release(bytes: &[u8], clock: ClockId) -> Answer<ForceReply> {
    only(bytes, clock, |from| {
        Ok(match from.u8("force reply")? {
            b'F' => ForceReply::Forced {
                holders: from.u32("holders")?,
            },
            b'W' => ForceReply::WrongEpoch,
            _ => return malformed("force reply"),
        })
    })
}

/// Decodes the answer to [`Protocol::note`](super::Protocol::note).
pub fn note(bytes: &[u8], clock: ClockId) -> Answer<NoteReply> {
    only(bytes, clock, |from| {
        Ok(match from.u8("note reply")? {
            b'N' => {
                let note = note_view(from)?;
                NoteReply::Noted(note.ok_or(Malformed { what: "note reply" })?)
            }
            b'L' => NoteReply::Lost {
                reason: reason(from)?,
                note: note_view(from)?,
            },
            _ => return malformed("note reply"),
        })
    })
}

/// Decodes a message from a session's channel. The message names the clock of its stamp: a replica or
/// another node may have delivered it.
///
/// # Errors
/// [`Malformed`] if no script of this crate publishes such a message.
pub fn decode_notification(payload: &[u8]) -> Result<Vec<Notification>, Malformed> {
    let mut from = Reader::new(payload);
    let at = from.time("notification stamp")?;
    let clock = from.clock("notification clock")?;
    let stamp = Stamp { clock, at };
    let mut notifications = Vec::new();
    while !from.is_empty() {
        let code = from.u8("notification")?;
        let sequence = from.number("sequence")?;
        notifications.push(match code {
            b'G' => Notification::Granted {
                sequence,
                token: from.token("token")?,
                remaining: from.duration("remaining")?,
                stamp,
            },
            REVOCATION => Notification::Revoked { sequence, stamp },
            _ => return malformed("notification"),
        });
    }
    Ok(notifications)
}

/// Returns the server's time in the answer of a script that serves keys; the answers of `list` and `rights` have
/// none. `None` if the answer is malformed.
pub fn time(bytes: &[u8]) -> Option<ServerTime> {
    let mut from = Reader::new(bytes);
    from.u8("status").ok()?;
    from.time("stamp").ok()
}

const SURPLUS: Malformed = Malformed {
    what: "bytes after the reply",
};

fn only<T>(
    bytes: &[u8],
    clock: ClockId,
    read: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Answer<T> {
    elements(bytes, 1, clock, read).remove(0)
}

/// Decodes a batch. After a malformed element, all later ones are errors too.
fn elements<T>(
    bytes: &[u8],
    count: usize,
    clock: ClockId,
    read: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Vec<Answer<T>> {
    let mut from = Reader::new(bytes);
    let mut broken = None;
    let mut answers: Vec<_> = (0..count)
        .map(|_| {
            if let Some(error) = &broken {
                return Err(garbage(error));
            }
            element(&mut from, clock, &read).unwrap_or_else(|error| {
                let answer = Err(garbage(&error));
                broken = Some(error);
                answer
            })
        })
        .collect();
    if broken.is_none() && !from.is_empty() {
        answers.fill_with(|| Err(garbage(&SURPLUS)));
    }
    answers
}

fn element<T>(
    from: &mut Reader<'_>,
    clock: ClockId,
    read: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<Answer<T>, Malformed> {
    let status = from.u8("status")?;
    let at = from.time("stamp")?;
    if status == DONE {
        let stamp = Stamp { clock, at };
        return read(from).map(|reply| Ok(Stamped { stamp, reply }));
    }
    let len = from.u8("length of a text")?;
    let text = String::from_utf8_lossy(from.take(usize::from(len), "text")?).into_owned();
    Ok(Err(match status {
        FOREIGN => BackendError::foreign_value(text),
        REFUSED => {
            let (code, message) = text.split_once(' ').unwrap_or((&text, ""));
            classify(code, message).into_error(text.as_str())
        }
        BROKEN => BackendError::outcome_unknown(text),
        _ => return malformed("status"),
    }))
}

fn garbage(error: &Malformed) -> BackendError {
    BackendError::outcome_unknown("the answer can't be decoded").with_source(error.clone())
}

const fn malformed<T>(what: &'static str) -> Result<T, Malformed> {
    Err(Malformed { what })
}

fn reason(from: &mut Reader<'_>) -> Result<EndReason, Malformed> {
    reason_of(from.u8("reason")?).map_or_else(|| malformed("reason"), Ok)
}

fn acquired(from: &mut Reader<'_>) -> Result<Acquired, Malformed> {
    Ok(Acquired {
        token: from.token("token")?,
        holds: from.u32("holds")?,
        remaining: from.duration("remaining")?,
    })
}

fn queued(from: &mut Reader<'_>) -> Result<Queued, Malformed> {
    Ok(Queued {
        ahead: from.u32("ahead")?,
        poll_after: from.duration("poll after")?,
        waiter_remaining: from.duration("waiter remaining")?,
    })
}

fn contention(from: &mut Reader<'_>) -> Result<Contended, Malformed> {
    Ok(Contended {
        retry_after: from.duration("retry after")?,
        holder: optional(from, "label flag", |from| from.label("label"))?,
    })
}

fn refused(from: &mut Reader<'_>) -> Result<AcquireReply, Malformed> {
    Ok(AcquireReply::Refused(match from.u8("refusal")? {
        b'S' => return Ok(AcquireReply::Stale),
        b'L' => return Ok(AcquireReply::TooLate),
        b'M' => Refused::Mismatch {
            lives_with: from.spec("spec")?,
        },
        b'Q' => Refused::QueueFull,
        b'H' => Refused::HoldersFull,
        b'N' => Refused::HoldLimit,
        b'D' => Refused::WouldDeadlock,
        b'F' => Refused::FloorTooHigh,
        _ => return malformed("refusal"),
    }))
}

fn holder_status(from: &mut Reader<'_>) -> Result<HolderStatus, Malformed> {
    Ok(HolderStatus {
        mode: from.mode("mode")?,
        token: from.token("token")?,
        remaining: from.duration("remaining")?,
    })
}

fn note_view(from: &mut Reader<'_>) -> Result<Option<NoteView>, Malformed> {
    optional(from, "note flag", |from| {
        let (token, version) = (from.token("token")?, from.u32("version")?);
        let kept_for = from.duration("kept for")?;
        let length = usize::from(from.u8("length of a note")?);
        Ok(NoteView {
            token,
            version,
            bytes: from.take(length, "note")?.to_vec(),
            kept_for,
        })
    })
}

/// Reads a flag, and then what follows if it is set.
fn optional<'a, T>(
    from: &mut Reader<'a>,
    flag: &'static str,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    from.flag(flag)?.then(|| read(from)).transpose()
}

fn list<T>(
    from: &mut Reader<'_>,
    read: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    // The shortest element is a waiter with an empty label: 15 bytes.
    let count = from.count(15, "length of a list")?;
    (0..count).map(|_| read(from)).collect()
}

fn holder(from: &mut Reader<'_>) -> Result<HolderView, Malformed> {
    Ok(HolderView {
        label: from.label("label")?,
        mode: from.mode("mode")?,
        holds: from.u32("holds")?,
        token: from.token("token")?,
        remaining: from.duration("remaining")?,
        revoked: from.flag("revoked")?,
    })
}

fn waiter(from: &mut Reader<'_>) -> Result<WaiterView, Malformed> {
    Ok(WaiterView {
        label: from.label("label")?,
        mode: from.mode("mode")?,
        waiter_remaining: from.duration("waiter remaining")?,
        unreachable: from.flag("unreachable")?,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_api::FencingToken;
    use proptest::prelude::*;

    use super::*;
    use crate::script::encoding::{Writer, clock_bytes};

    const CLOCK: ClockId = ClockId::new(7);

    fn done(at: u64) -> Writer {
        let mut out = Writer::with_capacity(0);
        out.u8(DONE).number(at);
        out
    }

    fn stamped<T>(at: u64, reply: T) -> Stamped<T> {
        Stamped {
            stamp: Stamp {
                clock: CLOCK,
                at: ServerTime::from_micros(at),
            },
            reply,
        }
    }

    #[test]
    fn batch_keeps_order_and_separate_errors() {
        let mut out = done(5);
        out.u8(b'L').u8(b'F');
        out.u8(FOREIGN).number(5).u8(4).raw(b"list");
        out.u8(REFUSED).number(5).u8(10).raw(b"OOM really");
        out.u8(DONE).number(5).u8(b'N').number(9).number(10);
        let answers = renewals(&out.finish(), 4, CLOCK);
        assert_eq!(
            answers[0].as_ref().expect("a reply"),
            &stamped(5, RenewReply::Lost(EndReason::Forced))
        );
        assert!(matches!(
            &answers[1],
            Err(BackendError::ForeignValue { found, .. }) if found == "list"
        ));
        assert!(matches!(&answers[2], Err(BackendError::Unavailable { .. })));
        let renewed = RenewReply::Renewed {
            token: FencingToken::new(9),
            remaining: Duration::from_micros(10),
        };
        assert_eq!(answers[3].as_ref().expect("a reply"), &stamped(5, renewed));
    }

    #[test]
    fn unreadable_bytes_make_the_outcome_unknown() {
        let cases: [(&str, &[u8], usize); 2] = [
            (
                "garbage, and all after it",
                b"N?=and so on, for long enough",
                3,
            ),
            ("surplus bytes", b"Lmore", 1),
        ];
        for (what, bytes, count) in cases {
            let mut out = done(5);
            out.raw(bytes);
            let answers = releases(&out.finish(), count, CLOCK);
            assert_eq!(answers.len(), count, "{what}");
            for answer in answers {
                let is_unknown = matches!(answer, Err(BackendError::OutcomeUnknown { .. }));
                assert!(is_unknown, "{what}: {answer:?}");
            }
        }
    }

    #[test]
    fn message_carries_several_notifications() {
        let mut out = Writer::with_capacity(0);
        out.number(11).raw(&clock_bytes(CLOCK));
        out.u8(b'G').number(1).number(2).number(3);
        out.u8(b'R').number(4).u8(b'R').number(5);
        let stamp = stamped(11, ()).stamp;
        let expected = vec![
            Notification::Granted {
                sequence: 1,
                token: FencingToken::new(2),
                remaining: Duration::from_micros(3),
                stamp,
            },
            Notification::Revoked { sequence: 4, stamp },
            Notification::Revoked { sequence: 5, stamp },
        ];
        assert_eq!(decode_notification(&out.finish()), Ok(expected));
    }

    proptest! {
        #[test]
        fn decoders_never_panic(
            start in prop::sample::select(vec![&b""[..], b"=", b"E", b"F", b"U"]),
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            count in 0_usize..5,
        ) {
            let bytes = [start, &bytes].concat();
            let _ = (convert(&bytes, CLOCK), inspect(&bytes, CLOCK));
            let _ = (force_release(&bytes, CLOCK), decode_notification(&bytes));
            let _ = note(&bytes, CLOCK);
            prop_assert_eq!(polls(&bytes, count, CLOCK).len(), count);
            prop_assert_eq!(renewals(&bytes, count, CLOCK).len(), count);
            prop_assert_eq!(releases(&bytes, count, CLOCK).len(), count);
        }
    }
}
