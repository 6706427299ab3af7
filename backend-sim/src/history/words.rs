//! Texts for events, answers and states.

use std::fmt::{self, Write as _};
use std::time::Duration;

use leasehold_api::machine::{Command, Reply};
use leasehold_api::{
    AcquireReply, Acquired, ConvertReply, ForceMode, ForceReply, InspectReply, Key, Kind, Mode,
    NoteReply, Notification, PollReply, Queued, Refused, ReleaseReply, RenewReply,
};

use crate::record::{Call, ClientEvent, Data, Event, Fault, Reads, ServerAnswer, ServerEvent};

/// Formats a time in seconds, with three decimals.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

struct Written<F>(F);

impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Display for Written<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0(f)
    }
}

/// Escapes control characters, so that the text stays on one line.
fn one_line(text: &str) -> String {
    let escaped = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.into(),
    };
    text.chars().map(escaped).collect()
}

pub(crate) fn describe(event: &Event) -> impl fmt::Display {
    Written(move |f: &mut fmt::Formatter<'_>| write_event(f, event))
}

pub(crate) fn describe_notification(notification: &Notification) -> impl fmt::Display {
    Written(move |f: &mut fmt::Formatter<'_>| write_notification(f, notification))
}

fn write_event(f: &mut fmt::Formatter<'_>, event: &Event) -> fmt::Result {
    match event {
        Event::Hello { .. } => write!(f, "hello"),
        Event::Executed {
            key,
            command,
            answer,
            again,
            ..
        } => {
            write_command(f, key, command)?;
            if *again {
                f.write_str(" (delivered again)")?;
            }
            f.write_str(" -> ")?;
            write_answer(f, answer)
        }
        Event::Subscribed { .. } => write!(f, "listens"),
        Event::Unsubscribed { .. } => write!(f, "stops listening"),
        Event::Notified { notification } => write_notification(f, notification),
        Event::Fault { fault, call, key } => write_fault(f, *fault, *call, key.as_ref()),
        Event::Failed { call, error } => write!(f, "{} failed: {}", name(*call), one_line(error)),
        Event::Undelivered { call } => write!(f, "! {} reached no server", name(*call)),
        Event::Note { text } => write!(f, "> {}", one_line(text)),
        Event::Client(event) => write_client(f, *event),
        Event::Server(event) => write_server(f, event),
    }
}

fn write_client(f: &mut fmt::Formatter<'_>, event: ClientEvent) -> fmt::Result {
    f.write_str(match event {
        ClientEvent::Paused => "~ paused",
        ClientEvent::Resumed => "~ resumed",
        ClientEvent::Killed => "~ killed",
        ClientEvent::ConnectionDropped => "~ connection dropped",
        ClientEvent::Isolated => "~ isolated",
        ClientEvent::Reachable => "~ reachable again",
        ClientEvent::Denied => "~ denied every call",
        ClientEvent::Admitted => "~ admitted again",
        ClientEvent::Closed => "~ closed",
        ClientEvent::FollowedPrimary => "~ listens at the primary again",
        ClientEvent::VisitsReplica => "~ sends its requests to a replica",
        ClientEvent::LeftReplica => "~ sends its requests to the primary again",
        ClientEvent::ClockRate { ppm } => return write!(f, "~ clock runs at {ppm:+} ppm"),
        ClientEvent::ClockJumped { by } => return write!(f, "~ clock jumped by {by:?}"),
    })
}

fn write_server(f: &mut fmt::Formatter<'_>, event: &ServerEvent) -> fmt::Result {
    match event {
        ServerEvent::Stopped => write!(f, "~ stopped"),
        ServerEvent::Started { data: Data::Kept } => write!(f, "~ started, with its data"),
        ServerEvent::Started { data: Data::Lost } => write!(f, "~ started, without its data"),
        ServerEvent::Started {
            data: Data::AllBut(tail),
        } => write!(f, "~ started, without {tail}"),
        ServerEvent::LoadingBegan => write!(f, "~ loads its data, and refuses every call"),
        ServerEvent::LoadingEnded => write!(f, "~ has loaded its data"),
        ServerEvent::FailedOver { lost } => write!(f, "~ failed over to a replica, without {lost}"),
        ServerEvent::SwitchedOver { staying } => {
            write!(f, "~ switched over to a replica, with all data")?;
            match staying.as_slice() {
                [] => Ok(()),
                names => write!(f, "; the old server still relays to {}", names.join(", ")),
            }
        }
        ServerEvent::ReplicaCutOff { reads } => {
            write!(f, "~ a replica lost its link, ")?;
            match reads {
                Reads::Refused => write!(f, "and refuses everything"),
                Reads::Answered => write!(f, "and answers what writes nothing"),
            }
        }
        ServerEvent::Split { lost, staying } => {
            write!(f, "~ a replica became a second primary, without {lost}; ")?;
            write!(f, "the old one serves {}", staying.join(", "))
        }
        ServerEvent::Healed => write!(f, "~ the old primary stepped down"),
        ServerEvent::ClockStepped { forward, by } => {
            let way = if *forward { "forward" } else { "back" };
            write!(f, "~ clock stepped {way} by {by:?}")
        }
        ServerEvent::ForeignPlanted { key, found } => {
            write!(f, "~ {key:?} is now a foreign value ({found})")
        }
        ServerEvent::PublishRefused => write!(f, "~ publishes nothing"),
        ServerEvent::PublishAllowed => write!(f, "~ publishes again"),
        ServerEvent::CountRefused => write!(f, "~ counts no listeners"),
        ServerEvent::CountAllowed => write!(f, "~ counts listeners again"),
        ServerEvent::KeyRemoved { key } => write!(f, "~ {key:?} was deleted"),
    }
}

fn write_fault(
    f: &mut fmt::Formatter<'_>,
    fault: Fault,
    call: Option<Call>,
    key: Option<&Key>,
) -> fmt::Result {
    let call = call.map_or("push", name);
    match fault {
        Fault::LoseRequest => write!(f, "! request lost: {call}")?,
        Fault::LoseReply => write!(f, "! reply lost: {call}")?,
        Fault::DelayRequest(by) => write!(f, "! request delayed by {by:?}: {call}")?,
        Fault::DelayReply(by) => write!(f, "! reply delayed by {by:?}: {call}")?,
        Fault::DuplicateRequest(after) => {
            write!(f, "! request duplicated after {after:?}: {call}")?;
        }
        Fault::LosePush => write!(f, "! push lost")?,
        Fault::DuplicatePush => write!(f, "! push duplicated")?,
        Fault::DelayPush(by) => write!(f, "! push delayed by {by:?}")?,
    }
    key.map_or(Ok(()), |key| write!(f, " {key:?}"))
}

pub(crate) const fn name(call: Call) -> &'static str {
    match call {
        Call::Hello => "hello",
        Call::Listen => "listen",
        Call::Acquire => "acquire",
        Call::Poll => "poll",
        Call::Renew => "renew",
        Call::Release => "release",
        Call::Convert => "convert",
        Call::Inspect => "inspect",
        Call::ForceRelease => "force_release",
        Call::List => "list",
        Call::Note => "note",
    }
}

fn write_command(f: &mut fmt::Formatter<'_>, key: &Key, command: &Command) -> fmt::Result {
    match command {
        Command::Acquire(request) => {
            let sequence = request.operation.sequence;
            let (mode, lease) = (mode(request.mode), request.lease);
            let waits = if request.wait.is_some() {
                ", waits"
            } else {
                ""
            };
            write!(
                f,
                "acquire {key:?} #{sequence} {mode}, lease {lease:?}{waits}"
            )
        }
        Command::Poll(request) => write!(f, "poll {key:?} #{}", request.operation.sequence),
        Command::Renew(request) => {
            let sequence = request.operation.sequence;
            write!(f, "renew {key:?} #{sequence} for {:?}", request.lease)
        }
        Command::Release(request) => write!(f, "release {key:?} #{}", request.operation.sequence),
        Command::Convert(request) => {
            let sequence = request.operation.sequence;
            write!(f, "convert {key:?} #{sequence} to {}", mode(request.to))
        }
        Command::Inspect => write!(f, "inspect {key:?}"),
        Command::ForceRelease(request) => {
            let how = match request.how {
                ForceMode::Revoke => "revoke",
                ForceMode::Now => "now",
            };
            write!(f, "force_release {key:?} ({how})")
        }
        Command::Note(request) => {
            let (sequence, version) = (request.operation.sequence, request.version);
            write!(f, "note {key:?} #{sequence}, version {version}")
        }
    }
}

fn write_answer(f: &mut fmt::Formatter<'_>, answer: &ServerAnswer) -> fmt::Result {
    match answer {
        ServerAnswer::Foreign(found) => write!(f, "foreign value ({found})"),
        ServerAnswer::Reply(reply) => write_reply(f, reply),
    }
}

fn write_reply(f: &mut fmt::Formatter<'_>, reply: &Reply) -> fmt::Result {
    match reply {
        Reply::Acquire(reply) => write_acquire_reply(f, reply),
        Reply::Poll(PollReply::Acquired(acquired)) => write_acquired(f, acquired),
        Reply::Poll(PollReply::Queued(queued)) => write_queued(f, queued),
        Reply::Poll(PollReply::Gone(cause)) => write!(f, "gone ({})", cause.name()),
        Reply::Renew(RenewReply::Renewed { remaining, .. }) => {
            write!(f, "renewed, {remaining:?} left")
        }
        Reply::Release(ReleaseReply::Released { holds_left: 0, .. }) => write!(f, "released"),
        Reply::Release(ReleaseReply::Released { holds_left, .. }) => {
            write!(f, "released, {holds_left} holds left")
        }
        Reply::Release(ReleaseReply::Left) => write!(f, "left the queue"),
        Reply::Release(ReleaseReply::NotHeld(cause)) => write!(f, "not held ({})", cause.name()),
        Reply::Convert(ConvertReply::Converted { token, remaining }) => {
            write!(f, "converted, token {token}, {remaining:?} left")
        }
        Reply::Convert(ConvertReply::NotSoleHolder) => write!(f, "not the sole holder"),
        Reply::Convert(ConvertReply::WrongEpoch(holder)) => {
            write!(f, "wrong epoch: it is {}", holder.token)
        }
        Reply::Inspect(reply) => {
            let (holders, waiters) = (reply.holder_count, reply.waiter_count);
            write!(f, "holders: {holders}, waiters: {waiters}")
        }
        Reply::ForceRelease(ForceReply::Forced { holders }) => {
            write!(f, "forced, holders: {holders}")
        }
        Reply::ForceRelease(ForceReply::WrongEpoch) => write!(f, "wrong epoch"),
        Reply::Note(NoteReply::Noted(note)) => {
            let (token, version) = (note.token, note.version);
            write!(f, "noted: token {token}, version {version}")
        }
        Reply::Renew(RenewReply::Lost(cause))
        | Reply::Convert(ConvertReply::Lost(cause))
        | Reply::Note(NoteReply::Lost { reason: cause, .. }) => {
            write!(f, "lost ({})", cause.name())
        }
    }
}

fn write_acquire_reply(f: &mut fmt::Formatter<'_>, reply: &AcquireReply) -> fmt::Result {
    match reply {
        AcquireReply::Acquired(acquired) => write_acquired(f, acquired),
        AcquireReply::Queued(queued) => write_queued(f, queued),
        AcquireReply::Contended(contention) => {
            write!(f, "contended")?;
            if let Some(holder) = &contention.holder {
                write!(f, ", held by {holder:?}")?;
            }
            write!(f, ", retry after {:?}", contention.retry_after)
        }
        AcquireReply::Stale => write!(f, "stale"),
        AcquireReply::TooLate => write!(f, "too late"),
        AcquireReply::Refused(refused) => write!(f, "refused: {}", refusal(*refused)),
    }
}

fn write_acquired(f: &mut fmt::Formatter<'_>, acquired: &Acquired) -> fmt::Result {
    let (token, left) = (acquired.token, acquired.remaining);
    write!(f, "acquired, token {token}, {left:?} left")?;
    match acquired.holds {
        0 | 1 => Ok(()),
        holds => write!(f, ", {holds} holds"),
    }
}

fn write_queued(f: &mut fmt::Formatter<'_>, queued: &Queued) -> fmt::Result {
    let (ahead, after) = (queued.ahead, queued.poll_after);
    write!(f, "queued behind {ahead}, polls in {after:?}")
}

const fn refusal(refused: Refused) -> &'static str {
    match refused {
        Refused::Mismatch { .. } => "in use with another spec",
        Refused::QueueFull => "queue full",
        Refused::HoldersFull => "holders full",
        Refused::HoldLimit => "hold limit",
        Refused::WouldDeadlock => "would deadlock",
        Refused::FloorTooHigh => "floor too high",
        _ => "for another reason",
    }
}

