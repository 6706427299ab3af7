//! Models of guards, waiters and background tasks. They run the production code on a server that
//! answers at once.

use std::pin::pin;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use loom::future::block_on;

use crate::backend::Notification;
use crate::client::error::Loss;
use crate::client::loom_models::fixture::{
    Fixture, assert_nothing_left, renew, run_releases, sequence,
};
use crate::client::loom_models::{STAMP, explore, granted, spawn};
use crate::client::state::signal::Signal;
use crate::client::task::{release, renew as renewal};
use crate::sync::{Arc, AtomicBool, Ordering};

#[test]
fn loom_release_stops_a_concurrent_renewal() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        let guard = fixture.guard();
        let number = sequence(&guard);
        let (renewed, server) = (Arc::clone(&core), Arc::clone(&fixture.server));
        let renewal = spawn(move || {
            let released = server.releases(number) > 0;
            let batch = renewal::due_batch(&renewed);
            if !batch.is_empty() {
                assert!(!released, "renewed after its release was acknowledged");
                block_on(renewal::renew(renewed, batch));
            }
        });
        let released = block_on(guard.release());
        assert!(matches!(released, Ok(0)));
        renewal.join().expect("the thread returns");
        assert!(guard.hold.holder.plan(core.now()).is_none());
        drop(guard);
        assert_eq!(fixture.server.releases(number), 1);
        assert_nothing_left(&core, &session, number);
    });
}

#[test]
fn loom_cancelled_release_continues() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        let guard = fixture.guard();
        let number = sequence(&guard);
        fixture
            .server
            .lose_next_reply
            .store(true, Ordering::Release);
        let working = Arc::clone(&core);
        let releases = spawn(move || run_releases(working));
        let renewed = Arc::clone(&core);
        let renewal = spawn(move || renew(&renewed));
        assert!(guard.release().now_or_never().is_none());
        // The second call returns the result of the first.
        assert!(matches!(block_on(guard.release()), Ok(0)));
        let Fixture { server, locks } = fixture;
        drop((guard, locks));
        releases.join().expect("the thread returns");
        renewal.join().expect("the thread returns");
        assert_eq!(server.releases(number), 2);
        assert_nothing_left(&core, &session, number);
    });
}

#[test]
fn loom_two_releases_have_the_same_result() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        let guard = Arc::new(fixture.guard());
        let number = sequence(&guard);
        let other = Arc::clone(&guard);
        let release = spawn(move || block_on(other.release()));
        assert!(matches!(block_on(guard.release()), Ok(0)));
        assert!(matches!(release.join().expect("the thread returns"), Ok(0)));
        drop(guard);
        assert_eq!(fixture.server.releases(number), 1);
        assert_nothing_left(&core, &session, number);
    });
}

#[test]
fn loom_release_races_renewal_loss_and_pushes() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        let guard = fixture.guard();
        let number = sequence(&guard);
        let renewed = Arc::clone(&core);
        let renewal = spawn(move || renew(&renewed));
        let (pushing, target) = (Arc::clone(&core), Arc::clone(&session));
        let push = spawn(move || {
            let revoked = Notification::Revoked {
                sequence: number,
                stamp: STAMP,
            };
            for notification in [granted(number), revoked] {
                target.router.deliver(notification, pushing.now());
            }
        });
        assert!(matches!(block_on(guard.release()), Ok(0)));
        renewal.join().expect("the thread returns");
        push.join().expect("the thread returns");
        assert!(!guard.is_valid());
        drop(guard);
        assert_eq!(fixture.server.releases(number), 1);
        assert_nothing_left(&core, &session, number);
    });
}

#[test]
fn loom_loss_wakes_its_waiter() {
    explore(|| {
        let fixture = Fixture::new();
        let guard = fixture.guard();
        let renewed = fixture.core();
        let renewal = spawn(move || renew(&renewed));
        let holder = Arc::clone(&guard.hold.holder);
        let loss = spawn(move || holder.lose(Loss::Forced));
        assert_eq!(block_on(guard.lost()), Loss::Forced);
        renewal.join().expect("the thread returns");
        loss.join().expect("the thread returns");
        assert!(!guard.is_valid());
    });
}

#[test]
fn loom_drop_races_renewal_loss_and_waiter() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        let guard = fixture.guard();
        let number = sequence(&guard);
        let holder = Arc::clone(&guard.hold.holder);
        let renewed = Arc::clone(&core);
        let background = spawn(move || {
            renew(&renewed);
            holder.lose(Loss::Forced);
        });
        let dropped = Arc::new((AtomicBool::new(false), Signal::default()));
        let (lost, seen) = (guard.lost(), Arc::clone(&dropped));
        let listener = spawn(move || {
            // The wait for a loss does not return when the guard is dropped.
            let dropped = || seen.0.load(Ordering::Acquire).then_some(());
            let dropped = seen.1.wait_for(dropped);
            match block_on(select(pin!(lost), pin!(dropped))) {
                Either::Left((loss, _)) => assert_eq!(loss, Loss::Forced),
                Either::Right(_) => {}
            }
        });
        drop(guard);
        dropped.0.store(true, Ordering::Release);
        dropped.1.notify();
        background.join().expect("the thread returns");
        listener.join().expect("the thread returns");
        let Fixture { server, locks } = fixture;
        drop(locks);
        run_releases(Arc::clone(&core));
        assert_eq!(server.releases(number), 1);
        assert_nothing_left(&core, &session, number);
    });
}

#[test]
fn loom_grant_may_be_pushed_before_the_reply_is_read() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        fixture.server.queues.store(true, Ordering::Release);
        let (server, target) = (Arc::clone(&fixture.server), Arc::clone(&session));
        let push = spawn(move || {
            block_on(server.queued());
            target.router.deliver(granted(1), core.now());
        });
        let mutex = fixture.locks.mutex("k").expect("a valid key");
        let guard = block_on(mutex.lock()).expect("granted");
        assert_eq!(guard.fencing_token().get(), 7);
        push.join().expect("the thread returns");
    });
}

#[test]
fn loom_dropped_attempt_leaves_nothing() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        fixture.server.queues.store(true, Ordering::Release);
        let (target, pushing) = (Arc::clone(&session), Arc::clone(&core));
        let push = spawn(move || target.router.deliver(granted(1), pushing.now()));
        let working = Arc::clone(&core);
        let releases = spawn(move || run_releases(working));
        let mutex = fixture.locks.mutex("k").expect("a valid key");
        // The attempt is dropped, whether it was granted before or not.
        drop(mutex.lock().now_or_never());
        push.join().expect("the thread returns");
        let Fixture { server, locks } = fixture;
        drop((mutex, locks));
        releases.join().expect("the thread returns");
        assert_eq!(server.releases(1), 1);
        assert_nothing_left(&core, &session, 1);
    });
}

#[test]
fn loom_shutdown_and_drop_release_once() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        let guard = fixture.guard();
        let number = sequence(&guard);
        let dropping = spawn(move || drop(guard));
        // The release task runs in the thread of the shutdown. Another model races it.
        let releases = pin!(release::run(Arc::clone(&core)));
        match block_on(select(pin!(fixture.locks.shutdown()), releases)) {
            Either::Left((done, _)) => done.expect("all releases are acknowledged"),
            Either::Right(_) => unreachable!("the client has a user"),
        }
        assert_eq!(fixture.server.releases(number), 1);
        dropping.join().expect("the thread returns");
        assert_nothing_left(&core, &session, number);
    });
}
