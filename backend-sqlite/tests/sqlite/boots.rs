//! The clock, across boots of the machine and steps of its time of day.

use std::time::{Duration, SystemTime};

use leasehold_api::{Error, FireTime, JobOutcome, LockBackend};

use crate::{Folder, SLACK};

const HOUR: i64 = 3_600_000_000;

/// The machine boots with a time of day that is an hour behind its last write.
#[tokio::test]
async fn clock_goes_on_after_a_boot() {
    let folder = Folder::new();
    let before = folder.locks().await;
    let first = before
        .mutex("k")
        .expect("a key")
        .lock()
        .await
        .expect("free");
    let same = folder.backend().await.hello().await.expect("an answer");
    let last = i64::try_from(same.at.as_micros()).expect("a time") + HOUR;
    let moved = "UPDATE leasehold_clock SET boot = 'before', last = ?1";
    folder.sql().execute(moved, [last]).expect("moved");

    let after = folder.backend().await;
    let stamp = after.hello().await.expect("an answer");
    assert_ne!(stamp.clock, same.clock);
    assert!(stamp.at.as_micros() > last.unsigned_abs(), "{stamp:?}");
    let next = leasehold_api::LockClient::new(after);
    let second = next
        .mutex("k")
        .expect("a key")
        .lock()
        .await
        .expect("its lease is over");
    assert!(second.fencing_token() > first.fencing_token());

    // Two machines that share a disk, and not a clock.
    let refused = before.mutex("other").expect("a key").try_lock().await;
    let refused = refused.expect_err("another boot has the file");
    assert!(matches!(refused, Error::Rejected { .. }), "{refused:?}");
}

/// The time of day was set forward after the file was made, and then a container opens it whose boot has another id.
#[tokio::test]
async fn lock_lasts_when_another_boot_opens_the_file() {
    let folder = Folder::new();
    drop(folder.backend().await);
    let moved = "UPDATE leasehold_clock SET offset = offset - ?1, id = random()";
    folder.sql().execute(moved, [HOUR]).expect("moved");
    let before = folder.locks().await;
    let first = before
        .mutex("k")
        .expect("a key")
        .lease(Duration::from_secs(3))
        .lock()
        .await;
    let first = first.expect("free");
    let moved = "UPDATE leasehold_clock SET boot = 'before'";
    folder.sql().execute(moved, []).expect("moved");

    let next = leasehold_api::LockClient::new(folder.backend().await);
    let next = next.mutex("k").expect("a key");
    let at_once = next.try_lock().await.expect("an answer");
    assert!(!at_once.is_acquired());
    let second = next.lock().await.expect("its lease ends");
    assert!(!first.is_valid());
    assert!(second.fencing_token() > first.fencing_token());
}

/// The time of day was wrong by a day when the machine booted.
#[tokio::test]
async fn jobs_are_due_by_the_time_of_day() {
    let folder = Folder::new();
    drop(folder.backend().await);
    for wrong in [-24 * HOUR, 48 * HOUR] {
        let moved = "UPDATE leasehold_clock SET offset = offset + ?1, id = random()";
        folder.sql().execute(moved, [wrong]).expect("moved");
        let locks = folder.locks().await;
        let now = FireTime::from(SystemTime::now());
        let report = locks.once("report").expect("a key");
        let occurrence = report.at(now).start_before(Duration::from_secs(3_600));
        let running = occurrence.run(async |_job| Ok::<_, Error>(()));
        let outcome = tokio::time::timeout(SLACK, running).await;
        let outcome = outcome.expect("it is due now").expect("the file works");
        assert!(matches!(outcome, JobOutcome::Done(())), "{outcome:?}");
    }
}