fn write_notification(f: &mut fmt::Formatter<'_>, notification: &Notification) -> fmt::Result {
    match notification {
        Notification::Granted {
            sequence,
            token,
            remaining,
            ..
        } => write!(
            f,
            "< granted #{sequence}, token {token}, {remaining:?} left"
        ),
        Notification::Revoked { sequence, .. } => write!(f, "< revoked #{sequence}"),
        Notification::Missed { listening: false } => write!(f, "< notifications may be missed"),
        Notification::Missed { listening: true } => write!(f, "< listening again"),
        other => write!(f, "< {other:?}"),
    }
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Permits(n) => format!("{n} permits"),
    }
}

/// Writes a line for each holder and each waiter of a key.
pub(crate) fn write_state(text: &mut String, key: &Key, state: &InspectReply) -> fmt::Result {
    let kind = match state.spec.map(|spec| spec.kind()) {
        Some(Kind::Mutex) => "mutex",
        Some(Kind::RwLock) => "reader/writer lock",
        Some(Kind::Semaphore) => "semaphore",
        None => "unused",
    };
    let holders = state.holders.iter();
    let holders = holders.map(|it| (&it.label, "holds", it.mode, it.remaining));
    let waiters = state.waiters.iter();
    let waiters = waiters.map(|it| (&it.label, "waits for", it.mode, it.waiter_remaining));
    for (label, verb, its_mode, left) in holders.chain(waiters) {
        let mode = mode(its_mode);
        writeln!(
            text,
            "  {kind} {key:?}: {label:?} {verb} it ({mode}), {left:?} left"
        )?;
    }
    Ok(())
}
