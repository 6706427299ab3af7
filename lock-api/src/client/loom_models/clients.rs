//! Models of guards, waiters and background tasks. They run the production code on a server that
//! answers at once.

use futures_util::FutureExt;
use loom::future::block_on;

use crate::client::error::Loss;
use crate::client::loom_models::fixture::{
    Fixture, assert_nothing_left, renew, run_releases, sequence,
};
use crate::client::loom_models::{explore, granted, spawn};
use crate::client::task::renew as renewal;
use crate::sync::{Arc, Ordering};

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
            renewal::check_due(&renewed);
            if let Some((_, batch)) = renewal::ready_batch(&renewed) {
                assert!(!released, "renewed after its release was acknowledged");
                block_on(renewal::renew(renewed, batch));
            }
        });
        let released = block_on(guard.release());
        assert!(matches!(released, Ok(())));
        renewal.join().expect("the thread returns");
        assert!(guard.hold.holder.plan(core.now()).is_none());
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
