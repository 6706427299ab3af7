//! Helpers of the tests.

use leasehold_api::{Error, Guard, LockClient, Outcome};
use leasehold_sim::{SimBackend, SimServer};
use std::time::Duration;

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) fn server() -> SimServer {
    SimServer::new(7)
}

pub(crate) fn client(server: &SimServer, name: &str) -> (LockClient, SimBackend) {
    let backend = server.client(name);
    (LockClient::new(backend.clone()), backend)
}

#[track_caller]
pub(crate) fn held<K>(outcome: Result<Outcome<Guard<K>>, Error>) -> Guard<K> {
    match outcome {
        Ok(Outcome::Acquired(guard)) => guard,
        other => panic!("not acquired: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn contended<K>(outcome: &Result<Outcome<Guard<K>>, Error>) {
    let is_held = matches!(outcome, Ok(Outcome::Contended(held)) if !held.timed_out);
    assert!(is_held, "{outcome:?}");
}

#[track_caller]
pub(crate) fn timed_out<K>(outcome: &Result<Outcome<Guard<K>>, Error>, time: Duration) {
    let waited = match outcome {
        Ok(Outcome::Contended(contention)) if contention.timed_out => contention.waited,
        other => panic!("not timed out: {other:?}"),
    };
    assert!(waited >= time, "{outcome:?}");
}
