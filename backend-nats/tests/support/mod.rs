//! Requests to a NATS server, as another program sends them.

use async_nats::ServerAddr;
use serde_json::Value;

/// Sends a request, and returns the answer. `None` if there is none.
pub(crate) async fn ask(url: &str, subject: &str, payload: &Value) -> Option<Value> {
    let hosts = url.trim_start_matches("nats://").split(',');
    let servers: Result<Vec<ServerAddr>, _> = hosts.map(str::parse).collect();
    let client = async_nats::connect(servers.ok()?).await.ok()?;
    let request = client.request(subject.to_owned(), payload.to_string().into());
    serde_json::from_slice(&request.await.ok()?.payload).ok()
}
