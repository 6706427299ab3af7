//! The result of inspecting a key.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::client::error::describe_kind;
use crate::client::hold::Tag;
use crate::id::{FencingToken, Key};
use crate::reply::{HolderView, InspectReply, NoteView, WaiterView};
use crate::request::{Kind, LockSpec, Mode};

/// What leaves notes on a key: [`Inspection::role`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// A job: [`LockClient::once`](crate::LockClient::once).
    Job,
    /// An election: [`LockClient::election`](crate::LockClient::election).
    Election,
}

/// The state of a key at the time of an [`inspect`](crate::LockClient::inspect) call.
///
/// The key may have changed since. `Display` prints a summary of several lines.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let inspection = locks.inspect("invoice:42").await?;
/// println!("{inspection}");
/// for holder in inspection.holders() {
///     println!("{:?} has {:?} left", holder.label, holder.remaining);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    key: Key,
    reply: InspectReply,
}

impl Inspection {
    pub(crate) const fn new(key: Key, reply: InspectReply) -> Self {
        Self { key, reply }
    }

    /// Returns the inspected key.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("invoice:42").await?;
    /// assert_eq!(inspection.key().as_str(), "invoice:42");
    /// # Ok(())
    /// # }
    /// ```
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Returns `true` if the key has a holder.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("invoice:42").await?;
    /// println!("free: {}", !inspection.is_held());
    /// # Ok(())
    /// # }
    /// ```
    pub const fn is_held(&self) -> bool {
        self.reply.holder_count > 0
    }

    /// Returns `true` if the key is a reader/writer lock with at least one reader.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("catalog").await?;
    /// println!("has readers: {}", inspection.is_read_locked());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_read_locked(&self) -> bool {
        self.has_holder(Mode::Shared)
    }

    /// Returns `true` if the key is a reader/writer lock with a writer.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("catalog").await?;
    /// println!("has a writer: {}", inspection.is_write_locked());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_write_locked(&self) -> bool {
        let spec = self.reply.spec;
        spec.is_some_and(|spec| spec.kind() == Kind::RwLock) && self.has_holder(Mode::Exclusive)
    }

    fn has_holder(&self, mode: Mode) -> bool {
        let mut holders = self.reply.holders.iter();
        holders.any(|holder| holder.mode == mode)
    }

    /// Returns the spec that the key is in use with, or `None` if the key is idle.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("printers").await?;
    /// if let Some(spec) = inspection.spec() {
    ///     println!("{:?} with capacity {}", spec.kind(), spec.capacity());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub const fn spec(&self) -> Option<LockSpec> {
        self.reply.spec
    }

    /// Returns the last fencing token granted, or `None` if the server no longer has it.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("invoice:42").await?;
    /// println!("last token: {:?}", inspection.token());
    /// # Ok(())
    /// # }
    /// ```
    pub const fn token(&self) -> Option<FencingToken> {
        self.reply.token
    }

    /// Returns how long ago this client has seen the last change of a key that is in use, on a store without a clock; `None` on all
    /// others. What holders have left isn't known then: another client may have seen the key for longer.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("report").await?;
    /// if let Some(ago) = inspection.last_change() {
    ///     println!("seen unchanged for {ago:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub const fn last_change(&self) -> Option<Duration> {
        self.reply.last_change
    }

    /// Returns the holders in the order of their remaining time.
    ///
    /// The list has at most [`INSPECT_LIST`](crate::bounds::INSPECT_LIST) entries;
    /// [`holder_count`](Self::holder_count) counts all holders.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("printers").await?;
    /// for holder in inspection.holders() {
    ///     println!("{:?}: {:?} left", holder.label, holder.remaining);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn holders(&self) -> &[HolderView] {
        &self.reply.holders
    }

    /// Returns the number of holders, including those that [`holders`](Self::holders) leaves out.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("printers").await?;
    /// println!("{} holders", inspection.holder_count());
    /// # Ok(())
    /// # }
    /// ```
    pub const fn holder_count(&self) -> u32 {
        self.reply.holder_count
    }

    /// Returns the waiters in the order of the queue.
    ///
    /// The list has at most [`INSPECT_LIST`](crate::bounds::INSPECT_LIST) entries;
    /// [`waiter_count`](Self::waiter_count) counts all waiters.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("printers").await?;
    /// for waiter in inspection.waiters() {
    ///     println!("{:?} waits for {:?}", waiter.label, waiter.mode);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn waiters(&self) -> &[WaiterView] {
        &self.reply.waiters
    }

    /// Returns the number of waiters, including those that [`waiters`](Self::waiters) leaves out.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("printers").await?;
    /// println!("{} waiters", inspection.waiter_count());
    /// # Ok(())
    /// # }
    /// ```
    pub const fn waiter_count(&self) -> u32 {
        self.reply.waiter_count
    }

    /// Returns the note that stands, if there is one. Jobs and
    /// elections keep their state in it.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("report").await?;
    /// println!("note: {:?}", inspection.note());
    /// # Ok(())
    /// # }
    /// ```
    pub const fn note(&self) -> Option<&NoteView> {
        self.reply.note.as_ref()
    }

    /// Returns what the key is used for, if the note that stands says it: `None` for a plain lock.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient, Role};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("report").await?;
    /// println!("a job: {}", inspection.role() == Some(Role::Job));
    /// # Ok(())
    /// # }
    /// ```
    pub fn role(&self) -> Option<Role> {
        let tag = *self.reply.note.as_ref()?.bytes.first()?;
        let is = |of: Tag| tag == of as u8;
        if is(Tag::Job) {
            return Some(Role::Job);
        }
        is(Tag::Election).then_some(Role::Election)
    }

    /// Returns the distinct tokens of the [listed holders](Self::holders), to pass to
    /// [`force_release`](crate::LockClient::force_release).
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, ForceMode, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let stuck = locks.inspect("invoice:42").await?.held_tokens();
    /// let forced = locks.force_release("invoice:42", stuck, ForceMode::Revoke).await?;
    /// println!("{forced:?}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn held_tokens(&self) -> Vec<FencingToken> {
        let holders = self.reply.holders.iter();
        let tokens: BTreeSet<_> = holders.map(|holder| holder.token).collect();
        tokens.into_iter().collect()
    }
}

