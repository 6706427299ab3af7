//! Checks of a server's settings when a connection to it is made.
//!
//! A server can run locks well and lose them later: it evicts them when its memory is full, forgets
//! them in a restart, or promotes a replica that has not received them. Its answer to `INFO` tells
//! most of that. `CONFIG GET` would tell more, but is often forbidden. What a server doesn't tell is
//! not judged.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_api::{BackendError, ClockId};

use super::connector::Connection;
use super::failure::{Failure, FailureKind};
use super::lock;
use super::server::{UNKNOWN, field};
use crate::options::ServerChecks;
use crate::script::{Call, ErrorClass};

/// The hash of no script.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";
/// How many servers are remembered. A restart makes another one.
const MAX_SERVERS: usize = 1_024;

/// A setting of the server that endangers locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) setting: &'static str,
    pub(crate) value: String,
    pub(crate) danger: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}: {}", self.setting, self.value, self.danger)
    }
}

/// Returns what an answer to `INFO` tells about dangerous settings. `missing` are the rights that the
/// user lacks.
pub(crate) fn judge(info: &str, missing: &str) -> Vec<Finding> {
    let field = |name| field(info, name);
    let mut found = Vec::new();
    let mut find = |setting, value: &str, danger| {
        let value = value.into();
        found.push(Finding {
            setting,
            value,
            danger,
        });
    };
    let policy = field("maxmemory_policy").filter(|policy| *policy != "noeviction");
    if let Some(policy) = policy
        && field("maxmemory") != Some("0")
    {
        let danger = "it evicts locks when its memory is full; set noeviction";
        find("maxmemory-policy", policy, danger);
    }
    if field("aof_enabled") == Some("0") {
        let danger = "after a restart it has forgotten locks that are held; CONFIG SET it to yes, \
             and only then change the file, or the server starts without its data";
        find("appendonly", "no", danger);
    }
    let replicas = field("connected_slaves").filter(|replicas| *replicas != "0");
    // The server counts good replicas only if it needs some for a write.
    if replicas.is_some() && field("min_slaves_good_slaves").is_none() {
        let danger = "a primary that was cut off from its replicas goes on locking; set 1 or more";
        find("min-replicas-to-write", "0", danger);
    }
    if !missing.is_empty() {
        let value = format!("without {missing}");
        find("user", &value, "locks need these rights");
    }
    found
}

#[derive(Debug)]
pub(crate) struct Checks {
    mode: ServerChecks,
    rights: Call,
    reported: Mutex<Vec<Finding>>,
    /// The servers that were reached, by their clocks, the oldest first.
    servers: Mutex<VecDeque<(ClockId, Option<String>)>>,
}

impl Checks {
    /// `rights` is the call of [`Protocol::rights`](crate::script::Protocol::rights).
    pub(crate) fn new(mode: ServerChecks, rights: Call) -> Self {
        Self {
            mode,
            rights,
            reported: Mutex::default(),
            servers: Mutex::default(),
        }
    }

    /// Asks which rights the user lacks. None, if the server can't tell, or if `has_rights`, which is
    /// set once none was missing. Only a failure of the connection is an error.
    pub(crate) async fn missing_rights(
        &self,
        connection: &dyn Connection,
        has_rights: &AtomicBool,
    ) -> Result<String, Failure> {
        if self.mode == ServerChecks::Ignore || has_rights.load(Ordering::Relaxed) {
            return Ok(String::new());
        }
        // By its source at once, to save a round trip on a server that doesn't know it.
        let call = self.rights.to_server(UNKNOWN);
        let answer = connection.eval("EVAL", call.script().source(), &call, false);
        let missing = match answer.await {
            Ok(answer) => String::from_utf8_lossy(answer.as_ref()).into_owned(),
            Err(failure) if failure.kind() == FailureKind::Lost => return Err(failure),
            // Without the right to run it, each call fails with an error that names the right.
            Err(_) => return Ok(String::new()),
        };
        has_rights.store(missing.is_empty(), Ordering::Relaxed);
        Ok(missing)
    }

