//! Conversions of a hold: read to write, and back.
//!
//! A conversion names the token under which it was asked for, and acts only in that period. So a
//! second delivery changes nothing, but its answer must be read with care: told `WrongPeriod`
//! after an attempt that got no answer, the mode that stands says whether that attempt acted,
//! because only this tenure can have changed it. If the tenure has other holds, which may be what
//! gives it that mode, the conversion is asked for again in the period that stands.

use std::time::Duration;

use crate::client::clock::local_deadline;
use crate::client::core::Answer;
use crate::client::error::{Error, Loss};
use crate::client::hold::Hold;
use crate::client::tenure::Standing;
use crate::error::BackendError;
use crate::id::FencingToken;
use crate::reply::ConvertReply;
use crate::request::{Convert, Mode};
use crate::runtime::Moment;
use crate::time::Stamp;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conversion {
    Done,
    NotSole,
}

/// Converts a hold, trying again until there is an answer or the hold is lost.
pub(crate) async fn convert(hold: &Hold, to: Mode) -> Result<Conversion, Error> {
    let core = &hold.anchor;
    if !core.capabilities.convert {
        return Err(Error::Unsupported {
            what: "converting a hold",
        });
    }
    // A retry names the same period as the attempt that got no answer, even if a renewal has
    // told the new token meanwhile: that is how it learns what became of it.
    let mut expected = hold.token();
    let mut in_doubt = false;
    let mut pause = FIRST_PAUSE;
    loop {
        let left = hold.check()?;
        let request = Convert {
            key: hold.tenure.key.clone(),
            operation: hold.operation,
            expected,
            to,
        };
        let limit = core.settings.call_timeout.min(left);
        match core.exchange(limit, core.backend.convert(&request)).await {
            Ok(Answer { sent, stamp, reply }) => match reply {
                ConvertReply::Converted { token, remaining } => {
                    return adopt(hold, to, sent, stamp, token, remaining);
                }
                ConvertReply::NotSole => return Ok(Conversion::NotSole),
                ConvertReply::WrongPeriod(view) => {
                    if in_doubt && view.mode == to && hold.tenure.has_one_hold() {
                        return adopt(hold, to, sent, stamp, view.token, view.remaining);
                    }
                    in_doubt = false;
                    let standing = standing(sent, stamp, view.token, view.remaining);
                    hold.tenure.extend(core.now(), standing);
                    let newer = view.token > expected;
                    expected = view.token;
                    if newer {
                        continue;
                    }
                }
                ConvertReply::Lost(why) => {
                    hold.tenure.lose_through(hold.operation.sequence, why);
                    return Err(hold.check().err().unwrap_or(Error::Lost(Loss::from(why))));
                }
            },
            Err(error) if error.is_transient() => {
                in_doubt |= matches!(error, BackendError::OutcomeUnknown { .. });
            }
            Err(error) => return Err(error.into()),
        }
        let wait = core.random_between(pause / 2, pause);
        core.runtime.sleep(wait).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn standing(sent: Moment, stamp: Stamp, token: FencingToken, remaining: Duration) -> Standing {
    Standing {
        token,
        deadline: local_deadline(sent, remaining),
        clock: stamp.clock,
    }
}

/// Takes over what a conversion that acted came to.
fn adopt(
    hold: &Hold,
    to: Mode,
    sent: Moment,
    stamp: Stamp,
    token: FencingToken,
    remaining: Duration,
) -> Result<Conversion, Error> {
    let core = &hold.anchor;
    hold.tenure
        .extend(core.now(), standing(sent, stamp, token, remaining));
    hold.tenure.set_mode(hold.operation.sequence, to);
    core.floors.saw(&hold.tenure.key, token);
    hold.check()?;
    Ok(Conversion::Done)
}
