//! Lost replies: each operation has one effect, however often it is sent.
//!
//! The proxy drops the replies to commands that the server has executed: every other one as a whole, the
//! others from the middle on. The error must not say "not executed", and the repeated command must find
//! the effect of the first one. All real servers run these tests: `crate::lossy` starts them.

use std::any::Any;
use std::sync::Arc;

use leasehold_api::{
    Acquire, AcquireReply, Acquired, BackendError, BoxFuture, Convert, ConvertReply, EndReason,
    ForceMode, ForceRelease, ForceReply, InspectReply, Key, LockSpec, Mode, Operation, Poll,
    PollReply, ReleaseReply, RenewReply, Stamped, Wait,
};
use leasehold_test_servers::{FaultProxy, Request, eventually};

use super::requests::{
    Backend, LEASE, acquire, acquired, key, mutex, only, operation, release, renew, session, soon,
};
use crate::lossy;

/// The number of lost replies for each command and constructor: `LEASEHOLD_LOST_REPLIES`, or 6.
fn rounds() -> u64 {
    std::env::var("LEASEHOLD_LOST_REPLIES").map_or(6, |count| {
        count.parse().expect("LEASEHOLD_LOST_REPLIES is a number")
    })
}

/// Servers, the tested backend behind a proxy that drops replies, and a backend without a proxy.
pub(crate) struct Setup {
    /// How the tested backend was built.
    pub(crate) name: &'static str,
    /// Builds the tested backend.
    pub(crate) open: Box<dyn Fn() -> BoxFuture<'static, Backend> + Send + Sync>,
    /// Whether it recovers from a broken connection. If not, it is built again.
    pub(crate) reconnects: bool,
    /// In front of the server that has the key.
    pub(crate) proxy: Arc<FaultProxy>,
    /// Whether a request may have an effect.
    pub(crate) has_effect: fn(&Request) -> bool,
    pub(crate) tested: Backend,
    pub(crate) direct: Backend,
    // Dropped last.
    pub(crate) _servers: Arc<dyn Any + Send + Sync>,
}

impl Setup {
    /// Sends a command whose reply is lost, then repeats it until it is answered.
    async fn lose_reply<T>(
        &mut self,
        send: impl AsyncFn(&Backend) -> Result<Stamped<T>, BackendError>,
    ) -> T {
        let before = self.proxy.eaten_replies();
        if before.is_multiple_of(2) {
            self.proxy.eat_reply(self.has_effect);
        } else {
            self.proxy.cut_reply(self.has_effect);
        }
        let is_lost = async || {
            match send(&self.tested).await {
                // `Ok`: it was sent again already.
                Ok(_) | Err(BackendError::OutcomeUnknown { .. }) => {}
                // The backend still has another broken connection.
                Err(error @ BackendError::Unavailable { .. }) => {
                    assert_eq!(self.proxy.eaten_replies(), before, "{}: {error}", self.name);
                }
                Err(other) => panic!("{}: {other}", self.name),
            }
            self.proxy.eaten_replies() > before
        };
        eventually("a reply is lost", is_lost).await;
        assert_eq!(self.proxy.eaten_replies(), before + 1, "{}", self.name);
        if !self.reconnects {
            self.tested = (self.open)().await;
        }
        let mut reply = None;
        let is_answered = async || {
            match send(&self.tested).await {
                Ok(answer) => reply = Some(answer.reply),
                Err(error) => assert!(error.is_transient(), "{}: {error}", self.name),
            }
            reply.is_some()
        };
        eventually("an answer", is_answered).await;
        reply.expect("waited for it")
    }

    async fn inspect(&self, key: &Key) -> InspectReply {
        self.direct.inspect(key).await.expect("an answer").reply
    }

    /// Acquires without a fault.
    async fn acquire(&self, request: &Acquire) -> Acquired {
        let answer = acquire(&self.direct, request).await;
        acquired(&answer.expect("an answer").reply)
    }

    async fn release(&self, key: &Key, operation: Operation) {
        let answer = release(&self.direct, key, operation).await;
        answer.expect("an answer");
    }

    /// Acquires, and loses the first reply.
    async fn acquire_again(&mut self, request: &Acquire) -> AcquireReply {
        self.lose_reply(async |backend| acquire(backend, request).await)
            .await
    }

