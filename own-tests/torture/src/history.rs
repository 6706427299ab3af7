//! What happened in a run, as the controller saw it. A history can be saved, and checked again.
//!
//! All times are in µs since the run began, on the controller's monotonic clock. No client can
//! falsify them.

use std::fmt;
use std::io::{BufRead, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::checker::Promise;
use crate::protocol::Mode;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct History {
    pub(crate) about: About,
    /// In no particular order.
    pub(crate) entries: Vec<Entry>,
}

/// The circumstances of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) subject: String,
    pub(crate) version: String,
    pub(crate) topology: String,
    pub(crate) server: String,
    pub(crate) seed: u64,
    /// When the nemesis stopped.
    pub(crate) lasted_us: u64,
    pub(crate) lease_ms: u64,
    /// The longest that a lock lasts although its client sleeps.
    pub(crate) lasts_asleep_ms: u64,
    /// The longest that a healed system may go without any success.
    pub(crate) progress_within_ms: u64,
    /// How far the rate of a client's clock was off at most, in millionths.
    pub(crate) skew_ppm: i64,
    /// What the subject promises.
    #[serde(default)]
    pub(crate) promises: Vec<Promise>,
    /// The kinds of faults that the run deals.
    #[serde(default)]
    pub(crate) deck: Vec<String>,
    /// What the clients do beside plain locks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) more: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub(crate) enum Entry {
    Operation(Operation),
    Fault(Fault),
    /// Something was left behind after the end of all clients.
    Left {
        what: String,
    },
}

impl Entry {
    pub(crate) const fn operation(&self) -> Option<&Operation> {
        match self {
            Self::Operation(operation) => Some(operation),
            Self::Fault(_) | Self::Left { .. } => None,
        }
    }

    pub(crate) fn at(&self) -> u64 {
        match self {
            Self::Operation(operation) => operation.invoked,
            Self::Fault(fault) => fault.from,
            Self::Left { .. } => u64::MAX,
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |micros: u64| format!("{}.{:03}", micros / 1_000, micros % 1_000);
        match self {
            Self::Operation(it) => {
                let ended = it.completed.map_or("never".into(), ms);
                write!(f, "{:>11}  {ended:>11}  ", ms(it.invoked))?;
                let (client, key) = (it.client, &it.key);
                write!(f, "client {client}: {} `{key}`: {}", it.call, it.answer)
            }
            Self::Fault(it) => {
                write!(
                    f,
                    "{:>11}  {:>11}  {}",
                    ms(it.from),
                    ms(it.until),
                    it.shown()
                )?;
                let breaks = |assumption| write!(f, " (breaks {assumption:?})");
                it.breaks.map_or(Ok(()), breaks)
            }
            Self::Left { what } => write!(f, "{:>11}  {:>11}  {what}", "at the end", ""),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire {
                mode,
                wait_ms,
                form,
            } => {
                match wait_ms {
                    0 => write!(f, "try {mode:?}")?,
                    _ => write!(f, "acquire {mode:?} within {wait_ms} ms")?,
                }
                match form {
                    Form::Plain => Ok(()),
                    _ => write!(f, ", {form:?}"),
                }
            }
            Self::Convert { to } => write!(f, "convert to {to:?}"),
            Self::Check => f.write_str("still held?"),
            Self::Release => f.write_str("release"),
            Self::Claim { token } => write!(f, "claim token {token}"),
            Self::Write { token, value } => write!(f, "write {value} with token {token}"),
            Self::PlainWrite { value } => write!(f, "write {value} without a token"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { token: None } => f.write_str("held"),
            Self::Held { token: Some(token) } => write!(f, "held, token {token}"),
            Self::Free => f.write_str("not held"),
            Self::Accepted { value: None } => f.write_str("accepted"),
            Self::Accepted { value: Some(value) } => write!(f, "accepted, read {value}"),
            Self::Refused => f.write_str("refused"),
            Self::Error(text) => write!(f, "error: {text}"),
            Self::Killed => f.write_str("the process has ended"),
            Self::Silence => f.write_str("no answer"),
        }
    }
}

/// What a client process was asked, or did to the register that its lock protects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Operation {
    /// The number of the client. A killed one gets a successor with the same number.
    pub(crate) client: usize,
    /// The number of the acquisition that the operation belongs to, unique in the run.
    pub(crate) hold: u64,
    pub(crate) key: String,
    pub(crate) call: Call,
    pub(crate) invoked: u64,
    /// `None` if there was no answer.
    pub(crate) completed: Option<u64>,
    pub(crate) answer: Answer,
}

impl Operation {
    /// An operation that has no answer yet.
    pub(crate) fn begin(client: usize, hold: u64, key: &str, call: Call, invoked: u64) -> Self {
        Self {
            client,
            hold,
            key: key.into(),
            call,
            invoked,
            completed: None,
            answer: Answer::Silence,
        }
    }

