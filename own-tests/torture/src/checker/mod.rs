//! Checks a history. A pure function: the same history gets the same verdict.
//!
//! The simulator's checker can't be used here, because it compares clients with the state of the
//! server at each step, and a real server shows neither its steps nor their order. So this one only
//! convicts on what is certain from outside. A client certainly holds a lock from the completion of its
//! acquire to the moment when it was last asked and then said that it still did. Whatever happened
//! between a question and its answer may have happened at any time in between: while a conversion is asked for, the hold
//! counts as a reader's.

mod dropped;
mod duties;
mod exclusion;
mod once;
mod order;
mod register;
mod shown;
#[cfg(test)]
mod tests;
mod tokens;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use clap::ValueEnum;
use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::history::{About, Answer, Assumption, Call, Entry, Fault, Form, History, Operation};
use crate::protocol::Mode;
use crate::workload::PROBE;

/// The kind of a fault that stops a client's process.
pub(crate) const STOPPED: &str = "stop client";
/// The same, and the process can't tell from its monotonic clock, as when its machine was suspended.
pub(crate) const SUSPENDED: &str = "suspend client";
/// The kind of a fault that nobody injected: the controller itself was late.
pub(crate) const STALL: &str = "stall of the machine";

/// What clients of leasehold do beside taking one plain lock.
pub(crate) const SEVERAL: &str = "several keys in one call";
pub(crate) const BESIDE: &str = "a key beside another";
pub(crate) const REENTRY: &str = "reentry";
pub(crate) const DROPPED: &str = "dropped acquire";
pub(crate) const DOWNGRADE: &str = "downgrade";
pub(crate) const UPGRADE: &str = "upgrade";
pub(crate) const NO_UPGRADE: &str = "refused upgrade";

/// What a lock may promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Promise {
    /// Holders never overlap (S1).
    Exclusion,
    /// An occurrence of a job that is done doesn't run again, and none is tried more than three times. If an
    /// attempt dies, another one follows.
    #[value(skip)]
    Once,
    /// A later holder has a higher token (S4).
    Tokens,
    /// A resource with a fence accepts no write of an earlier holder after one of a later holder (S5).
    Fencing,
    /// A counter loses no addition if each holder claims its token before it reads (S5).
    Counter,
    /// A client that slept past its lease knows that it lost the lock (S2).
    Loss,
    /// A lock goes to the client that has waited for the longest time (L3).
    Order,
    /// A call ends by its limit (L4).
    Limit,
    /// Once the servers answer again, somebody gets a lock (L1, L2).
    Progress,
    /// Nothing is left behind.
    Cleanup,
}

impl Promise {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Exclusion => "exclusion",
            Self::Once => "a job runs once",
            Self::Tokens => "tokens grow",
            Self::Fencing => "no stale write passes the fence",
            Self::Counter => "no addition lost behind the fence",
            Self::Loss => "a loss is noticed",
            Self::Order => "first come, first served",
            Self::Limit => "calls end in time",
            Self::Progress => "progress after a fault",
            Self::Cleanup => "nothing left behind",
        }
    }
}

/// A promise that was broken, and the few entries that show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
    /// The assumption that a fault had broken. Then a lease can't keep the promise.
    pub(crate) outside: Option<Assumption>,
    pub(crate) text: String,
    pub(crate) evidence: Vec<Entry>,
}

impl Violation {
    fn new<'a>(
        promise: Promise,
        text: String,
        evidence: impl IntoIterator<Item = &'a Operation>,
    ) -> Self {
        let mut shown: Vec<Entry> = Vec::new();
        for entry in evidence.into_iter().cloned().map(Entry::Operation) {
            if !shown.contains(&entry) {
                shown.push(entry);
            }
        }
        Self {
            promise,
            outside: None,
            text,
            evidence: shown,
        }
    }

    /// Adds to the evidence what is no operation.
    fn with(mut self, entry: Entry) -> Self {
        self.evidence.push(entry);
        self
    }

    /// Adds the faults that broke assumptions. The first one is the excuse.
    fn excused_by<'a>(mut self, faults: impl IntoIterator<Item = &'a Fault>) -> Self {
        for fault in faults {
            self.outside = self.outside.or(fault.breaks);
            self = self.with(Entry::Fault(fault.clone()));
        }
        self
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.promise.name();
        match self.outside {
            Some(assumption) => write!(f, "{name}, outside of {assumption:?}: {}", self.text),
            None => write!(f, "{name}: {}", self.text),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) about: About,
    pub(crate) violations: Vec<Violation>,
    /// What the run would have had to see before it may say that promises were kept.
    pub(crate) missing: Vec<String>,
    pub(crate) figures: Figures,
}

