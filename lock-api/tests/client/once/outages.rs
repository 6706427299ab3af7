//! Servers that are down, answers that are lost, and data that is lost.

use super::*;

/// If the service goes away when the lock was granted, `try_run` doesn't wait for the end of the lease.
#[tokio::test(start_paused = true)]
async fn try_run_ends_soon_if_the_attempt_cannot_be_noted() {
    let (server, [(a, network)]) = connected();
    let (fire, runs) = (now(&server), Cell::new(0));
    for _ in 0..100 {
        network.inject_into(Call::Note, Fault::LoseRequest);
    }
    let begun = server.elapsed();
    let job = once(&a).at(fire);
    let ran = job.try_run(async |_job| {
        runs.set(runs.get() + 1);
        Ok::<_, Error>(())
    });
    assert!(ran.await.is_err());
    assert_eq!(runs.get(), 0);
    let took = server.elapsed().saturating_sub(begun);
    assert!(took < secs(6), "{took:?}");
}

/// A loop asks for the next night as soon as one is over.
#[tokio::test(start_paused = true)]
async fn outage_before_the_fire_time_ends_no_call() {
    let (server, [a]) = clients();
    let runs = Cell::new(0);
    drop(count(&once(&a).at(now(&server)), &runs).await);
    let next = FireTime::from_millis(now(&server).as_millis() + 24 * 3_600_000);
    server.stop();
    let starts = async {
        // Longer than any pause between two tries.
        server.advance(secs(20 * 60)).await;
        server.start(Data::Kept);
    };
    let job = once(&a).at(next);
    let (ran, ()) = tokio::join!(count(&job, &runs), starts);
    assert_eq!(ran.expect("answered"), JobOutcome::Done(()));
    assert_eq!(runs.get(), 2);
}

/// The service goes away after a failure, and stays away until it is too late.
#[tokio::test(start_paused = true)]
async fn outage_does_not_hide_a_failure_of_the_body() {
    let (server, [a]) = clients();
    let job = once(&a).at(now(&server)).start_before(secs(100));
    let begun = server.elapsed();
    let ran = job.run(async |_job| {
        server.stop();
        Err::<(), _>("disk full")
    });
    assert_eq!(ran.await.expect("told"), missed(Some("disk full")));
    let took = server.elapsed() - begun;
    assert!(took > secs(99) && took < secs(120), "{took:?}");
}

/// The attempt is noted, but its hold is gone when the server says so.
#[tokio::test(start_paused = true)]
async fn body_does_not_begin_without_the_lock() {
    let (server, [(a, network), (b, _)]) = connected();
    let fire = now(&server);
    network.inject_into(Call::Note, Fault::LoseReply);
    let attempts = RefCell::new(Vec::new());
    let job = once(&a).at(fire);
    let ran = job.run(async |job| {
        assert!(job.guard().is_valid());
        attempts.borrow_mut().push(job.attempt());
        Ok::<_, &str>(())
    });
    let forces = async {
        server.advance(ms(100)).await;
        let held = b.inspect("job").await.expect("answered");
        let tokens = held.holders().iter().map(|holder| holder.token).collect();
        // The answer to the note is the first word of it.
        server.refuse_publish();
        let forced = b.force_release("job", tokens, ForceMode::Now).await;
        assert!(forced.is_ok(), "{forced:?}");
        server.allow_publish();
    };
    let (ran, ()) = tokio::join!(ran, forces);
    assert_eq!(ran.expect("answered"), JobOutcome::Done(()));
    assert_eq!(attempts.into_inner(), [2]);
}

/// Three attempts that never ran would give the job up.
#[tokio::test(start_paused = true)]
async fn run_repeats_the_note_of_an_attempt_while_it_has_the_lock() {
    let (server, [(a, network)]) = connected();
    for _ in 0..5 {
        network.inject_into(Call::Note, Fault::LoseReply);
    }
    let attempt = Cell::new(0);
    let job = once(&a).at(now(&server));
    let ran = job.run(async |job| {
        attempt.set(job.attempt());
        Ok::<_, &str>(())
    });
    assert_eq!(ran.await.expect("answered"), JobOutcome::Done(()));
    assert_eq!(attempt.get(), 1);
}

/// Without the record, the job would run again.
#[tokio::test(start_paused = true)]
async fn result_is_recorded_after_a_refusal() {
    let (server, [(a, network), (b, _)]) = connected();
    let fire = now(&server);
    let job = once(&a).at(fire);
    let ran = job.run(async |_job| {
        network.deny();
        Ok::<_, &str>(())
    });
    let admits = async {
        server.advance(secs(3)).await;
        network.admit();
    };
    let (ran, ()) = tokio::join!(ran, admits);
    assert_eq!(ran.expect("answered"), JobOutcome::Done(()));
    let again = once(&b).at(fire).run(async |_job| Ok::<_, &str>(())).await;
    assert_eq!(again.expect("answered"), JobOutcome::AlreadyDone { fire });
}

#[tokio::test(start_paused = true)]
async fn body_without_an_answer_to_done_is_told() {
    let (server, [(a, network), (b, _)]) = connected();
    let fire = now(&server);
    let job = once(&a).at(fire);
    let outcome = job.run(async |_job| {
        network.isolate();
        Ok::<_, &str>("result")
    });
    let outcome = outcome.await.expect("it ran");
    assert_eq!(outcome, JobOutcome::RanUnrecorded("result"));
    let runs = Cell::new(0);
    let again = count(&once(&b).at(fire), &runs).await.expect("answered");
    assert_eq!((again, runs.get()), (JobOutcome::Done(()), 1));
}

#[tokio::test(start_paused = true)]
async fn lost_answers_to_the_notes_cost_nothing() {
    let (server, [(a, network), (b, _)]) = connected();
    let fire = now(&server);
    network.inject_into(Call::Note, Fault::LoseReply);
    let runs = Cell::new(0);
    let job = once(&a).at(fire);
    let outcome = job.run(async |job| {
        assert_eq!(job.attempt(), 1);
        runs.set(runs.get() + 1);
        network.inject_into(Call::Note, Fault::LoseReply);
        Ok::<_, &str>(())
    });
    assert_eq!(outcome.await.expect("answered"), JobOutcome::Done(()));
    let again = count(&once(&b).at(fire), &runs).await.expect("answered");
    assert_eq!((again, runs.get()), (JobOutcome::AlreadyDone { fire }, 1));
}

#[tokio::test(start_paused = true)]
async fn it_runs_again_after_the_data_is_lost() {
    let (server, [a]) = clients();
    let (fire, runs) = (now(&server), Cell::new(0));
    drop(count(&once(&a).at(fire), &runs).await);
    server.restart(Data::Lost);
    server.advance(secs(1)).await;
    let again = count(&once(&a).at(fire), &runs).await.expect("answered");
    assert_eq!((again, runs.get()), (JobOutcome::Done(()), 2));
}
