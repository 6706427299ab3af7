//! The bucket: the stream that holds the rows, as a key-value bucket of NATS has it.

use std::time::Duration;

use leasehold_api::{BackendError, bounds};
use serde_json::{Value, json};

use crate::connection::{Link, Refusal};

/// Error numbers of JetStream.
mod number {
    pub(super) const NO_STREAM: u64 = 10059;
    /// Another client was faster, with other replicas.
    pub(super) const EXISTS: u64 = 10058;
    pub(super) const NOT_CLUSTERED: u64 = 10074;
    pub(super) const NO_MESSAGE: u64 = 10037;
    pub(super) const WRONG_SEQUENCE: [u64; 2] = [10071, 10164];
    /// The leader could not store it. Before NATS 2.14, others may have: a majority had accepted it.
    pub(super) const NOT_STORED: u64 = 10077;
    /// No JetStream, for this account or at all; a message that is too large.
    pub(super) const PERMANENT: [u64; 4] = [10039, 10076, 10054, NO_STREAM];
}

pub(crate) const TOO_OLD: &str = "the server tells no time: it is older than NATS 2.10";

/// How long a row stays after its last write. The longest time that one must be kept is two days, after a hold of an hour.
const MAX_AGE: Duration = Duration::from_secs(3 * 24 * 60 * 60);
const _: () = assert!(
    MAX_AGE.as_secs()
        > bounds::MAX_NOTE_KEEP.as_secs()
            + bounds::MAX_LEASE.as_secs()
            + 2 * bounds::TOKEN_RETENTION.as_secs()
);

/// The name of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct Bucket(pub(crate) String);

impl Bucket {
    /// Sends a request about the stream, such as `STREAM.INFO`, that does no harm if it is executed late or twice.
    pub(crate) async fn ask(
        &self,
        link: &Link,
        what: &str,
        request: Value,
    ) -> Result<Result<Value, Refusal>, BackendError> {
        let subject = format!("$JS.API.{what}.KV_{}", self.0);
        let asking = link.ask(subject, Default::default(), request.to_string());
        // The first request on a connection subscribes to the answers of all.
        let answered = link.unless_refused("\"_INBOX.", asking).await;
        answered.flatten().map_err(|error| match error {
            BackendError::OutcomeUnknown { .. } => {
                BackendError::unavailable("JetStream gave no answer").with_source(error)
            }
            error => error,
        })
    }

    pub(crate) fn subject_of(&self, name: &str) -> String {
        format!("$KV.{}.{name}", self.0)
    }

    /// Creates the bucket if there is none, with three replicas on a cluster. Checks it.
    pub(crate) async fn prepare(&self, link: &Link) -> Result<(), BackendError> {
        let mut found = self.ask(link, "STREAM.INFO", json!({})).await?;
        for replicas in [3, 1] {
            match found {
                Err(refusal)
                    if [number::NO_STREAM, number::NOT_CLUSTERED].contains(&refusal.code) =>
                {
                    let created = self.ask(link, "STREAM.CREATE", self.config(replicas));
                    found = created.await?;
                }
                _ => break,
            }
        }
        if matches!(&found, Err(refusal) if refusal.code == number::EXISTS) {
            found = self.ask(link, "STREAM.INFO", json!({})).await?;
        }
        let info = found.map_err(Refusal::into_error)?;
        match self.problem(&info) {
            None => Ok(()),
            Some(problem) => Err(BackendError::rejected(format!(
                "the bucket {}: {problem}",
                self.0
            ))),
        }
    }

    fn config(&self, replicas: u8) -> Value {
        json!({
            "name": format!("KV_{}", self.0),
            "subjects": [self.subject_of(">")],
            "description": "leasehold",
            "storage": "file",
            "num_replicas": replicas,
            "retention": "limits",
            "discard": "new",
            "max_age": MAX_AGE.as_nanos() as u64,
            "max_msgs_per_subject": 1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msg_size": -1,
            "max_consumers": -1,
            // A row that is removed too early is a lock that is lost.
            "deny_delete": true,
            "deny_purge": true,
        })
    }

    /// What would lose locks.
    fn problem(&self, info: &Value) -> Option<&'static str> {
        let config = &info["config"];
        let number = |name: &str| config[name].as_u64().unwrap_or_default();
        let has = |name: &str| !config[name].is_null() && config[name] != false;
        let is_limited = number("max_msgs") > 0 || number("max_bytes") > 0;
        let is_short = (1..MAX_AGE.as_nanos() as u64).contains(&number("max_age"));
        let own = json!([self.subject_of(">")]);
        let others = ["mirror", "sources", "subject_transform", "sealed"];
        let is_plain = config["subjects"] == own && !others.into_iter().any(has);
        let problems = [
            (info["ts"].is_null(), TOO_OLD),
            (
                config["storage"] != "file",
                "its storage is not `file`: a restart loses locks",
            ),
            (
                config["persist_mode"] == "async",
                "it answers writes before they are stored",
            ),
            (has("no_ack"), "it acknowledges no write"),
            (
                config["retention"] != "limits",
                "messages vanish when they are read",
            ),
            (
                is_short,
                "locks vanish before three days: max_age is shorter",
            ),
            (
                is_limited && config["discard"] != "new",
                "locks vanish at its limit",
            ),
            (
                has("discard_new_per_subject"),
                "a key that was written can't be written again: discard_new_per_subject",
            ),
            (
                has("subject_delete_marker_ttl"),
                "markers take the places of rows that have aged out: subject_delete_marker_ttl",
            ),
            (!is_plain, "it is no plain bucket"),
        ];
        let found = problems.into_iter().find(|(is_bad, _)| *is_bad);
        found.map(|(_, problem)| problem)
    }
}

impl Refusal {
    pub(crate) fn is_no_message(&self) -> bool {
        self.code == number::NO_MESSAGE
    }

    /// Whether another client has written the row first.
    pub(crate) fn is_conflict(&self) -> bool {
        number::WRONG_SEQUENCE.contains(&self.code)
    }

    /// The error of a write.
    pub(crate) fn into_error_of_write(self) -> BackendError {
        match (self.code, self.into_error()) {
            (number::NOT_STORED, error) => {
                BackendError::outcome_unknown("a replica may have stored it").with_source(error)
            }
            (_, error) => error,
        }
    }

    /// The error of a call that wrote nothing.
    pub(crate) fn into_error(self) -> BackendError {
        let reason = format!("JetStream answers: {}", self.reason);
        match number::PERMANENT.contains(&self.code) {
            true => BackendError::rejected(reason),
            false => BackendError::unavailable(reason),
        }
    }
}
