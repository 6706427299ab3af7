//! The cell that all guards of one holder share: token, deadline, loss.
//!
//! A holder's guards are told apart by the sequence numbers of their operations. A hold is in the
//! cell from its grant until its end has *begun*: from then on it is neither renewed nor lost.
//! Loss is final, and a deadline never moves once it has passed.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use crate::client::error::Loss;
use crate::client::state::hold_state::HoldState;
use crate::client::state::lease_status::LeaseStatus;
use crate::client::state::router::Revocable;
use crate::client::state::session::Session;
use crate::client::state::signal::Signal;
use crate::client::state::watch::Watched;
use crate::id::{FencingToken, Key, Operation};
use crate::mutants::mutant;
use crate::reply::EndReason;
use crate::request::Mode;
use crate::runtime::Moment;
use crate::sync::{Arc, Mutex};
use crate::time::ClockId;

/// A renewal to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) operation: Operation,
    pub(crate) lease: Duration,
}

/// How a guard stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validity {
    ValidUntil(Moment),
    Lost(Loss),
    /// Its end has begun.
    Released,
}

#[derive(Debug)]
pub(crate) struct HolderCell {
    pub(crate) key: Key,
    pub(crate) id: u64,
    pub(crate) session: Arc<Session>,
    watched: Watched,
    state: Mutex<State>,
    pub(crate) changed: Signal,
}

#[derive(Debug)]
struct State {
    status: LeaseStatus,
    lost: Option<Loss>,
    /// Mostly one.
    holds: SmallVec<[HoldState; 1]>,
    /// Holds that were ended by the client's shutdown, over their guards' heads.
    shut_down: Vec<u64>,
}

impl State {
    /// Notifications that the deadline has passed.
    fn settle(&mut self, now: Moment) {
        if self.lost.is_none() && now >= self.status.deadline {
            self.lost = Some(Loss::Deadline);
        }
    }

    fn improve(&mut self, new: LeaseStatus) {
        // A holder is never shortened and its tokens only grow, so of two true replies the
        // greater is true now, whichever came first.
        let old = self.status;
        self.status = LeaseStatus {
            token: match mutant!(GuardKeepsToken) {
                true => old.token,
                false => old.token.max(new.token),
            },
            deadline: old.deadline.max(new.deadline),
            clock: new.clock,
        };
    }
}

impl HolderCell {
    pub(crate) fn new(
        key: Key,
        watched: Watched,
        session: Arc<Session>,
        status: LeaseStatus,
        hold: HoldState,
    ) -> Self {
        Self {
            key,
            id: watched.id,
            session,
            watched,
            state: Mutex::new(State {
                status,
                lost: None,
                holds: smallvec![hold],
                shut_down: Vec::new(),
            }),
            changed: Signal::default(),
        }
    }

    /// Adds a nested hold, unless the holder is lost, or over.
    ///
    /// It is not over while the server counts other `holds` of it: the end of its last one is
    /// under way. If the server counts this hold as the only one, in a later epoch, it has lost
    /// those known here. Wakes nobody, so that it may be called under a lock: call
    /// [`wake`](Self::wake) after it.
    pub(crate) fn join(
        &self,
        now: Moment,
        status: LeaseStatus,
        hold: &HoldState,
        holds: u32,
    ) -> bool {
        let mut state = self.state.lock();
        state.settle(now);
        let is_over = state.holds.is_empty() && holds < 2;
        if state.lost.is_some() || is_over {
            return false;
        }
        let replaced = holds == 1 && status.token > state.status.token;
        if replaced {
            state.lost = Some(Loss::Unknown);
        } else {
            state.improve(status);
            state.holds.push(hold.clone());
        }
        !replaced
    }

    /// Wakes those who wait for a change, after one that was made in silence.
    pub(crate) fn wake(&self) {
        self.changed.notify();
        if self.state.lock().lost.is_some() {
            self.watched.alarm();
        }
    }

    /// Takes what a reply says about the holder, if it still matters; whether it does.
    pub(crate) fn extend(&self, now: Moment, status: LeaseStatus) -> bool {
        let mut state = self.state.lock();
        state.settle(now);
        let extended = state.lost.is_none();
        if extended {
            state.improve(status);
        }
        drop(state);
        self.changed.notify();
        extended
    }

