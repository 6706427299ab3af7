//! The states that this client remembers: a step on one of them is one compare-and-set.
//!
//! Most locks are free when they are asked for, and belong to one client for a while. Its release finds the
//! string that its acquire has stored, and its next acquire the string of that release. So the client steps the
//! state machine on the state that it remembers, and the server only compares the old string and stores the new
//! one (`SET key new IFEQ old`), which costs it a fraction of a script. If the string is another one, nothing is
//! written, and the script executes the same operation.
//!
//! # Why it is safe
//! - **No string comes back.** Tokens, sequences and ends in a stored string only grow. So if the string is still the
//!   remembered one, no command was executed on the key in between, however late the compare-and-set arrives.
//! - **But absence does.** A key that doesn't exist is made (`SET new NX`), and it may have been used and deleted before
//!   that arrives. A key that was held is kept for its token for T, 10 minutes. So only leases up to T are asked for in
//!   this way: if the step is executed after another hold, its own is over. If there was none, the step may take the
//!   key although it was given up. The key is free again one lease after it was sent.
//! - **Time.** Nothing compares the time of the step with the server's clock. So the step is made at a *lower bound*
//!   of that clock: the last stamp and the time since, less the drift allowance; or the time at which the remembered
//!   string was stored, if that is later. The hold ends early by the difference, never late. The reply's stamp is the
//!   server's clock, read right behind the commands, and the time that remains is the end of the hold minus that
//!   stamp (rule 2).
//! - **One clock.** A step is only sent to the server whose clock it is for, over a connection of this backend.
//! - **What is answered.** Only `Acquired` of a first hold, and `Released` of the only one (or `NotHeld`, if its lease may
//!   have ended before), of a key without waiters. So nobody is passed over, and nobody is to be told.
//! - **Doubt.** Without an answer, the outcome is unknown, and the key is forgotten. The caller repeats or releases the
//!   operation by a script, which finds whatever has become of it, and changes the string. A later copy of the
//!   step then finds another one.
//!
//! # When it is tried
//! A key that the client has never used is taken for one that doesn't exist. The scripts tell the time of their step, so the
//! client predicts what they store. The first step on a prediction or a new key also asks for the string that the server has (`GET`). A
//! later one asks only whether it is the remembered one, which keeps the answer small. If it is another one, that is a
//! *miss*: nothing was written, and a script executes the command in a second call. Then the scripts serve the key for
//! 2 W, until the watermarks of others have ended, and twice as long after each miss in a row. So clients that take turns
//! with a key pay for a miss now and then. A client stops taking unknown keys for new ones after 64 misses in 2 W, less one
//! for every 16 keys that were new.

mod clock;
mod execute;
mod step;
mod stored;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_api::machine::{Reply, Settings};
use leasehold_api::{BackendError, Key, Moment, Stamp, Stamped, bounds};
use lru::LruCache;

use clock::{Estimate, Exchange, Sample};
pub use execute::{Answer, Few, Predictable, Scripts, Server, StepOutcome};
pub use step::Step;
use step::{Known, Machine};
pub use stored::{decode, encode};

/// At most this many keys are remembered. Each takes about 1.5 kB.
const MOST_KEYS: usize = 1_024;
/// How long the scripts serve a key that somebody else has used. After each further miss it is twice as long, up to
/// some 20 minutes.
const SHARED_FOR: Duration = bounds::DELIVERY_WINDOW.saturating_mul(2);
const MOST_DOUBLINGS: u32 = 6;
/// The client takes unknown keys for new ones until it has had this many misses in [`SHARED_FOR`].
const MOST_MISSES: u32 = 64;
/// So many new keys make up for a miss.
const NEW_KEYS_PER_MISS: u32 = 16;

/// The states of keys as this client has left them.
#[derive(Default)]
pub struct Memory {
    inner: Mutex<Inner>,
}

/// Shows no state: it contains sessions, which authorize releases.
impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

struct Inner {
    clock: Option<Sample>,
    keys: LruCache<Key, Entry>,
    /// The misses since then.
    misses: u32,
    /// The new keys since one of them made up for a miss.
    new_keys: u32,
    misses_since: Moment,
    machine: Machine,
}

