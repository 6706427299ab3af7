//! Rule 16: who may change the note of a key, how long it stands, and what the replies say about it.

use leasehold_api::machine::{Command, HolderParts, NoteParts, Reply, StateParts};
use leasehold_api::{Note, NoteReply, NoteView, ServerTime};

use crate::checker::Findings;
use crate::checker::step::{Step, holder_of, waiter_of};

pub(crate) fn check(step: &Step<'_>, found: &mut Findings) {
    if step.before.note.is_none() && step.after.note.is_none() && !is_note(step) {
        return;
    }
    let (before, after) = (standing(step.before, step), standing(step.after, step));
    match (step.command, step.reply) {
        (Command::Note(request), Reply::Note(reply)) => written(step, request, reply, found),
        _ => unchanged(step, before, after, found),
    }
    if let Reply::Inspect(reply) = step.reply
        && !shows(reply.note.as_ref(), after, step.now)
    {
        let text = format!("an inspection shows {:?}, not {after:?}", reply.note);
        found.add("rule 16", text);
    }
    if let Some(note) = after
        && note.end > step.after.stored_end
    {
        let text = format!("the state ends before its note: {note:?}");
        found.add("rule 14", text);
    }
}

const fn is_note(step: &Step<'_>) -> bool {
    matches!(step.command, Command::Note(_))
}

/// The note of a state, if it stands: its token is the last one, or it is still kept.
fn standing<'a>(state: &'a StateParts, step: &Step<'_>) -> Option<&'a NoteParts> {
    let lives = state.stored_end > step.now;
    let note = state.note.as_ref().filter(|_| lives)?;
    (note.token.get() == state.token || note.end > step.now).then_some(note)
}

/// Other commands change no note. One that is not kept ends with its epoch: when the key has another token.
fn unchanged(
    step: &Step<'_>,
    before: Option<&NoteParts>,
    after: Option<&NoteParts>,
    found: &mut Findings,
) {
    let Some(before) = before else {
        if after.is_some() {
            found.add("rule 16", format!("a note came from nowhere: {after:?}"));
        }
        return;
    };
    let ends = before.end <= step.now && before.token.get() != step.after.token;
    if after != Some(before) && !(ends && after.is_none()) {
        let text = format!("another command changed {before:?} to {after:?}");
        found.add("rule 16", text);
    }
}

fn written(step: &Step<'_>, request: &Note, reply: &NoteReply, found: &mut Findings) {
    let before = standing(step.before, step);
    // The step grants to waiters first. That may begin an epoch of a semaphore, which ends the note before.
    let stands = |it: &&NoteParts| it.end > step.now || it.token.get() == step.after.token;
    let before = before.filter(stands);
    let operation = request.operation;
    let name = (operation.session, operation.sequence);
    let live = |holder: &&HolderParts| holder.end > step.now;
    // A server that lost the grant may still have the waiter, and grant it again before it writes.
    let waits = waiter_of(step.before, name.0, name.1).is_some_and(|it| it.end > step.now);
    let granted = || holder_of(step.after, name.0, name.1).filter(|_| waits);
    let held = holder_of(step.before, name.0, name.1).filter(live);
    let live = held.or_else(granted).filter(live);
    let is_newer = |token: u64| {
        before.is_none_or(|it| (it.token.get(), it.version) < (token, request.version))
    };
    let after = step.after.note.as_ref();
    let shown = match (live, reply) {
        (None, NoteReply::Lost { note, .. }) => {
            unchanged(step, before, standing(step.after, step), found);
            shows(note.as_ref(), standing(step.after, step), step.now)
        }
        (Some(holder), NoteReply::Noted(note)) if is_newer(holder.token.get()) => {
            let is_own = after.is_some_and(|it| {
                it.token == holder.token
                    && (it.version, &it.bytes) == (request.version, &request.bytes)
                    && it.end == step.now.saturating_add(request.keep)
            });
            is_own && shows(Some(note), after, step.now)
        }
        (Some(_), NoteReply::Noted(note)) => after == before && shows(Some(note), after, step.now),
        _ => false,
    };
    if !shown {
        let text = format!("{reply:?} to {request:?} by {live:?}: {before:?} became {after:?}");
        found.add("rule 16", text);
    }
}

/// Whether a reply shows this note.
fn shows(view: Option<&NoteView>, note: Option<&NoteParts>, now: ServerTime) -> bool {
    match (view, note) {
        (None, None) => true,
        (Some(view), Some(note)) => {
            (view.token, view.version, &view.bytes) == (note.token, note.version, &note.bytes)
                && view.kept_for == note.end.saturating_since(now)
        }
        _ => false,
    }
}