    /// Fails if the server has no `EVALSHA`. Its error would repeat the binary arguments of a call, and the client
    /// libraries take an error that is no text for the end of the connection. This call has none.
    pub(crate) async fn require_evalsha(&self, connection: &dyn Connection) -> Result<(), Failure> {
        const REJECTED: FailureKind = FailureKind::Answered(ErrorClass::Rejected);
        let call = self.rights.to_server(UNKNOWN);
        let answer = connection.eval("EVALSHA", NO_SCRIPT, &call, false).await;
        match answer {
            Err(failure) if failure.kind() == FailureKind::Lost => Err(failure),
            // Without the right, each call fails with an error that names it.
            Err(failure)
                if failure.kind() == REJECTED && failure.to_string().starts_with("ERR ") =>
            {
                let problem = format!("{failure}: locks need EVALSHA");
                Err(Failure::misconfigured(problem))
            }
            _ => Ok(()),
        }
    }

    /// Notes a server that a connection has reached. Returns whether it is the first connection to it.
    pub(crate) fn reached(&self, clock: ClockId, address: Option<String>) -> bool {
        let mut servers = lock(&self.servers);
        if servers.iter().any(|(known, _)| *known == clock) {
            return false;
        }
        if servers.len() == MAX_SERVERS {
            servers.pop_front();
        }
        servers.push_back((clock, address));
        true
    }

    pub(crate) fn address_of(&self, clock: ClockId) -> Option<String> {
        let servers = lock(&self.servers);
        let known = servers.iter().find(|(known, _)| *known == clock)?;
        known.1.clone()
    }

    /// Acts on the findings about the server at `address`. Warns of each finding once.
    pub(crate) fn report(
        &self,
        address: Option<&str>,
        found: Vec<Finding>,
    ) -> Result<(), BackendError> {
        match self.mode {
            ServerChecks::Reject if !found.is_empty() => {
                let text: Vec<String> = found.iter().map(ToString::to_string).collect();
                let text = format!("the server's settings endanger locks: {}", text.join("; "));
                return Err(BackendError::rejected(text));
            }
            ServerChecks::Ignore | ServerChecks::Reject => {}
            ServerChecks::Warn => {
                let mut reported = lock(&self.reported);
                for finding in found {
                    if !reported.contains(&finding) {
                        warn(address, &finding);
                        reported.push(finding);
                    }
                }
            }
        }
        Ok(())
    }
}

fn warn(address: Option<&str>, finding: &Finding) {
    tracing::event!(
        name: "server setting",
        target: "leasehold",
        tracing::Level::WARN,
        server = address,
        setting = finding.setting,
        value = finding.value,
        danger = finding.danger,
        "server setting"
    );
}

/// Settings that real servers have are tested with real servers.
#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "maxmemory:1000\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n\
                        connected_slaves:0\r\n";

    fn settings(info: &str) -> Vec<(&'static str, String)> {
        let found = judge(info, "").into_iter();
        found
            .map(|finding| (finding.setting, finding.value))
            .collect()
    }

    #[test]
    fn each_setting_is_judged_alone() {
        assert_eq!(settings(GOOD), []);
        for (good, bad, setting, value) in [
            (
                "noeviction",
                "volatile-ttl",
                "maxmemory-policy",
                "volatile-ttl",
            ),
            ("aof_enabled:1", "aof_enabled:0", "appendonly", "no"),
            ("slaves:0", "slaves:2", "min-replicas-to-write", "0"),
        ] {
            let found = settings(&GOOD.replace(good, bad));
            assert_eq!(found, [(setting, value.to_owned())], "{bad}");
        }
    }

    #[test]
    fn what_the_server_does_not_tell_is_not_judged() {
        assert_eq!(settings(""), []);
        assert_eq!(settings("redis_version:7.0.15\r\nrun_id:aa\r\n"), []);
        let unlimited = GOOD.replace("maxmemory:1000", "maxmemory:0");
        assert_eq!(
            settings(&unlimited.replace("noeviction", "allkeys-lru")),
            []
        );
        let needed = GOOD.replace("slaves:0", "slaves:2") + "min_slaves_good_slaves:2\r\n";
        assert_eq!(settings(&needed), []);
    }
}
