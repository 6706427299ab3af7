//! One effect per operation, whatever is lost and however often it is sent; and what the server
//! refuses, said as it is.
//!
//! The proxy eats the replies to commands that the server has executed. The caller must not be
//! told that nothing happened, and the same command again must find the first one's effect.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{
    Acquire, AcquireReply, Acquired, BackendError, Convert, ConvertReply, EndReason, ForceHow,
    ForceRelease, ForceReply, InspectReply, Key, LockSpec, Mode, Operation, Poll, PollReply,
    Release, ReleaseReply, Renew, RenewReply, Stamped, Wait,
};
use leasehold_redis_common::Options;
use leasehold_test_servers::{FaultProxy, RedisServer, Request};

use super::support::{Backend, Constructor, LEASE, key, mutex, operation, session, soon};
use crate::constructors::CONSTRUCTORS;

/// Replies eaten for each command and each constructor; `LEASEHOLD_EATEN_REPLIES` asks for more.
fn rounds() -> u64 {
    std::env::var("LEASEHOLD_EATEN_REPLIES").map_or(100, |count| {
        count.parse().expect("LEASEHOLD_EATEN_REPLIES is a number")
    })
}

/// A server, one client behind a proxy that eats replies, and one beside it that looks.
struct Setup {
    constructor: Constructor,
    proxy: Arc<FaultProxy>,
    tested: Backend,
    direct: Backend,
    // The last to go.
    _server: Arc<RedisServer>,
}

impl Setup {
    /// One for each constructor, all on one server, each with its own key prefix.
    async fn all() -> Vec<Self> {
        let server = Arc::new(RedisServer::start());
        load_scripts(&CONSTRUCTORS[0].open(&server.url()).await).await;
        let mut setups = Vec::new();
        for constructor in CONSTRUCTORS {
            let proxy = Arc::new(FaultProxy::start(server.address()).await);
            let prefix = format!("{}:", constructor.name);
            let options = Options::new().with_key_prefix(prefix);
            setups.push(Self {
                constructor,
                tested: constructor.open_with(&proxy.url(), options.clone()).await,
                direct: CONSTRUCTORS[0].open_with(&server.url(), options).await,
                proxy,
                _server: Arc::clone(&server),
            });
        }
        setups
    }

