//! Conversions of a hold: read to write, and back.
//!
//! A conversion names the token under which it was asked for, and acts only in that period. So a
//! second delivery changes nothing. Told `WrongPeriod`, the conversion is asked for again in the
//! period that stands, also after an attempt that got no answer: if that one acted, the hold has
//! the mode that is asked for, which is answered as a conversion that is done. The mode that
//! `WrongPeriod` tells is no such answer: another hold of the tenure may be what gives it that
//! mode, even one whose end has begun.

use crate::client::error::{Error, Loss};
use crate::client::hold::Hold;
use crate::client::state::backoff::Backoff;
use crate::client::state::lease_status::Standing;
use crate::reply::ConvertReply;
use crate::request::{Convert, Mode};

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
    let mut expected = hold.token();
    let mut backoff = Backoff::foreground();
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
            Ok(answer) => match answer.reply {
                ConvertReply::Converted { token, remaining } => {
                    return converted(hold, to, answer.standing(token, remaining));
                }
                ConvertReply::NotSole => return Ok(Conversion::NotSole),
                ConvertReply::WrongPeriod(view) => {
                    core.extend(&hold.tenure, answer.standing(view.token, view.remaining));
                    let newer = view.token > expected;
                    expected = view.token;
                    if newer {
                        continue;
                    }
                }
                ConvertReply::Lost(why) => {
                    hold.tenure.lose_through(hold.operation.sequence, why);
                    return Err(hold
                        .check()
                        .err()
                        .unwrap_or_else(|| hold.loss_error(Loss::from(why))));
                }
            },
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error.on(&hold.tenure.key)),
        }
        core.runtime.sleep(core.jittered(backoff.next())).await;
    }
}

/// Takes over what a conversion that acted came to.
fn converted(hold: &Hold, to: Mode, standing: Standing) -> Result<Conversion, Error> {
    let core = &hold.anchor;
    core.extend(&hold.tenure, standing);
    let from = hold.tenure.set_mode(hold.operation.sequence, to);
    let (key, token) = (&hold.tenure.key, standing.token);
    core.events.converted(key, from, to, token);
    hold.check()?;
    Ok(Conversion::Done)
}
