//! What went wrong, as an HTTP status.

use axum::extract::Request;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use leasehold::{Contention, Error, Refused};

use crate::accounts::DatabaseError;

#[derive(Debug)]
pub enum Failure {
    /// The server of the locks hasn't answered since this instance started.
    Starting,
    /// Another request has the account.
    Busy(Contention),
    /// A later holder has claimed the account: this request was paused for longer than its lease.
    Stale,
    NoAccount,
    /// The request's id came before, with another amount.
    OtherAmount,
    Lock(Error),
    Database(DatabaseError),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl From<DatabaseError> for Failure {
    fn from(error: DatabaseError) -> Self {
        Self::Database(error)
    }
}

impl Failure {
    /// 423: somebody else has it. 503: send it again, with the same id. The others are mistakes.
    fn status(&self) -> StatusCode {
        match self {
            Self::Busy(_) => StatusCode::LOCKED,
            Self::Starting | Self::Stale | Self::Database(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoAccount => StatusCode::NOT_FOUND,
            Self::OtherAmount => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Lock(error) if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Lock(Error::Lost { .. } | Error::Closed) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Lock(Error::Refused {
                reason: Refused::QueueFull | Refused::HoldersFull,
                ..
            }) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Lock(Error::InvalidInput { .. }) => StatusCode::BAD_REQUEST,
            Self::Lock(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = self.status();
        // Errors name keys and servers: for the log, not for the caller.
        match &self {
            Self::Busy(contention) => tracing::debug!(%contention, "busy"),
            Self::Starting => tracing::debug!("not connected yet"),
            Self::Stale => tracing::warn!("paused for longer than the lease"),
            Self::NoAccount => tracing::debug!("no such account"),
            Self::OtherAmount => tracing::warn!("one id for two deposits"),
            Self::Lock(error) => tracing::warn!(error = error as &dyn std::error::Error, "no lock"),
            Self::Database(error) => tracing::warn!(%error, "no database"),
        }
        status.into_response()
    }
}

/// Adds `Retry-After` to each answer that asks for a second attempt, that of the timeout included.
pub(crate) async fn say_when_to_retry(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let again = [
        StatusCode::LOCKED,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT,
    ];
    if again.contains(&response.status()) {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