    /// Releases, and loses the first reply. The next one says that the operation was released before.
    async fn release_again(&mut self, key: &Key, operation: Operation) {
        let reply = self
            .lose_reply(async |backend| release(backend, key, operation).await)
            .await;
        let was_released = matches!(
            reply,
            ReleaseReply::NotHeld(EndReason::Released | EndReason::Unknown)
        );
        assert!(was_released, "{reply:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_acquire_holds_once() {
    let key = key("acquired");
    for mut setup in lossy::setups(&key).await {
        for sequence in 1..=rounds() {
            let operation = operation(session(1), sequence);
            let request = mutex(&key, operation, soon(&setup.direct).await);
            let reply = setup.acquire_again(&request).await;
            let held = acquired(&reply);
            assert_eq!(held.holds, 1);
            let seen = setup.inspect(&key).await;
            assert_eq!((seen.holder_count, seen.holders[0].holds), (1, 1));
            assert_eq!(seen.holders[0].token, held.token);
            setup.release(&key, operation).await;
            assert_eq!(setup.inspect(&key).await.holder_count, 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_nested_hold_counts_once() {
    let key = key("nested");
    for mut setup in lossy::setups(&key).await {
        for round in 1..=rounds() {
            let outer = operation(session(1), round * 2);
            let mut inner = operation(session(1), round * 2 + 1);
            inner.owner = outer.owner;
            let before = soon(&setup.direct).await;
            setup.acquire(&mutex(&key, outer, before)).await;

            let request = mutex(&key, inner, before);
            let reply = setup.acquire_again(&request).await;
            assert_eq!(acquired(&reply).holds, 2);

            setup
                .lose_reply(async |backend| release(backend, &key, inner).await)
                .await;
            assert_eq!(setup.inspect(&key).await.holders[0].holds, 1);

            setup.release_again(&key, outer).await;
            assert_eq!(setup.inspect(&key).await.holder_count, 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_renewal_extends_by_one_lease() {
    let key = key("renewed");
    for mut setup in lossy::setups(&key).await {
        let operation = operation(session(1), 1);
        let held = mutex(&key, operation, soon(&setup.direct).await);
        let held = setup.acquire(&held).await;
        for _ in 0..rounds() {
            let reply = setup
                .lose_reply(async |backend| renew(backend, &key, operation, LEASE * 2).await)
                .await;
            let RenewReply::Renewed { token, remaining } = reply else {
                panic!("{reply:?}");
            };
            assert_eq!(token, held.token);
            assert!(remaining > LEASE && remaining <= LEASE * 2, "{remaining:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_acquire_queues_once() {
    let key = key("queued");
    for mut setup in lossy::setups(&key).await {
        let holder = mutex(&key, operation(session(1), 1), soon(&setup.direct).await);
        setup.acquire(&holder).await;
        for sequence in 1..=rounds() {
            let waiter = operation(session(2), sequence);
            let request = mutex(&key, waiter, soon(&setup.direct).await);
            let request = request.with_wait(Wait::new(false));
            let reply = setup.acquire_again(&request).await;
            assert!(matches!(reply, AcquireReply::Queued(waiter) if waiter.ahead == 0));
            assert_eq!(setup.inspect(&key).await.waiter_count, 1);

            let poll = [Poll::new(key.clone(), waiter, false)];
            let reply = setup
                .lose_reply(async |backend| only(backend.poll(&poll).await))
                .await;
            assert!(matches!(reply, PollReply::Queued(waiter) if waiter.ahead == 0));
            assert_eq!(setup.inspect(&key).await.waiter_count, 1);

            setup.release_again(&key, waiter).await;
            assert_eq!(setup.inspect(&key).await.waiter_count, 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_conversion_starts_one_epoch() {
    let key = key("converted");
    for mut setup in lossy::setups(&key).await {
        let operation = operation(session(1), 1);
        let before = soon(&setup.direct).await;
        let spec = LockSpec::rw_lock();
        let request = Acquire::new(key.clone(), spec, Mode::Exclusive, operation, LEASE, before);
        let mut token = setup.acquire(&request.expect("a good request")).await.token;
        for round in 0..rounds() {
            let convert = match round % 2 {
                0 => Convert::to_shared(key.clone(), operation, token),
                _ => Convert::to_exclusive(key.clone(), operation, token),
            };
            let reply = setup
                .lose_reply(async |backend| backend.convert(&convert).await)
                .await;
            let ConvertReply::WrongEpoch(now) = reply else {
                panic!("{reply:?}");
            };
            assert_eq!(now.mode, convert.to);
            assert!(now.token > token);
            // A further repetition changes nothing.
            let again = setup.direct.convert(&convert).await.expect("an answer");
            assert!(
                matches!(again.reply, ConvertReply::WrongEpoch(view) if view.token == now.token)
            );
            token = now.token;
            let renewed = renew(&setup.direct, &key, operation, LEASE).await;
            renewed.expect("an answer");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_forced_release_spares_the_next_holder() {
    let key = key("forced");
    for mut setup in lossy::setups(&key).await {
        for sequence in 1..=rounds() {
            let before = soon(&setup.direct).await;
            let held = setup
                .acquire(&mutex(&key, operation(session(1), sequence), before))
                .await;
            let force = ForceRelease::new(key.clone(), vec![held.token]).with_how(ForceMode::Now);
            let reply = setup
                .lose_reply(async |backend| backend.force_release(&force).await)
                .await;
            assert_eq!(reply, ForceReply::WrongEpoch);
            let next = operation(session(2), sequence);
            setup.acquire(&mutex(&key, next, before)).await;
            setup.direct.force_release(&force).await.expect("an answer");
            assert_eq!(setup.inspect(&key).await.holder_count, 1);
            setup.release(&key, next).await;
        }
    }
}
