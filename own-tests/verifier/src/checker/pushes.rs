//! Rule 8 and forced release: each notification is true, and none is missing.

use leasehold_api::machine::{Command, HolderParts, Message, Payload, Reply};
use leasehold_api::{
    ConvertReply, FencingToken, ForceMode, ForceRelease, Policy, ReleaseReply, SessionId,
};

use crate::checker::Findings;
use crate::checker::step::{Step, holder_of, name, waiter_of};

/// Checks the notifications that a step sent.
pub(crate) fn check(step: &Step<'_>, found: &mut Findings) {
    for (n, message) in step.messages.iter().enumerate() {
        sent(step, message, found);
        let twice = step.messages[..n].iter().any(|other| other == message);
        if twice && !matches!(message.payload, Payload::WakeUp { .. }) {
            found.add("rule 8", format!("{message:?} is sent twice"));
        }
    }
    for waiter in step.waiters_before().filter(|waiter| waiter.listening) {
        let (session, sequence) = (waiter.operation.session, waiter.operation.sequence);
        let granted = holder_of(step.after, session, sequence).is_some_and(|t| t.end > step.now);
        let asked = step.is_of(session, sequence) && matches!(step.command, Command::Poll(_));
        let told = || {
            let grants =
                |event| matches!(event, Payload::Granted { sequence: s, .. } if s == sequence);
            is_told(step, session, grants)
        };
        if granted && !asked && !told() {
            found.add(
                "rule 8",
                format!("no notification of the grant to {waiter:?}"),
            );
        }
    }
    if let Command::ForceRelease(request) = step.command {
        revoked(step, request, found);
    }
}

fn is_told(step: &Step<'_>, to: SessionId, what: impl Fn(Payload) -> bool) -> bool {
    let mut messages = step.messages.iter();
    messages.any(|message| message.to == to && what(message.payload))
}

/// A notification is true, and goes to the right session.
fn sent(step: &Step<'_>, message: &Message, found: &mut Findings) {
    let to = message.to;
    let is = match message.payload {
        Payload::Granted {
            sequence,
            token,
            remaining,
        } => {
            was_waiting(step, to, sequence)
                && match holder_of(step.after, to, sequence) {
                    Some(holder) => {
                        let until = step.now.saturating_add(remaining);
                        has_token(step, holder, token)
                            && until <= holder.end
                            && waiter_of(step.before, to, sequence)
                                .is_some_and(|p| step.offer_end(p, p.end) <= until)
                    }
                    // Granted and released in one step.
                    None => step.is_of(to, sequence) || is_force(step),
                }
        }
        Payload::WakeUp { sequence } => {
            was_waiting(step, to, sequence) && step.policy() == Some(Policy::Barging)
        }
        Payload::Revoked { sequence } => {
            is_force(step) && {
                let after = holder_of(step.after, to, sequence);
                let before = holder_of(step.before, to, sequence).filter(|t| t.end > step.now);
                after.map_or(before.is_some(), |holder| holder.revoked)
            }
        }
    };
    if !is {
        let text = format!("{} sends {message:?}: {:?}", name(step.command), step.after);
        found.add("rule 8", text);
    }
}

fn was_waiting(step: &Step<'_>, session: SessionId, sequence: u64) -> bool {
    waiter_of(step.before, session, sequence).is_some_and(|waiter| waiter.end > step.now)
}

const fn is_force(step: &Step<'_>) -> bool {
    matches!(step.command, Command::ForceRelease(_))
}

/// Whether a notification's token is the holder's.
///
/// A later part of the same step may start another epoch (a new token) for the holder: the grant
/// to a reader with a higher floor, or a conversion by the holder. (If a server has lost the grant of a hold,
/// a conversion may grant it again, with the same token, and then convert it.)
fn has_token(step: &Step<'_>, holder: &HolderParts, token: FencingToken) -> bool {
    let converted = matches!(
        step.reply,
        Reply::Convert(ConvertReply::Converted { token, .. }) if *token == holder.token
    );
    token == holder.token || (token < holder.token && (step.floor() >= token.get() || converted))
}

/// A forced release sends a notification for each hold.
fn revoked(step: &Step<'_>, request: &ForceRelease, found: &mut Findings) {
    let named = |t: &&HolderParts| request.tokens.contains(&t.token);
    let revoked: Vec<&HolderParts> = match request.how {
        ForceMode::Revoke => step.holders_after().filter(named).collect(),
        ForceMode::Now => step.holders_before().filter(named).collect(),
    };
    for holder in revoked {
        for (sequence, _) in &holder.holds {
            let revokes = |event| {
                event
                    == Payload::Revoked {
                        sequence: *sequence,
                    }
            };
            if !is_told(step, holder.session, revokes) {
                let text = format!("no notification that hold {sequence} is revoked: {holder:?}");
                found.add("forced release", text);
            }
        }
    }
}

/// Rule 7: the release of a barging key sends a wake-up to the first waiter that listens.
pub(crate) fn woken(step: &Step<'_>, hears: impl Fn(&SessionId) -> bool, found: &mut Findings) {
    let released = matches!(
        step.reply,
        Reply::Release(ReleaseReply::Released { holds_left: 0, .. })
    );
    if !released || step.policy() != Some(Policy::Barging) || step.room() == 0 {
        return;
    }
    let mut heard = step
        .waiters_after()
        .filter(|waiter| waiter.listening && hears(&waiter.operation.session));
    let Some(head) = heard.next() else { return };
    let wake_up = Payload::WakeUp {
        sequence: head.operation.sequence,
    };
    if !is_told(step, head.operation.session, |event| event == wake_up) {
        found.add("rule 7", format!("no wake-up is sent to {head:?}"));
    }
}
