//! The check of a store by its backend.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::bounds::MAX_CLOCK_ERROR;
use leasehold_api::{
    BackendError, ClockId, Key, LockBackend, Runtime, ServerTime, Stamp, TokioRuntime,
};
use leasehold_store::{Read, Row, Store, StoreBackend, Write, Written};

use crate::steps::key;
use crate::support::{Fault, Faults, Flaw, Server};

/// What the backend finds in a store with these faults, whose clock may be wrong by `error`.
async fn problem(faults: Faults, has_tags: bool, error: Duration) -> Option<BackendError> {
    let server = Server::new(1, Duration::from_millis(1));
    server.set_clock_error(error, false, true);
    if has_tags {
        server.compare_tags();
    }
    server.set_faults(faults);
    server.compare_reach();
    server.send_rows();
    server.client().self_check(&key()).await.err()
}

/// What the backend says about a store with this flaw.
const fn finding(flaw: Flaw) -> &'static str {
    match flaw {
        Flaw::LateIsFine => "creates a row after its deadline must not be applied",
        Flaw::LateReplacementIsFine | Flaw::MessagesAreFine => {
            "replaces a row after its deadline must not be applied"
        }
        Flaw::FutureIsFine => "is before the time of its step must not be applied",
        Flaw::Echoes => "creates a row in time must be applied",
        Flaw::SilenceIsFine => "for a session that doesn't listen must not be applied",
        Flaw::CreatedWithoutTime => "answers `applied_at` to some writes",
        Flaw::TellsNoTag | Flaw::TellsAnotherTag => "creates a row in time must be applied",
        Flaw::AnyTagIsFine => "replaces an earlier version must not be applied",
        Flaw::OldClock | Flaw::RefusesWithoutTag => "must bring the row and the clock, or nothing",
        Flaw::Forgets => "`remove_expired` removed a row before its `keep_until`",
    }
}

#[tokio::test(start_paused = true)]
async fn store_that_breaks_the_contract_of_writes_is_found() {
    let fine = Faults::default()
        .share(Fault::Conflict, 30)
        .share(Fault::Copied, 30);
    let flaws = Flaw::ALL.map(|flaw| (Faults::flawed(flaw), finding(flaw)));
    let refuses = Faults::always(Fault::Conflict);
    let refuses = (refuses, "creates a row in time must be applied");
    let errors = [Duration::ZERO, MAX_CLOCK_ERROR];
    let stores = errors.map(|error| [(false, error), (true, error)]);
    for (has_tags, error) in stores.into_iter().flatten() {
        assert_matches!(problem(fine, has_tags, error).await, None);
        for (faults, expected) in flaws.into_iter().chain([refuses]) {
            if faults.is_of_tags() && !has_tags {
                continue;
            }
            let problem = problem(faults, has_tags, error).await;
            let problem = problem.expect("it breaks the contract");
            assert_matches!(problem, BackendError::Rejected { .. });
            let text = problem.to_string();
            assert!(text.contains(expected), "{faults:?}: {text}");
        }
    }
}

/// A store without a clock: its clients write their own, and none goes back behind what was written.
#[derive(Debug)]
struct Clockless {
    rows: Mutex<BTreeMap<Key, (Row, Stamp)>>,
    runtime: TokioRuntime,
    /// Whether a row keeps the time of its step.
    keeps_times: bool,
}

impl Clockless {
    fn own_clock(&self) -> Stamp {
        let micros = self.runtime.now().since_origin().as_micros();
        let at = ServerTime::from_micros(micros.try_into().expect("a time"));
        let clock = ClockId::new(1);
        Stamp { clock, at }
    }
}

#[async_trait]
impl Store for Clockless {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.runtime.clone())
    }

    async fn time(&self) -> Result<Stamp, BackendError> {
        Ok(self.own_clock())
    }

    async fn read(&self, key: &Key) -> Result<Read, BackendError> {
        let mut stamp = self.own_clock();
        let found = self.rows.lock().expect("no panic").get(key).cloned();
        if let Some((_, written)) = &found
            && self.keeps_times
        {
            stamp.at = stamp.at.max(written.at);
        }
        let row = found.map(|(row, _)| row);
        Ok(Read::new(stamp, row))
    }

    async fn write(&self, write: Write<'_>) -> Result<Written, BackendError> {
        let mut rows = self.rows.lock().expect("no panic");
        let found = rows.get(write.key).map(|(row, _)| row.version);
        if found != write.expected || self.own_clock().at >= write.deadline {
            return Ok(Written::NotApplied);
        }
        rows.insert(write.key.clone(), (write.row(), write.stamp));
        Ok(Written::applied())
    }
}

/// A client whose clock is ahead, and that only tries, would end the holder's lease.
#[tokio::test]
async fn store_whose_clients_move_its_clock_is_found() {
    for keeps_times in [false, true] {
        let backend = StoreBackend::new(Clockless {
            rows: Mutex::default(),
            runtime: TokioRuntime::current(),
            keeps_times,
        });
        let checked = backend.self_check(&key()).await;
        match checked {
            Ok(()) => assert!(!keeps_times, "not noticed"),
            Err(error) => assert!(
                keeps_times && error.to_string().contains("no clock of its own"),
                "{error}"
            ),
        }
    }
}

/// The connection for renewals is another store.
#[tokio::test(start_paused = true)]
async fn both_connections_are_checked() {
    let [good, bad] = [1, 2].map(|seed| Server::new(seed, Duration::from_millis(1)));
    bad.set_faults(Faults::flawed(Flaw::LateIsFine));
    let backend = good.client().renewals(good.store());
    let checked = backend.self_check(&key()).await;
    checked.expect("two good connections");
    let other = Key::new("another").expect("valid");
    let backend = good.client().renewals(bad.store());
    assert!(backend.self_check(&other).await.is_err(), "not noticed");
}
