//! The service on the simulator, through its router and in virtual time.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use leasehold::LockClient;
use leasehold::sim::{Data, SimBackend, SimServer};
use leasehold_web_example::accounts::{Accounts, Claim, DatabaseError, Memory};
use leasehold_web_example::{App, Balance, Deposit, router};
use tower::ServiceExt;

/// An instance of the service, and its network.
fn instance<A: Accounts>(
    server: &SimServer,
    name: &str,
    accounts: &A,
) -> (Router, LockClient, SimBackend) {
    let network = server.client(name);
    let locks = LockClient::new(network.clone());
    let app = App {
        locks: Arc::new(locks.clone().into()),
        accounts: accounts.clone(),
    };
    (router(app), locks, network)
}

struct Answer {
    status: StatusCode,
    asks_to_retry: bool,
    body: Vec<u8>,
}

async fn send(service: &Router, request: Request<Body>) -> Answer {
    let response = service.clone().oneshot(request).await.expect("infallible");
    let (status, asks_to_retry) = (
        response.status(),
        response.headers().contains_key(header::RETRY_AFTER),
    );
    let body = to_bytes(response.into_body(), 1_000)
        .await
        .expect("short")
        .to_vec();
    Answer {
        status,
        asks_to_retry,
        body,
    }
}

async fn deposit(service: &Router, account: i64, request: i64, amount: i64) -> Answer {
    let body = serde_json::to_vec(&Deposit { request, amount }).expect("serializable");
    let request = Request::post(format!("/accounts/{account}/deposits"));
    let request = request.header(header::CONTENT_TYPE, "application/json");
    send(service, request.body(body.into()).expect("valid")).await
}

async fn readiness(service: &Router) -> StatusCode {
    let request = Request::get("/readyz").body(Body::empty());
    send(service, request.expect("valid")).await.status
}

fn assert_refused(answer: &Answer, status: StatusCode) {
    assert_eq!(answer.status, status);
    assert!(answer.asks_to_retry);
}

