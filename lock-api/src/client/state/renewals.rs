//! The renewal schedule: when each holder is renewed, and when it is checked for a loss.
//!
//! A renewal is due a third of the lease after the last one was sent. Due times are rounded down to
//! a grid, so holders with the same lease are due together and share a batch. Each client has a
//! random grid phase, so the batches of different clients do not coincide.
//!
//! A holder has one entry in the queue, at the earlier of its next renewal and its next loss. The
//! check at that moment reports losses. A renewal that is due joins the [`Lane`] of its server, where it may wait
//! for others. While a renewal is in flight, the next try is already scheduled. Tries are numbered, because several may be in
//! flight. Once a later try was sent, the failure of an earlier one is ignored, and its success
//! can only postpone the next renewal. A renewal that was asked for meanwhile is not postponed: no answer
//! so far is an answer to it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::bounds::RENEWALS_PER_LEASE;
use crate::client::state::flow::{Flow, Sent};
use crate::client::state::holder::{Alarm, HolderCell};
use crate::client::state::signal::{Signal, StartFlag};
use crate::runtime::Moment;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::time::{ClockId, micros};

/// The grid is this fraction of the interval between two renewals.
const GRID_PARTS: u32 = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// The holder was renewed, and is due again at this moment.
    Renewed(Moment),
    /// The try failed, and the next one is due at this moment.
    Retry(Moment),
    /// The holder is lost or needs no more renewals.
    Stop,
}

#[derive(Debug, Default)]
pub(crate) struct Renewals {
    state: Mutex<Schedule>,
    pub(crate) changed: Signal,
    next_id: AtomicU64,
    pub(crate) started: StartFlag,
    phase: u64,
}

#[derive(Debug, Default)]
struct Schedule {
    holders: BTreeMap<u64, Entry>,
    queue: BTreeSet<(Moment, u64)>,
    /// By [server](HolderCell::server).
    lanes: BTreeMap<u64, Lane>,
    /// When the task wakes next.
    armed: Option<Moment>,
}

/// The renewals to one server: a silent one holds up none to others.
#[derive(Debug, Default)]
struct Lane {
    /// The holders whose renewal is due, the first lease to end in front.
    ready: BTreeSet<(Moment, u64)>,
    flow: Flow,
}

impl Lane {
    fn may_send(&self) -> bool {
        !self.ready.is_empty() && self.flow.has_room()
    }
}

#[derive(Debug)]
struct Entry {
    holder: Arc<HolderCell>,
    /// When it is renewed next. While a renewal is in flight, when the next try is sent. `None`
    /// without automatic renewal.
    renew: Option<Moment>,
    tries: u64,
    /// Whether a renewal was asked for after the latest try was sent.
    asked: bool,
    /// When it is checked next, to renew it or to report a loss.
    due: Option<Moment>,
    /// Its lane and its place there, if it is ready.
    ready: Option<(u64, Moment)>,
}

impl Schedule {
    /// Schedules a check at `by` or earlier. An earlier check stays, because an extra check is
    /// harmless. Returns whether the task must be woken.
    fn check_by(&mut self, id: u64, by: Moment) -> bool {
        let entry = self.holders.get(&id);
        let is_sooner = entry.is_some_and(|entry| entry.due.is_none_or(|due| by < due));
        if is_sooner {
            self.check_at(id, by);
        }
        is_sooner && self.armed.is_none_or(|armed| by < armed)
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let removed = self.holders.remove(&id);
        if let Some(due) = removed.as_ref().and_then(|entry| entry.due) {
            self.queue.remove(&(due, id));
        }
        if let Some((server, end)) = removed.as_ref().and_then(|entry| entry.ready)
            && let Some(lane) = self.lanes.get_mut(&server)
        {
            lane.ready.remove(&(end, id));
        }
        removed
    }

    /// Schedules the next check at exactly `at`.
    fn check_at(&mut self, id: u64, at: Moment) {
        if let Some(entry) = self.holders.get_mut(&id) {
            if let Some(before) = entry.due.replace(at) {
                self.queue.remove(&(before, id));
            }
            self.queue.insert((at, id));
        }
    }
}

impl Alarm for Renewals {
    fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn check_now(&self, id: u64) {
        let wake = self.state.lock().check_by(id, Moment::default());
        if wake {
            self.changed.notify();
        }
    }
}

impl Renewals {
    pub(crate) fn new(phase: u64) -> Self {
        Self {
            phase,
            ..Self::default()
        }
    }

