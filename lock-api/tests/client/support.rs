//! Helpers of the tests. Most tests use the key `k`.

use std::fmt::Debug;
use std::time::Duration;

use leasehold_api::{
    Error, ForceMode, ForceReply, Guard, InvalidInput, LockClient, Loss, Mutex, MutexGuard,
    Outcome, Refused, RwLock, Upgrade, WriteGuard,
};
use leasehold_sim::{SimBackend, SimServer};
use tokio::task::JoinHandle;

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

/// A server, and the clients `a`, `b` and so on, each with its network.
pub(crate) fn connected<const N: usize>() -> (SimServer, [(LockClient, SimBackend); N]) {
    let server = server();
    let mut names = 'a'..;
    let clients = [(); N].map(|()| client(&server, &names.next().expect("few").to_string()));
    (server, clients)
}

/// The same without the networks.
pub(crate) fn clients<const N: usize>() -> (SimServer, [LockClient; N]) {
    let (server, clients) = connected();
    (server, clients.map(|(locks, _)| locks))
}

pub(crate) fn mutex_of(locks: &LockClient) -> Mutex {
    locks.mutex("k").expect("valid")
}

pub(crate) fn rw_lock_of(locks: &LockClient) -> RwLock {
    locks.rw_lock("k").expect("valid")
}

pub(crate) fn reentrant_mutex(locks: &LockClient) -> Mutex {
    mutex_of(locks).reentrant().expect("supported")
}

pub(crate) fn reentrant_rw(locks: &LockClient) -> RwLock {
    rw_lock_of(locks).reentrant().expect("supported")
}

/// Locks a free mutex.
pub(crate) async fn lock(locks: &LockClient) -> MutexGuard {
    mutex_of(locks).lock().await.expect("free")
}

/// Spawns a task that waits for the mutex.
pub(crate) fn wait(locks: &LockClient) -> JoinHandle<Result<MutexGuard, Error>> {
    let mutex = mutex_of(locks);
    tokio::spawn(async move { mutex.lock().await })
}

/// Asserts that a value matches a pattern.
macro_rules! assert_is {
    ($value:expr => $($pattern:tt)+) => {
        match &$value {
            $($pattern)+ => {}
            other => panic!("{}: {other:?}, wanted {}", stringify!($value), stringify!($($pattern)+)),
        }
    };
}
pub(crate) use assert_is;

/// Expects this variant of [`Error`], in a result or behind a reference.
macro_rules! assert_error {
    ($error:ident.error(), $variant:ident) => {
        crate::support::assert_is!($error.error() => leasehold_api::Error::$variant { .. });
    };
    ($result:expr, $variant:ident) => {
        crate::support::assert_is!($result => Err(leasehold_api::Error::$variant { .. }));
    };
}
pub(crate) use assert_error;

#[track_caller]
pub(crate) fn loss(error: &Error) -> Loss {
    match error {
        Error::Lost { reason, .. } => *reason,
        other => panic!("not lost: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn lost_by<T: Debug>(result: &Result<T, Error>) -> Loss {
    loss(result.as_ref().expect_err("lost"))
}

#[track_caller]
pub(crate) fn refused_by<T: Debug>(result: &Result<T, Error>) -> Refused {
    match result {
        Err(Error::Refused { reason, .. }) => *reason,
        other => panic!("not refused: {other:?}"),
    }
}

/// Why input is refused.
#[track_caller]
pub(crate) fn invalid<T: Debug>(result: Result<T, Error>) -> InvalidInput {
    match result {
        Err(Error::InvalidInput { reason, .. }) => reason,
        other => panic!("not refused as invalid input: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn held<K>(outcome: Result<Outcome<Guard<K>>, Error>) -> Guard<K> {
    match outcome {
        Ok(Outcome::Acquired(guard)) => guard,
        other => panic!("not acquired: {other:?}"),
    }
}

/// Releases all holds of a key by force. Expects that there are some.
pub(crate) async fn force(locks: &LockClient, key: &str, how: ForceMode) {
    let tokens = locks.inspect(key).await.expect("answered").held_tokens();
    let forced = locks.force_release(key, tokens, how).await;
    assert_is!(forced => Ok(ForceReply::Forced { .. }));
}

#[track_caller]
pub(crate) fn contended<K>(outcome: &Result<Outcome<Guard<K>>, Error>) {
    let is_held = matches!(outcome, Ok(Outcome::Contended(held)) if !held.timed_out);
    assert!(is_held, "{outcome:?}");
}

#[track_caller]
pub(crate) fn upgraded(upgrade: Result<Upgrade, Error>) -> WriteGuard {
    match upgrade {
        Ok(Upgrade::Upgraded(guard)) => guard,
        other => panic!("not upgraded: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn timed_out<K>(outcome: &Result<Outcome<Guard<K>>, Error>, time: Duration) {
    let waited = match outcome {
        Ok(Outcome::Contended(contention)) if contention.timed_out => contention.waited,
        other => panic!("not timed out: {other:?}"),
    };
    assert!(waited >= time, "{outcome:?}");
}