#[derive(Default)]
struct Entry {
    /// `None` while a step is on its way, and whenever it isn't known what the server has.
    known: Option<Box<Known>>,
    /// How many answers of scripts have come, and commands were sent that may change the key. A step that sees
    /// another number when its answer comes doesn't know which of them was last.
    touches: u64,
    /// Until then, the scripts serve it.
    scripts_until: Moment,
    /// How many steps have missed since an acquire was one that was executed.
    misses: u32,
}

impl Entry {
    /// Somebody else uses the key, or the server refuses steps on it. So the scripts serve it, for longer each time.
    fn leave_to_scripts(&mut self, now: Moment) {
        let times = 1 << self.misses.min(MOST_DOUBLINGS);
        self.scripts_until = now.saturating_add(SHARED_FOR * times);
        self.misses += 1;
    }
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            clock: None,
            // A cache with a bound would allocate it at once.
            keys: LruCache::unbounded(),
            misses: 0,
            new_keys: 0,
            misses_since: Moment::default(),
            machine: Machine::default(),
        }
    }
}

impl Memory {
    /// Remembers the states of a server with these settings.
    pub fn new(settings: Settings) -> Self {
        let memory = Self::default();
        memory.inner().machine.settings = settings;
        memory
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps on the remembered states of the keys, where it can, and forgets them until the answers come. All steps
    /// are for the same clock.
    fn steps<E: Predictable>(&self, batch: &[E], now: Moment) -> Few<Step> {
        let mut inner = self.inner();
        let Some(estimate) = inner.clock.and_then(|it| it.estimate(now)) else {
            return Few::new();
        };
        let mut steps = Few::with_capacity(batch.len());
        let requests = batch.iter().enumerate();
        steps.extend(requests.filter_map(|(index, it)| inner.step(index, it, estimate, now)));
        steps
    }

    /// Scripts have answered. Predicts what they have stored.
    fn predict_all<E: Predictable>(
        &self,
        batch: &[E],
        answers: &[Answer<E::Reply>],
        exchange: Exchange,
    ) {
        let mut inner = self.inner();
        for (request, answer) in batch.iter().zip(answers) {
            match answer {
                Ok(Stamped { stamp, reply }) => {
                    inner.note_clock(*stamp, exchange);
                    let answer = Stamped {
                        stamp: *stamp,
                        reply: E::wrap(reply.clone()),
                    };
                    inner.predict(request, &answer, exchange.received);
                }
                Err(_) => inner.forget(request.key()),
            }
        }
    }

    /// Notes the server's clock in the answer to another call, which was sent then and has just come.
    pub fn note_clock(&self, stamp: Stamp, sent: Moment, received: Moment) {
        self.inner().note_clock(stamp, Exchange { sent, received });
    }

    /// Forgets a key, before another command is sent.
    pub fn forget(&self, key: &Key) {
        self.inner().forget(key);
    }
}

impl Inner {
    fn step(
        &mut self,
        index: usize,
        request: &impl Predictable,
        estimate: Estimate,
        now: Moment,
    ) -> Option<Step> {
        let may_guess = self.may_guess(now);
        let entry = entry_of(&mut self.keys, request.key());
        if entry.scripts_until > now {
            return None;
        }
        let is_new = entry.known.is_none() && entry.touches == 0 && may_guess;
        // It is forgotten until the answer comes. So nothing else is sent on what this step may change.
        let mut known = match entry.known.take() {
            None if is_new => Box::default(),
            known => known?,
        };
        let at = estimate.at.max(known.at);
        known.forget_what_is_deleted(at);
        let mut command = request.command();
        let settings = self.machine.settings;
        if !known.may_step(&command, at, estimate.lag, settings) {
            entry.known = (!is_new).then_some(known);
            return None;
        }
        known.adapt(&mut command, at, estimate.likely, settings);
        entry.touches += u64::from(is_new);
        let touches = entry.touches;
        let stamp = Stamp {
            clock: estimate.clock,
            at,
        };
        known.step(command, stamp, (index, touches), &mut self.machine)
    }