    /// When the next renewal is due, if the last one was sent at `sent`.
    pub(crate) fn due_after(&self, sent: Moment, lease: Duration) -> Moment {
        let interval = lease / RENEWALS_PER_LEASE;
        let grid = micros(interval / GRID_PARTS).max(1);
        let due = sent.saturating_add(interval);
        let past_grid = micros(due.since_origin()).wrapping_add(self.phase % grid) % grid;
        due.saturating_sub(Duration::from_micros(past_grid))
    }

    /// Schedules the next renewal of a holder, and adds the holder if it is new. Without a renewal, only its losses
    /// are noticed.
    pub(crate) fn schedule(&self, holder: &Arc<HolderCell>, now: Moment, renew: Option<Moment>) {
        let loss = holder.next_loss();
        let wake = {
            let mut state = self.state.lock();
            let entry = state.holders.entry(holder.id).or_insert_with(|| Entry {
                holder: Arc::clone(holder),
                renew: None,
                tries: 0,
                asked: false,
                due: None,
                ready: None,
            });
            // What was asked for stays.
            let asked = entry.renew.filter(|_| entry.asked);
            entry.renew = asked.into_iter().chain(renew).min().or(entry.renew);
            let by = entry.renew.into_iter().chain(loss).min();
            let is_sooner = by.is_some_and(|by| state.check_by(holder.id, by));
            // The task should have woken by now. Timers may not count a suspend of the machine.
            let has_overslept = state.armed.is_some_and(|armed| armed <= now);
            is_sooner || has_overslept
        };
        if wake {
            self.changed.notify();
        }
    }

    /// Schedules the next check of a holder that was just checked.
    pub(crate) fn schedule_next_check(&self, holder: &HolderCell, now: Moment) {
        let loss = holder.next_loss();
        let mut state = self.state.lock();
        let entry = state.holders.get(&holder.id);
        // A renewal that waits in its lane needs no check, unless the answer to an earlier try has postponed it: then it
        // isn't sent from there.
        let is_later = |entry: &Entry, at: Moment| entry.ready.is_none() || at > now;
        let renew = entry.and_then(|entry| entry.renew.filter(|at| is_later(entry, *at)));
        if let Some(by) = renew.into_iter().chain(loss).min() {
            state.check_by(holder.id, by);
        }
    }

    /// Counts a try that is sent now, and schedules the next one at `retry` in case no answer
    /// arrives. Returns the number of the try.
    pub(crate) fn begin_try(&self, holder: &HolderCell, retry: Moment) -> u64 {
        let mut state = self.state.lock();
        let Some(entry) = state.holders.get_mut(&holder.id) else {
            return 0;
        };
        entry.tries += 1;
        entry.asked = false;
        let number = entry.tries;
        entry.renew = Some(retry);
        state.check_by(holder.id, retry);
        number
    }

    /// Schedules what follows from the outcome of a try.
    pub(crate) fn end_try(&self, holder: &HolderCell, number: u64, next: Next) {
        let mut state = self.state.lock();
        let Some(entry) = state.holders.get_mut(&holder.id) else {
            return;
        };
        let by = match next {
            Next::Stop => return,
            Next::Renewed(due) if entry.asked => entry.renew.map_or(due, |renew| renew.min(due)),
            Next::Renewed(due) if entry.tries == number => due,
            // A later try is in flight or was answered.
            Next::Renewed(due) => entry.renew.map_or(due, |renew| renew.max(due)),
            Next::Retry(at) if entry.tries == number => {
                entry.renew.map_or(at, |renew| renew.min(at))
            }
            Next::Retry(_) => return,
        };
        entry.renew = Some(by);
        // This happens under the lock, so that it does not postpone the alarm of a loss.
        let at = holder.next_loss().map_or(by, |loss| loss.min(by));
        state.check_at(holder.id, at);
    }

    /// Makes the next renewal due now, for every holder that is renewed automatically.
    pub(crate) fn renew_now(&self, now: Moment) {
        let mut state = self.state.lock();
        let renewed = state.holders.iter_mut().filter_map(|(id, entry)| {
            let at = entry.renew.as_mut()?;
            *at = now.min(*at);
            entry.asked = true;
            Some(*id)
        });
        let renewed: Vec<u64> = renewed.collect();
        for id in renewed {
            state.check_by(id, now);
        }
        drop(state);
        self.changed.notify();
    }

