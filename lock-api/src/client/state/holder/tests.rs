//! Tests of a holder, and what other tests make holders from.

use futures_util::FutureExt;

use super::*;
use crate::client::state::renewals::Renewals;
use crate::id::{OwnerId, SessionId};

pub(crate) fn at(ms: u64) -> Moment {
    Moment::from_origin(Duration::from_millis(ms))
}

pub(crate) fn status(token: u64, deadline_ms: u64) -> LeaseStatus {
    LeaseStatus {
        token: FencingToken::new(token),
        deadline: at(deadline_ms),
        clock: ClockId::new(1),
        sent: at(0),
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
        fixed_until: None,
        max_until: None,
        confirm_by: None,
        class: "",
        since: Moment::default(),
        loss_reported: false,
        release_result: Arc::default(),
    }
}

fn valid_until(ms: u64) -> Validity {
    Validity::Valid(hold(1, 1_000).expiry(at(ms)))
}

pub(crate) fn holder(first: HoldState) -> Arc<HolderCell> {
    holder_of(&Arc::new(Renewals::new(0)), first)
}

pub(crate) fn holder_of(renewals: &Arc<Renewals>, first: HoldState) -> Arc<HolderCell> {
    let key = Key::new("k").expect("valid");
    let session = Arc::new(Session::new(first.operation.session, 1, 0));
    HolderCell::new(key, renewals, session, status(7, 1_000), first)
}

/// Lets a hold join the holder, soon after its first one.
#[track_caller]
fn assert_join(
    joined: Joined,
    holder: &HolderCell,
    status: LeaseStatus,
    hold: &HoldState,
    holds: impl Into<Option<u32>>,
) {
    assert_eq!(holder.join(at(1), status, hold, holds.into()), joined);
}

#[test]
fn deadline_passes_at_its_moment_and_never_moves_afterwards() {
    let holder = holder(hold(1, 1_000));
    assert_eq!(holder.validity(at(999), 1), valid_until(1_000));
    assert!(!holder.extend(at(1_000), status(7, 2_000)));
    assert_eq!(holder.validity(at(999), 1), Validity::Lost(Loss::Deadline));
    holder.lose(Loss::Forced);
    assert_eq!(holder.validity(at(999), 1), Validity::Lost(Loss::Deadline));
}

#[test]
fn older_reply_shortens_nothing() {
    let holder = holder(hold(1, 1_000));
    assert!(holder.extend(at(10), status(9, 3_000)));
    assert!(holder.extend(at(20), status(8, 2_000)));
    assert_eq!(holder.token(), FencingToken::new(9));
    assert_eq!(holder.validity(at(20), 1), valid_until(3_000));
}

/// What another server promises, which was asked later.
fn promoted(deadline_ms: u64) -> LeaseStatus {
    LeaseStatus {
        clock: ClockId::new(2),
        sent: at(5),
        ..status(7, deadline_ms)
    }
}

#[test]
fn lease_ends_by_the_clock_of_the_server_that_has_the_key() {
    let holder = holder(hold(1, 1_000));
    // A nested hold's lease ends before the one that the old server has promised.
    assert_join(Joined::Yes, &holder, promoted(900), &hold(2, 100), 2);
    assert_eq!(holder.validity(at(1), 1), valid_until(1_000));
    holder.clock_stepped(ClockId::new(2));
    assert_eq!(holder.lost(), Some(Loss::ClockStepped));
}

#[test]
fn late_reply_of_another_server_does_not_bring_its_clock_back() {
    let holder = holder(hold(1, 1_000));
    assert!(holder.extend(at(10), promoted(3_000)));
    assert!(holder.extend(at(20), status(7, 2_000)));
    holder.clock_stepped(ClockId::new(1));
    assert_eq!(holder.lost(), None, "the key is at the other server");
    holder.clock_stepped(ClockId::new(2));
    assert_eq!(holder.lost(), Some(Loss::ClockStepped));
}

#[test]
fn longest_renewed_lease_is_renewed() {
    let holder = holder(hold(1, 1_000));
    let mut fixed = hold(2, 9_000);
    fixed.fixed_until = Some(at(9_000));
    let mut limited = hold(3, 5_000);
    limited.max_until = Some(at(500));
    for (nested, holds) in [(fixed, 2), (limited, 3)] {
        assert_join(Joined::Yes, &holder, status(7, 9_000), &nested, holds);
    }
    for (ms, renewed) in [(499, 3), (500, 1)] {
        let plan = holder.plan(at(ms)).expect("a renewal");
        assert_eq!(plan.operation.sequence, renewed, "{ms}");
    }
    assert!(holder.begin_release(at(500), 1).is_some());
    assert!(holder.plan(at(500)).is_none());
    assert!(!holder.is_released());
}