    /// How it asks for a lock, if it does.
    pub(crate) const fn form(&self) -> Option<Form> {
        match self.call {
            Call::Acquire { form, .. } => Some(form),
            _ => None,
        }
    }

    /// When it ended. If it never did, when it began.
    pub(crate) fn ended(&self) -> u64 {
        self.completed.unwrap_or(self.invoked)
    }
}

/// The calls to a client process, and to the register of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
    Acquire {
        mode: Mode,
        wait_ms: u64,
        #[serde(default, skip_serializing_if = "Form::is_plain")]
        form: Form,
    },
    /// Does the client still hold the lock?
    Check,
    Release,
    /// Downgrades a writer, or tries to upgrade a reader.
    Convert {
        to: Mode,
    },
    /// Tells the fenced register the token, and reads it. Before the first read of an acquisition.
    Claim {
        token: u64,
    },
    /// Writes the fenced register.
    Write {
        token: u64,
        value: u64,
    },
    /// Writes a register without fences.
    PlainWrite {
        value: u64,
    },
}

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Form {
    #[default]
    Plain,
    /// Together with other keys. There is one operation for each, of the same hold.
    Several,
    /// While the client has another key.
    Beside,
    /// Through the reentrant handle that the process has for the key.
    Reentrant,
    /// The same, while the client has it.
    Reentry,
    /// The future is dropped if it isn't ready soon.
    Dropped,
}

impl Form {
    pub(crate) const fn is_reentrant(self) -> bool {
        matches!(self, Self::Reentrant | Self::Reentry)
    }

    fn is_plain(&self) -> bool {
        *self == Self::Plain
    }
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Held {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
    },
    Free,
    /// The register did it. A claim reads this value.
    Accepted {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<u64>,
    },
    Refused,
    /// The library said that it failed. The outcome may be unknown.
    Error(String),
    /// The process was killed by the nemesis. The outcome is unknown.
    Killed,
    /// There was no answer for so long that the controller gave up.
    Silence,
}

/// Something that the nemesis did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) kind: String,
    /// The client that it was done to. `None` for the servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<usize>,
    pub(crate) from: u64,
    /// When it was undone and, if it was done to servers, one of them answered again.
    pub(crate) until: u64,
    /// Whether a message that was sent during it may arrive after it.
    #[serde(default)]
    pub(crate) delays: bool,
    /// The assumption that it breaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) breaks: Option<Assumption>,
}

impl Fault {
    /// The text of its row.
    pub(crate) fn shown(&self) -> String {
        match self.client {
            Some(client) => format!("nemesis: {} {client}", self.kind),
            None => format!("nemesis: {}", self.kind),
        }
    }
}

/// The assumptions of docs/semantics.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Assumption {
    /// One history of writes.
    A1,
    /// Nobody else touches the keys.
    A2,
    /// Clocks run evenly.
    A3,
}

impl History {
    /// Writes one JSON object per line: first the circumstances, then the entries.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Failure> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        serde_json::to_writer(&mut file, &self.about)?;
        for entry in &self.entries {
            file.write_all(b"\n")?;
            serde_json::to_writer(&mut file, entry)?;
        }
        file.write_all(b"\n")?;
        Ok(file.flush()?)
    }

    pub(crate) fn load(path: &Path) -> Result<Self, Failure> {
        let file = std::fs::File::open(path)?;
        let mut lines = std::io::BufReader::new(file).lines();
        let first = lines.next().ok_or("an empty file")??;
        let about = serde_json::from_str(&first)?;
        let entries = lines
            .map(|line| Ok(serde_json::from_str(&line?)?))
            .collect::<Result<_, Failure>>()?;
        Ok(Self { about, entries })
    }

    pub(crate) fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.entries.iter().filter_map(Entry::operation)
    }

    pub(crate) fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Fault(fault) => Some(fault),
            Entry::Operation(_) | Entry::Left { .. } => None,
        })
    }
}
