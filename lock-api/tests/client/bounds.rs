//! Input out of bounds is refused before any I/O. Public types and futures can cross threads.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::bounds::{
    MACHINE_MIN_LEASE, MAX_LEASE, MAX_PERMITS, MAX_WAITER_LEASE, MIN_LEASE, MIN_WAITER_LEASE,
};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, Error, InvalidInput, Key, Limits,
    LockBackend, LockClient, LockSpec, Operation, OwnerId, Policy, Release, ReleaseReply, Renew,
    RenewReply, Runtime, SessionId, Stamp, Stamped,
};

use crate::support::{client, invalid, mutex_of, rw_lock_of, secs, server};

/// A backend that panics on every call.
#[derive(Debug)]
struct Untouchable(Arc<dyn Runtime>);

#[async_trait]
impl LockBackend for Untouchable {
    fn capabilities(&self) -> Capabilities {
        Capabilities::full()
    }
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.0)
    }
    async fn hello(&self) -> Result<Stamp, BackendError> {
        panic!("hello was called")
    }
    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        panic!("acquire was called: {batch:?}")
    }
    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        panic!("renew was called: {batch:?}")
    }
    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        panic!("release was called: {batch:?}")
    }
    async fn close(&self) -> Result<(), BackendError> {
        Ok(())
    }
}

fn untouchable() -> LockClient {
    LockClient::new(Untouchable(server().client("unused").runtime()))
}

#[tokio::test(start_paused = true)]
async fn keys_are_checked_by_the_handle() {
    let locks = untouchable();
    for key in ["", &"x".repeat(257), &"é".repeat(129)] {
        let bytes = key.len();
        assert_eq!(invalid(locks.mutex(key)), InvalidInput::KeyLength { bytes });
        invalid(locks.rw_lock(key));
        invalid(locks.semaphore(key, 1));
        invalid(locks.inspect(key).await);
        invalid(
            locks
                .force_release(key, Vec::new(), leasehold_api::ForceMode::Revoke)
                .await,
        );
    }
    assert!(locks.mutex("x".repeat(256)).is_ok());
}

#[tokio::test(start_paused = true)]
async fn leases_are_checked_before_any_io() {
    let locks = untouchable();
    let mutex = mutex_of(&locks);
    let nano = Duration::from_nanos(1);
    for lease in [
        Duration::ZERO,
        MIN_LEASE - nano,
        MAX_LEASE + nano,
        Duration::MAX,
    ] {
        let expected = InvalidInput::Lease {
            asked: lease,
            limits: MIN_LEASE..=MAX_LEASE,
        };
        assert_eq!(invalid(mutex.clone().lease(lease).lock().await), expected);
        assert_eq!(
            invalid(mutex.clone().lease(lease).try_lock().await),
            expected
        );
        assert_eq!(
            invalid(mutex.clone().lease(lease).try_lock_for(secs(1)).await),
            expected
        );
    }
    for lease in [
        Duration::ZERO,
        MIN_WAITER_LEASE - nano,
        MAX_WAITER_LEASE + nano,
    ] {
        let expected = InvalidInput::WaiterLease {
            asked: lease,
            limits: MIN_WAITER_LEASE..=MAX_WAITER_LEASE,
        };
        assert_eq!(
            invalid(mutex.clone().waiter_lease(lease).lock().await),
            expected
        );
    }
    invalid(mutex.clone().max_hold(Duration::ZERO).lock().await);
    invalid(mutex.clone().policy(Policy::ReaderPreference).lock().await);
    let rw = rw_lock_of(&locks).lease(Duration::ZERO);
    invalid(rw.read().await);
    invalid(rw.try_write().await);
}