    /// Moves the end of a fixed lease, after its guard was renewed by hand.
    pub(crate) fn extend_fixed(&self, now: Moment, sequence: u64, until: Moment) {
        let mut state = self.state.lock();
        let hold = state
            .holds
            .iter_mut()
            .find(|hold| hold.operation.sequence == sequence);
        if let Some(fixed) = hold.and_then(|hold| hold.fixed_until.as_mut())
            && now < *fixed
        {
            *fixed = until.max(*fixed);
        }
        drop(state);
        self.changed.notify();
    }

    /// Changes the mode of a hold, after a conversion; which one it had, if its guard is neither
    /// ended nor told to be lost.
    pub(crate) fn set_mode(&self, sequence: u64, mode: Mode) -> Option<Mode> {
        let mut state = self.state.lock();
        let hold = state
            .holds
            .iter_mut()
            .find(|hold| hold.operation.sequence == sequence)?;
        let before = std::mem::replace(&mut hold.mode, mode);
        (!hold.told).then_some(before)
    }

    /// Declares the holder lost, for all its guards and for good.
    pub(crate) fn lose(&self, loss: Loss) {
        let mut state = self.state.lock();
        state.lost.get_or_insert(loss);
        drop(state);
        self.changed.notify();
        self.watched.alarm();
    }

    /// The same, if `sequence` is still in use: what is said about a hold whose end has begun
    /// says nothing about the others.
    pub(crate) fn lose_through(&self, sequence: u64, reason: EndReason) -> bool {
        let live = self.is_live(sequence);
        if live {
            self.lose(reason.into());
        }
        live
    }

    /// Why all its guards are lost, if they are.
    pub(crate) fn lost(&self) -> Option<Loss> {
        self.state.lock().lost
    }

    pub(crate) fn clock_stepped(&self, clock: ClockId) {
        let affected = self.state.lock().status.clock == clock;
        if affected {
            self.lose(Loss::ClockStepped);
        }
    }

    /// Begins the end of a hold; only the first caller gets it, with the loss that came before
    /// if that was not told.
    pub(crate) fn begin_release(
        &self,
        now: Moment,
        sequence: u64,
    ) -> Option<(HoldState, Option<Loss>)> {
        let mut state = self.state.lock();
        state.settle(now);
        let index = state
            .holds
            .iter()
            .position(|hold| hold.operation.sequence == sequence)?;
        let mut hold = if mutant!(RenewsAfterRelease) {
            state.holds[index].clone()
        } else {
            state.holds.remove(index)
        };
        let loss = hold.untold_loss(now, state.lost);
        drop(state);
        self.changed.notify();
        Some((hold, loss))
    }

    /// Begins the end of all holds, for a shutdown: their guards are lost, and with each comes
    /// the loss to be told.
    pub(crate) fn shut_down(&self, now: Moment) -> Vec<(HoldState, Option<Loss>)> {
        let mut state = self.state.lock();
        state.settle(now);
        let holds = std::mem::take(&mut state.holds);
        state
            .shut_down
            .extend(holds.iter().map(|hold| hold.operation.sequence));
        let lost = state.lost;
        drop(state);
        self.changed.notify();
        let told = holds.into_iter().map(|mut hold| {
            let loss = hold.untold_loss(now, lost);
            let closed = (!hold.told).then_some(Loss::ClientClosed);
            (hold, loss.or(closed))
        });
        told.collect()
    }

    /// The holds whose guards are lost by now, with the reasons; each is told once.
    pub(crate) fn take_losses(&self, now: Moment) -> Vec<(HoldState, Loss)> {
        let mut state = self.state.lock();
        let was_lost = state.lost.is_some();
        state.settle(now);
        let lost = state.lost;
        let told = state.holds.iter_mut().filter_map(|hold| {
            let loss = hold.untold_loss(now, lost)?;
            Some((hold.clone(), loss))
        });
        let told: Vec<_> = told.collect();
        drop(state);
        if !was_lost && lost.is_some() {
            self.changed.notify();
        }
        told
    }

    /// When the next loss would have to be told, if nothing is renewed.
    pub(crate) fn next_loss(&self) -> Option<Moment> {
        let state = self.state.lock();
        let deadline = match state.lost {
            Some(_) => Moment::default(),
            None => state.status.deadline,
        };
        let untold = state.holds.iter().filter(|hold| !hold.told);
        untold.map(|hold| hold.until(deadline)).min()
    }

    pub(crate) fn validity(&self, now: Moment, sequence: u64) -> Validity {
        validity(&mut self.state.lock(), now, sequence)
    }