/// How much a check has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) operations: usize,
    pub(crate) holds: usize,
    /// The locks that were granted while another client wanted or had them.
    pub(crate) contended: usize,
    /// Those whose holder was still there after a lease.
    pub(crate) outlasted: usize,
    /// How often clients did more than to take one plain lock, while another client wanted or had it.
    pub(crate) more: BTreeMap<&'static str, usize>,
    /// The acquires whose process lived to tell, and those of them without an error.
    pub(crate) asked: usize,
    pub(crate) answered: usize,
    /// How often each promise could have been broken.
    pub(crate) in_danger: BTreeMap<Promise, usize>,
    pub(crate) faults: BTreeMap<String, usize>,
    /// What the library said when it failed, by [kind](kind_of).
    pub(crate) errors: BTreeMap<String, usize>,
    /// The times from the end of a fault of the servers to the first success, in ms, in order.
    pub(crate) recoveries_ms: Vec<u64>,
    /// The times from the end of a fault of the servers to the first lock of the probe, in ms, in order.
    pub(crate) answers_ms: Vec<u64>,
    pub(crate) fenced_writes: usize,
    pub(crate) refused_writes: usize,
    /// Additions to a counter without a fence, and how many of them were lost. A pause loses some
    /// under any lease, so this convicts nobody.
    pub(crate) plain_writes: usize,
    pub(crate) plain_lost: usize,
}

pub(crate) fn check(history: &History) -> Verdict {
    let mut holds = Hold::all(history);
    // They show when the servers can be used again, and take nobody's turn.
    holds.retain(|hold| !hold.key.starts_with(PROBE));
    let (mut found, mut figures) = (Vec::new(), count(history, &holds));
    let mut parts: Vec<_> = once::by_lock(&holds).iter().flat_map(Hold::parts).collect();
    parts.sort_by_key(|part| (part.from, part.id));
    found.extend(exclusion::check(history, &parts));
    found.extend(once::check(history, &holds));
    found.extend(tokens::check(history, &parts));
    found.extend(register::check(history, &parts));
    let (believed, slept) = duties::loss(history, &holds);
    found.extend(believed);
    let (overtaken, waited) = order::check(history, &holds);
    found.extend(overtaken);
    found.extend(duties::limits(history));
    found.extend(duties::left(history));
    found.extend(dropped::check(history));
    let (stuck, recoveries) = duties::progress(history, &holds);
    found.extend(stuck);
    figures.recoveries_ms = recoveries;
    figures.answers_ms = duties::first_successes(history);
    (figures.plain_writes, figures.plain_lost) = register::plain(history);
    let uses = shown::Use::all(history);
    figures.contended = shown::contended(&uses, &holds);
    figures.outlasted = shown::outlasted(history, &holds);
    figures.more = shown::more(history, &uses);
    let writes = figures.fenced_writes + figures.refused_writes;
    figures.in_danger = BTreeMap::from([
        (Promise::Exclusion, figures.contended),
        (Promise::Once, once::asked_again(history)),
        (
            Promise::Tokens,
            holds.iter().filter(|it| it.token.is_some()).count(),
        ),
        (Promise::Fencing, writes),
        (Promise::Counter, writes),
        (Promise::Loss, slept),
        (Promise::Order, waited),
        (Promise::Limit, figures.asked),
        (Promise::Progress, figures.recoveries_ms.len()),
        (Promise::Cleanup, usize::from(history.about.lasted_us > 0)),
    ]);
    let missing = shown::missing(history, &uses, &figures);
    for violation in &mut found {
        add_circumstances(history, violation);
    }
    Verdict {
        about: history.about.clone(),
        violations: found,
        missing,
        figures,
    }
}