/// Requests to a backend allow shorter leases than a client, and their errors say so.
#[tokio::test(start_paused = true)]
async fn errors_name_the_limits_that_were_checked() {
    let nano = Duration::from_nanos(1);
    let mutex = untouchable().mutex("k").expect("valid");
    let checks = [
        (MACHINE_MIN_LEASE, "1ms to 60s", |lease| {
            LockSpec::mutex().with_waiter_lease(lease).map(|_| ())
        }),
        (MACHINE_MIN_LEASE, "1ms to 3600s", |lease| {
            let session = SessionId::from_bytes([1; 16]);
            let (sequence, owner) = (1, OwnerId::from_u64(1));
            let operation = Operation {
                session,
                sequence,
                owner,
            };
            let key = Key::new("k").expect("valid");
            Renew::new(key, operation, lease).map(|_| ())
        }),
    ] as [(Duration, &str, fn(Duration) -> Result<(), InvalidInput>); 2];
    for (min, limits, check) in checks {
        assert_eq!(check(min), Ok(()));
        let text = check(min - nano).expect_err("too short").to_string();
        assert!(
            text.ends_with(&format!("outside the limits ({limits})")),
            "{text}"
        );
    }
    let waiting = mutex.clone().waiter_lease(MIN_WAITER_LEASE - nano);
    let text = invalid(waiting.lock().await).to_string();
    assert!(text.ends_with("(3s to 60s)"), "{text}");
    let text = invalid(mutex.lease(MIN_LEASE - nano).lock().await).to_string();
    assert!(text.ends_with("(100ms to 3600s)"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn permits_are_checked_before_any_io() {
    let locks = untouchable();
    let semaphore = locks.semaphore("k", 3).expect("valid");
    for asked in [0, MAX_PERMITS + 1] {
        let expected = InvalidInput::Capacity { asked };
        assert_eq!(invalid(locks.semaphore("k", asked)), expected);
    }
    for asked in [0, 4, u32::MAX] {
        let expected = InvalidInput::Permits { asked, capacity: 3 };
        assert_eq!(
            invalid(semaphore.clone().permits(asked).acquire().await),
            expected
        );
        assert_eq!(
            invalid(semaphore.clone().permits(asked).try_acquire().await),
            expected
        );
        assert_eq!(
            invalid(
                semaphore
                    .clone()
                    .permits(asked)
                    .try_acquire_for(secs(1))
                    .await
            ),
            expected
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_about_a_handle_names_its_key() {
    let locks = untouchable();
    let mutex = locks.mutex("invoice:42").expect("valid");
    let semaphore = locks.semaphore("invoice:42", 3).expect("valid");
    let preferring = mutex.clone().policy(Policy::ReaderPreference);
    let errors = [
        mutex.clone().lease(Duration::ZERO).lock().await.err(),
        mutex.clone().waiter_lease(secs(1)).lock().await.err(),
        mutex.clone().max_hold(Duration::ZERO).lock().await.err(),
        preferring.lock().await.err(),
        semaphore.clone().permits(4).acquire().await.err(),
        locks.semaphore("invoice:42", 0).err(),
        locks.multi().permits("invoice:42", 3, 4).err(),
        locks.multi().permits("invoice:42", 0, 1).err(),
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
    invalid(builder().lease(Duration::ZERO).build());
    invalid(builder().waiter_lease(secs(61)).build());
    invalid(builder().call_timeout(Duration::ZERO).build());
    invalid(builder().call_timeout(secs(6)).build());
    let none = Limits {
        waiters: 0,
        ..Limits::default()
    };
    invalid(builder().limits(none).build());
    // A client with a policy for reader/writer locks can still create other locks.
    let locks = builder()
        .policy(Policy::WriterPreference)
        .build()
        .expect("valid");
    assert!(locks.mutex("m").is_ok());
    assert!(locks.rw_lock("r").is_ok());
}

#[tokio::test(start_paused = true)]
async fn public_types_are_sync_and_futures_are_send() {
    fn shared<T: Send + Sync + 'static>(_: &T) {}
    fn sent<T: Send>(_: T) {}
    let server = server();
    let (locks, _) = client(&server, "a");
    shared(&locks);
    let mutex = locks.mutex("m").expect("valid");
    let rw = locks
        .rw_lock("r")
        .expect("valid")
        .reentrant()
        .expect("supported");
    let semaphore = locks.semaphore("s", 1).expect("valid");
    shared(&mutex);
    shared(&rw);
    shared(&semaphore);
    sent(mutex.lock());
    sent(mutex.try_lock());
    sent(mutex.try_lock_for(secs(1)));
    sent(mutex.with(async |guard: &leasehold_api::MutexGuard| guard.is_valid()));
    sent(rw.read());
    sent(rw.try_write_for(secs(1)));
    sent(semaphore.acquire());
    let many = locks.multi().mutex("x").expect("valid");
    shared(&many);
    sent(many.lock());
    sent(many.try_lock());
    sent(many.with(async |guard: &leasehold_api::MultiGuard| guard.is_valid()));
    sent(locks.lock_all(["x", "y"]));
    let all = many.lock().await.expect("free");
    shared(&all);
    sent(all.lost());
    sent(all.expiring(secs(1)));
    sent(all.renew());
    sent(all.release());
    let single = locks.mutex("z").expect("valid").lock().await.expect("free");
    let handoff = single.into_handoff().await.expect("answered");
    shared(&handoff);
    sent(locks.adopt::<leasehold_api::guard_kind::Exclusive>(handoff));
    sent(locks.inspect("m"));
    sent(locks.shutdown());
    let guard = mutex.lock().await.expect("free");
    shared(&guard);
    sent(guard.lost());
    sent(guard.expiring(secs(1)));
    sent(guard.renew());
    sent(guard.release());
    let read = rw.read().await.expect("free");
    sent(read.try_upgrade());
    let write = locks
        .rw_lock("w")
        .expect("valid")
        .write()
        .await
        .expect("free");
    sent(write.downgrade());
    shared(&Error::Closed);
}
