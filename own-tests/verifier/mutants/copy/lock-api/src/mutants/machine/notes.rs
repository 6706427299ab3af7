//! Rule 16: the note of a key.

use super::step::{Step, holder};
use crate::id::FencingToken;
use crate::machine::{Command, NoteParts, Reply};
use crate::reply::{NoteReply, NoteView};
use crate::request::Note;

/// Writes the note of the command under this token.
fn write(step: &mut Step<'_>, request: &Note, token: FencingToken) {
    let end = step.in_time(request.keep);
    let note = NoteParts {
        token,
        version: request.version,
        bytes: request.bytes.clone(),
        end,
    };
    step.reply = Reply::Note(NoteReply::Noted(NoteView {
        token,
        version: note.version,
        bytes: note.bytes.clone(),
        kept_for: request.keep,
    }));
    step.after.note = Some(note);
}

/// A note acts for a hold that is gone.
pub(super) fn note_without_hold(step: &mut Step<'_>) {
    if let Command::Note(request) = step.command.clone()
        && matches!(step.reply, Reply::Note(NoteReply::Lost { .. }))
    {
        let token = FencingToken::new(step.after.token);
        write(step, &request, token);
    }
}

/// A note replaces a newer one.
pub(super) fn old_note_reverts(step: &mut Step<'_>) {
    if let Command::Note(request) = step.command.clone()
        && matches!(step.reply, Reply::Note(NoteReply::Noted(_)))
        && let Some(holder) = holder(&step.after, request.operation)
    {
        let token = holder.token;
        write(step, &request, token);
    }
}

/// A note ends with its epoch, however long it is to be kept.
pub(super) fn note_ends_too_soon(step: &mut Step<'_>) {
    let last = step.after.token;
    step.after.note = step
        .after
        .note
        .take()
        .filter(|note| note.token.get() == last);
    if let Reply::Inspect(reply) = &mut step.reply {
        reply.note = reply.note.take().filter(|note| note.token.get() == last);
    }
}
