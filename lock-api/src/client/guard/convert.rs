//! Conversions of a hold: read to write, and write to read.
//!
//! A conversion names the token that the client expects, and acts only in the epoch that it numbers: one
//! writer, or the readers that overlap. So a second delivery changes nothing. After `WrongEpoch`, the client
//! asks again with the current token, even if an earlier attempt got no answer. If that attempt acted, the hold
//! already has the target mode, and the server answers `Converted`.
//!
//! An answer with a lower token comes from a server that doesn't know the client's epoch: an old copy of the
//! data, or a server that has lost it. Nothing can be decided by it, so the guard is lost. If the
//! client asked again under the lower token, an old copy might answer `Converted`, in an epoch that is over for
//! everybody else (docs/decisions/0055-an-old-copy-of-the-data-decides-nothing.md).
//!
//! The mode in a `WrongEpoch` reply doesn't prove that the conversion is done: it may be the mode
//! of another hold of the same holder, even of one that is being released.

use crate::backoff::Backoff;
use crate::client::error::Error;
use crate::client::guard::{Guard, ReadGuard, WriteGuard};
use crate::client::hold::Hold;
use crate::error::BackendError;
use crate::id::FencingToken;
use crate::reply::{ConvertReply, EndReason};
use crate::request::{Convert, Mode};

/// The result of [`ReadGuard::try_upgrade`].
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient, Upgrade};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let reader = locks.rw_lock("catalog")?.read().await?;
/// match reader.try_upgrade().await? {
///     Upgrade::Upgraded(writer) => println!("claim with token {}", writer.fencing_token()),
///     Upgrade::NotSoleHolder(reader) => println!("still a reader of {}", reader.key()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an upgrade carries a guard, and a dropped guard releases its lock"]
pub enum Upgrade {
    /// You hold the lock for writing.
    Upgraded(WriteGuard),
    /// You still hold the lock for reading. There are other readers, or others wait and this holder
    /// has already had its one upgrade.
    NotSoleHolder(ReadGuard),
}

impl WriteGuard {
    /// Converts the write lock to a read lock without releasing it in between. The readers at the
    /// head of the queue get the lock too.
    ///
    /// The read guard has a new fencing token. During an outage, the call retries until the guard
    /// is lost.
    ///
    /// # Errors
    /// - [`Error::Lost`] or [`Error::Released`] if the guard no longer holds the lock.
    /// - [`Error::Unsupported`] if the backend does not support conversions.
    /// - [`Error::Rejected`], [`Error::ForeignValue`] or [`Error::Closed`].
    ///
    /// With any error, the lock is released.
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the lock in the background.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let writer = locks.rw_lock("catalog")?.write().await?;
    /// let reader = writer.downgrade().await?;
    /// reader.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        match convert(&self.hold, Mode::Shared).await? {
            Conversion::Done => Ok(Guard::new(self.hold)),
            Conversion::NotSoleHolder => Err(Error::Unsupported {
                what: "downgrading this hold",
            }),
        }
    }
}

impl ReadGuard {
    /// Converts the read lock to a write lock without releasing it in between, if there is no other
    /// reader.
    ///
    /// The call never waits for other readers. While others wait, a holder is upgraded at most
    /// once. The write guard has a new fencing token. During an outage, the call retries until the
    /// guard is lost.
    ///
    /// # Errors
    /// - [`Error::Lost`] or [`Error::Released`] if the guard no longer holds the lock.
    /// - [`Error::Unsupported`] if the backend does not support conversions.
    /// - [`Error::OutcomeUnknown`] if there are other readers, and an earlier try got no answer: it may arrive later.
    /// - [`Error::Rejected`], [`Error::ForeignValue`] or [`Error::Closed`].
    ///
    /// With any error, the lock is released.
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the lock in the background.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient, Upgrade};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let reader = locks.rw_lock("catalog")?.read().await?;
    /// if let Upgrade::Upgraded(writer) = reader.try_upgrade().await? {
    ///     writer.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_upgrade(self) -> Result<Upgrade, Error> {
        Ok(match convert(&self.hold, Mode::Exclusive).await? {
            Conversion::Done => Upgrade::Upgraded(Guard::new(self.hold)),
            Conversion::NotSoleHolder => Upgrade::NotSoleHolder(self),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conversion {
    Done,
    NotSoleHolder,
}

/// Converts a hold. Retries until there is an answer or the hold is lost.
async fn convert(hold: &Hold, to: Mode) -> Result<Conversion, Error> {
    let core = &hold.client;
    Error::require(core.capabilities.convert, "converting a hold")?;
    hold.holder.converts();
    let mut expected = hold.token();
    let (mut backoff, mut in_doubt) = (Backoff::foreground(), false);
    loop {
        let left = hold.check()?;
        let request = Convert {
            key: hold.holder.key.clone(),
            operation: hold.operation,
            expected,
            to,
        };
        let limit = core.settings.call_timeout.min(left);
        match core.exchange(limit, core.backend.convert(&request)).await {
            Ok(answer) => match answer.reply {
                reply if is_behind(&reply, expected) => {
                    return Err(hold.lose(EndReason::Unknown));
                }
                ConvertReply::Converted { token, remaining } => {
                    core.extend(&hold.holder, answer.status(token, remaining));
                    let from = hold.holder.set_mode(hold.operation.sequence, to);
                    core.events
                        .converted(&hold.holder.key, from, to, token, hold.class);
                    return hold.check().map(|_| Conversion::Done);
                }
                // An earlier try may arrive when the others have left, and would upgrade the hold of a reader
                // (decision 0076).
                ConvertReply::NotSoleHolder if in_doubt => {
                    let reason = "a try without an answer may still convert the hold";
                    return Err(BackendError::outcome_unknown(reason).on(&hold.holder.key));
                }
                ConvertReply::NotSoleHolder => return Ok(Conversion::NotSoleHolder),
                ConvertReply::WrongEpoch(view) => {
                    core.extend(&hold.holder, answer.status(view.token, view.remaining));
                    let newer = view.token > expected;
                    expected = view.token;
                    if newer {
                        continue;
                    }
                }
                ConvertReply::Lost(reason) => return Err(hold.lose(reason)),
            },
            Err(error) if error.is_transient() => {
                in_doubt |= matches!(error, BackendError::OutcomeUnknown { .. });
            }
            Err(error) => return Err(error.on(&hold.holder.key)),
        }
        core.runtime.sleep(core.jittered(backoff.next())).await;
    }
}

/// Whether the server is in an earlier epoch than the client.
fn is_behind(reply: &ConvertReply, known: FencingToken) -> bool {
    let token = match reply {
        ConvertReply::Converted { token, .. } => *token,
        ConvertReply::WrongEpoch(view) => view.token,
        ConvertReply::NotSoleHolder | ConvertReply::Lost(_) => return false,
    };
    token < known
}
