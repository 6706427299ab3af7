//! What threads do to each other in the cells that they share, in every order: run by loom, under
//! `--cfg leasehold_loom`. One model a process, for a lost wake-up ends it.

use std::time::Duration;

use futures_util::FutureExt;
use loom::future::block_on;
use loom::thread;

use crate::backend::Notice;
use crate::client::error::Loss;
use crate::client::hub::{Event, Hub};
use crate::client::signal::Signal;
use crate::client::tenure::Validity;
use crate::client::tenure::tests::{at, hold, standing, tenure};
use crate::id::FencingToken;
use crate::runtime::Moment;
use crate::sync::{Arc, AtomicBool, Ordering};
use crate::time::{ClockId, ServerTime, Stamp};

#[test]
fn loom_a_change_between_look_and_wait_wakes() {
    loom::model(|| {
        let shared = Arc::new((AtomicBool::new(false), Signal::default()));
        let other = Arc::clone(&shared);
        let changing = thread::spawn(move || {
            other.0.store(true, Ordering::Release);
            other.1.notify();
        });
        let (state, signal) = &*shared;
        block_on(async {
            loop {
                let seen = signal.version();
                if state.load(Ordering::Acquire) {
                    return;
                }
                signal.changed(seen).await;
            }
        });
        changing.join().expect("it ends");
    });
}

#[test]
fn loom_a_waiter_that_goes_away_takes_no_other_waiters_wake_up() {
    loom::model(|| {
        let signal = Arc::new(Signal::default());
        let (leaving, changing) = (Arc::clone(&signal), Arc::clone(&signal));
        let seen = signal.version();
        let leaver = thread::spawn(move || {
            // Registered if the change has not come yet, and gone at once.
            let _ = leaving.changed(seen).now_or_never();
        });
        let changer = thread::spawn(move || changing.notify());
        block_on(signal.changed(seen));
        leaver.join().expect("it ends");
        changer.join().expect("it ends");
    });
}

#[test]
fn loom_a_pushed_grant_reaches_the_one_who_waits() {
    loom::model(|| {
        let hub = Arc::new(Hub::default());
        let mailbox = hub.register(1);
        let pushing = Arc::clone(&hub);
        let push = thread::spawn(move || {
            let grant = Notice::Granted {
                sequence: 1,
                token: FencingToken::new(7),
                remaining: Duration::from_secs(5),
                stamp: Stamp {
                    clock: ClockId::new(1),
                    at: ServerTime::from_micros(1),
                },
            };
            pushing.deliver(grant, Moment::default());
        });
        let event = block_on(mailbox.next());
        assert!(matches!(event, Event::Granted(grant) if grant.token.get() == 7));
        push.join().expect("it ends");
    });
}

#[test]
fn loom_an_end_has_one_owner() {
    loom::model(|| {
        let tenure = Arc::new(tenure(hold(1, 1_000)));
        let other = Arc::clone(&tenure);
        let shutdown = thread::spawn(move || other.shut_down(at(1)).len());
        let dropped = usize::from(tenure.begin_end(at(1), 1).is_some());
        assert_eq!(dropped + shutdown.join().expect("it ends"), 1);
        assert!(tenure.is_over());
    });
}

#[test]
fn loom_nothing_is_renewed_after_its_end_began() {
    loom::model(|| {
        let tenure = Arc::new(tenure(hold(1, 1_000)));
        let begun = Arc::new(AtomicBool::new(false));
        let (renewed, seen) = (Arc::clone(&tenure), Arc::clone(&begun));
        let renewal = thread::spawn(move || {
            let late = seen.load(Ordering::Acquire);
            let plan = renewed.plan(at(1));
            assert!(!(late && plan.is_some()), "renewed after the end began");
            if plan.is_some() {
                renewed.extend(at(1), standing(7, 2_000));
            }
        });
        assert!(tenure.begin_end(at(1), 1).is_some());
        begun.store(true, Ordering::Release);
        renewal.join().expect("it ends");
        assert_eq!(tenure.validity(at(1), 1), Validity::Ended);
        assert!(tenure.plan(at(1)).is_none());
    });
}

#[test]
fn loom_a_loss_beside_a_renewal_is_final_and_told() {
    loom::model(|| {
        let tenure = Arc::new(tenure(hold(1, 1_000)));
        let (renewed, losing) = (Arc::clone(&tenure), Arc::clone(&tenure));
        let renewal = thread::spawn(move || renewed.extend(at(1), standing(7, 2_000)));
        let loss = thread::spawn(move || losing.lose(Loss::Forced));
        block_on(async {
            loop {
                let seen = tenure.changed.version();
                if tenure.validity(at(1), 1) == Validity::Lost(Loss::Forced) {
                    return;
                }
                tenure.changed.changed(seen).await;
            }
        });
        renewal.join().expect("it ends");
        loss.join().expect("it ends");
        assert_eq!(tenure.validity(at(1), 1), Validity::Lost(Loss::Forced));
    });
}
