//! Events of jobs and elections.

use std::cell::Cell;

use leasehold_api::{Election, FireTime, JobOutcome, Loss};
use leasehold_sim::SimServer;

use crate::support::{assert_is, clients, connected, secs};
use crate::{lines, listen};

/// The lines about jobs and terms.
fn reports() -> Vec<String> {
    let about = |line: &String| {
        let words = [" job ", " elected ", " resigned "];
        words.iter().any(|word| line.contains(word))
    };
    lines().into_iter().filter(about).collect()
}

/// Asserts that there is one line for each of these beginnings, in this order.
#[track_caller]
fn assert_reports(expected: &[&str]) {
    let lines = reports();
    let matches = lines.len() == expected.len()
        && lines
            .iter()
            .zip(expected)
            .all(|(line, start)| line.starts_with(start));
    assert!(matches, "{lines:#?}, expected {expected:#?}");
}

fn now(server: &SimServer) -> FireTime {
    FireTime::from_millis(server.server_time().as_micros() / 1_000)
}

#[tokio::test(start_paused = true)]
async fn attempts_of_a_job_are_reported_and_how_it_ended() {
    listen();
    let (server, [a, b]) = clients();
    let fire = now(&server);
    let number = fire.as_millis();
    let job = a.once("job").expect("valid").max_hold(secs(20));
    let tries = Cell::new(0);
    let job = job.at(fire);
    let ran = job.run(async |_job| {
        tries.set(tries.get() + 1);
        match tries.get() {
            1 => Err("broken"),
            2 => std::future::pending().await,
            _ => Ok(()),
        }
    });
    assert_is!(ran.await => Ok(JobOutcome::Done(())));
    let started = |n| format!(r#"INFO job started key="job" fire={number} attempt={n} token="#);
    let ended = |level, n, how| {
        format!(r#"{level} job ended key="job" fire={number} attempt={n} outcome="{how}" ran_ms="#)
    };
    let expected = [
        started(1),
        ended("WARN", 1, "failed"),
        started(2),
        ended("WARN", 2, "lost"),
        started(3),
        ended("INFO", 3, "done"),
    ];
    assert_reports(&expected.each_ref().map(String::as_str));
    let elsewhere = b.once("job").expect("valid").at(fire);
    let done = elsewhere.run(async |_job| Ok::<_, &str>(()));
    assert_is!(done.await => Ok(JobOutcome::AlreadyDone { .. }));
    assert_reports(&[]);
}

#[tokio::test(start_paused = true)]
async fn job_that_is_not_run_is_a_warning() {
    listen();
    let (server, [a]) = clients();
    let fire = now(&server);
    server.advance(secs(20)).await;
    let job = a.once("job").expect("valid").attempts(1);
    let late = job.at(fire).start_before(secs(10));
    let ran = late.run(async |_job| Ok::<_, &str>(())).await;
    assert_is!(ran => Ok(JobOutcome::Missed { .. }));
    assert_reports(&[r#"WARN job missed key="job""#]);
    let failing = job.at(now(&server));
    let ran = failing.run(async |_job| Err::<(), _>("broken")).await;
    assert_is!(ran => Ok(JobOutcome::GaveUp { .. }));
    assert_reports(&[
        "INFO job started",
        "WARN job ended",
        r#"WARN job given up key="job" attempts=1"#,
    ]);
    let dropped = a.once("other").expect("valid").not_within(secs(10));
    let dropped = dropped.run(async |_job| std::future::pending::<Result<(), &str>>().await);
    assert!(tokio::time::timeout(secs(5), dropped).await.is_err());
    let reports = reports();
    assert_is!(reports[..] => [_, ended] if ended.contains(r#"outcome="dropped" ran_ms="#));
}

#[tokio::test(start_paused = true)]
async fn terms_are_reported_when_they_begin_and_when_a_leader_resigns() {
    listen();
    let (server, [(a, network)]) = connected();
    let election: Election = a.election("leader").expect("valid").lease(secs(9));
    let term = election.campaign().await.expect("nobody leads");
    server.advance(secs(5)).await;
    term.resign().await.expect("answered");
    drop(election.campaign().await.expect("nobody leads"));
    let both = [
        r#"INFO elected key="leader" term="#,
        r#"INFO resigned key="leader" term="#,
    ];
    assert_reports(&[both, both].concat());
    election.run(async |_term| {}).await.expect("nobody leads");
    assert_reports(&both);
    // The event `lost` tells the end of this one.
    let term = election.campaign().await.expect("nobody leads");
    network.isolate();
    assert_eq!(term.lost().await, Loss::Deadline);
    drop(term.resign().await);
    assert_reports(&both[..1]);
}