fn count(history: &History, holds: &[Hold<'_>]) -> Figures {
    let mut figures = Figures {
        operations: history.operations().count(),
        holds: holds.len(),
        ..Figures::default()
    };
    for fault in history.faults() {
        *figures.faults.entry(fault.kind.clone()).or_default() += 1;
    }
    for operation in history.operations() {
        let is_probe = operation.key.starts_with(PROBE);
        if let (Call::Acquire { .. }, false) = (operation.call, is_probe) {
            let answered = matches!(operation.answer, Answer::Held { .. } | Answer::Free);
            figures.answered += usize::from(answered);
            figures.asked += usize::from(operation.answer != Answer::Killed);
        }
        match (&operation.call, &operation.answer) {
            (_, Answer::Error(text)) => *figures.errors.entry(kind_of(text)).or_default() += 1,
            (Call::Write { .. }, Answer::Accepted { .. }) => figures.fenced_writes += 1,
            (Call::Write { .. } | Call::Claim { .. }, Answer::Refused) => {
                figures.refused_writes += 1;
            }
            _ => {}
        }
    }
    figures
}

/// The text of an error without times and ports, which differ from one error to the next.
fn kind_of(error: &str) -> String {
    static VARYING: LazyLock<Regex> = LazyLock::new(|| {
        let varying = r"(127\.0\.0\.1:)[0-9]+|[0-9][0-9.]*\s*(?:ms|s|µs)\b";
        Regex::new(varying).expect("a regular expression")
    });
    VARYING.replace_all(error, "${1}…").into_owned()
}

/// An acquisition that succeeded.
#[derive(Clone, Debug)]
struct Hold<'a> {
    id: u64,
    client: usize,
    key: &'a str,
    mode: Mode,
    token: Option<u64>,
    acquire: &'a Operation,
    /// Those that succeeded, in order.
    conversions: Vec<&'a Operation>,
    asked: u64,
    granted: u64,
    /// From here on, the client certainly held the lock,
    from: u64,
    /// and until here it certainly believed so.
    until: u64,
    /// The question that shows it.
    last_held: Option<&'a Operation>,
}

impl<'a> Hold<'a> {
    /// All of them, in the order of their grants.
    fn all(history: &'a History) -> Vec<Self> {
        let mut last_held: BTreeMap<u64, &Operation> = BTreeMap::new();
        let mut conversions: BTreeMap<u64, Vec<&Operation>> = BTreeMap::new();
        let is_held = |it: &&Operation| matches!(it.answer, Answer::Held { .. });
        for operation in history.operations().filter(is_held) {
            if operation.call == Call::Check {
                let last = last_held.entry(operation.hold).or_insert(operation);
                if last.invoked < operation.invoked {
                    *last = operation;
                }
            } else if matches!(operation.call, Call::Convert { .. }) {
                let of_hold = conversions.entry(operation.hold).or_default();
                of_hold.push(operation);
            }
        }
        let of = |acquire: &'a Operation| {
            let Call::Acquire { mode, .. } = acquire.call else {
                return None;
            };
            let (Answer::Held { token }, Some(from)) = (&acquire.answer, acquire.completed) else {
                return None;
            };
            let last_held = last_held.get(&acquire.hold).copied();
            let mut conversions = conversions.get(&acquire.hold).cloned().unwrap_or_default();
            conversions.sort_by_key(|it| it.invoked);
            let held = last_held.into_iter().chain(conversions.last().copied());
            Some(Self {
                id: acquire.hold,
                client: acquire.client,
                key: &acquire.key,
                mode,
                token: *token,
                acquire,
                asked: acquire.invoked,
                granted: from,
                from,
                until: held.map(|it| it.invoked).fold(from, u64::max),
                last_held,
                conversions,
            })
        };
        let mut holds: Vec<_> = history.operations().filter_map(of).collect();
        holds.sort_by_key(|hold| (hold.from, hold.id));
        holds
    }

    /// The times in which the client certainly had it in each of its modes. A conversion may have happened at any time between
    /// its question and its answer, so in between it had the lesser one.
    fn parts(&self) -> Vec<Self> {
        let mut parts = vec![self.clone()];
        for it in &self.conversions {
            let (Call::Convert { to }, Answer::Held { token }) = (it.call, &it.answer) else {
                continue;
            };
            let from = match to {
                Mode::Read => it.invoked,
                _ => it.ended(),
            };
            let before = parts.iter_mut();
            before.for_each(|part| part.until = part.until.min(from));
            parts.push(Self {
                mode: to,
                token: *token,
                asked: it.invoked,
                granted: it.ended(),
                from,
                ..self.clone()
            });
        }
        parts
    }

    /// The operations that show it.
    fn evidence(&self) -> impl Iterator<Item = &'a Operation> + use<'a> {
        let conversions = self.conversions.clone();
        [self.acquire]
            .into_iter()
            .chain(conversions)
            .chain(self.last_held)
    }

    /// Whether both were taken through one reentrant handle, so that they don't exclude each other.
    fn shares_handle(&self, other: &Self) -> bool {
        let is_reentrant = |it: &Self| it.acquire.form().is_some_and(Form::is_reentrant);
        self.client == other.client && is_reentrant(self) && is_reentrant(other)
    }

    /// Whether this one was over, or at least granted, before the other was asked for.
    fn is_before(&self, other: &Self) -> bool {
        self.granted < other.asked
    }
}

