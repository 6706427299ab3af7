//! Fire times, windows, and clocks that are wrong.

use super::*;

#[tokio::test(start_paused = true)]
async fn it_starts_at_its_fire_time_and_not_after_its_window() {
    let (server, [a]) = clients();
    let fire = FireTime::from_millis(now(&server).as_millis() + 90_000);
    let runs = Cell::new(0);
    let begun = server.elapsed();
    let started = Cell::new(ServerTime::default());
    let job = once(&a).at(fire).start_before(secs(100));
    let ran = job.run(async |_job| {
        started.set(server.server_time());
        Ok::<_, Error>(())
    });
    assert_is!(ran.await => Ok(JobOutcome::Done(())));
    let due = fire.as_millis() * 1_000;
    assert!(started.get().as_micros() >= due, "it ran early");
    assert!(server.elapsed() - begun < secs(91));
    let missed = FireTime::from_millis(fire.as_millis() + 1);
    server.advance(secs(101)).await;
    let job = once(&a).at(missed).start_before(secs(100));
    let outcome = count(&job, &runs).await.expect("answered");
    let (last_done, failure) = (Some(fire), None);
    assert_eq!(outcome, JobOutcome::Missed { last_done, failure });
    assert_eq!(runs.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn not_within_counts_from_the_last_success() {
    let (server, [a, b]) = clients();
    let runs = Cell::new(0);
    let nightly = |locks| once(locks).not_within(HOUR * 20);
    let done = count(&nightly(&a), &runs).await.expect("answered");
    assert_eq!(done, JobOutcome::Done(()));
    for _ in 0..19 {
        server.advance(HOUR).await;
        let again = count(&nightly(&b), &runs).await.expect("answered");
        assert_is!(again => JobOutcome::AlreadyDone { .. });
    }
    server.advance(HOUR).await;
    let done = count(&nightly(&b), &runs).await.expect("answered");
    assert_eq!(done, JobOutcome::Done(()));
    assert_eq!(runs.get(), 2);
}

/// How long an occurrence may start doesn't change how long it is done.
#[tokio::test(start_paused = true)]
async fn start_before_leaves_not_within_as_it_is() {
    let (server, [a, b]) = clients();
    let runs = Cell::new(0);
    let hourly = |locks| once(locks).not_within(HOUR).start_before(secs(10));
    let done = count(&hourly(&a), &runs).await.expect("answered");
    assert_eq!(done, JobOutcome::Done(()));
    server.advance(HOUR / 2).await;
    let again = count(&hourly(&b), &runs).await.expect("answered");
    assert_is!(again => JobOutcome::AlreadyDone { .. });
    server.advance(HOUR / 2).await;
    // The pause after a failure is longer than it may start.
    let begun = server.elapsed();
    let ran = hourly(&a).run(async |_job| Err::<(), _>("broken")).await;
    let told = Some(JobFailure::Error("broken"));
    assert_is!(ran => Ok(JobOutcome::Missed { failure, .. }) if *failure == told);
    assert!((secs(10)..secs(11)).contains(&(server.elapsed() - begun)));
    // Both are checked.
    for wrong in [
        once(&a).not_within(secs(9)).start_before(secs(10)),
        once(&a).not_within(HOUR).start_before(secs(9)),
    ] {
        assert_error!(count(&wrong, &runs).await, InvalidInput);
    }
    assert_eq!(runs.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn done_ahead_of_the_clock_is_an_error_until_a_reset() {
    let (server, [a]) = clients();
    let runs = Cell::new(0);
    server.step_clock_forward(HOUR * 30);
    let ahead = now(&server);
    let done = count(&once(&a).at(ahead), &runs).await.expect("answered");
    assert_eq!(done, JobOutcome::Done(()));
    server.step_clock_back(HOUR * 30);
    let silenced = count(&once(&a).at(now(&server)), &runs).await;
    let error = silenced.expect_err("a clock was wrong");
    assert_is!(error => Error::FireTimeAhead { fire, .. } if *fire == ahead);
    assert_eq!(error.key().map(|key| key.as_str()), Some("job"));
    let in_micros = FireTime::from_millis(ahead.as_millis() * 1_000);
    assert_error!(count(&once(&a).at(in_micros), &runs).await, FireTimeAhead);
    assert_eq!(once(&a).reset().await.expect("answered"), JobReset::Reset);
    let next = count(&once(&a).at(now(&server)), &runs).await;
    assert_eq!(next.expect("answered"), JobOutcome::Done(()));
}

/// An attempt that failed while the clock was ahead must not silence the job either.
#[tokio::test(start_paused = true)]
async fn failure_ahead_of_the_clock_is_an_error_until_a_reset() {
    let (server, [a]) = clients();
    server.step_clock_forward(HOUR * 30);
    let job = once(&a).at(now(&server));
    let failed = job.try_run(async |_job| Err::<(), _>("broken")).await;
    assert_is!(failed => Ok(JobOutcome::Failed { .. }));
    server.step_clock_back(HOUR * 30);
    let runs = Cell::new(0);
    for next in [once(&a).at(now(&server)), once(&a).not_within(HOUR * 20)] {
        assert_error!(count(&next, &runs).await, FireTimeAhead);
    }
    assert_eq!(once(&a).reset().await.expect("answered"), JobReset::Reset);
    let next = count(&once(&a).not_within(HOUR * 20), &runs).await;
    assert_eq!(next.expect("answered"), JobOutcome::Done(()));
}

#[tokio::test(start_paused = true)]
async fn failure_after_the_window_is_told() {
    let (server, [a]) = clients();
    let job = once(&a).at(now(&server));
    let ran = job.run(async |_job| {
        server.advance(secs(3_700)).await;
        Err::<(), _>("disk full")
    });
    assert_eq!(ran.await.expect("answered"), missed(Some("disk full")));
}

/// A machine sleeps by the clock as it was. A long sleep ends halfway, to look at the clock again.
#[tokio::test(start_paused = true)]
async fn clock_that_is_set_forward_makes_nobody_miss_it() {
    let (server, [a]) = clients();
    let runs = Cell::new(0);
    let midnight = FireTime::from_millis(now(&server).as_millis() + 8 * 3_600_000);
    let job = once(&a).at(midnight).start_before(secs(10));
    let sets = async {
        server.advance(HOUR).await;
        server.step_clock_forward(secs(15));
    };
    let (ran, ()) = tokio::join!(count(&job, &runs), sets);
    assert_eq!(ran.expect("answered"), JobOutcome::Done(()));
}

/// The service answers again when the window is over, but the lock is still good.
#[tokio::test(start_paused = true)]
async fn body_does_not_begin_after_its_window() {
    let (server, [(a, network)]) = connected();
    for _ in 0..15 {
        network.inject_into(Call::Note, Fault::LoseReply);
    }
    let (fire, runs) = (now(&server), Cell::new(0));
    let job = once(&a).at(fire).start_before(secs(10));
    assert_is!(count(&job, &runs).await.expect("answered") => JobOutcome::Missed { .. });
    assert_eq!(runs.get(), 0);
}

/// Machines may differ in the window, for example while a new release is rolled out.
#[tokio::test(start_paused = true)]
async fn longer_window_of_another_machine_finds_it_done() {
    let (server, [a, b]) = clients();
    let (fire, runs) = (now(&server), Cell::new(0));
    let first = once(&a).at(fire).start_before(secs(10));
    let done = count(&first, &runs).await.expect("answered");
    assert_eq!(done, JobOutcome::Done(()));
    server.advance(HOUR * 46).await;
    let second = once(&b).at(fire).start_before(HOUR * 47);
    let late = count(&second, &runs).await.expect("answered");
    assert_eq!((late, runs.get()), (JobOutcome::AlreadyDone { fire }, 1));
}
