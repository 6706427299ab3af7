//! Guards, waiters and the client's tasks, as they run in production, on a server that answers at
//! once.

use std::pin::pin;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use loom::future::block_on;

use crate::backend::Notification;
use crate::client::error::{Loss, ReleaseOutcome};
use crate::client::loom_models::fixture::{
    Fixture, assert_nothing_left, clean_up, renew, sequence,
};
use crate::client::loom_models::{STAMP, explore, granted, spawn};
use crate::client::state::signal::Signal;
use crate::client::task::{release, renew as renewal};
use crate::sync::{Arc, AtomicBool, Ordering};

const RELEASED: ReleaseOutcome = ReleaseOutcome::Released { holds_left: 0 };

#[test]
fn loom_a_release_beside_a_renewal_stops_it() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        let guard = fixture.guard();
        let number = sequence(&guard);
        let (renewed, server) = (Arc::clone(&core), Arc::clone(&fixture.server));
        let renewal = spawn(move || {
            let over = server.ends(number) > 0;
            for batch in renewal::batches(&renewed) {
                assert!(!over, "renewed after its end was acknowledged");
                block_on(renewal::renew(Arc::clone(&renewed), batch));
            }
        });
        let released = block_on(guard.release());
        assert!(matches!(released, Ok(RELEASED)));
        renewal.join().expect("it ends");
        assert!(guard.hold.holder.plan(core.now()).is_none());
        drop(guard);
        assert_eq!(fixture.server.ends(number), 1);
        assert_nothing_left(&core, &session, number);
    });
}

#[test]
fn loom_a_release_that_is_cancelled_goes_on() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        let guard = fixture.guard();
        let number = sequence(&guard);
        fixture.server.loses_reply.store(true, Ordering::Release);
        let working = Arc::clone(&core);
        let releases = spawn(move || clean_up(working));
        let renewed = Arc::clone(&core);
        let renewal = spawn(move || renew(&renewed));
        assert!(guard.release().now_or_never().is_none());
        // The second asks what became of the first.
        assert!(matches!(block_on(guard.release()), Ok(RELEASED)));
        let Fixture { server, locks } = fixture;
        drop((guard, locks));
        releases.join().expect("it ends");
        renewal.join().expect("it ends");
        assert_eq!(server.ends(number), 2);
        assert_nothing_left(&core, &session, number);
    });
}

#[test]
fn loom_two_releases_come_to_the_same() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        let guard = Arc::new(fixture.guard());
        let number = sequence(&guard);
        let other = Arc::clone(&guard);
        let release = spawn(move || block_on(other.release()));
        assert!(matches!(block_on(guard.release()), Ok(RELEASED)));
        assert!(matches!(release.join().expect("it ends"), Ok(RELEASED)));
        drop(guard);
        assert_eq!(fixture.server.ends(number), 1);
        assert_nothing_left(&core, &session, number);
    });
}

#[test]
fn loom_a_release_beside_renewal_loss_and_pushes() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        let guard = fixture.guard();
        let number = sequence(&guard);
        let renewed = Arc::clone(&core);
        let renewal = spawn(move || renew(&renewed));
        let (pushing, told) = (Arc::clone(&core), Arc::clone(&session));
        let push = spawn(move || {
            let revoked = Notification::Revoked {
                sequence: number,
                stamp: STAMP,
            };
            for notification in [granted(number), revoked] {
                told.router.deliver(notification, pushing.now());
            }
        });
        assert!(matches!(block_on(guard.release()), Ok(RELEASED)));
        renewal.join().expect("it ends");
        push.join().expect("it ends");
        assert!(!guard.is_valid());
        drop(guard);
        assert_eq!(fixture.server.ends(number), 1);
        assert_nothing_left(&core, &session, number);
    });
}

#[test]
fn loom_who_awaits_a_loss_is_told() {
    explore(|| {
        let fixture = Fixture::new();
        let guard = fixture.guard();
        let renewed = fixture.core();
        let renewal = spawn(move || renew(&renewed));
        let holder = Arc::clone(&guard.hold.holder);
        let loss = spawn(move || holder.lose(Loss::Forced));
        assert_eq!(block_on(guard.lost()), Loss::Forced);
        renewal.join().expect("it ends");
        loss.join().expect("it ends");
        assert!(!guard.is_valid());
    });
}

#[test]
fn loom_a_drop_beside_renewal_loss_and_listener() {
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
            // Who awaits a loss is told of nothing else, not of the drop either.
            let dropped = async {
                loop {
                    let version = seen.1.version();
                    if seen.0.load(Ordering::Acquire) {
                        return;
                    }
                    seen.1.changed(version).await;
                }
            };
            match block_on(select(pin!(lost), pin!(dropped))) {
                Either::Left((loss, _)) => assert_eq!(loss, Loss::Forced),
                Either::Right(_) => {}
            }
        });
        drop(guard);
        dropped.0.store(true, Ordering::Release);
        dropped.1.notify();
        background.join().expect("it ends");
        listener.join().expect("it ends");
        let Fixture { server, locks } = fixture;
        drop(locks);
        clean_up(Arc::clone(&core));
        assert_eq!(server.ends(number), 1);
        assert_nothing_left(&core, &session, number);
    });
}

#[test]
fn loom_a_grant_may_be_pushed_before_the_reply_is_read() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        fixture.server.queues.store(true, Ordering::Release);
        let (server, told) = (Arc::clone(&fixture.server), Arc::clone(&session));
        let push = spawn(move || {
            block_on(server.queued());
            told.router.deliver(granted(1), core.now());
        });
        let mutex = fixture.locks.mutex("k").expect("a valid key");
        let guard = block_on(mutex.lock()).expect("granted");
        assert_eq!(guard.fencing_token().expect("tokens").get(), 7);
        push.join().expect("it ends");
    });
}

#[test]
fn loom_an_attempt_that_is_dropped_leaves_nothing() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        fixture.server.queues.store(true, Ordering::Release);
        let (told, pushing) = (Arc::clone(&session), Arc::clone(&core));
        let push = spawn(move || told.router.deliver(granted(1), pushing.now()));
        let working = Arc::clone(&core);
        let releases = spawn(move || clean_up(working));
        let mutex = fixture.locks.mutex("k").expect("a valid key");
        // Granted in time or not, it is dropped.
        drop(mutex.lock().now_or_never());
        push.join().expect("it ends");
        let Fixture { server, locks } = fixture;
        drop((mutex, locks));
        releases.join().expect("it ends");
        assert_eq!(server.ends(1), 1);
        assert_nothing_left(&core, &session, 1);
    });
}

#[test]
fn loom_a_shutdown_beside_a_drop_ends_once() {
    explore(|| {
        let fixture = Fixture::new();
        let (core, session) = (fixture.core(), fixture.session());
        let guard = fixture.guard();
        let number = sequence(&guard);
        let dropping = spawn(move || drop(guard));
        // The task works in the shutdown's own thread: it is raced elsewhere.
        let releases = pin!(release::run(Arc::clone(&core)));
        match block_on(select(pin!(fixture.locks.shutdown()), releases)) {
            Either::Left((done, _)) => done.expect("all is acknowledged"),
            Either::Right(_) => unreachable!("the client has a user"),
        }
        assert_eq!(fixture.server.ends(number), 1);
        dropping.join().expect("it ends");
        assert_nothing_left(&core, &session, number);
    });
}
