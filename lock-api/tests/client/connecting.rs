//! The pace of attempts to connect, and the choice among several addresses.

use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, select};
use leasehold_api::{BackendError, ConnectPace, LockBackend, Moment, Runtime, first_of};
use tokio::time::sleep;

use crate::support::{ms, secs, server};

const LIMIT: Duration = Duration::from_secs(1);

/// A server that clients connect to, and one client.
#[derive(Debug)]
struct Service {
    runtime: Arc<dyn Runtime>,
    pace: ConnectPace,
    answers: AtomicBool,
    /// How long a failed attempt takes.
    silence: Duration,
    attempts: AtomicUsize,
}

impl Service {
    fn new(silence: Duration) -> Arc<Self> {
        Arc::new(Self {
            runtime: server().client("a").runtime(),
            pace: ConnectPace::default(),
            answers: AtomicBool::new(false),
            silence,
            attempts: AtomicUsize::new(0),
        })
    }

    async fn open(&self) -> Result<(), BackendError> {
        let number = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        if self.answers.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.runtime.sleep(self.silence).await;
        Err(BackendError::unavailable(format!("attempt {number}")))
    }

    async fn connect(&self) -> Result<(), BackendError> {
        self.pace.connect(&*self.runtime, LIMIT, self.open()).await
    }

    fn now(&self) -> Moment {
        self.runtime.now()
    }

    fn attempts(&self) -> usize {
        self.attempts.load(Ordering::Relaxed)
    }