/// Prints the kind of lock, then one line for each holder and each waiter.
impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reply = &self.reply;
        write!(f, "{:?}: ", self.key.as_str())?;
        match reply.spec {
            None => f.write_str("idle")?,
            Some(spec) => f.write_str(&describe_kind(&spec))?,
        }
        if let Some(token) = reply.token {
            write!(f, ", last token {token}")?;
        }
        if let Some(ago) = reply.last_change {
            write!(f, ", last change seen {} ago", millis(ago))?;
        }
        for holder in &reply.holders {
            let (label, mode) = (holder.label.as_str(), describe_mode(holder.mode));
            write!(f, "\n  held by {label:?} {mode}")?;
            if holder.holds > 1 {
                write!(f, " {} times", holder.holds)?;
            }
            write!(f, ", token {}", holder.token)?;
            if reply.last_change.is_none() {
                write!(f, ", {} left", millis(holder.remaining))?;
            }
            if holder.revoked {
                f.write_str(", revoked")?;
            }
        }
        write_omitted(f, reply.holder_count, reply.holders.len(), "holders")?;
        for waiter in &reply.waiters {
            let (label, mode) = (waiter.label.as_str(), describe_mode(waiter.mode));
            write!(f, "\n  waiting: {label:?} {mode}")?;
            if reply.last_change.is_none() {
                write!(f, ", expires in {}", millis(waiter.waiter_remaining))?;
            }
            if waiter.unreachable {
                f.write_str(", unreachable")?;
            }
        }
        write_omitted(f, reply.waiter_count, reply.waiters.len(), "waiters")?;
        if let Some(note) = &reply.note {
            let (bytes, token, version) = (note.bytes.len(), note.token, note.version);
            write!(
                f,
                "\n  note of {bytes} bytes, token {token}, version {version}"
            )?;
            write!(f, ", kept for {}", millis(note.kept_for))?;
        }
        Ok(())
    }
}

fn write_omitted(f: &mut fmt::Formatter<'_>, total: u32, listed: usize, noun: &str) -> fmt::Result {
    match (total as usize).saturating_sub(listed) {
        0 => Ok(()),
        omitted => write!(f, "\n  and {omitted} more {noun}"),
    }
}

fn describe_mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusively".into(),
        Mode::Shared => "for reading".into(),
        Mode::Permits(1) => "with 1 permit".into(),
        Mode::Permits(permits) => format!("with {permits} permits"),
    }
}

fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