    pub(crate) fn is_live(&self, sequence: u64) -> bool {
        let state = self.state.lock();
        state
            .holds
            .iter()
            .any(|hold| hold.operation.sequence == sequence)
    }

    /// Holds whose end has not begun.
    pub(crate) fn holds(&self) -> usize {
        self.state.lock().holds.len()
    }

    /// Whether the end of its last hold has begun.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().holds.is_empty()
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.state.lock().status.token
    }

    #[cfg(test)]
    pub(crate) fn deadline(&self) -> Moment {
        self.state.lock().status.deadline
    }

    /// The renewal that it needs; `None` if it is over, lost, or nobody wants it renewed.
    pub(crate) fn plan(&self, now: Moment) -> Option<Plan> {
        let mut state = self.state.lock();
        let was_lost = state.lost.is_some();
        state.settle(now);
        if state.lost.is_some() {
            drop(state);
            if !was_lost {
                self.changed.notify();
            }
            return None;
        }
        let wanted = state
            .holds
            .iter()
            .filter(|hold| hold.renewed && hold.max_until.is_none_or(|until| now < until));
        let longest = wanted.max_by_key(|hold| hold.lease)?;
        Some(Plan {
            operation: longest.operation,
            lease: longest.lease,
        })
    }
}

impl Revocable for HolderCell {
    fn revoke(&self, sequence: u64, loss: Loss) {
        if self.is_live(sequence) {
            self.lose(loss);
        }
    }
}