    /// The server has compared the string, before the stamp. `None` if a script executes the command next.
    fn finish(
        &mut self,
        step: Step,
        outcome: StepOutcome,
        stamp: Stamp,
        received: Moment,
    ) -> Option<Result<Reply, BackendError>> {
        let found = match outcome {
            StepOutcome::Unknown(error) => return Some(Err(error)),
            StepOutcome::Same => return Some(Ok(self.executed(step, stamp))),
            StepOutcome::Other(found) => found,
            StepOutcome::NotExecuted => None,
        };
        self.count_miss(received);
        let known = found.and_then(|bytes| Known::read(bytes, stamp.at));
        let entry = entry_of(&mut self.keys, &step.key);
        entry.known = known.map(Box::new);
        entry.leave_to_scripts(received);
        None
    }

    fn executed(&mut self, step: Step, stamp: Stamp) -> Reply {
        let reply = step.reply_at(stamp);
        let was_set_back = step.stamp.at.saturating_since(stamp.at) > bounds::DRIFT_FLOOR;
        let mut known = step.known;
        if known.is_missing() {
            self.count_new_key();
        }
        known.spare = std::mem::replace(&mut known.bytes, step.replacement);
        known.at = stamp.at.max(step.stamp.at);
        let is_acquire = matches!(step.reply, Reply::Acquire(_));
        known.hold = is_acquire.then_some(step.hold);
        let entry = entry_of(&mut self.keys, &step.key);
        known.is_certain = entry.touches == step.touches;
        if is_acquire {
            // Nobody else has had the key since the last release. A release doesn't show that.
            entry.misses = 0;
        }
        // After a clock that was set back, the key would keep the old time.
        entry.known = (!was_set_back).then_some(known);
        reply
    }

    fn predict(&mut self, request: &impl Predictable, answer: &Stamped<Reply>, now: Moment) {
        let may_guess = self.may_guess(now);
        let entry = entry_of(&mut self.keys, request.key());
        entry.touches += 1;
        let known = match entry.known.take() {
            // It is taken for a key that doesn't exist.
            None if entry.scripts_until <= now && may_guess => Some(Box::default()),
            known => known,
        };
        if let Some(known) = known {
            entry.known = known.after(&request.command(), answer, &mut self.machine);
            if entry.known.is_none() {
                entry.scripts_until = entry.scripts_until.max(now.saturating_add(SHARED_FOR));
            }
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(entry) = self.keys.peek_mut(key) {
            entry.known = None;
            entry.touches += 1;
        }
    }

    fn may_guess(&self, now: Moment) -> bool {
        self.misses < MOST_MISSES || self.misses_end() <= now
    }

    fn count_miss(&mut self, now: Moment) {
        if self.misses_end() <= now {
            (self.misses, self.misses_since) = (0, now);
        }
        self.misses += 1;
    }

    fn count_new_key(&mut self) {
        self.new_keys = (self.new_keys + 1) % NEW_KEYS_PER_MISS;
        if self.new_keys == 0 {
            self.misses = self.misses.saturating_sub(1);
        }
    }

    fn misses_end(&self) -> Moment {
        self.misses_since.saturating_add(SHARED_FOR)
    }

    /// Notes the server's clock. If it is another one, or was set back, the remembered times are void.
    fn note_clock(&mut self, stamp: Stamp, exchange: Exchange) {
        let new = Sample { stamp, exchange };
        self.clock = Some(match self.clock {
            Some(known) if known.is_contradicted_by(&new) => {
                self.keys.clear();
                new
            }
            Some(known) => known.or_better(new),
            None => new,
        });
    }
}

/// The entry of a key, which is made if there is none.
fn entry_of<'a>(keys: &'a mut LruCache<Key, Entry>, key: &Key) -> &'a mut Entry {
    if !keys.contains(key) {
        keys.put(key.clone(), Entry::default());
        if keys.len() > MOST_KEYS {
            keys.pop_lru();
        }
    }
    keys.get_mut(key).expect("it was put there")
}

#[cfg(test)]
mod tests;
