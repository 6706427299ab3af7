//! The times of waits and holds, taken from the server's replies, and the times when a client or
//! the server was out of service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::machine::{Command, Reply};
use leasehold_api::{
    AcquireReply, ConvertReply, EndReason, FencingToken, ForceMode, ForceReply, Key, Mode,
    Notification, Operation, PollReply, ReleaseReply, RenewReply, SessionId,
};

use crate::history::data::History;
use crate::record::{
    ClientEvent, Content, Data, Entry, Event, Message, ServerAnswer, ServerEvent, Tail,
};

/// An interval in which one operation waited or held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) client: Arc<str>,
    pub(crate) key: Key,
    pub(crate) sequence: u64,
    pub(crate) mode: Mode,
    /// The token of a hold; `None` for a wait.
    pub(crate) token: Option<FencingToken>,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    pub(crate) end: SpanEnd,
    /// Indexes of the entries at which the span began and ended, if they are in the log.
    pub(crate) rows: (Option<usize>, Option<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanEnd {
    /// The span was still open when the log was read.
    Open,
    /// The wait was granted, or the hold was converted.
    Became,
    Released,
    Expired,
    Forced,
    /// The server no longer knows the operation.
    Forgotten,
}

impl Span {
    pub(crate) fn is_hold(&self) -> bool {
        self.token.is_some()
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.mode == Mode::Exclusive
    }

    /// Returns whether the span is open after the entry `row`, which happened at `at`.
    pub(crate) fn covers(&self, row: usize, at: Duration) -> bool {
        let begun = match self.rows.0 {
            Some(first) => first <= row,
            None => self.from <= at,
        };
        let over = match self.rows.1 {
            Some(last) => last <= row,
            None => self.to <= at && self.end != SpanEnd::Open,
        };
        begun && !over
    }
}

/// Identifies an operation. A client may have several sessions.
type Id = (Arc<str>, SessionId, u64);

#[derive(Default)]
struct Spans {
    open: BTreeMap<Id, Span>,
    done: Vec<Span>,
    /// Index of the current entry.
    row: Option<usize>,
    /// The execution times of all commands so far.
    executed: Vec<Duration>,
}

/// Returns all spans, in the order in which they began.
pub(crate) fn spans(history: &History) -> Vec<Span> {
    let mut spans = Spans::default();
    let mut pushes: BTreeMap<u64, Vec<&Message>> = BTreeMap::new();
    for message in &history.messages {
        if let Content::Push {
            cause: Some(cause), ..
        } = message.content
        {
            pushes.entry(cause).or_default().push(message);
        }
    }
    for (row, entry) in history.entries.iter().enumerate() {
        spans.row = Some(row);
        spans.entry(entry);
        if matches!(entry.event, Event::Executed { .. }) {
            let caused = entry.message.and_then(|message| pushes.remove(&message));
            for push in caused.into_iter().flatten() {
                spans.pushed(push);
            }
        }
        spans.row = None;
    }
    let end = history.end();
    spans.expire(end);
    for (_, mut span) in std::mem::take(&mut spans.open) {
        span.to = span.to.min(end);
        spans.done.push(span);
    }
    spans.done.sort_by_key(|span| (span.from, span.to));
    spans.done
}

impl Spans {
    /// Starts the hold of a pushed grant. It begins when the server sends the push, even if the
    /// push never arrives.
    fn pushed(&mut self, message: &Message) {
        let Content::Push {
            notification:
                Notification::Granted {
                    sequence,
                    token,
                    remaining,
                    ..
                },
            ..
        } = message.content
        else {
            return;
        };
        let mut ids = self.open.keys();
        let id = ids.find(|(client, _, number)| *client == message.client && *number == sequence);
        if let Some(id) = id.cloned() {
            self.hold(message.sent, id, token, remaining);
        }
    }

    fn entry(&mut self, entry: &Entry) {
        self.expire(entry.at);
        match (&entry.event, &entry.client) {
            (
                Event::Executed {
                    key,
                    command,
                    answer: ServerAnswer::Reply(reply),
                    ..
                },
                Some(client),
            ) => {
                self.executed.push(entry.at);
                self.executed(entry.at, client, key, command, reply);
            }
            (Event::Server(event), _) => self.server(entry.at, event),
            _ => {}
        }
    }

    fn executed(
        &mut self,
        at: Duration,
        client: &Arc<str>,
        key: &Key,
        command: &Command,
        reply: &Reply,
    ) {
        let id = |it: &Operation| (Arc::clone(client), it.session, it.sequence);
        match (command, reply) {
            (Command::Acquire(request), Reply::Acquire(reply)) => {
                let id = id(&request.operation);
                let until = match reply {
                    AcquireReply::Acquired(acquired) => acquired.remaining,
                    AcquireReply::Queued(queued) => queued.waiter_remaining,
                    AcquireReply::Contended(_) | AcquireReply::Refused(_) => return,
                };
                self.wait(at, &id, key, request.mode, until);
                if let AcquireReply::Acquired(acquired) = reply {
                    self.hold(at, id, acquired.token, acquired.remaining);
                }
            }
            (Command::Poll(request), Reply::Poll(reply)) => {
                let id = id(&request.operation);
                match reply {
                    PollReply::Acquired(acquired) => {
                        self.hold(at, id, acquired.token, acquired.remaining);
                    }
                    PollReply::Queued(queued) => self.extend(at, &id, queued.waiter_remaining),
                    PollReply::Gone(reason) => self.close(at, &id, end_of(*reason)),
                }
            }
            (Command::Renew(request), Reply::Renew(reply)) => {
                let id = id(&request.operation);
                match reply {
                    RenewReply::Renewed { token, remaining } => {
                        self.hold(at, id, *token, *remaining);
                    }
                    RenewReply::Lost(reason) => self.close(at, &id, end_of(*reason)),
                }
            }
            (Command::Release(request), Reply::Release(reply)) => {
                let reason = match reply {
                    ReleaseReply::Released { .. } | ReleaseReply::Left => SpanEnd::Released,
                    ReleaseReply::NotHeld(reason) => end_of(*reason),
                };
                self.close(at, &id(&request.operation), reason);
            }
            (
                Command::Convert(request),
                Reply::Convert(ConvertReply::Converted { token, remaining }),
            ) => self.convert(at, id(&request.operation), request.to, *token, *remaining),
            (
                Command::ForceRelease(request),
                Reply::ForceRelease(ForceReply::Forced { holders: 1.. }),
            ) if request.how == ForceMode::Now => {
                let tokens = &request.tokens;
                self.close_all(SpanEnd::Forced, |span| {
                    let forced = span.token.is_some_and(|token| tokens.contains(&token));
                    (forced && span.key == *key).then_some(at)
                });
            }
            _ => {}
        }
    }

    fn wait(&mut self, at: Duration, id: &Id, key: &Key, mode: Mode, remaining: Duration) {
        let span = Span {
            client: Arc::clone(&id.0),
            key: key.clone(),
            sequence: id.2,
            mode,
            token: None,
            from: at,
            to: at + remaining,
            end: SpanEnd::Open,
            rows: (self.row, None),
        };
        self.open.entry(id.clone()).or_insert(span);
    }

    fn hold(&mut self, at: Duration, id: Id, token: FencingToken, remaining: Duration) {
        let Some(mut span) = self.open.remove(&id) else {
            return;
        };
        if !span.is_hold() {
            // A wait of zero length still shows if other events happened during it.
            if span.rows.0 != self.row {
                self.finish(span.clone(), at, SpanEnd::Became);
            }
            (span.from, span.rows) = (at, (self.row, None));
        }
        span.token = Some(token);
        span.to = at + remaining;
        self.open.insert(id, span);
    }

    fn convert(&mut self, at: Duration, id: Id, to: Mode, token: FencingToken, left: Duration) {
        if let Some(span) = self.open.remove(&id) {
            self.finish(span.clone(), at, SpanEnd::Became);
            let converted = Span {
                mode: to,
                token: Some(token),
                from: at,
                to: at + left,
                rows: (self.row, None),
                ..span
            };
            self.open.insert(id, converted);
        }
    }

    fn extend(&mut self, at: Duration, id: &Id, remaining: Duration) {
        if let Some(span) = self.open.get_mut(id) {
            span.to = at + remaining;
        }
    }

    fn server(&mut self, at: Duration, event: &ServerEvent) {
        match event {
            ServerEvent::Started { data: Data::Lost } => self.forget(at, |_| true),
            ServerEvent::Started {
                data: Data::AllBut(lost),
            }
            | ServerEvent::FailedOver { lost } => {
                let since = match *lost {
                    Tail::Last(time) => at.saturating_sub(time),
                    Tail::Commands(n) => {
                        let first = self.executed.len().saturating_sub(n);
                        self.executed.get(first).copied().unwrap_or(at)
                    }
                };
                self.forget(at, |span| since <= span.from);
            }
            ServerEvent::KeyRemoved { key } | ServerEvent::ForeignPlanted { key, .. } => {
                self.forget(at, |span| span.key == *key);
            }
            // Leases end at times of the server's clock.
            ServerEvent::ClockStepped { forward, by } => {
                for span in self.open.values_mut() {
                    span.to = match forward {
                        true => span.to.saturating_sub(*by).max(at),
                        false => span.to + *by,
                    };
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, mut span: Span, at: Duration, end: SpanEnd) {
        (span.to, span.end) = (at, end);
        span.rows.1 = self.row.filter(|_| end != SpanEnd::Expired);
        self.done.push(span);
    }

    fn close(&mut self, at: Duration, id: &Id, end: SpanEnd) {
        if let Some(span) = self.open.remove(id) {
            self.finish(span, at, end);
        }
    }

    /// Closes the spans for which `ended` returns the time when they ended.
    fn close_all(&mut self, end: SpanEnd, ended: impl Fn(&Span) -> Option<Duration>) {
        let open = std::mem::take(&mut self.open);
        for (id, span) in open {
            match ended(&span) {
                Some(at) => self.finish(span, at, end),
                None => drop(self.open.insert(id, span)),
            }
        }
    }

    fn forget(&mut self, at: Duration, which: impl Fn(&Span) -> bool) {
        self.close_all(SpanEnd::Forgotten, |span| which(span).then_some(at));
    }

    /// Closes the spans that expired by `now`.
    fn expire(&mut self, now: Duration) {
        self.close_all(SpanEnd::Expired, |span| (span.to <= now).then_some(span.to));
    }
}

const fn end_of(reason: EndReason) -> SpanEnd {
    match reason {
        EndReason::Expired => SpanEnd::Expired,
        EndReason::Forced => SpanEnd::Forced,
        EndReason::Released => SpanEnd::Released,
        EndReason::Unknown => SpanEnd::Forgotten,
    }
}

/// An interval in which a client or the server was out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Absence {
    /// `None` for the server.
    pub(crate) client: Option<Arc<str>>,
    pub(crate) kind: AbsenceKind,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    /// Indexes of the entries at which the absence began and ended.
    pub(crate) rows: (usize, Option<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbsenceKind {
    Paused,
    Dead,
    Isolated,
}

impl AbsenceKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Dead => "stopped",
            Self::Isolated => "isolated",
        }
    }
}

/// Returns the absences of all clients and of the server.
pub(crate) fn absences(history: &History) -> Vec<Absence> {
    let mut open: Vec<Absence> = Vec::new();
    let mut done = Vec::new();
    let end = history.end();
    for (row, entry) in history.entries.iter().enumerate() {
        let (kind, begins) = match &entry.event {
            Event::Client(ClientEvent::Paused) => (AbsenceKind::Paused, true),
            Event::Client(ClientEvent::Resumed) => (AbsenceKind::Paused, false),
            Event::Client(ClientEvent::Killed) | Event::Server(ServerEvent::Stopped) => {
                (AbsenceKind::Dead, true)
            }
            Event::Server(ServerEvent::Started { .. }) => (AbsenceKind::Dead, false),
            Event::Client(ClientEvent::Isolated) => (AbsenceKind::Isolated, true),
            Event::Client(ClientEvent::Reachable) => (AbsenceKind::Isolated, false),
            _ => continue,
        };
        if begins {
            open.push(Absence {
                client: entry.client.clone(),
                kind,
                from: entry.at,
                to: end,
                rows: (row, None),
            });
        } else if let Some(index) = open
            .iter()
            .position(|absence| absence.client == entry.client && absence.kind == kind)
        {
            let mut over = open.remove(index);
            (over.to, over.rows.1) = (entry.at, Some(row));
            done.push(over);
        }
    }
    done.extend(open);
    done.sort_by_key(|absence| absence.from);
    done
}
