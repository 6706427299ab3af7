//! Records who leads each term, and reports what must not happen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_api::{FencingToken, Term};
use leasehold_sim::SimServer;

#[derive(Debug, Default)]
struct State {
    /// The terms whose bodies run, by machine.
    leading: BTreeMap<usize, Arc<Term>>,
    /// The highest term that was led.
    last: FencingToken,
    problems: Vec<String>,
}

pub(super) struct Office {
    pub(super) sim: SimServer,
    /// Whether the assumptions hold. Otherwise, two may lead at once.
    pub(super) within: bool,
    state: Mutex<State>,
}

/// A body that leads, until this is dropped.
pub(super) struct Leading<'a> {
    office: &'a Office,
    machine: usize,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let mut state = self.office.state();
        let term = state.leading.remove(&self.machine);
        drop(state);
        // It may be the last one to drop its guard, which takes other locks.
        drop(term);
    }
}

impl Office {
    pub(super) fn new(sim: SimServer, within: bool) -> Self {
        let state = Mutex::default();
        Self { sim, within, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn problem(&self, text: String) {
        self.state().problems.push(text);
    }

    pub(super) fn begin(&self, machine: usize, term: Arc<Term>) -> Leading<'_> {
        let mut state = self.state();
        let number = term.number();
        if self.within && term.is_leader() && number <= state.last {
            let text = format!("term {number} follows {}", state.last);
            state.problems.push(text);
        }
        state.last = state.last.max(number);
        if let Some(before) = state.leading.insert(machine, term) {
            let before = before.number();
            let text = format!("term {number} begins before the body of {before} has ended");
            state.problems.push(text);
        }
        drop(state);
        self.check_alone();
        Leading {
            office: self,
            machine,
        }
    }

    /// At most one leader is valid.
    pub(super) fn check_alone(&self) {
        let mut state = self.state();
        let leaders = state.leading.values().filter(|term| term.is_leader());
        let found: Vec<_> = leaders.map(|term| term.number()).collect();
        if self.within && found.len() > 1 {
            let text = format!("leaders of the terms {found:?} at once");
            state.problems.push(text);
        }
    }

    pub(super) fn verdict(&self) -> Result<(), String> {
        self.state().problems.first().cloned().map_or(Ok(()), Err)
    }
}
