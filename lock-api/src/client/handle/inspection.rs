//! Looking at a key, and taking it away by force.

use std::fmt;
use std::time::Duration;

use crate::client::error::kind;
use crate::id::{FencingToken, Key};
use crate::reply::{HolderView, InspectReply, WaiterView};
use crate::request::{Kind, LockSpec, Mode};

/// How a key stood when the server looked; it may have changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    key: Key,
    reply: InspectReply,
}

impl Inspection {
    pub(crate) const fn new(key: Key, reply: InspectReply) -> Self {
        Self { key, reply }
    }

    /// The key.
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Whether anybody holds it, in any way.
    pub const fn is_held(&self) -> bool {
        self.reply.holder_count > 0
    }

    /// Whether it is a reader/writer lock that is held for reading.
    pub fn is_read_locked(&self) -> bool {
        self.reply
            .holders
            .iter()
            .any(|holder| holder.mode == Mode::Shared)
    }

    /// Whether it is a reader/writer lock that is held for writing.
    pub fn is_write_locked(&self) -> bool {
        self.reply
            .spec
            .is_some_and(|spec| spec.kind() == Kind::RwLock)
            && self
                .reply
                .holders
                .iter()
                .any(|holder| holder.mode == Mode::Exclusive)
    }

    /// What it is in use as; `None` if it is idle.
    pub const fn spec(&self) -> Option<LockSpec> {
        self.reply.spec
    }

    /// The last token granted, while the server remembers it.
    pub const fn token(&self) -> Option<FencingToken> {
        self.reply.token
    }

    /// Holders, by the time that they have left; at most
    /// [`INSPECT_LIST`](crate::bounds::INSPECT_LIST) of them.
    pub fn holders(&self) -> &[HolderView] {
        &self.reply.holders
    }

    /// How many holders there are.
    pub const fn holder_count(&self) -> u32 {
        self.reply.holder_count
    }

    /// Waiters in the order of the queue; at most
    /// [`INSPECT_LIST`](crate::bounds::INSPECT_LIST) of them.
    pub fn waiters(&self) -> &[WaiterView] {
        &self.reply.waiters
    }

    /// How many waiters there are.
    pub const fn waiter_count(&self) -> u32 {
        self.reply.waiter_count
    }

    /// The tokens of the holders listed, each once: what a forced release names.
    pub fn held_tokens(&self) -> Vec<FencingToken> {
        let mut tokens: Vec<_> = self
            .reply
            .holders
            .iter()
            .map(|holder| holder.token)
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }
}

/// Several lines: what the key is, who holds it, who waits.
impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: ", self.key.as_str())?;
        match self.reply.spec {
            None => f.write_str("idle")?,
            Some(spec) => write!(f, "{}, {:?}", kind(&spec), spec.policy())?,
        }
        if let Some(token) = self.reply.token {
            write!(f, ", last token {token}")?;
        }
        for holder in &self.reply.holders {
            write!(
                f,
                "\n  held by {:?} {}",
                holder.label.as_str(),
                in_mode(holder.mode)
            )?;
            if holder.holds > 1 {
                write!(f, " {} times", holder.holds)?;
            }
            write!(
                f,
                ", token {}, {} left",
                holder.token,
                Millis(holder.remaining)
            )?;
            if holder.revoked {
                f.write_str(", revoked")?;
            }
        }
        write_more(
            f,
            self.reply.holder_count,
            self.reply.holders.len(),
            "holders",
        )?;
        for waiter in &self.reply.waiters {
            write!(
                f,
                "\n  waiting: {:?} {}",
                waiter.label.as_str(),
                in_mode(waiter.mode)
            )?;
            write!(f, ", waiter lasts {}", Millis(waiter.waiter_remaining))?;
            if waiter.unreachable {
                f.write_str(", away")?;
            }
        }
        write_more(
            f,
            self.reply.waiter_count,
            self.reply.waiters.len(),
            "waiters",
        )
    }
}

fn write_more(f: &mut fmt::Formatter<'_>, all: u32, shown: usize, what: &str) -> fmt::Result {
    match (all as usize).saturating_sub(shown) {
        0 => Ok(()),
        more => write!(f, "\n  and {more} more {what}"),
    }
}

fn in_mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusively".into(),
        Mode::Shared => "for reading".into(),
        Mode::Permits(1) => "with 1 permit".into(),
        Mode::Permits(permits) => format!("with {permits} permits"),
    }
}

/// Whole milliseconds.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0.as_millis())
    }
}
