//! The times of waits and holds, taken from the server's replies, and the times when a client or
//! the server was out of service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::machine::{Command, Reply};
use leasehold_api::{
    AcquireReply, ConvertReply, EndReason, FencingToken, ForceMode, ForceRelease, ForceReply, Key,
    Mode, Notification, PollReply, ReleaseReply, RenewReply, SessionId,
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
    /// The time of the current entry.
    at: Duration,
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
    spans.at = end;
    spans.expire();
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
            self.hold(id, token, remaining);
        }
    }

    fn entry(&mut self, entry: &Entry) {
        self.at = entry.at;
        self.expire();
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
                self.executed(client, key, command, reply);
            }
            (Event::Server(event), _) => self.server(event),
            _ => {}
        }
    }

    fn executed(&mut self, client: &Arc<str>, key: &Key, command: &Command, reply: &Reply) {
        let operation = match command {
            Command::Acquire(request) => &request.operation,
            Command::Poll(request) => &request.operation,
            Command::Renew(request) => &request.operation,
            Command::Release(request) => &request.operation,
            Command::Convert(request) => &request.operation,
            Command::ForceRelease(request) => return self.forced(key, request, reply),
            Command::Inspect | Command::Note(_) => return,
        };
        let id = (Arc::clone(client), operation.session, operation.sequence);
        match (command, reply) {
            (Command::Acquire(request), Reply::Acquire(AcquireReply::Acquired(acquired))) => {
                self.wait(&id, key, request.mode, acquired.remaining);
                self.hold(id, acquired.token, acquired.remaining);
            }
            (Command::Acquire(request), Reply::Acquire(AcquireReply::Queued(queued))) => {
                self.wait(&id, key, request.mode, queued.waiter_remaining);
            }
            (
                Command::Convert(request),
                Reply::Convert(ConvertReply::Converted { token, remaining }),
            ) => self.convert(id, request.to, *token, *remaining),
            (_, Reply::Poll(PollReply::Acquired(acquired))) => {
                self.hold(id, acquired.token, acquired.remaining);
            }
            (_, Reply::Poll(PollReply::Queued(queued))) => {
                self.extend(&id, queued.waiter_remaining);
            }
            (_, Reply::Poll(PollReply::Gone(reason))) => self.close(&id, end_of(*reason)),
            (_, Reply::Renew(RenewReply::Renewed { token, remaining })) => {
                self.hold(id, *token, *remaining);
            }
            (_, Reply::Renew(RenewReply::Lost(reason))) => self.close(&id, end_of(*reason)),
            (_, Reply::Release(ReleaseReply::NotHeld(reason))) => {
                self.close(&id, end_of(*reason));
            }
            (_, Reply::Release(_)) => self.close(&id, SpanEnd::Released),
            _ => {}
        }
    }

    fn forced(&mut self, key: &Key, request: &ForceRelease, reply: &Reply) {
        let holders = matches!(
            reply,
            Reply::ForceRelease(ForceReply::Forced { holders: 1.. })
        );
        if holders && request.how == ForceMode::Now {
            let (at, tokens) = (self.at, &request.tokens);
            self.close_all(SpanEnd::Forced, |span| {
                let forced = span.token.is_some_and(|token| tokens.contains(&token));
                (forced && span.key == *key).then_some(at)
            });
        }
    }

    fn wait(&mut self, id: &Id, key: &Key, mode: Mode, remaining: Duration) {
        let span = Span {
            client: Arc::clone(&id.0),
            key: key.clone(),
            sequence: id.2,
            mode,
            token: None,
            from: self.at,
            to: self.at + remaining,
            end: SpanEnd::Open,
            rows: (self.row, None),
        };
        self.open.entry(id.clone()).or_insert(span);
    }

    fn hold(&mut self, id: Id, token: FencingToken, remaining: Duration) {
        let Some(mut span) = self.open.remove(&id) else {
            return;
        };
        if !span.is_hold() {
            // A wait of zero length still shows if other events happened during it.
            if span.rows.0 != self.row {
                self.finish(span.clone(), self.at, SpanEnd::Became);
            }
            (span.from, span.rows) = (self.at, (self.row, None));
        }
        span.token = Some(token);
        span.to = self.at + remaining;
        self.open.insert(id, span);
    }

    fn convert(&mut self, id: Id, to: Mode, token: FencingToken, remaining: Duration) {
        if let Some(span) = self.open.remove(&id) {
            self.finish(span.clone(), self.at, SpanEnd::Became);
            let converted = Span {
                mode: to,
                token: Some(token),
                from: self.at,
                to: self.at + remaining,
                rows: (self.row, None),
                ..span
            };
            self.open.insert(id, converted);
        }
    }

    fn extend(&mut self, id: &Id, remaining: Duration) {
        if let Some(span) = self.open.get_mut(id) {
            span.to = self.at + remaining;
        }
    }

    fn server(&mut self, event: &ServerEvent) {
        let at = self.at;
        match event {
            ServerEvent::Started { data: Data::Lost } => self.forget(|_| true),
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
                self.forget(|span| since <= span.from);
            }
            ServerEvent::KeyRemoved { key } | ServerEvent::ForeignPlanted { key, .. } => {
                self.forget(|span| span.key == *key);
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

    fn close(&mut self, id: &Id, end: SpanEnd) {
        if let Some(span) = self.open.remove(id) {
            self.finish(span, self.at, end);
        }
    }

    /// Closes the spans for which `ended` returns the time when they ended.
    fn close_all(&mut self, end: SpanEnd, ended: impl Fn(&Span) -> Option<Duration>) {
        let mut open = std::mem::take(&mut self.open);
        open.retain(|_, span| match ended(span) {
            Some(at) => {
                self.finish(span.clone(), at, end);
                false
            }
            None => true,
        });
        self.open = open;
    }

    fn forget(&mut self, which: impl Fn(&Span) -> bool) {
        let at = self.at;
        self.close_all(SpanEnd::Forgotten, |span| which(span).then_some(at));
    }

    fn expire(&mut self) {
        let now = self.at;
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
