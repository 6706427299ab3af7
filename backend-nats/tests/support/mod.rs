//! Requests to a NATS server, as another program sends them.

use leasehold_test_servers::NatsServers;
use serde_json::Value;

/// Sends a request, and returns the answer. `None` if there is none.
pub(crate) async fn ask(server: &NatsServers, subject: &str, payload: &Value) -> Option<Value> {
    let client = async_nats::connect(server.url()).await.ok()?;
    let request = client.request(subject.to_owned(), payload.to_string().into());
    serde_json::from_slice(&request.await.ok()?.payload).ok()
}