/// Splits the holds by key. The order stays.
fn by_key<'a>(holds: &[Hold<'a>]) -> BTreeMap<&'a str, Vec<Hold<'a>>> {
    let mut keys: BTreeMap<&str, Vec<Hold<'_>>> = BTreeMap::new();
    for hold in holds {
        keys.entry(hold.key).or_default().push(hold.clone());
    }
    keys
}

/// Whether one of these faults concerns the client of an operation, or all clients (a fault of the servers, a stall of
/// the machine), at some time from `settles_us` before the operation to `until`.
fn is_disturbed<'a>(
    mut faults: impl Iterator<Item = &'a Fault>,
    operation: &Operation,
    settles_us: u64,
    until: u64,
) -> bool {
    faults.any(|fault| {
        let concerns = fault.client.is_none_or(|it| it == operation.client);
        concerns && fault.from <= until && fault.until + settles_us >= operation.invoked
    })
}

/// The first fault that broke an assumption between these times.
fn broken(history: &History, from: u64, until: u64) -> Option<&Fault> {
    let mut faults = history.faults();
    faults.find(|fault| fault.breaks.is_some() && fault.from <= until && fault.until >= from)
}

/// Adds the faults that those who read the evidence want to know of: the latest of the servers, and
/// those of the same clients.
fn add_circumstances(history: &History, violation: &mut Violation) {
    let operations = || violation.evidence.iter().filter_map(Entry::operation);
    let first = operations().map(|it| it.invoked).min();
    let last = operations().map(Operation::ended).max();
    let (Some(first), Some(last)) = (first, last) else {
        return;
    };
    let clients: Vec<usize> = operations().map(|it| it.client).collect();
    let before = || history.faults().filter(|fault| fault.from <= last);
    let latest = before()
        .filter(|fault| fault.client.is_none() && fault.kind != STALL)
        .max_by_key(|fault| fault.from);
    let own = before().filter(|fault| {
        let concerns = fault.client.is_some_and(|client| clients.contains(&client));
        fault.until >= first && (concerns || fault.kind == STALL)
    });
    let faults = latest.into_iter().chain(own).cloned().map(Entry::Fault);
    for fault in faults.collect::<Vec<_>>() {
        if !violation.evidence.contains(&fault) {
            violation.evidence.push(fault);
        }
    }
    violation.evidence.sort_by_key(Entry::at);
}

fn seconds(micros: u64) -> String {
    format!("{}.{:06} s", micros / 1_000_000, micros % 1_000_000)
}
