//! A web service in which each account has one writer at a time, on any number of instances.
//!
//! The lock keeps requests apart, so that they wait in place of failing. The fencing token in the row refuses a
//! request that wakes up after its lease. The request's id makes it safe to send again. docs/web-services.md explains
//! each line.

pub mod accounts;
mod failure;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{Json, Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Router, middleware};
use leasehold::{LockClient, Outcome};
use serde::{Deserialize, Serialize};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::accounts::{Accounts, Claim};
use crate::failure::Failure;

/// A request that takes longer is dropped, and its lock with it. It leaves time for a turn and a statement that hangs.
const REQUEST_LIMIT: Duration = Duration::from_secs(8);
/// How long a request waits for its turn. Browsers and proxies give up later than this.
const TURN_LIMIT: Duration = Duration::from_secs(2);
/// How long a request waits for a lock service that doesn't answer.
const OUTAGE_LIMIT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct App<A> {
    /// Empty until the server of the locks has answered once.
    pub locks: Arc<OnceLock<LockClient>>,
    pub accounts: A,
}

impl<A> App<A> {
    fn locks(&self) -> Result<&LockClient, Failure> {
        self.locks.get().ok_or(Failure::Starting)
    }
}

#[derive(Debug, Deserialize, Serialize)]
pub struct Deposit {
    /// Chosen by the caller, who sends it again until it has an answer. Unique for the account.
    pub request: i64,
    pub amount: i64,
}

#[derive(Debug, Deserialize, Serialize)]
pub struct Balance {
    pub balance: i64,
}

pub fn router<A: Accounts>(app: App<A>) -> Router {
    let api = Router::new()
        .route("/accounts/{id}/deposits", post(deposit))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::GATEWAY_TIMEOUT,
            REQUEST_LIMIT,
        ))
        .layer(middleware::from_fn(failure::say_when_to_retry))
        .layer(TraceLayer::new_for_http());
    // Probes are outside of the limit and of the traces.
    api.route("/livez", get(|| async { "alive" }))
        .route("/readyz", get(ready))
        .with_state(app)
}

async fn deposit<A: Accounts>(
    State(app): State<App<A>>,
    Path(id): Path<i64>,
    Json(deposit): Json<Deposit>,
) -> Result<Json<Balance>, Failure> {
    let lock = app
        .locks()?
        .mutex(format!("account:{id}"))?
        .class("account");
    let lock = lock
        .lease(Duration::from_secs(10))
        .outage_limit(OUTAGE_LIMIT);
    let guard = match lock.try_lock_for(TURN_LIMIT).await? {
        Outcome::Acquired(guard) => guard,
        Outcome::Contended(contention) => return Err(Failure::Busy(contention)),
    };
    let token = guard.fencing_token().get().cast_signed();
    let booking = async {
        // The claim comes first, so that what is read after it is the latest.
        let account = match app.accounts.claim(id, token, deposit.request).await? {
            Claim::Claimed(account) => account,
            Claim::Stale => return Err(Failure::Stale),
            Claim::NoAccount => return Err(Failure::NoAccount),
        };
        match account.booked {
            Some(amount) if amount != deposit.amount => return Err(Failure::OtherAmount),
            Some(_) => return Ok(account.balance), // an earlier copy of this request was booked
            None => {}
        }
        let balance = account.balance + deposit.amount; // your work, however long it takes
        match app.accounts.book(id, token, &deposit, balance).await? {
            true => Ok(balance),
            false => Err(Failure::Stale),
        }
    };
    // Dropped if the lock is lost, or if this request runs out of time. Both release the lock.
    let balance = guard.protect(booking).await??;
    Ok(Json(Balance { balance }))
}

/// Whether this instance should get requests: both servers answer.
async fn ready<A: Accounts>(State(app): State<App<A>>) -> Result<String, Failure> {
    let ping = app.locks()?.ping().await?;
    app.accounts.ping().await?;
    Ok(ping.to_string())
}
