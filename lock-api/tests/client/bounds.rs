//! The exact bounds of input, and the errors. Public types and futures can cross threads.
//!
//! That input is refused before any I/O, the cases `client_care::bad_…` of the conformance suite check.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::bounds::{
    MACHINE_MIN_LEASE, MAX_CLOCK_ERROR, MAX_LEASE, MAX_PERMITS, MAX_WAITER_LEASE, MIN_LEASE,
};
use leasehold_api::{
    Error, InvalidInput, Job, JobOutcome, Key, Limits, LockClient, LockSpec, MultiGuard, MultiLock,
    Mutex, MutexGuard, Operation, Outcome, OwnerId, PermitGuard, ReadGuard, Renew, RwLock,
    Semaphore, SessionId, Term, WriteGuard,
};

use crate::support::{assert_is, clients, invalid, lock, mutex_of, secs, server};
use crate::wrapped::Wrapped;

#[tokio::test(start_paused = true)]
async fn keys_have_1_to_256_bytes() {
    let (_, [locks]) = clients();
    for key in ["", &"x".repeat(257), &"é".repeat(129)] {
        let says = format!("a key has 1 to 256 bytes, this one has {}", key.len());
        assert_eq!(invalid(locks.mutex(key)).to_string(), says);
    }
    assert!(locks.mutex("x".repeat(256)).is_ok());
}

#[tokio::test(start_paused = true)]
async fn limits_of_leases_are_exact() {
    let (_, [locks]) = clients();
    let mutex = mutex_of(&locks);
    let nano = Duration::from_nanos(1);
    for asked in [MIN_LEASE - nano, MAX_LEASE + nano] {
        invalid(mutex.clone().lease(asked).lock().await);
    }
    for asked in [MACHINE_MIN_LEASE - nano, MAX_WAITER_LEASE + nano] {
        let refused = LockSpec::mutex().with_waiter_lease(asked);
        refused.expect_err("outside the limits");
    }
    for lease in [MIN_LEASE, MAX_LEASE] {
        drop(mutex.clone().lease(lease).lock().await.expect("valid"));
    }
}

/// The default lease would be above the limit of this backend. No handle uses it.
#[tokio::test(start_paused = true)]
async fn default_lease_is_within_the_limit_of_the_backend() {
    let wrapped = || {
        let mut backend = Wrapped::new(server().client("a"));
        backend.capabilities.max_lease = secs(5);
        backend
    };
    let backend = wrapped();
    let acquires = Arc::clone(&backend.acquires);
    let locks = LockClient::new(backend);
    drop(lock(&locks).await);
    let rw_lock = locks.rw_lock("rw").expect("valid");
    drop(rw_lock.read().await.expect("free"));
    drop(rw_lock.write().await.expect("free"));
    let semaphore = locks.semaphore("permits", 2).expect("valid");
    drop(semaphore.acquire().await.expect("free"));
    drop(locks.lock_all(["a", "b"]).await.expect("free"));
    let term = locks.election("leader").expect("valid").campaign().await;
    drop(term.expect("nobody leads"));
    let job = locks.once("job").expect("valid").not_within(secs(60));
    let ran = job.run(async |_job| Ok::<_, Error>(())).await;
    assert_is!(ran => Ok(JobOutcome::Done(())));
    let leases: Vec<_> = (acquires.lock().expect("unpoisoned").iter())
        .map(|acquire| acquire.lease)
        .collect();
    assert_eq!(leases, vec![secs(5); 8]);

    // One that is asked for is refused, wherever that is.
    let asked = secs(6);
    let refused = "a lease of 6s is outside the limits (100ms to 5s)";
    let built = LockClient::builder(wrapped()).lease(asked).build();
    assert_eq!(invalid(built).to_string(), refused);
    let locked = mutex_of(&locks).lease(asked).lock().await;
    assert_eq!(invalid(locked).to_string(), refused);
    let many = locks.mutexes(["a", "b"]).expect("valid");
    let locked = many.clone().lease(asked).lock().await;
    assert_eq!(invalid(locked).to_string(), refused);
    drop(many.lease(secs(1)).lock().await.expect("free"));
}

/// Nothing is sent under a lease that the clock of the backend could cut short.
#[tokio::test(start_paused = true)]
async fn lease_is_four_times_the_error_of_the_clock() {
    let with_error = |error| {
        let mut backend = Wrapped::new(server().client("a"));
        backend.capabilities.clock_error = error;
        backend
    };
    let error = Duration::from_millis(400);
    let backend = with_error(error);
    let acquires = Arc::clone(&backend.acquires);
    let locks = LockClient::new(backend);
    let lease = 4 * error - Duration::from_millis(1);
    let refused = "a lease of 1.599s is less than 4 times the error of the backend's clock, 400ms";
    let built = LockClient::builder(with_error(error)).lease(lease).build();
    assert_eq!(invalid(built).to_string(), refused);
    let mutex = mutex_of(&locks);
    let locked = mutex.clone().lease(lease).lock().await;
    assert_eq!(invalid(locked).to_string(), refused);
    let many = locks.mutexes(["a", "b"]).expect("valid");
    assert_eq!(invalid(many.lease(lease).lock().await).to_string(), refused);
    assert_eq!(acquires.lock().expect("unpoisoned").len(), 0);
    let guard = mutex.lease(4 * error).lock().await.expect("free");
    // A quarter less, and the drift allowance of the rest.
    assert!(guard.valid_for() <= 3 * error - Duration::from_millis(22));

    let locks = LockClient::new(with_error(MAX_CLOCK_ERROR + Duration::from_millis(1)));
    let says = "clock_error: 1.251s is outside the limits (0ns to 1.25s)";
    assert_eq!(
        invalid(locks.mutex("a").expect("valid").lock().await).to_string(),
        says
    );
}

