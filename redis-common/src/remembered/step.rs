//! A remembered state, and a step on it.

use std::fmt;
use std::time::Duration;

use leasehold_api::bounds::DELETED_AFTER;
use leasehold_api::machine::{self, Command, Env, Reach, Reply, Settings, State, StateParts};
use leasehold_api::{
    AcquireReply, Acquired, EndReason, FencingToken, Key, Kind, Operation, OwnerId, ReleaseReply,
    RenewReply, ServerTime, Stamp, Stamped,
};

use super::stored;

/// An acquire is stepped on only if the estimate of the clock is behind by at most this part of its lease.
const LAG_PARTS: u32 = 8;

#[derive(Default)]
pub(super) struct Machine {
    pub(super) settings: Settings,
    /// Working memory of [`stored::encode_into`].
    parts: StateParts,
}

/// A state, and the string that is stored for it.
#[derive(Default)]
pub(super) struct Known {
    pub(super) state: State,
    /// Empty if there is no string: the key doesn't exist.
    pub(super) bytes: Vec<u8>,
    /// The memory of an earlier string.
    pub(super) spare: Vec<u8>,
    /// Whether the server has had this string, so it isn't a mere prediction.
    pub(super) is_certain: bool,
    /// A time that isn't before the state, and not after the server's clock unless that is set back.
    pub(super) at: ServerTime,
    pub(super) hold: Option<Hold>,
}

/// The only hold of a key.
#[derive(Clone, Copy)]
pub(super) struct Hold {
    pub(super) operation: Operation,
    pub(super) end: ServerTime,
}

/// A step on a remembered state: what to compare and set.
pub struct Step {
    /// The place of the request in its batch.
    pub(super) index: usize,
    pub(super) touches: u64,
    /// The key.
    pub key: Key,
    /// The state after the step, and the string before it.
    pub(super) known: Box<Known>,
    /// The string to store.
    pub replacement: Vec<u8>,
    /// When the string expires, in milliseconds since 1970; `None` if that doesn't change.
    pub expires: Option<u64>,
    /// The clock of the server that may execute it, and the time at which the client has executed it.
    pub stamp: Stamp,
    /// The command of the state machine.
    pub command: Command,
    /// The hold that the step makes or releases.
    pub(super) hold: Hold,
    pub(super) reply: Reply,
}

/// Shows no string: it contains sessions, which authorize releases.
impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step")
            .field("key", &self.key)
            .field("stamp", &self.stamp)
            .finish_non_exhaustive()
    }
}

impl Step {
    /// The string to compare; `None` if the key must not exist.
    pub fn expected(&self) -> Option<&[u8]> {
        (!self.known.is_missing()).then_some(&self.known.bytes)
    }

    /// Whether the answer must contain the string that the key has, if it is another one.
    pub const fn learns(&self) -> bool {
        !self.known.is_certain
    }

    /// The reply of the step, as of the stamp.
    pub(super) fn reply_at(&self, stamp: Stamp) -> Reply {
        match &self.reply {
            Reply::Acquire(AcquireReply::Acquired(acquired)) => {
                Reply::Acquire(AcquireReply::Acquired(Acquired {
                    remaining: self.hold.end.saturating_since(stamp.at),
                    ..*acquired
                }))
            }
            Reply::Release(_) if self.hold.end <= stamp.at => {
                // Perhaps it was still live when it was released.
                Reply::Release(ReleaseReply::NotHeld(EndReason::Unknown))
            }
            other => other.clone(),
        }
    }
}

impl Known {
    /// The state in a string that the server has had at this time.
    pub(super) fn read(bytes: Vec<u8>, at: ServerTime) -> Option<Self> {
        let state = stored::decode(&bytes)?;
        Some(Self {
            hold: hold_of(&state),
            state,
            bytes,
            spare: Vec::new(),
            is_certain: true,
            at,
        })
    }