    /// A call that waits: it tries until it succeeds. Returns when.
    async fn keep_trying(self: Arc<Self>, number: u64) -> Moment {
        while self.connect().await.is_err() {
            let spread = self.runtime.random_u64() % 100;
            self.runtime.sleep(ms(100 + (spread + number) % 100)).await;
        }
        self.now()
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_do_not_grow_with_callers() {
    for (callers, silence) in [
        (1, ms(0)),
        (50, ms(0)),
        (500, ms(0)),
        (50, ms(300)),
        (50, LIMIT),
    ] {
        let service = Service::new(silence);
        service.connect().await.expect_err("no answer");
        let trying = (0..callers).map(|it| tokio::spawn(Arc::clone(&service).keep_trying(it)));
        let trying: Vec<_> = trying.collect();
        sleep(secs(10)).await;
        let attempts = service.attempts();
        // Pauses of 375 to 750 ms, and shorter ones in the first second.
        assert!(
            (8..=32).contains(&attempts),
            "{callers}, {silence:?}: {attempts}"
        );
        let back = service.now();
        service.answers.store(true, Ordering::Relaxed);
        for connected in join_all(trying).await {
            let took = connected.expect("no panic").saturating_since(back);
            assert!(took < silence + secs(1), "{callers}, {silence:?}: {took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn others_hear_the_last_error_at_once() {
    let service = Service::new(LIMIT);
    let first = service.connect().await.expect_err("no answer").to_string();
    let begun = service.now();
    assert!(service.pace.pausing(begun).is_some());
    let heard = service.connect().await.expect_err("a pause");
    assert_eq!(heard.to_string(), first);
    let left = service.pace.pause_left(begun);
    assert!((ms(10)..=ms(20)).contains(&left), "{left:?}");
    assert_eq!(service.now(), begun, "at once");

    // And while another attempt is running.
    sleep(left).await;
    let running = tokio::spawn({
        let service = Arc::clone(&service);
        async move { service.connect().await }
    });
    sleep(ms(100)).await;
    let begun = service.now();
    assert!(service.pace.pausing(begun).is_none());
    let heard = service.connect().await.expect_err("another one is running");
    assert_eq!(heard.to_string(), first);
    assert_eq!(service.now(), begun, "at once");
    running.await.expect("no panic").expect_err("no answer");
    assert_eq!(service.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn attempts_run_side_by_side_until_one_fails_and_after_a_success() {
    let service = Service::new(ms(10));
    let three = || join_all((0..3).map(|_| service.connect()));
    assert!(three().await.iter().all(Result::is_err));
    assert_eq!(service.attempts(), 3);
    service.answers.store(true, Ordering::Relaxed);
    sleep(secs(1)).await;
    service.connect().await.expect("it answers");
    assert!(three().await.iter().all(Result::is_ok));
    assert_eq!(service.attempts(), 7);
}

/// A server that lets clients connect and refuses what they ask.
#[tokio::test(start_paused = true)]
async fn connection_that_ends_soon_is_a_failed_attempt() {
    let service = Service::new(Duration::ZERO);
    service.answers.store(true, Ordering::Relaxed);
    let until = service.now().saturating_add(secs(20));
    while service.now() < until {
        if service.connect().await.is_ok() {
            let (made, error) = (service.now(), BackendError::outcome_unknown("it has ended"));
            service.pace.ended(&*service.runtime, made, &error);
            let heard = service.connect().await.expect_err("a pause");
            assert!(
                matches!(heard, BackendError::Unavailable { .. }),
                "nothing was sent: {heard}"
            );
        }
        sleep(ms(1)).await;
    }
    assert!(
        (15..=60).contains(&service.attempts()),
        "{}",
        service.attempts()
    );
    // One that has lasted is another matter.
    sleep(secs(1)).await;
    service.connect().await.expect("it answers");
    let (made, error) = (service.now(), BackendError::unavailable("it has ended"));
    sleep(secs(1)).await;
    service.pace.ended(&*service.runtime, made, &error);
    service.connect().await.expect("no pause");
}

#[tokio::test(start_paused = true)]
async fn attempt_that_is_dropped_has_failed() {
    let service = Service::new(secs(10));
    select(Box::pin(service.connect()), Box::pin(sleep(ms(500)))).await;
    let heard = service.connect().await.expect_err("a pause");
    assert!(heard.to_string().contains("given up"), "{heard}");
}

/// Its thread may be blocked.
#[tokio::test(start_paused = true)]
async fn attempt_without_an_end_holds_up_others_for_its_limit() {
    let service = Service::new(Duration::ZERO);
    service.connect().await.expect_err("no answer");
    sleep(secs(1)).await;
    let stuck = service
        .pace
        .connect(&*service.runtime, LIMIT, pending::<Result<(), _>>());
    let stuck = select(Box::pin(stuck), Box::pin(sleep(ms(900)))).await;
    service.connect().await.expect_err("another one is running");
    assert_eq!(service.attempts(), 1);
    sleep(ms(100)).await;
    service.connect().await.expect_err("no answer");
    assert_eq!(service.attempts(), 2);
    drop(stuck);
}

/// An address, and what becomes of an attempt there after this time.
async fn reach(after: Duration, answer: Result<u8, BackendError>) -> Result<u8, BackendError> {
    sleep(after).await;
    answer
}

#[tokio::test(start_paused = true)]
async fn silent_address_hides_no_other() {
    let runtime = server().client("a").runtime();
    let refused = || Err(BackendError::unavailable("refused"));
    let silent = || reach(secs(3600), refused());
    let begun = runtime.now();
    let took = || runtime.now().saturating_since(begun);
    let reached = first_of(&*runtime, LIMIT, [silent(), reach(ms(5), Ok(2))]).await;
    assert_eq!(reached.ok(), Some(2));
    assert_eq!(took(), ms(255));

    // The next one is tried at once after a refusal.
    let attempts = [reach(ms(10), refused()), reach(ms(5), Ok(2))];
    let reached = first_of(&*runtime, LIMIT, attempts).await;
    assert_eq!(reached.ok(), Some(2));
    assert_eq!(took(), ms(270));

    // Each of many has a part of the limit.
    let mut many: Vec<_> = (0..9).map(|_| silent()).collect();
    many.push(reach(ms(5), Ok(10)));
    let reached = first_of(&*runtime, LIMIT, many).await;
    assert_eq!(reached.ok(), Some(10));
    assert!(took() - ms(270) < LIMIT, "{:?}", took());
}

/// The first address is used if it answers soon.
#[tokio::test(start_paused = true)]
async fn first_address_that_answers_is_the_only_one_tried() {
    let runtime = server().client("a").runtime();
    let tried = AtomicUsize::new(0);
    let attempts = [1, 2].map(|number| {
        let tried = &tried;
        async move {
            tried.fetch_add(1, Ordering::Relaxed);
            reach(ms(200), Ok(number)).await
        }
    });
    let reached = first_of(&*runtime, LIMIT, attempts).await;
    assert_eq!((reached.ok(), tried.load(Ordering::Relaxed)), (Some(1), 1));
}

#[tokio::test(start_paused = true)]
async fn error_of_all_addresses_is_permanent_if_all_are() {
    let runtime = server().client("a").runtime();
    let permanent = |text| ready(Err::<(), _>(BackendError::rejected(text)));
    let transient = |text| ready(Err::<(), _>(BackendError::unavailable(text)));
    let attempts = [permanent("a"), permanent("b")];
    let error = first_of(&*runtime, LIMIT, attempts)
        .await
        .expect_err("both fail");
    assert!(!error.is_transient(), "{error}");
    let attempts = [permanent("a"), transient("b")];
    let error = first_of(&*runtime, LIMIT, attempts)
        .await
        .expect_err("both fail");
    assert_eq!(error.to_string(), "unavailable: a; b");
    let caused = BackendError::unavailable("a").with_source(std::io::Error::other("cut"));
    let attempts = [ready(Err::<(), _>(caused)), permanent("b")];
    let error = first_of(&*runtime, LIMIT, attempts)
        .await
        .expect_err("both fail");
    assert_eq!(error.to_string(), "unavailable: a: cut; b");
    let none: [std::future::Ready<Result<(), BackendError>>; 0] = [];
    let error = first_of(&*runtime, LIMIT, none)
        .await
        .expect_err("no address");
    assert_eq!(error.to_string(), "unavailable: there is no address");
}
