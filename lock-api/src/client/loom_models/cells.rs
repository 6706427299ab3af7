//! Models of single structures: the signal, the notification router and the holder cell.

use futures_util::FutureExt;
use loom::future::block_on;

use crate::client::loom_models::{explore, granted, spawn};
use crate::client::state::holder::Validity;
use crate::client::state::holder::tests::{at, hold, holder, status};
use crate::client::state::router::NotificationRouter;
use crate::client::state::signal::Signal;
use crate::runtime::Moment;
use crate::sync::{Arc, AtomicBool, Ordering};

#[test]
fn loom_change_between_check_and_wait_wakes() {
    explore(|| {
        let shared = Arc::new((AtomicBool::new(false), Signal::default()));
        let other = Arc::clone(&shared);
        let changing = spawn(move || {
            other.0.store(true, Ordering::Release);
            other.1.notify();
        });
        let has_changed = || shared.0.load(Ordering::Acquire).then_some(());
        block_on(shared.1.wait_for(has_changed));
        changing.join().expect("the thread returns");
    });
}

#[test]
fn loom_cancelled_wait_takes_no_other_wake_up() {
    explore(|| {
        let signal = Arc::new(Signal::default());
        let (leaving, changing) = (Arc::clone(&signal), Arc::clone(&signal));
        let seen = signal.version();
        let leaver = spawn(move || {
            // The wait registers if the change has not happened yet, and is dropped at once.
            let _ = leaving.changed(seen).now_or_never();
        });
        let changer = spawn(move || changing.notify());
        block_on(signal.changed(seen));
        leaver.join().expect("the thread returns");
        changer.join().expect("the thread returns");
    });
}

#[test]
fn loom_pushed_grant_is_taken_once() {
    explore(|| {
        let router = Arc::new(NotificationRouter::default());
        let inbox = router.register(1);
        let pushing = Arc::clone(&router);
        let push = spawn(move || pushing.deliver(granted(1), Moment::default()));
        let other = Arc::clone(&inbox);
        let take = spawn(move || other.next().now_or_never().is_some());
        let taken = u32::from(inbox.next().now_or_never().is_some());
        let taken = taken + u32::from(take.join().expect("the thread returns"));
        push.join().expect("the thread returns");
        let left = u32::from(inbox.next().now_or_never().is_some());
        assert_eq!(taken + left, 1);
    });
}

#[test]
fn loom_nothing_is_renewed_after_its_release_began() {
    explore(|| {
        let holder = holder(hold(1, 1_000));
        let begun = Arc::new(AtomicBool::new(false));
        let (renewed, seen) = (Arc::clone(&holder), Arc::clone(&begun));
        let renewal = spawn(move || {
            let late = seen.load(Ordering::Acquire);
            let plan = renewed.plan(at(1));
            assert!(!(late && plan.is_some()), "renewed after its release began");
            if plan.is_some() {
                renewed.extend(at(1), status(7, 2_000));
            }
        });
        assert!(holder.begin_release(at(1), 1).is_some());
        begun.store(true, Ordering::Release);
        renewal.join().expect("the thread returns");
        assert_eq!(holder.validity(at(1), 1), Validity::Released);
        assert!(holder.plan(at(1)).is_none());
    });
}
