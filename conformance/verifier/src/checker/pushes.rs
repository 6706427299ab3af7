//! Rule 8 and forced release: who is told of what by a message, and that the message is true.

use leasehold_api::machine::{Command, Event, Message, Reply, TenureFacts};
use leasehold_api::{EndReply, FencingToken, ForceHow, ForceRelease, Policy, SessionId};

use crate::checker::Findings;
use crate::checker::step::{Step, name, place_of, tenure_of};

/// Checks the messages of a step.
pub(crate) fn check(step: &Step<'_>, found: &mut Findings) {
    for (n, message) in step.messages.iter().enumerate() {
        sent(step, message, found);
        let twice = step.messages[..n].iter().any(|other| other == message);
        if twice && !matches!(message.event, Event::Hint { .. }) {
            found.add("rule 8", format!("{message:?} is sent twice"));
        }
    }
    for place in step.waited().filter(|place| place.listening) {
        let (session, sequence) = (place.operation.session, place.operation.sequence);
        let granted = tenure_of(step.after, session, sequence).is_some_and(|t| t.end > step.now);
        let asked = step.is_of(session, sequence) && matches!(step.command, Command::Poll(_));
        let told = || {
            let grants =
                |event| matches!(event, Event::Granted { sequence: s, .. } if s == sequence);
            is_told(step, session, grants)
        };
        if granted && !asked && !told() {
            found.add(
                "rule 8",
                format!("nobody is told of the grant of {place:?}"),
            );
        }
    }
    if let Command::ForceRelease(request) = step.command {
        revoked(step, request, found);
    }
}

fn is_told(step: &Step<'_>, to: SessionId, what: impl Fn(Event) -> bool) -> bool {
    let mut messages = step.messages.iter();
    messages.any(|message| message.to == to && what(message.event))
}

/// A message goes to whom it concerns, and says what is the case.
fn sent(step: &Step<'_>, message: &Message, found: &mut Findings) {
    let to = message.to;
    let is = match message.event {
        Event::Granted {
            sequence,
            token,
            remaining,
        } => {
            waited(step, to, sequence)
                && match tenure_of(step.after, to, sequence) {
                    Some(tenure) => {
                        let until = step.now.saturating_add(remaining);
                        has_token(step, tenure, token)
                            && until <= tenure.end
                            && place_of(step.before, to, sequence).is_some_and(|p| p.end <= until)
                    }
                    // Granted and ended in one step.
                    None => step.is_of(to, sequence) || is_force(step),
                }
        }
        Event::Hint { sequence } => {
            waited(step, to, sequence) && step.policy() == Some(Policy::Barging)
        }
        Event::Revoked { sequence } => {
            is_force(step) && {
                let after = tenure_of(step.after, to, sequence);
                let before = tenure_of(step.before, to, sequence).filter(|t| t.end > step.now);
                after.map_or(before.is_some(), |tenure| tenure.revoked)
            }
        }
    };
    if !is {
        let text = format!("{} sends {message:?}: {:?}", name(step.command), step.after);
        found.add("rule 8", text);
    }
}

fn waited(step: &Step<'_>, session: SessionId, sequence: u64) -> bool {
    place_of(step.before, session, sequence).is_some_and(|place| place.end > step.now)
}

const fn is_force(step: &Step<'_>) -> bool {
    matches!(step.command, Command::ForceRelease(_))
}

/// Readers with a higher floor, granted later in the same step, start another period.
fn has_token(step: &Step<'_>, tenure: &TenureFacts, token: FencingToken) -> bool {
    token == tenure.token || (token < tenure.token && step.floor() >= token.get())
}

/// Each hold that is revoked is told of it.
fn revoked(step: &Step<'_>, request: &ForceRelease, found: &mut Findings) {
    let named = |t: &&TenureFacts| request.tokens.contains(&t.token);
    let revoked: Vec<&TenureFacts> = match request.how {
        ForceHow::Revoke => step.stands().filter(named).collect(),
        ForceHow::Now => step.stood().filter(named).collect(),
    };
    for tenure in revoked {
        for (sequence, _) in &tenure.holds {
            let revokes = |event| {
                event
                    == Event::Revoked {
                        sequence: *sequence,
                    }
            };
            if !is_told(step, tenure.session, revokes) {
                let text = format!("hold {sequence} is not told that it is revoked: {tenure:?}");
                found.add("forced release", text);
            }
        }
    }
}

/// Rule 7: a barging key that is released sends the first that listens a hint.
pub(crate) fn hinted(step: &Step<'_>, hears: impl Fn(&SessionId) -> bool, found: &mut Findings) {
    let released = matches!(
        step.reply,
        Reply::End(EndReply::Released { holds_left: 0, .. })
    );
    if !released || step.policy() != Some(Policy::Barging) || step.room() == 0 {
        return;
    }
    let mut heard = step
        .waits()
        .filter(|place| place.listening && hears(&place.operation.session));
    let Some(head) = heard.next() else { return };
    let hint = Event::Hint {
        sequence: head.operation.sequence,
    };
    if !is_told(step, head.operation.session, |event| event == hint) {
        found.add("rule 7", format!("no hint is sent to {head:?}"));
    }
}
