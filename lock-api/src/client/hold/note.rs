//! The note that a holder leaves on its key.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::client::error::Error;
use crate::client::hold::one::Hold;
use crate::client::state::answer::Answer;
use crate::reply::NoteReply;
use crate::request::Note;
use crate::runtime::Moment;

/// What to do when the server refuses a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnRefusal {
    Fail,
    /// Try again, because somebody may restore the right or the password that is missing.
    Retry,
}

/// The first byte of a note says what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Tag {
    Job = b'J',
    Election = b'E',
}

impl Hold {
    /// Leaves a note, and tries again until the server answers or `until` has passed. A copy of a note
    /// changes nothing, so it is safe to repeat it. If the hold is gone, the guard is lost.
    ///
    /// # Errors
    /// The last error, if the server didn't answer. The note may have been written.
    pub(crate) async fn note(
        &self,
        version: u32,
        bytes: &[u8],
        keep: Duration,
        until: Moment,
        on_refusal: OnRefusal,
    ) -> Result<Answer<NoteReply>, Error> {
        let (core, key) = (&self.client, &self.holder.key);
        let note = Note::new(key.clone(), self.operation, version, bytes, keep);
        let note = note.map_err(|error| error.on(key))?;
        let mut backoff = Backoff::foreground();
        loop {
            let call = core.backend.write_note(&note);
            // The full call timeout, even past `until`: a late answer still tells whether a copy was written.
            match core.exchange(core.settings.call_timeout, call).await {
                Ok(answer) => {
                    if let NoteReply::Lost { reason, .. } = answer.reply {
                        self.holder.lose_through(self.operation.sequence, reason);
                    }
                    return Ok(answer);
                }
                Err(error) => {
                    let pause = core.jittered(backoff.next());
                    let may_pass = match on_refusal {
                        OnRefusal::Fail => error.is_transient(),
                        OnRefusal::Retry => !error.is_final(),
                    };
                    if !may_pass || pause >= until.saturating_since(core.now()) {
                        return Err(error.on(key));
                    }
                    core.runtime.sleep(pause).await;
                }
            }
        }
    }

    /// When the guard becomes invalid, unless a renewal comes first.
    pub(crate) fn valid_until(&self) -> Moment {
        let now = self.client.now();
        self.check().map_or(now, |left| now.saturating_add(left))
    }
}
