//! When each holder is renewed, and when it is looked at for a loss.
//!
//! A holder is due a third of its lease after its last renewal was sent. Due times are rounded
//! down to a grid, so that holders with the same lease fall due together and share a batch. The
//! grid's origin is drawn for each client, so that clients do not fall due together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::bounds::RENEWALS_PER_LEASE;
use crate::client::state::holder::HolderCell;
use crate::client::state::signal::Signal;
use crate::client::state::watch::{Watched, Watcher};
use crate::mutants::mutant;
use crate::runtime::Moment;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, Weak};
use crate::time::ClockId;

/// The grid is this fraction of the interval between two renewals.
const GRID_PARTS: u32 = 8;

/// What follows from the answer to a try.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// It stands; when it is to be renewed again.
    Renewed(Moment),
    /// Nothing is known yet; when to try again.
    Again(Moment),
    /// It is lost.
    Never,
}

#[derive(Debug)]
pub(crate) struct Renewals {
    state: Mutex<Schedule>,
    pub(crate) changed: Signal,
    next_id: AtomicU64,
    started: AtomicBool,
    phase: u64,
}

#[derive(Debug, Default)]
struct Schedule {
    holders: BTreeMap<u64, Entry>,
    queue: BTreeSet<(Moment, u64)>,
    /// When the task wakes by itself.
    armed: Option<Moment>,
}

#[derive(Debug)]
struct Entry {
    holder: Arc<HolderCell>,
    /// When it is to be renewed; while that is under way, when that is tried again; `None` if
    /// nobody wants it.
    renew: Option<Moment>,
    /// Tries so far.
    tries: u64,
    /// When it is looked at: to renew it, or to tell of a loss.
    due: Option<Moment>,
}

impl Schedule {
    /// Has a holder looked at, at the latest, at a moment. What is due sooner stays: to look
    /// once too often does no harm. Whether the task must be woken for it.
    fn look_by(&mut self, id: u64, by: Moment) -> bool {
        let Some(entry) = self.holders.get_mut(&id) else {
            return false;
        };
        if entry.due.is_some_and(|due| due <= by) {
            return false;
        }
        if let Some(before) = entry.due.replace(by) {
            self.queue.remove(&(before, id));
        }
        self.queue.insert((by, id));
        self.armed.is_none_or(|armed| by < armed)
    }

    /// Whether the task should have woken by now: timers need not count the time of a suspend.
    fn oversleeps(&self, now: Moment) -> bool {
        self.armed.is_some_and(|armed| armed <= now)
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let removed = self.holders.remove(&id);
        if let Some(due) = removed.as_ref().and_then(|entry| entry.due) {
            self.queue.remove(&(due, id));
        }
        removed
    }

    /// Has a holder looked at then and not before.
    fn look_at(&mut self, id: u64, at: Moment) {
        if let Some(entry) = self.holders.get_mut(&id) {
            if let Some(before) = entry.due.replace(at) {
                self.queue.remove(&(before, id));
            }
            self.queue.insert((at, id));
        }
    }
}

impl Watcher for Renewals {
    fn look_now(&self, id: u64) {
        let wake = self.state.lock().look_by(id, Moment::default());
        if wake {
            self.changed.notify();
        }
    }
}

impl Renewals {
    pub(crate) fn new(phase: u64) -> Self {
        Self {
            state: Mutex::default(),
            changed: Signal::default(),
            next_id: AtomicU64::new(1),
            started: AtomicBool::new(false),
            phase,
        }
    }

    /// A place for a holder that begins.
    pub(crate) fn enrol(self: &Arc<Self>) -> Watched {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let by: Weak<Self> = Arc::downgrade(self);
        Watched::new(id, by)
    }

    /// When a holder whose renewal was sent at `sent` is due again.
    pub(crate) fn due_after(&self, sent: Moment, lease: Duration) -> Moment {
        let interval = lease / RENEWALS_PER_LEASE;
        let grid = u64::try_from((interval / GRID_PARTS).as_micros())
            .unwrap_or(u64::MAX)
            .max(1);
        let due = sent.saturating_add(interval);
        let micros = u64::try_from(due.since_origin().as_micros()).unwrap_or(u64::MAX);
        let over = micros.wrapping_add(self.phase % grid) % grid;
        due.saturating_sub(Duration::from_micros(over))
    }

    /// Takes a holder into the schedule, or changes when it is renewed.
    pub(crate) fn schedule(&self, holder: &Arc<HolderCell>, now: Moment, due: Moment) {
        self.enter(holder, now, Some(due));
    }