/// Requests to a backend allow shorter leases than a client, and their errors say so.
#[tokio::test(start_paused = true)]
async fn errors_name_the_limits_that_were_checked() {
    let nano = Duration::from_nanos(1);
    let (_, [locks]) = clients();
    let mutex = mutex_of(&locks);
    let checks = [
        (MACHINE_MIN_LEASE, "1ms to 60s", |lease| {
            LockSpec::mutex().with_waiter_lease(lease).map(|_| ())
        }),
        (MACHINE_MIN_LEASE, "1ms to 3600s", |lease| {
            let operation = Operation {
                session: SessionId::from_bytes([1; 16]),
                sequence: 1,
                owner: OwnerId::from_u64(1),
            };
            let key = Key::new("k").expect("valid");
            Renew::new(key, operation, lease).map(|_| ())
        }),
    ] as [(Duration, &str, fn(Duration) -> Result<(), InvalidInput>); 2];
    for (min, limits, check) in checks {
        assert_eq!(check(min), Ok(()));
        let text = check(min - nano).expect_err("too short").to_string();
        let says = format!("outside the limits ({limits})");
        assert!(text.ends_with(&says), "{text}");
    }
    let text = invalid(mutex.lease(MIN_LEASE - nano).lock().await).to_string();
    assert!(text.ends_with("(100ms to 3600s)"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn limits_of_permits_are_exact() {
    let (_, [locks]) = clients();
    for asked in [0, MAX_PERMITS + 1] {
        let says = format!("a semaphore has 1 to {MAX_PERMITS} permits in total, not {asked}");
        assert_eq!(invalid(locks.semaphore("k", asked)).to_string(), says);
    }
    for asked in [0, 4] {
        let semaphore = locks.semaphore("k", 3).expect("valid").permits(asked);
        let says = format!("1 to 3 permits can be acquired at once, not {asked}");
        assert_eq!(invalid(semaphore.acquire().await).to_string(), says);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_about_a_handle_names_its_key() {
    let (_, [locks]) = clients();
    let mutex = locks.mutex("invoice:42").expect("valid");
    let semaphore = locks.semaphore("invoice:42", 3).expect("valid");
    let errors = [
        mutex.clone().lease(Duration::ZERO).lock().await.err(),
        mutex.clone().max_hold(Duration::ZERO).lock().await.err(),
        semaphore.permits(4).acquire().await.err(),
        locks.semaphore("invoice:42", 0).err(),
    ];
    for error in errors {
        let error = error.expect("not refused");
        assert_eq!(error.key().map(Key::as_str), Some("invoice:42"), "{error}");
        assert!(error.to_string().contains("invoice:42"), "{error}");
    }
    let error = locks.mutex("").expect_err("no key");
    assert_eq!(error.key(), None);
}

#[tokio::test(start_paused = true)]
async fn settings_are_checked_by_the_builder() {
    let server = server();
    let builder = || LockClient::builder(server.client("a"));
    invalid(builder().call_timeout(secs(6)).build());
    let none = Limits {
        waiters: 0,
        ..Limits::default()
    };
    invalid(builder().limits(none).build());
}

#[test]
fn public_types_are_sync_and_futures_are_send() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send>(_: T) {}
    shared::<(LockClient, Mutex, RwLock, Semaphore, MultiLock)>();
    shared::<(MutexGuard, ReadGuard, WriteGuard, PermitGuard)>();
    shared::<(MultiGuard, Term, Job, Error)>();

    #[expect(dead_code, reason = "it is enough that it compiles")]
    fn of_handles(mutex: &Mutex, rw: &RwLock, semaphore: &Semaphore, many: &MultiLock) {
        sent(mutex.lock());
        sent(mutex.try_lock());
        sent(mutex.try_lock_for(secs(1)));
        sent(mutex.with(async |guard: &MutexGuard| guard.is_valid()));
        sent(rw.read());
        sent(rw.try_write_for(secs(1)));
        sent(semaphore.acquire());
        sent(many.lock());
        sent(many.try_lock());
        sent(many.with(async |guard: &MultiGuard| guard.is_valid()));
    }

    #[expect(dead_code, reason = "it is enough that it compiles")]
    fn of_guards(guard: &MutexGuard, all: &MultiGuard, read: ReadGuard, write: WriteGuard) {
        sent(guard.lost());
        sent(guard.expiring(secs(1)));
        sent(guard.renew());
        sent(guard.release());
        sent(all.lost());
        sent(all.expiring(secs(1)));
        sent(all.renew());
        sent(all.release());
        sent(read.try_upgrade());
        sent(write.downgrade());
    }

    #[expect(dead_code, reason = "it is enough that it compiles")]
    fn of_bodies(one: MutexGuard, all: MultiGuard, tried: Outcome<MutexGuard>) {
        sent(one.with(async |guard: &MutexGuard| guard.is_valid()));
        sent(all.with(async |guard: &MultiGuard| guard.is_valid()));
        sent(tried.with(async |guard: &MutexGuard| guard.is_valid()));
    }

    #[expect(dead_code, reason = "it is enough that it compiles")]
    fn of_a_client(locks: &LockClient) {
        sent(locks.lock_all(["x", "y"]));
        sent(locks.inspect("m"));
        sent(locks.shutdown());
    }
}