    /// Sends a command whose reply is eaten, then the same again until it is answered.
    async fn eaten<T>(
        &mut self,
        send: impl AsyncFn(&Backend) -> Result<Stamped<T>, BackendError>,
    ) -> T {
        let before = self.proxy.eaten_replies();
        self.proxy.eat_replies(1, Request::is_script);
        for _ in 0..100 {
            match send(&self.tested).await {
                // The library has sent it again by itself.
                Ok(_) | Err(BackendError::OutcomeUnknown { .. }) => {}
                // It still has another broken connection.
                Err(BackendError::Unavailable { .. }) => {
                    assert_eq!(
                        self.proxy.eaten_replies(),
                        before,
                        "{}",
                        self.constructor.name
                    );
                }
                Err(other) => panic!("{}: {other}", self.constructor.name),
            }
            if self.proxy.eaten_replies() > before {
                break;
            }
        }
        assert_eq!(
            self.proxy.eaten_replies(),
            before + 1,
            "{}",
            self.constructor.name
        );
        if !self.constructor.reconnects {
            self.tested = self.another().await;
        }
        for _ in 0..1_000 {
            match send(&self.tested).await {
                Ok(answer) => return answer.reply,
                Err(error) if error.is_transient() => {}
                Err(error) => panic!("{}: {error}", self.constructor.name),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("{}: never answered again", self.constructor.name);
    }

    async fn another(&self) -> Backend {
        let prefix = format!("{}:", self.constructor.name);
        let options = Options::new().with_key_prefix(prefix);
        self.constructor.open_with(&self.proxy.url(), options).await
    }

    async fn look(&self, key: &Key) -> InspectReply {
        self.direct.inspect(key).await.expect("an answer").reply
    }

    /// Takes the key without any fault.
    async fn take(&self, request: &Acquire) -> Acquired {
        let answer = self.direct.acquire(request).await.expect("an answer");
        acquired(&answer.reply)
    }

    async fn release(&self, key: &Key, operation: Operation) {
        first(
            self.direct
                .release(&[Release::new(key.clone(), operation)])
                .await,
        )
        .expect("an answer");
    }
}

/// Runs every script once: a reply that says that the server does not know one, eaten, would be
/// no fault at all.
async fn load_scripts(backend: &Backend) {
    let (key, operation) = (key("warm"), operation(session(9), 1));
    let acquire = mutex(&key, operation, soon(backend).await);
    let held = acquired(&backend.acquire(&acquire).await.expect("an answer").reply);
    let poll = Poll::new(key.clone(), operation, false);
    first(backend.poll(&[poll]).await).expect("an answer");
    let renew = Renew::new(key.clone(), operation, LEASE).expect("a good lease");
    first(backend.renew(&[renew]).await).expect("an answer");
    let convert = Convert::to_shared(key.clone(), operation, held.token);
    backend.convert(&convert).await.expect("an answer");
    let force = ForceRelease::new(key.clone(), vec![held.token]);
    backend.force_release(&force).await.expect("an answer");
    let end = Release::new(key.clone(), operation);
    first(backend.release(&[end]).await).expect("an answer");
}

/// That an operation is over, as far as the state still tells.
fn is_over(reply: &ReleaseReply) -> bool {
    matches!(
        reply,
        ReleaseReply::NotHeld(EndReason::Released | EndReason::Unknown)
    )
}

fn first<T>(
    mut answers: Vec<Result<Stamped<T>, BackendError>>,
) -> Result<Stamped<T>, BackendError> {
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

fn acquired(reply: &AcquireReply) -> Acquired {
    match reply {
        AcquireReply::Acquired(acquired) => *acquired,
        other => panic!("not acquired: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_reply_is_lost_holds_once() {
    let key = key("acquired");
    for mut setup in Setup::all().await {
        for sequence in 1..=rounds() {
            let operation = operation(session(1), sequence);
            let request = mutex(&key, operation, soon(&setup.direct).await);
            let reply = setup
                .eaten(async |backend| backend.acquire(&request).await)
                .await;
            let held = acquired(&reply);
            assert_eq!(held.holds, 1);
            let seen = setup.look(&key).await;
            assert_eq!((seen.holder_count, seen.holders[0].holds), (1, 1));
            assert_eq!(seen.holders[0].token, held.token);
            setup.release(&key, operation).await;
            assert_eq!(setup.look(&key).await.holder_count, 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nested_hold_whose_replies_are_lost_counts_once_and_ends_once() {
    let key = key("nested");
    for mut setup in Setup::all().await {
        for round in 1..=rounds() {
            let outer = operation(session(1), round * 2);
            let mut inner = operation(session(1), round * 2 + 1);
            inner.owner = outer.owner;
            let before = soon(&setup.direct).await;
            setup.take(&mutex(&key, outer, before)).await;

            let request = mutex(&key, inner, before);
            let reply = setup
                .eaten(async |backend| backend.acquire(&request).await)
                .await;
            assert_eq!(acquired(&reply).holds, 2);

            let end = [Release::new(key.clone(), inner)];
            setup
                .eaten(async |backend| first(backend.release(&end).await))
                .await;
            assert_eq!(setup.look(&key).await.holders[0].holds, 1);

            let end = [Release::new(key.clone(), outer)];
            let reply = setup
                .eaten(async |backend| first(backend.release(&end).await))
                .await;
            assert!(is_over(&reply), "{reply:?}");
            assert_eq!(setup.look(&key).await.holder_count, 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_whose_reply_is_lost_extends_to_its_lease_and_no_further() {
    let key = key("renewed");
    for mut setup in Setup::all().await {
        let operation = operation(session(1), 1);
        let held = mutex(&key, operation, soon(&setup.direct).await);
        let held = setup.take(&held).await;
        for _ in 0..rounds() {
            let renew = [Renew::new(key.clone(), operation, LEASE * 2).expect("a good lease")];
            let reply = setup
                .eaten(async |backend| first(backend.renew(&renew).await))
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
async fn a_waiter_whose_replies_are_lost_has_one_waiter_and_leaves_it_once() {
    let key = key("queued");
    for mut setup in Setup::all().await {
        let holder = mutex(&key, operation(session(1), 1), soon(&setup.direct).await);
        setup.take(&holder).await;
        for sequence in 1..=rounds() {
            let waiter = operation(session(2), sequence);
            let request = mutex(&key, waiter, soon(&setup.direct).await);
            let request = request.with_wait(Wait::new(false));
            let reply = setup
                .eaten(async |backend| backend.acquire(&request).await)
                .await;
            assert!(matches!(reply, AcquireReply::Queued(waiter) if waiter.ahead == 0));
            assert_eq!(setup.look(&key).await.waiter_count, 1);

            let poll = [Poll::new(key.clone(), waiter, false)];
            let reply = setup
                .eaten(async |backend| first(backend.poll(&poll).await))
                .await;
            assert!(matches!(reply, PollReply::Queued(waiter) if waiter.ahead == 0));
            assert_eq!(setup.look(&key).await.waiter_count, 1);

            let end = [Release::new(key.clone(), waiter)];
            let reply = setup
                .eaten(async |backend| first(backend.release(&end).await))
                .await;
            assert!(is_over(&reply), "{reply:?}");
            assert_eq!(setup.look(&key).await.waiter_count, 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversion_whose_reply_is_lost_starts_one_epoch() {
    let key = key("converted");
    for mut setup in Setup::all().await {
        let operation = operation(session(1), 1);
        let before = soon(&setup.direct).await;
        let spec = LockSpec::rw_lock();
        let request = Acquire::new(key.clone(), spec, Mode::Exclusive, operation, LEASE, before);
        let mut token = setup.take(&request.expect("a good request")).await.token;
        for round in 0..rounds() {
            let convert = match round % 2 {
                0 => Convert::to_shared(key.clone(), operation, token),
                _ => Convert::to_exclusive(key.clone(), operation, token),
            };
            let reply = setup
                .eaten(async |backend| backend.convert(&convert).await)
                .await;
            let ConvertReply::WrongEpoch(now) = reply else {
                panic!("{reply:?}");
            };
            assert_eq!(now.mode, convert.to);
            assert!(now.token > token);
            // Once more changes nothing.
            let again = setup.direct.convert(&convert).await.expect("an answer");
            assert!(
                matches!(again.reply, ConvertReply::WrongEpoch(view) if view.token == now.token)
            );
            token = now.token;
            let renew = [Renew::new(key.clone(), operation, LEASE).expect("a good lease")];
            first(setup.direct.renew(&renew).await).expect("an answer");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_whose_reply_is_lost_never_touches_the_next_holder() {
    let key = key("forced");
    for mut setup in Setup::all().await {
        for sequence in 1..=rounds() {
            let before = soon(&setup.direct).await;
            let held = setup
                .take(&mutex(&key, operation(session(1), sequence), before))
                .await;
            let force = ForceRelease::new(key.clone(), vec![held.token]).with_how(ForceHow::Now);
            let reply = setup
                .eaten(async |backend| backend.force_release(&force).await)
                .await;
            assert_eq!(reply, ForceReply::WrongEpoch);
            let next = operation(session(2), sequence);
            setup.take(&mutex(&key, next, before)).await;
            setup.direct.force_release(&force).await.expect("an answer");
            assert_eq!(setup.look(&key).await.holder_count, 1);
            setup.release(&key, next).await;
        }
    }
}
