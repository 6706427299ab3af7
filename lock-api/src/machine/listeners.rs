//! The sessions that a step may ask about.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::id::SessionId;
use crate::machine::state::State;
use crate::machine::{Command, Env, Reach, Settings, step};
use crate::time::ServerTime;

impl State {
    /// Lists the sessions that [`step`] may ask [`Env::reachable`] about, sorted.
    ///
    /// An asynchronous store looks them up first and then executes the step with the same state,
    /// time, settings and command. The list is usually empty, because most steps grant nothing to the
    /// queue. It has at most 512 sessions.
    ///
    /// ```
    /// use leasehold_api::machine::{Command, Settings, State};
    /// use leasehold_api::ServerTime;
    ///
    /// let now = ServerTime::from_micros(1);
    /// let sessions = State::default().listeners_of(now, Settings::default(), &Command::Inspect);
    /// assert!(sessions.is_empty());
    /// ```
    pub fn listeners_of(
        &self,
        now: ServerTime,
        settings: Settings,
        command: &Command,
    ) -> Vec<SessionId> {
        if self.waiters.is_empty() {
            // A step asks only about waiters that were there before it. One of them may begin to
            // listen in this step.
            return Vec::new();
        }
        let asked = Mutex::new(BTreeSet::new());
        // A waiter that nobody listens for is passed over. So with this answer, the step asks about
        // all waiters that it asks about with any other answers.
        let reachable = |session| {
            let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.insert(session);
            Reach::Nobody
        };
        let env = Env {
            now,
            settings,
            reachable: &reachable,
        };
        step(&mut self.clone(), env, command);
        let asked = asked.into_inner().unwrap_or_else(PoisonError::into_inner);
        asked.into_iter().collect()
    }
}