    /// Takes it in without a renewal: its losses are noticed.
    pub(crate) fn watch(&self, holder: &Arc<HolderCell>, now: Moment) {
        self.enter(holder, now, None);
    }

    fn enter(&self, holder: &Arc<HolderCell>, now: Moment, renew: Option<Moment>) {
        let loss = holder.next_loss();
        let wake = {
            let mut state = self.state.lock();
            let entry = state.holders.entry(holder.id).or_insert_with(|| Entry {
                holder: Arc::clone(holder),
                renew: None,
                tries: 0,
                due: None,
            });
            entry.renew = renew.or(entry.renew);
            let by = entry.renew.into_iter().chain(loss).min();
            let sooner = by.is_some_and(|by| state.look_by(holder.id, by));
            sooner || state.oversleeps(now)
        };
        if wake {
            self.changed.notify();
        }
    }

    /// Has a holder that was looked at looked at again when that is next of use.
    pub(crate) fn look_again(&self, holder: &HolderCell) {
        let loss = holder.next_loss();
        let mut state = self.state.lock();
        let renew = state.holders.get(&holder.id).and_then(|entry| entry.renew);
        if let Some(by) = renew.into_iter().chain(loss).min() {
            state.look_by(holder.id, by);
        }
    }

    /// Counts a try that is sent now, and sets the time for another without its answer; the
    /// number of this one.
    pub(crate) fn begin_try(&self, holder: &HolderCell, again: Moment) -> u64 {
        let mut state = self.state.lock();
        let Some(entry) = state.holders.get_mut(&holder.id) else {
            return 0;
        };
        entry.tries += 1;
        let number = entry.tries;
        if !mutant!(OneErrorEndsRenewal) {
            entry.renew = Some(again);
            state.look_by(holder.id, again);
        }
        number
    }

    /// Takes what came of a try.
    pub(crate) fn end_try(&self, holder: &HolderCell, number: u64, next: Next) {
        let mut state = self.state.lock();
        let Some(entry) = state.holders.get_mut(&holder.id) else {
            return;
        };
        let by = match next {
            Next::Never => return,
            Next::Renewed(due) if entry.tries == number => due,
            // A later try is under way, or was answered.
            Next::Renewed(due) => entry.renew.map_or(due, |renew| renew.max(due)),
            Next::Again(at) if entry.tries == number => {
                entry.renew.map_or(at, |renew| renew.min(at))
            }
            Next::Again(_) => return,
        };
        entry.renew = Some(by);
        // Under the lock, so that no alarm of a loss is put off.
        let at = holder.next_loss().map_or(by, |loss| loss.min(by));
        state.look_at(holder.id, at);
    }

    pub(crate) fn remove(&self, id: u64) {
        let removed = self.state.lock().remove(id);
        drop(removed);
    }

    /// The same, unless a nested hold has joined the holder again meanwhile.
    pub(crate) fn remove_if_over(&self, holder: &HolderCell) {
        let mut state = self.state.lock();
        if holder.is_over() {
            let removed = state.remove(holder.id);
            drop(state);
            drop(removed);
        }
    }

    pub(crate) fn clock_stepped(&self, clock: ClockId) {
        for holder in self.holders() {
            holder.clock_stepped(clock);
        }
    }

    /// All holders that have a guard.
    pub(crate) fn holders(&self) -> Vec<Arc<HolderCell>> {
        let state = self.state.lock();
        state
            .holders
            .values()
            .map(|entry| Arc::clone(&entry.holder))
            .collect()
    }

    /// Takes out what is due by now, each with whether it is to be renewed.
    pub(crate) fn take_due(&self, now: Moment) -> Vec<(Arc<HolderCell>, bool)> {
        let mut state = self.state.lock();
        let mut due = Vec::new();
        while let Some((at, id)) = state.queue.first().copied().filter(|(at, _)| *at <= now) {
            state.queue.remove(&(at, id));
            if let Some(entry) = state.holders.get_mut(&id) {
                entry.due = None;
                let renew = entry.renew.take_if(|at| *at <= now).is_some();
                due.push((Arc::clone(&entry.holder), renew));
            }
        }
        due
    }

    pub(crate) fn arm(&self) -> Option<Moment> {
        let mut state = self.state.lock();
        state.armed = state.queue.first().map(|(at, _)| *at);
        state.armed
    }

    /// Whether this is the first caller, which starts the task.
    pub(crate) fn start(&self) -> bool {
        !self.started.swap(true, Ordering::AcqRel)
    }
}