    pub(crate) fn remove_if_released(&self, holder: &HolderCell) {
        let mut state = self.state.lock();
        if holder.is_released() {
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

    pub(crate) fn holders(&self) -> Vec<Arc<HolderCell>> {
        let state = self.state.lock();
        state
            .holders
            .values()
            .map(|entry| Arc::clone(&entry.holder))
            .collect()
    }

    /// Takes out holders whose check is due, at most this many. Those whose renewal is due are ready from now on.
    pub(crate) fn take_due(&self, now: Moment, most: usize) -> Vec<Arc<HolderCell>> {
        let mut state = self.state.lock();
        let mut due = Vec::new();
        while due.len() < most
            && let Some((at, id)) = state.queue.first().copied().filter(|(at, _)| *at <= now)
        {
            state.queue.remove(&(at, id));
            let Schedule { holders, lanes, .. } = &mut *state;
            if let Some(entry) = holders.get_mut(&id) {
                entry.due = None;
                let renewal_is_due = entry.renew.is_some_and(|at| at <= now);
                if renewal_is_due && entry.ready.is_none() {
                    let server = entry.holder.server();
                    let end = entry.holder.next_loss().unwrap_or(now);
                    entry.ready = Some((server, end));
                    lanes.entry(server).or_default().ready.insert((end, id));
                }
                due.push(Arc::clone(&entry.holder));
            }
        }
        due
    }

    /// Takes out holders to renew now, at most this many, and their server.
    pub(crate) fn take_ready(
        &self,
        now: Moment,
        most: usize,
    ) -> Option<(u64, Vec<Arc<HolderCell>>)> {
        let mut state = self.state.lock();
        let Schedule { holders, lanes, .. } = &mut *state;
        let with_room = lanes.iter_mut().filter(|(_, lane)| lane.may_send());
        let (server, lane) = with_room.min_by_key(|(_, lane)| lane.ready.first().copied())?;
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some((_, id)) = lane.ready.pop_first()
        {
            if let Some(entry) = holders.get_mut(&id) {
                entry.ready = None;
                // Unless an earlier try was answered meanwhile.
                if entry.renew.take_if(|at| *at <= now).is_some() {
                    taken.push(Arc::clone(&entry.holder));
                }
            }
        }
        Some((*server, taken))
    }

    /// Notes that a call with this many renewals is sent to a server.
    pub(crate) fn begin_call(&self, server: u64, renewals: usize) -> Sent {
        let mut state = self.state.lock();
        state.lanes.entry(server).or_default().flow.begin(renewals)
    }

    /// Notes the end of that call.
    pub(crate) fn end_call(&self, server: u64, call: &Sent, answered: bool) {
        let mut state = self.state.lock();
        let lane = state.lanes.entry(server).or_default();
        lane.flow.end(call, answered);
    }

    /// Notes and returns the moment when the task wakes next.
    pub(crate) fn arm(&self) -> Option<Moment> {
        let mut state = self.state.lock();
        state.armed = match state.lanes.values().any(Lane::may_send) {
            true => Some(Moment::default()),
            false => state.queue.first().map(|(at, _)| *at),
        };
        state.armed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::state::holder::tests::{at, hold, holder, status};
    use crate::id::Key;

    /// A schedule, its only holder, and the number of a renewal that was sent at 100 ms.
    fn renewing() -> (Renewals, Arc<HolderCell>, u64) {
        let renewals = Renewals::new(0);
        let holder = holder(hold(1, 1_000));
        renewals.schedule(&holder, at(0), Some(at(100)));
        assert!(takes_renewal(&renewals, 100));
        let number = renewals.begin_try(&holder, at(150));
        (renewals, holder, number)
    }

    /// Whether a renewal is due, which is taken.
    fn takes_renewal(renewals: &Renewals, ms: u64) -> bool {
        renewals.take_due(at(ms), usize::MAX);
        let ready = renewals.take_ready(at(ms), usize::MAX);
        ready.is_some_and(|(_, taken)| !taken.is_empty())
    }

    #[test]
    fn no_more_than_asked_for_are_taken_at_once() {
        let renewals = Arc::new(Renewals::new(0));
        let session = Arc::clone(&holder(hold(1, 1_000)).session);
        for number in 0..300 {
            let key = Key::new(format!("k{number}")).expect("valid");
            let (session, status) = (Arc::clone(&session), status(7, 1_000));
            let cell = HolderCell::new(key, &renewals, session, status, hold(1, 1_000));
            renewals.schedule(&cell, at(0), Some(at(100)));
        }
        let taken = || renewals.take_due(at(100), 128).len();
        assert_eq!([taken(), taken(), taken(), taken()], [128, 128, 44, 0]);
        let sent = || renewals.take_ready(at(100), 128).map_or(0, |it| it.1.len());
        assert_eq!([sent(), sent(), sent(), sent()], [128, 128, 44, 0]);
    }

    #[test]
    fn first_lease_to_end_is_renewed_first() {
        let renewals = Arc::new(Renewals::new(0));
        let session = Arc::clone(&holder(hold(1, 1_000)).session);
        for (lease, due) in [(30_000, 10), (1_000, 30), (10_000, 20)] {
            let key = Key::new(format!("{lease}")).expect("valid");
            let (session, status) = (Arc::clone(&session), status(7, lease));
            let cell = HolderCell::new(key, &renewals, session, status, hold(1, lease));
            renewals.schedule(&cell, at(0), Some(at(due)));
        }
        renewals.take_due(at(40), usize::MAX);
        let sent = |_| {
            let (_, taken) = renewals.take_ready(at(40), 1).expect("one is ready");
            taken[0].key.to_string()
        };
        assert_eq!([0; 3].map(sent), ["1000", "10000", "30000"]);
    }

    #[test]
    fn renewal_that_waits_is_not_sent_after_an_earlier_one_was_answered() {
        let (renewals, holder, number) = renewing();
        renewals.take_due(at(150), usize::MAX);
        renewals.end_try(&holder, number, Next::Renewed(at(430)));
        let taken = renewals.take_ready(at(150), 1);
        assert!(taken.is_some_and(|(_, taken)| taken.is_empty()));
        assert!(takes_renewal(&renewals, 430));
    }

    /// A loss of one of its holds was reported while its renewal waited in the lane.
    #[test]
    fn renewal_that_was_postponed_in_its_lane_is_sent_later() {
        let (renewals, holder, number) = renewing();
        renewals.take_due(at(150), usize::MAX);
        renewals.end_try(&holder, number, Next::Renewed(at(1_300)));
        renewals.take_due(at(1_000), usize::MAX);
        assert!(!holder.take_losses(at(1_000)).is_empty());
        renewals.schedule_next_check(&holder, at(1_000));
        let taken = renewals.take_ready(at(1_000), 1);
        assert!(taken.is_some_and(|(_, taken)| taken.is_empty()));
        assert!(takes_renewal(&renewals, 1_300));
    }

    #[test]
    fn renewals_wait_while_too_many_are_in_flight() {
        let (renewals, holder, _) = renewing();
        let server = holder.server();
        let call = renewals.begin_call(server, 100_000);
        renewals.take_due(at(150), usize::MAX);
        renewals.schedule_next_check(&holder, at(150));
        assert!(renewals.take_ready(at(150), 1).is_none());
        assert_eq!(renewals.arm(), holder.next_loss(), "its end is noticed");
        renewals.end_call(server, &call, true);
        assert!(renewals.arm() <= Some(at(150)), "it is sent now");
        assert!(renewals.take_ready(at(150), 1).is_some());
    }

    #[test]
    fn answer_postpones_the_next_renewal() {
        let (renewals, holder, number) = renewing();
        renewals.end_try(&holder, number, Next::Renewed(at(430)));
        assert!(!takes_renewal(&renewals, 429));
        assert!(takes_renewal(&renewals, 430));
    }

    #[test]
    fn answer_to_an_older_renewal_does_not_postpone_one_that_was_asked_for() {
        let (renewals, holder, number) = renewing();
        renewals.renew_now(at(110));
        renewals.end_try(&holder, number, Next::Renewed(at(430)));
        assert!(takes_renewal(&renewals, 120), "it was asked for at 110 ms");
        let asked = renewals.begin_try(&holder, at(170));
        renewals.end_try(&holder, asked, Next::Renewed(at(450)));
        assert!(!takes_renewal(&renewals, 449), "it was answered");
    }

    #[test]
    fn late_answer_does_not_postpone_a_renewal_that_was_asked_for() {
        let (renewals, holder, number) = renewing();
        assert!(takes_renewal(&renewals, 150));
        renewals.begin_try(&holder, at(200));
        renewals.renew_now(at(160));
        renewals.end_try(&holder, number, Next::Renewed(at(430)));
        assert!(takes_renewal(&renewals, 160));
    }

    #[test]
    fn another_hold_does_not_postpone_a_renewal_that_was_asked_for() {
        let (renewals, holder, _) = renewing();
        renewals.renew_now(at(110));
        renewals.schedule(&holder, at(112), Some(at(440)));
        assert!(takes_renewal(&renewals, 120));
    }
}
