//! Finds connection poolers that share a connection of the server among clients.
//!
//! PgBouncer does so in its modes `transaction` and `statement`. A client then has no session:
//! notifications and advisory locks get lost, and a setting reaches other programs.

use leasehold_api::BackendError;
use tokio::runtime::Handle;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::error::{During, classify, of_pooler};
use crate::shared::{Endpoint, Shared};

/// The process of the server, and its address without the pooler.
const QUESTION: &str = "SELECT pg_backend_pid(),
    coalesce(host(inet_server_addr()) || ', ', '') || 'port ' || current_setting('port')";

/// How often each client is asked in turn. Others may use the same pool at the same time.
const ROUNDS: usize = 2;

/// Opens two connections without any settings. Returns the number of each attempt, as [`Shared::connect`].
pub(crate) async fn connect_two(
    shared: &Shared,
    endpoint: &Endpoint,
    [one, two]: [&Handle; 2],
) -> Result<[(Client, u64); 2], BackendError> {
    let connecting = shared.connect(endpoint, one, None);
    let first = shared.in_time(endpoint, "connection", connecting).await?;
    let connecting = shared.connect(endpoint, two, None);
    let limit = shared.options.connect_timeout;
    let second = shared.runtime.timeout(limit, connecting).await;
    let second = second.ok_or_else(|| too_few(&endpoint.address()))??;
    Ok([first, second])
}

/// Fails unless each of two clients has a process of the server to itself. Changes nothing on the
/// server.
///
/// A pool hands out the connection that was returned last, or takes turns. In the first case, both
/// clients see the same process. In the second case, a client that asks twice sees two.
///
/// # Errors
/// Each question has the connect timeout. From far away, all of them take longer than a connection.
pub(crate) async fn check(
    one: &Client,
    two: &Client,
    shared: &Shared,
    endpoint: &Endpoint,
) -> Result<(), BackendError> {
    let process = |client| process(client, shared, endpoint);
    let (first, address) = process(one).await?;
    let (second, _) = process(two).await?;
    let is_shared = || {
        let (set, or) = match shared.is_pooled() {
            true => ("direct_url must lead", ""),
            false => ("connect", ", or add pgbouncer=true to the URL"),
        };
        Err(of_pooler(&format!(
            "{set} to the server itself ({address}), or to a pool in session mode{or}"
        )))
    };
    if first == second {
        return is_shared();
    }
    for _ in 0..ROUNDS {
        for (client, expected) in [(one, &first), (one, &first), (two, &second)] {
            if process(client).await?.0 != *expected {
                return is_shared();
            }
        }
    }
    Ok(())
}

async fn process(
    client: &Client,
    shared: &Shared,
    endpoint: &Endpoint,
) -> Result<(String, String), BackendError> {
    let (limit, address) = (shared.options.connect_timeout, endpoint.address());
    let answer = client.simple_query(QUESTION);
    let answer = shared.runtime.timeout(limit, answer).await;
    let answer = answer.ok_or_else(|| too_few(&address))?;
    let answer = answer.map_err(|error| classify(error, During::Connect(&address)))?;
    let found = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some((row.get(0)?.to_owned(), row.get(1)?.to_owned())),
        _ => None,
    });
    found.ok_or_else(|| BackendError::unavailable("the server doesn't tell its process"))
}

/// The error if a second connection is not made or not answered in time. A pool that is too small may accept it.
fn too_few(address: &str) -> BackendError {
    let problem = "no second connection in time; connecting takes two, and a client without direct_url has up to four later, \
         so allow them in max_connections, in the CONNECTION LIMIT of the role and the database, and in the pool";
    BackendError::unavailable(format!("{address}: {problem}"))
}