    pub(super) const fn is_missing(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Forgets a string whose expiry has passed: the server has deleted it, so the key doesn't exist.
    pub(super) fn forget_what_is_deleted(&mut self, now: ServerTime) {
        if !self.is_missing() && expiry(self.state.stored_end()) <= now.as_micros() / 1_000 {
            *self = Self::default();
        }
    }

    /// Whether a step on this state may be tried at this time.
    pub(super) fn may_step(
        &self,
        command: &Command,
        at: ServerTime,
        lag: Duration,
        settings: Settings,
    ) -> bool {
        match command {
            Command::Acquire(request) => {
                // The limit is for the server's clock, which is ahead of this time by at most the lag.
                let latest = at.saturating_add(settings.delivery_window + lag);
                let is_deliverable = request.deliver_before <= latest;
                let is_precise = lag <= request.lease / LAG_PARTS;
                // Absence comes back, but a key that was held is kept for its token for longer than this lease. So if
                // the step is executed after another hold, its own is over.
                let is_safe = !self.is_missing() || request.lease <= settings.retention;
                let is_storable = request.spec.kind() != Kind::Semaphore;
                self.hold.is_none() && is_deliverable && is_precise && is_safe && is_storable
            }
            Command::Release(request) => {
                (self.hold).is_some_and(|it| it.operation == request.operation)
            }
            _ => false,
        }
    }

    /// Fits an acquire to the time of its step.
    pub(super) fn adapt(
        &self,
        command: &mut Command,
        at: ServerTime,
        likely: ServerTime,
        settings: Settings,
    ) {
        let Command::Acquire(request) = command else {
            return;
        };
        let latest = at.saturating_add(settings.delivery_window);
        request.deliver_before = request.deliver_before.min(latest);
        if self.is_missing() {
            // The key may have lost a token. A new one is the time, and a bound of it is too small.
            let token = FencingToken::new(likely.as_micros().saturating_sub(1));
            request.floor = request.floor.max(Some(token));
        }
    }

    /// Executes an acquire or a release at this time. `None` unless it succeeds, and concerns nobody else.
    pub(super) fn step(
        mut self: Box<Self>,
        command: Command,
        stamp: Stamp,
        (index, touches): (usize, u64),
        machine: &mut Machine,
    ) -> Option<Step> {
        let stored_end = self.state.stored_end();
        let reply = machine.step_alone(&mut self.state, &command, stamp.at)?;
        let (key, hold) = match (&reply, &command) {
            (Reply::Acquire(_), Command::Acquire(request)) => (
                &request.key,
                hold_after(&reply, request.operation, stamp.at)?,
            ),
            (
                Reply::Release(ReleaseReply::Released { holds_left: 0, .. }),
                Command::Release(request),
            ) => (&request.key, self.hold?),
            _ => return None,
        };
        let key = key.clone();
        let moved = self.state.stored_end() != stored_end;
        let spare = std::mem::take(&mut self.spare);
        Some(Step {
            index,
            touches,
            key,
            replacement: machine.encode(&self.state, spare)?,
            expires: moved.then(|| expiry(self.state.stored_end())),
            known: self,
            stamp,
            command,
            hold,
            reply,
        })
    }

    /// What a script has stored if its answer is the predicted one.
    pub(super) fn after(
        mut self: Box<Self>,
        command: &Command,
        answer: &Stamped<Reply>,
        machine: &mut Machine,
    ) -> Option<Box<Self>> {
        let at = answer.stamp.at;
        let reply = machine.step_alone(&mut self.state, command, at)?;
        if at < self.at || reply != answer.reply {
            return None;
        }
        self.hold = match (&reply, command) {
            (Reply::Acquire(_), Command::Acquire(request)) => {
                Some(hold_after(&reply, request.operation, at)?)
            }
            (Reply::Renew(RenewReply::Renewed { remaining, .. }), _) => {
                self.hold.map(|hold| Hold {
                    end: at.saturating_add(*remaining),
                    ..hold
                })
            }
            (Reply::Release(ReleaseReply::Released { .. }), _) => None,
            _ => return None,
        };
        self.bytes = machine.encode(&self.state, std::mem::take(&mut self.bytes))?;
        self.is_certain = false;
        self.at = at;
        Some(self)
    }
}

fn hold_after(reply: &Reply, operation: Operation, at: ServerTime) -> Option<Hold> {
    match reply {
        Reply::Acquire(AcquireReply::Acquired(acquired)) => Some(Hold {
            operation,
            end: at.saturating_add(acquired.remaining),
        }),
        _ => None,
    }
}

impl Machine {
    /// Executes a command that concerns only its own session. `None` if somebody is to be told.
    fn step_alone(&self, state: &mut State, command: &Command, now: ServerTime) -> Option<Reply> {
        let env = Env {
            now,
            settings: self.settings,
            reachable: &|_| Reach::Unknown,
        };
        let (reply, messages) = machine::step(state, env, command);
        messages.is_empty().then_some(reply)
    }

    /// The string that the scripts store for this state, in the memory of another one.
    fn encode(&mut self, state: &State, memory: Vec<u8>) -> Option<Vec<u8>> {
        stored::encode_into(state, &mut self.parts, memory)
    }
}

/// The only hold of a state that has no waiters.
pub(super) fn hold_of(state: &State) -> Option<Hold> {
    let parts = state.to_parts();
    let holder = parts.holders.first()?;
    let &[(sequence, _)] = &*holder.holds else {
        return None;
    };
    Some(Hold {
        operation: Operation {
            session: holder.session,
            sequence,
            owner: OwnerId::from_u64(holder.id),
        },
        end: holder.end,
    })
}

/// When the stored string expires, in ms, as the scripts have it.
pub(super) fn expiry(stored_end: ServerTime) -> u64 {
    let kept_until = stored_end.saturating_add(DELETED_AFTER);
    kept_until.as_micros().div_ceil(1_000)
}