#[tokio::test(start_paused = true)]
async fn two_instances_lose_no_deposit() {
    let (server, accounts) = (SimServer::new(1), Memory::new(7..9));
    let (a, locks_a, _) = instance(&server, "a", &accounts);
    let (b, locks_b, _) = instance(&server, "b", &accounts);
    let requests = (0..50).map(|n| {
        let service = if n % 2 == 0 { a.clone() } else { b.clone() };
        tokio::spawn(async move { deposit(&service, 7, n, 10).await })
    });
    for answer in requests.collect::<Vec<_>>() {
        assert_eq!(answer.await.expect("no panic").status, StatusCode::OK);
    }
    assert_eq!(accounts.balance(7), 500);
    for locks in [locks_a, locks_b] {
        locks.shutdown().await.expect("released");
    }
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn request_that_is_sent_again_counts_once() {
    let (server, accounts) = (SimServer::new(1), Memory::new(7..9));
    let (a, ..) = instance(&server, "a", &accounts);
    for _ in 0..2 {
        let answer = deposit(&a, 7, 1, 10).await;
        assert_eq!(answer.status, StatusCode::OK);
        let balance: Balance = serde_json::from_slice(&answer.body).expect("a balance");
        assert_eq!(balance.balance, 10);
    }
}

#[tokio::test(start_paused = true)]
async fn mistakes_of_callers_are_not_to_be_sent_again() {
    let (server, accounts) = (SimServer::new(1), Memory::new(7..9));
    let (a, ..) = instance(&server, "a", &accounts);
    assert_eq!(deposit(&a, 7, 1, 10).await.status, StatusCode::OK);
    assert_eq!(deposit(&a, 8, 1, 20).await.status, StatusCode::OK); // an id is of its account
    for (account, status) in [
        (7, StatusCode::UNPROCESSABLE_ENTITY),
        (9, StatusCode::NOT_FOUND),
    ] {
        let answer = deposit(&a, account, 1, 30).await;
        assert_eq!(answer.status, status);
        assert!(!answer.asks_to_retry);
    }
    assert_eq!((accounts.balance(7), accounts.balance(8)), (10, 20));
}

#[tokio::test(start_paused = true)]
async fn busy_account_is_423_and_others_are_free() {
    let (server, accounts) = (SimServer::new(1), Memory::new(7..9));
    let (a, ..) = instance(&server, "a", &accounts);
    let (_, other, _) = instance(&server, "b", &accounts);
    let _held = other
        .mutex("account:7")
        .expect("valid")
        .lock()
        .await
        .expect("free");
    assert_refused(&deposit(&a, 7, 1, 10).await, StatusCode::LOCKED);
    assert_eq!(deposit(&a, 8, 1, 10).await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn outage_is_503_at_once_for_all_but_the_first_requests() {
    let (server, accounts) = (SimServer::new(1), Memory::new(7..9));
    let (a, ..) = instance(&server, "a", &accounts);
    assert_eq!(readiness(&a).await, StatusCode::OK);
    server.stop();
    let begun = server.elapsed();
    assert_refused(
        &deposit(&a, 7, 1, 10).await,
        StatusCode::SERVICE_UNAVAILABLE,
    );
    assert!(server.elapsed() - begun < Duration::from_millis(1_100));
    let begun = server.elapsed();
    for request in 2..256 {
        assert_refused(
            &deposit(&a, request, request, 10).await,
            StatusCode::SERVICE_UNAVAILABLE,
        );
    }
    assert_eq!(server.elapsed(), begun);
    assert_eq!(readiness(&a).await, StatusCode::SERVICE_UNAVAILABLE);
    server.start(Data::Kept);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(deposit(&a, 7, 1, 10).await.status, StatusCode::OK);
    assert_eq!(readiness(&a).await, StatusCode::OK);
}

/// A database that hangs.
#[derive(Clone, Debug)]
struct Hung;

impl Accounts for Hung {
    async fn claim(&self, _: i64, _: i64, _: i64) -> Result<Claim, DatabaseError> {
        std::future::pending().await
    }

    async fn book(&self, _: i64, _: i64, _: &Deposit, _: i64) -> Result<bool, DatabaseError> {
        std::future::pending().await
    }

    async fn ping(&self) -> Result<(), DatabaseError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn request_that_takes_too_long_is_504_and_leaves_no_lock() {
    let server = SimServer::new(1);
    let (a, ..) = instance(&server, "a", &Hung);
    assert_refused(&deposit(&a, 7, 1, 10).await, StatusCode::GATEWAY_TIMEOUT);
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.assert_idle();
}

/// The first instance is paused between its claim and its write, for longer than its lease.
#[tokio::test(start_paused = true)]
async fn paused_instance_writes_nothing() {
    let (server, accounts) = (SimServer::new(1), Memory::new(7..9));
    let (_, _, network) = instance(&server, "a", &accounts);
    let paused = LockClient::new(network.clone());
    let lock = paused
        .mutex("account:7")
        .expect("valid")
        .lease(Duration::from_secs(10));
    let guard = lock.lock().await.expect("free");
    let token = guard.fencing_token().get().cast_signed();
    let claim = accounts.claim(7, token, 1).await.expect("answered");
    assert!(matches!(claim, Claim::Claimed(account) if account.balance == 0));
    network.pause();
    tokio::time::sleep(Duration::from_secs(11)).await;
    let (b, ..) = instance(&server, "b", &accounts);
    assert_eq!(deposit(&b, 7, 2, 50).await.status, StatusCode::OK);
    let late = Deposit {
        request: 1,
        amount: 10,
    };
    let booked = accounts.book(7, token, &late, 10).await.expect("answered");
    assert!(!booked);
    assert_eq!(accounts.balance(7), 50);
}
