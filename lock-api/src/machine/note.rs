//! The command note, and how long a note stands (rule 16).

use crate::machine::state::{State, is_expired};
use crate::machine::{Env, Message, NoteParts};
use crate::reply::{NoteReply, NoteView};
use crate::request::Note;
use crate::time::ServerTime;

impl NoteParts {
    fn view(&self, now: ServerTime) -> NoteView {
        NoteView {
            token: self.token,
            version: self.version,
            bytes: self.bytes.clone(),
            kept_for: self.end.saturating_since(now),
        }
    }
}

impl State {
    pub(super) fn note(
        &mut self,
        env: Env<'_>,
        request: &Note,
        out: &mut Vec<Message>,
    ) -> NoteReply {
        let expired = self.begin(env, request.operation, None, Self::has_queue, out);

        let Some(holder) = self.live(request.operation, env.now) else {
            return NoteReply::Lost {
                reason: self.reason(request.operation, env.now, expired),
                note: self.note_view(env.now),
            };
        };
        let token = self.token_of(holder);
        // A late note, or a copy of one, must not replace a newer one (rule 16).
        let stands = self.standing_note(env.now);
        if let Some(newer) = stands.filter(|it| (it.token, it.version) >= (token, request.version))
        {
            return NoteReply::Noted(newer.view(env.now));
        }
        let note = NoteParts {
            token,
            version: request.version,
            bytes: request.bytes.clone(),
            end: env.now.saturating_add(request.keep),
        };
        let view = note.view(env.now);
        self.cover(note.end, env.settings);
        self.note = Some(note);
        NoteReply::Noted(view)
    }

    fn standing_note(&self, now: ServerTime) -> Option<&NoteParts> {
        let note = self.note.as_ref();
        note.filter(|note| note.token.get() == self.token || !is_expired(note.end, now))
    }

    pub(super) fn note_view(&self, now: ServerTime) -> Option<NoteView> {
        self.standing_note(now).map(|note| note.view(now))
    }

    /// Removes a note that doesn't stand any more.
    pub(super) fn drop_old_note(&mut self, now: ServerTime) {
        if self.standing_note(now).is_none() {
            self.note = None;
        }
    }
}
