//! Loops that run an occurrence each period.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use leasehold_api::{Error, JobFailure, JobOutcome, LockClient};
use leasehold_sim::Data;

use super::{HOUR, once};
use crate::support::{assert_error, assert_is, clients, secs};

#[tokio::test(start_paused = true)]
async fn every_runs_at_the_multiples_of_its_period() {
    let (server, [a, b]) = clients();
    let starts = RefCell::new(Vec::new());
    let job = async |locks: &LockClient| {
        let each = once(locks).every(secs(60));
        let ended = each.run(async |job| {
            let start = (job.fire_time(), server.server_time());
            starts.borrow_mut().push(start);
            Ok::<_, Error>(())
        });
        drop(ended.await);
    };
    tokio::select! {
        () = job(&a) => {}
        () = job(&b) => {}
        () = server.advance(secs(60 * 10)) => {}
    }
    let starts = starts.into_inner();
    assert!(starts.len() >= 10, "{}", starts.len());
    for pair in starts.windows(2) {
        assert_eq!(pair[1].0.as_millis() - pair[0].0.as_millis(), 60_000);
    }
    for (fire, at) in &starts[1..] {
        assert_eq!(fire.as_millis() % 60_000, 0);
        let late = at.as_micros() - fire.as_millis() * 1_000;
        assert!(late < 200_000, "{late} µs late");
    }
}

#[tokio::test(start_paused = true)]
async fn loop_says_that_the_clock_was_stepped_back() {
    let (server, [a]) = clients();
    let mut each = once(&a).every(secs(60));
    let ran = each.run_next(async |_job| Ok::<_, &str>(())).await;
    assert_eq!(ran.expect("answered"), JobOutcome::Done(()));
    server.step_clock_back(HOUR);
    let next = each.run_next(async |_job| Ok::<_, &str>(())).await;
    assert_error!(next, FireTimeAhead);
    once(&a).reset().await.expect("answered");
    let next = each.run_next(async |_job| Ok::<_, &str>(())).await;
    assert_eq!(next.expect("answered"), JobOutcome::Done(()));
}

/// The pause before the second attempt is longer than the period.
#[tokio::test(start_paused = true)]
async fn failure_costs_a_short_period_no_other_occurrence() {
    let (_, [a]) = clients();
    let fires = RefCell::new(Vec::new());
    let mut each = once(&a).every(secs(10));
    for _ in 0..4 {
        let ran = each.run_next(async |job| {
            let fire = job.fire_time().as_millis() / 10_000;
            fires.borrow_mut().push(fire);
            Err::<(), _>("broken")
        });
        let told = Some(JobFailure::Error("broken"));
        assert_is!(ran.await => Ok(JobOutcome::Missed { failure, .. }) if *failure == told);
    }
    let fires = fires.into_inner();
    let in_a_row: Vec<_> = (fires[0]..fires[0] + 4).collect();
    assert_eq!(fires, in_a_row);
}

/// The loop waits until the clock has come to the record.
#[tokio::test(start_paused = true)]
async fn loop_goes_on_after_the_clock_was_stepped_back() {
    let (server, [a]) = clients();
    let runs = Cell::new(0);
    let each = once(&a).every(secs(60)).run(async |_job| {
        runs.set(runs.get() + 1);
        Ok::<_, &str>(())
    });
    let steps = async {
        server.advance(secs(100)).await;
        server.step_clock_back(secs(300));
        let before = runs.get();
        server.advance(secs(280)).await;
        assert_eq!(runs.get(), before);
        server.advance(secs(200)).await;
        runs.get() - before
    };
    let runs_after = tokio::select! {
        ended = each => panic!("{ended:?}"),
        runs = steps => runs,
    };
    assert!(runs_after >= 2, "{runs_after}");
}

/// The loop waits for another attempt when the clock is set back by hours, and somebody has reset the job.
#[tokio::test(start_paused = true)]
async fn loop_does_not_wait_for_an_occurrence_that_is_no_longer_due() {
    let (server, [a, b]) = clients();
    let runs = Cell::new(0);
    let each = once(&a).every(secs(60)).run(async |_job| {
        runs.set(runs.get() + 1);
        Err::<(), _>("broken")
    });
    let steps = async {
        server.advance(secs(10)).await;
        server.step_clock_back(HOUR);
        once(&b).reset().await.expect("answered");
        let before = runs.get();
        server.advance(secs(300)).await;
        runs.get() - before
    };
    let runs_after = tokio::select! {
        ended = each => panic!("{ended:?}"),
        runs = steps => runs,
    };
    assert!(runs_after >= 2, "{runs_after}");
}

/// One lost connection ends no loop of a program that returns the errors of `run_next`.
#[tokio::test(start_paused = true)]
async fn next_of_a_loop_waits_through_an_outage() {
    let (server, [a]) = clients();
    let mut each = once(&a).every(secs(60));
    server.stop();
    let start = async {
        server.advance(secs(20)).await;
        server.start(Data::Kept);
    };
    let next = each.run_next(async |_job| Ok::<_, &str>(()));
    let (next, ()) = tokio::join!(next, start);
    assert_eq!(next.expect("answered"), JobOutcome::Done(()));
}

/// The same between two occurrences of a loop.
#[tokio::test(start_paused = true)]
async fn clock_that_is_set_forward_delays_no_loop() {
    let (server, [a]) = clients();
    let day = 24 * HOUR;
    let mut each = once(&a).every(day);
    let first = each.run_next(async |_job| Ok::<_, &str>(())).await;
    assert_eq!(first.expect("answered"), JobOutcome::Done(()));
    let sets = async {
        server.advance(secs(60)).await;
        server.step_clock_forward(3 * HOUR);
    };
    let late = Cell::new(Duration::MAX);
    let next = each.run_next(async |job| {
        let due = job.fire_time().as_millis() * 1_000;
        let now = server.server_time().as_micros();
        late.set(Duration::from_micros(now - due));
        Ok::<_, &str>(())
    });
    let (next, ()) = tokio::join!(next, sets);
    assert_eq!(next.expect("answered"), JobOutcome::Done(()));
    assert!(late.get() < secs(60), "{:?}", late.get());
}
