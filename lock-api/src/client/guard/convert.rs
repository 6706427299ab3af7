//! Conversions of a hold: read to write, and back.
//!
//! A conversion names the token under which it was asked for, and acts only in that epoch. So a
//! second delivery changes nothing. Told `WrongEpoch`, the conversion is asked for again in the
//! epoch that stands, also after an attempt that got no answer: if that one acted, the hold has
//! the mode that is asked for, which is answered as a conversion that is done. The mode that
//! `WrongEpoch` tells is no such answer: another hold of the holder may be what gives it that
//! mode, even one whose end has begun.

use crate::client::error::{Error, Loss};
use crate::client::guard::{Guard, ReadGuard, WriteGuard};
use crate::client::hold::Hold;
use crate::client::state::backoff::Backoff;
use crate::client::state::lease_status::LeaseStatus;
use crate::reply::ConvertReply;
use crate::request::{Convert, Mode};

/// What an upgrade came to.
#[derive(Debug)]
#[must_use = "it carries a guard, which releases its lock when it is dropped"]
pub enum Upgrade {
    /// The lock is held for writing.
    Upgraded(WriteGuard),
    /// Others read too, or wait and this holder has had its upgrade; the lock is still held for
    /// reading.
    NotSole(ReadGuard),
}

impl WriteGuard {
    /// Keeps the lock for reading only, without letting it go in between; the readers at the head
    /// of the queue get in.
    ///
    /// The guard has a new fencing token. In an outage this tries again until the guard is lost.
    ///
    /// # Errors
    /// [`Error::Lost`] if the guard was lost. With any error the lock is released.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        match convert(&self.hold, Mode::Shared).await? {
            Conversion::Done => Ok(Guard::new(self.hold)),
            Conversion::NotSole => Err(Error::Unsupported {
                what: "this downgrade",
            }),
        }
    }
}

impl ReadGuard {
    /// Takes the lock for writing without letting it go in between, if nobody else reads.
    ///
    /// It never waits for other readers, and while others wait a holder is upgraded at most
    /// once. The write guard has a new fencing token. In an outage this tries again until the
    /// guard is lost.
    ///
    /// # Errors
    /// [`Error::Lost`] if the guard was lost. With any error the lock is released.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn try_upgrade(self) -> Result<Upgrade, Error> {
        Ok(match convert(&self.hold, Mode::Exclusive).await? {
            Conversion::Done => Upgrade::Upgraded(Guard::new(self.hold)),
            Conversion::NotSole => Upgrade::NotSole(self),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conversion {
    Done,
    NotSole,
}

/// Converts a hold, trying again until there is an answer or the hold is lost.
async fn convert(hold: &Hold, to: Mode) -> Result<Conversion, Error> {
    let core = &hold.client;
    if !core.capabilities.convert {
        return Err(Error::Unsupported {
            what: "converting a hold",
        });
    }
    let mut expected = hold.token();
    let mut backoff = Backoff::foreground();
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
                ConvertReply::Converted { token, remaining } => {
                    return converted(hold, to, answer.status(token, remaining));
                }
                ConvertReply::NotSole => return Ok(Conversion::NotSole),
                ConvertReply::WrongEpoch(view) => {
                    core.extend(&hold.holder, answer.status(view.token, view.remaining));
                    let newer = view.token > expected;
                    expected = view.token;
                    if newer {
                        continue;
                    }
                }
                ConvertReply::Lost(reason) => {
                    hold.holder.lose_through(hold.operation.sequence, reason);
                    return Err(hold
                        .check()
                        .err()
                        .unwrap_or_else(|| hold.loss_error(Loss::from(reason))));
                }
            },
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error.on(&hold.holder.key)),
        }
        core.runtime.sleep(core.jittered(backoff.next())).await;
    }
}

/// Takes over what a conversion that acted came to.
fn converted(hold: &Hold, to: Mode, status: LeaseStatus) -> Result<Conversion, Error> {
    let core = &hold.client;
    core.extend(&hold.holder, status);
    let from = hold.holder.set_mode(hold.operation.sequence, to);
    let (key, token) = (&hold.holder.key, status.token);
    core.events.converted(key, from, to, token);
    hold.check()?;
    Ok(Conversion::Done)
}