#[test]
fn loss_of_a_released_hold_spares_the_others() {
    let holder = holder(hold(1, 1_000));
    assert_join(Joined::Yes, &holder, status(7, 1_000), &hold(2, 1_000), 2);
    assert!(holder.begin_release(at(1), 1).is_some());
    assert!(
        holder.begin_release(at(1), 1).is_none(),
        "only the first caller begins the release"
    );
    assert!(!holder.lose_through(1, EndReason::Released));
    assert!(matches!(holder.validity(at(1), 2), Validity::Valid(_)));
    assert!(holder.lose_through(2, EndReason::Expired));
    assert_eq!(holder.validity(at(1), 2), Validity::Lost(Loss::Expired));
    assert_eq!(holder.validity(at(1), 1), Validity::Released);
}

#[test]
fn hold_with_a_greater_token_loses_the_holder() {
    // Two holds that were granted together may each say that they are two.
    for holds in [Some(1), None, Some(2)] {
        let other = holder(hold(1, 1_000));
        let new = status(7, 1_000);
        assert_join(Joined::Yes, &other, new, &hold(2, 1_000), holds);
        let new = status(8, 1_000);
        assert_join(Joined::Later, &other, new, &hold(3, 1_000), holds);
        assert_eq!(other.token(), FencingToken::new(7), "{holds:?}");
        let validity = other.validity(at(1), 1);
        assert_eq!(validity, Validity::Lost(Loss::Unknown), "{holds:?}");
        assert!(!other.is_unreleased(3), "{holds:?}");
    }
}

#[test]
fn hold_with_a_lesser_token_is_gone() {
    let holder = holder(hold(1, 1_000));
    let new = status(6, 1_000);
    assert_join(Joined::Earlier, &holder, new, &hold(2, 1_000), 2);
    assert!(matches!(holder.validity(at(1), 1), Validity::Valid(_)));
}

#[test]
fn conversion_may_change_the_token_of_a_holder() {
    let holder = holder(hold(1, 1_000));
    holder.converts();
    for token in [8, 6] {
        let new = status(token, 1_000);
        assert_join(Joined::Yes, &holder, new, &hold(token, 1_000), 2);
    }
    assert_join(Joined::Later, &holder, status(9, 1_000), &hold(9, 1_000), 1);
    assert_eq!(holder.validity(at(1), 1), Validity::Lost(Loss::Unknown));
}

/// Another client's floor, or the release of a write hold, may change it.
#[test]
fn token_of_readers_may_grow() {
    let reader = |sequence| HoldState {
        mode: Mode::Shared,
        ..hold(sequence, 1_000)
    };
    let holder = holder(reader(1));
    for token in [8, 6] {
        let new = status(token, 1_000);
        assert_join(Joined::Yes, &holder, new, &reader(token), 2);
    }
    assert_join(Joined::Later, &holder, status(9, 1_000), &reader(9), None);
}

#[test]
fn answer_from_before_a_step_counts_only_if_it_is_the_last() {
    let holder = holder(hold(1, 1_000));
    assert!(holder.extend(at(10), promoted(900)));
    assert!(holder.lose_unless_later(at(4)));
    assert!(!holder.lose_unless_later(at(5)));
    assert_eq!(holder.lost(), Some(Loss::ClockStepped));
}

#[test]
fn hold_that_a_later_release_does_not_count_is_lost() {
    let holder = holder(hold(1, 1_000));
    let mut younger = hold(2, 1_000);
    younger.since = at(20);
    let joined = holder.join(at(20), status(7, 1_000), &younger, Some(2));
    assert_eq!(joined, Joined::Yes);
    assert!(holder.begin_release(at(20), 1).is_some());
    holder.ended(at(10));
    assert_eq!(holder.lost(), None, "it was granted after the release");
    holder.ended(at(20));
    assert_eq!(holder.lost(), Some(Loss::Unknown));
}

#[test]
fn join_wakes_nobody() {
    let holder = holder(hold(1, 1_000));
    let before = holder.changed.version();
    assert_join(Joined::Yes, &holder, status(7, 1_000), &hold(2, 1_000), 2);
    assert_eq!(holder.changed.version(), before);
    holder.wake();
    assert_ne!(holder.changed.version(), before);
}

/// Its holder at the server may have ended, and the new one counts two holds as well.
#[test]
fn nothing_joins_a_holder_that_is_released() {
    let holder = holder(hold(1, 1_000));
    assert!(holder.begin_release(at(0), 1).is_some());
    assert_join(Joined::Later, &holder, status(7, 500), &hold(2, 500), 2);
    assert!(holder.is_released());
}

#[test]
fn shutdown_is_a_loss_and_wakes_its_waiter() {
    let holder = holder(hold(1, 1_000));
    let changed = holder.changed.changed(holder.changed.version());
    let mut changed = std::pin::pin!(changed);
    assert_eq!(changed.as_mut().now_or_never(), None);
    assert_eq!(holder.shut_down(at(1)).len(), 1);
    assert_eq!(changed.now_or_never(), Some(()));
    let validity = holder.validity(at(1), 1);
    assert_eq!(validity, Validity::Lost(Loss::ClientClosed));
    assert!(holder.begin_release(at(1), 1).is_none());
}