fn validity(state: &mut State, now: Moment, sequence: u64) -> Validity {
    state.settle(now);
    let Some(hold) = state
        .holds
        .iter()
        .find(|hold| hold.operation.sequence == sequence)
    else {
        if state.shut_down.contains(&sequence) {
            return Validity::Lost(Loss::ClientClosed);
        }
        return Validity::Released;
    };
    match hold.loss(now, state.lost) {
        Some(loss) => Validity::Lost(loss),
        None => Validity::ValidUntil(hold.until(state.status.deadline)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::future::Future;

    use futures_util::FutureExt;

    use super::*;
    use crate::client::state::watch::Watcher;
    use crate::id::{OwnerId, SessionId};
    use crate::runtime::{BoxFuture, Runtime};
    use crate::sync::Weak;

    /// The watcher of a holder that no client has.
    #[derive(Debug)]
    struct Nobody;

    impl Watcher for Nobody {
        fn look_now(&self, _: u64) {}
    }

    /// Gives a session its id; nothing else is asked of it.
    #[derive(Debug)]
    struct Zeros;

    impl Runtime for Zeros {
        fn now(&self) -> Moment {
            Moment::default()
        }
        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
        fn spawn(&self, _: BoxFuture<'static, ()>) {}
        fn fill_random(&self, bytes: &mut [u8]) {
            bytes.fill(0);
        }
    }

    pub(crate) fn at(ms: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(ms))
    }

    pub(crate) fn status(token: u64, deadline_ms: u64) -> LeaseStatus {
        LeaseStatus {
            token: FencingToken::new(token),
            deadline: at(deadline_ms),
            clock: ClockId::new(1),
        }
    }

    pub(crate) fn hold(sequence: u64, lease_ms: u64) -> HoldState {
        HoldState {
            operation: Operation {
                session: SessionId::from_bytes([0; 16]),
                sequence,
                owner: OwnerId::from_u64(1),
            },
            mode: Mode::Exclusive,
            lease: Duration::from_millis(lease_ms),
            renewed: true,
            fixed_until: None,
            max_until: None,
            waiter_lease: Duration::from_secs(5),
            since: Moment::default(),
            told: false,
            ended: Arc::default(),
        }
    }

    pub(crate) fn holder(first: HoldState) -> HolderCell {
        let key = Key::new("k").expect("valid");
        HolderCell::new(
            key,
            Watched::new(1, Weak::<Nobody>::new()),
            Arc::new(Session::draw(&Zeros, 1)),
            status(7, 1_000),
            first,
        )
    }

    #[test]
    fn a_deadline_is_over_at_its_moment_and_never_moves_after_it() {
        let holder = holder(hold(1, 1_000));
        assert_eq!(holder.validity(at(999), 1), Validity::ValidUntil(at(1_000)));
        assert!(!holder.extend(at(1_000), status(7, 2_000)));
        assert_eq!(holder.validity(at(999), 1), Validity::Lost(Loss::Deadline));
        holder.lose(Loss::Forced);
        assert_eq!(holder.validity(at(999), 1), Validity::Lost(Loss::Deadline));
    }

    #[test]
    fn an_older_reply_takes_nothing_back() {
        let holder = holder(hold(1, 1_000));
        assert!(holder.extend(at(10), status(9, 3_000)));
        assert!(holder.extend(at(20), status(8, 2_000)));
        assert_eq!(holder.token(), FencingToken::new(9));
        assert_eq!(holder.deadline(), at(3_000));
    }

    #[test]
    fn the_longest_lease_that_is_wanted_is_renewed() {
        let holder = holder(hold(1, 1_000));
        let mut fixed = hold(2, 9_000);
        fixed.renewed = false;
        let mut limited = hold(3, 5_000);
        limited.max_until = Some(at(500));
        assert!(holder.join(at(0), status(7, 9_000), &fixed, 2));
        assert!(holder.join(at(0), status(7, 9_000), &limited, 3));
        assert_eq!(
            holder.plan(at(499)).map(|plan| plan.operation.sequence),
            Some(3)
        );
        assert_eq!(
            holder.plan(at(500)).map(|plan| plan.operation.sequence),
            Some(1)
        );
        assert!(holder.begin_release(at(500), 1).is_some());
        assert!(holder.plan(at(500)).is_none());
        assert!(!holder.is_over());
    }

    #[test]
    fn what_is_said_of_an_ended_hold_is_not_said_of_the_others() {
        let holder = holder(hold(1, 1_000));
        assert!(holder.join(at(0), status(7, 1_000), &hold(2, 1_000), 2));
        assert!(holder.begin_release(at(1), 1).is_some());
        assert!(
            holder.begin_release(at(1), 1).is_none(),
            "an end has one owner"
        );
        assert!(!holder.lose_through(1, EndReason::Released));
        assert!(matches!(holder.validity(at(1), 2), Validity::ValidUntil(_)));
        assert!(holder.lose_through(2, EndReason::Expired));
        assert_eq!(holder.validity(at(1), 2), Validity::Lost(Loss::Expired));
        assert_eq!(holder.validity(at(1), 1), Validity::Released);
    }

    #[test]
    fn a_sole_hold_of_a_later_epoch_shows_that_the_others_are_gone() {
        let other = holder(hold(1, 1_000));
        assert!(other.join(at(0), status(7, 1_000), &hold(2, 1_000), 1));
        assert!(!other.join(at(0), status(8, 1_000), &hold(3, 1_000), 1));
        assert_eq!(other.validity(at(1), 1), Validity::Lost(Loss::Unknown));
        assert!(!other.is_live(3));
    }

    #[test]
    fn a_hold_joins_in_silence_and_also_a_holder_whose_last_hold_is_ending() {
        let holder = holder(hold(1, 1_000));
        let before = holder.changed.version();
        assert!(holder.join(at(0), status(7, 1_000), &hold(2, 1_000), 2));
        assert_eq!(
            holder.changed.version(),
            before,
            "it is called under a lock"
        );
        holder.wake();
        assert_ne!(holder.changed.version(), before);
        assert!(holder.begin_release(at(0), 1).is_some());
        assert!(holder.begin_release(at(0), 2).is_some());
        // The server counts this one alone: those before it are gone.
        assert!(!holder.join(at(0), status(8, 1_000), &hold(3, 1_000), 1));
        assert!(holder.join(at(0), status(7, 1_000), &hold(4, 1_000), 2));
        assert!(!holder.is_over());
    }

    #[test]
    fn only_its_own_clock_concerns_a_holder() {
        let holder = holder(hold(1, 1_000));
        holder.clock_stepped(ClockId::new(2));
        assert!(matches!(holder.validity(at(1), 1), Validity::ValidUntil(_)));
        holder.clock_stepped(ClockId::new(1));
        assert_eq!(
            holder.validity(at(1), 1),
            Validity::Lost(Loss::ClockStepped)
        );
    }

    #[test]
    fn a_shutdown_is_a_loss_and_wakes_who_waits_for_one() {
        let holder = holder(hold(1, 1_000));
        let changed = holder.changed.changed(holder.changed.version());
        let mut changed = std::pin::pin!(changed);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(changed.as_mut().poll(&mut cx).is_pending());
        assert_eq!(holder.shut_down(at(1)).len(), 1);
        assert_eq!(changed.now_or_never(), Some(()));
        assert_eq!(
            holder.validity(at(1), 1),
            Validity::Lost(Loss::ClientClosed)
        );
        assert!(holder.begin_release(at(1), 1).is_none());
    }
}
