//! Errors of the client library, by what they say about the command.

use leasehold_api::BackendError;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::connector;

/// What was being done when an error came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum During<'a> {
    /// A connection to this address is made: nothing is executed.
    Connect(&'a str),
    /// A statement was sent.
    Statement,
    /// The transaction of a statement was not begun, and the statement was executed all the same.
    Begin,
}

/// Classifies an error. An error of a row contains stored bytes in its detail, and so only the message
/// and the code of a server's error are shown.
pub(crate) fn classify(error: tokio_postgres::Error, during: During<'_>) -> BackendError {
    if let Some(answer) = error.as_db_error() {
        return of_server(answer, during);
    }
    match during {
        During::Connect(address) => match connector::explain(&error) {
            Some(problem) => BackendError::rejected(format!("{address}: {problem}")),
            None => BackendError::unavailable(format!("cannot connect to {address}")),
        }
        .with_source(error),
        _ => BackendError::outcome_unknown("no reply").with_source(error),
    }
}

/// Whether the error says something about the connection, its statements or the role of the server. Then
/// the connection is not used again. Otherwise only the statement has failed.
pub(crate) fn ends_connection(error: &tokio_postgres::Error, pooled: bool) -> bool {
    error
        .as_db_error()
        .is_none_or(|answer| is_fatal(answer) || code_ends_connection(answer.code(), pooled))
}

fn code_ends_connection(state: &SqlState, pooled: bool) -> bool {
    // A pooler may send the next write to another server. If it doesn't, the connection is left after a while.
    if pooled && *state == SqlState::READ_ONLY_SQL_TRANSACTION {
        return false;
    }
    // The connection, a transaction that we never began or a read-only server, a bug of the server. And 0A000: a table
    // was changed, and the prepared statements don't fit it any more.
    let starts = ["08", "25", "57P", "XX", "0A000"];
    matches!(class(state), Class::Setup | Class::Prepared)
        || starts.iter().any(|start| state.code().starts_with(start))
}

fn is_fatal(answer: &DbError) -> bool {
    matches!(
        answer.parsed_severity(),
        Some(Severity::Fatal | Severity::Panic)
    )
}

/// The error for a pooler that shares connections, and what to do about it.
pub(crate) fn of_pooler(advice: &str) -> BackendError {
    BackendError::rejected(format!(
        "a connection pooler shares this connection with other clients, so notifications would be lost; {advice}"
    ))
}

fn of_server(answer: &DbError, during: During<'_>) -> BackendError {
    let mut reason = format!("{} ({})", answer.message(), answer.code().code());
    if let During::Connect(address) = during {
        reason.insert_str(0, &format!("{address}: "));
    }
    match class(answer.code()) {
        _ if during == During::Begin => BackendError::outcome_unknown(reason),
        Class::Setup => BackendError::rejected(reason + advice(answer.message())),
        Class::Prepared => of_pooler(
            "connect to the server itself, or to a pool in session mode, or add pgbouncer=true to the URL",
        ),
        Class::Schema => BackendError::rejected(format!(
            "{reason}; run the schema (`leasehold schema postgres`, or `leasehold::postgres::SCHEMA`), and grant \
             the documented rights"
        )),
        // The server may have ended the connection while it executed the statement.
        _ if is_fatal(answer) && during == During::Statement => {
            BackendError::outcome_unknown(reason)
        }
        // The statement was rolled back.
        Class::Temporary => BackendError::unavailable(reason),
        Class::Other if during != During::Statement => BackendError::unavailable(reason),
        Class::Other => BackendError::outcome_unknown(reason),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// The user, its password, or the name of the database.
    Setup,
    /// A prepared statement is missing, or belongs to another client.
    Prepared,
    /// Tables or rights.
    Schema,
    /// A later try may succeed.
    Temporary,
    Other,
}

fn class(state: &SqlState) -> Class {
    match state.code() {
        "42P01" | "42501" | "3F000" | "42703" | "42883" => Class::Schema,
        "26000" | "42P05" => Class::Prepared,
        "3D000" => Class::Setup,
        // A proxy or a cluster doesn't know whether the statement was committed.
        "40003" => Class::Other,
        // A read-only server.
        "25006" => Class::Temporary,
        code => match code.get(..2) {
            Some("28") => Class::Setup,
            // A conflict, lack of resources, a lock, an intervention.
            Some("40" | "53" | "55" | "57") => Class::Temporary,
            _ => Class::Other,
        },
    }
}

/// What to do about a refused login. The server may say it in another language.
fn advice(message: &str) -> &'static str {
    if message.contains("client certificate") {
        "; set it with Options::client_certificate"
    } else if message.contains("no encryption") {
        "; if the server wants TLS, set sslmode=require"
    } else {
        ""
    }
}

/// Errors that a server can be made to send are tested with a server.
#[cfg(test)]
mod tests {
    use super::*;

    fn state(code: &str) -> SqlState {
        SqlState::from_code(code)
    }

    #[test]
    fn unknown_completion_is_not_a_rollback() {
        assert_eq!(class(&state("40003")), Class::Other);
        for code in ["40000", "40001", "40002", "40P01"] {
            assert_eq!(class(&state(code)), Class::Temporary, "{code}");
        }
    }

    #[test]
    fn failed_statement_keeps_the_connection() {
        // Locks, timeouts, conflicts, lack of resources, tables and rights, values.
        for code in [
            "55P03", "57014", "40001", "40P01", "40003", "53100", "53200", "42P01", "42501",
            "22003", "23505", "54000", "58030",
        ] {
            assert!(!code_ends_connection(&state(code), false), "{code}");
        }
        assert!(!code_ends_connection(&state("25006"), true), "a pooler");
    }

    #[test]
    fn failed_connection_is_not_used_again() {
        for code in [
            "25006", "25P02", "57P01", "57P02", "57P03", "57P05", "08006", "08P01", "26000",
            "42P05", "28000", "3D000", "0A000", "XX000",
        ] {
            assert!(code_ends_connection(&state(code), false), "{code}");
        }
    }
}
