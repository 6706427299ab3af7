//! What the controller and a client process say to each other: one JSON object per line.
//!
//! The controller sends a command and waits for its reply before it sends the next one. A client
//! process first says `{"got":"ready"}`. It exits when its input closes. So an adapter is a loop over
//! the lines of its input, in any language; it needs no clock and no thread for the controller's sake.
//!
//! Only leasehold's processes get the fields that may be absent. A stranger's program never sees them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a client process is asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Command {
    /// Acquire the lock. Answered by `held` or `free`.
    Acquire(Acquire),
    /// Ask the library whether the client still holds the lock. Answered by `held` or `free`.
    Check {
        /// Which one. A process may have several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<u64>,
    },
    /// Answer `ready`, without a question to the library. What a user does under the lock, such as a
    /// write, passes through the process here: it is late if the process is stopped.
    Pass,
    /// Release the lock. Answered by `held` if it was still held, and else by `free`.
    Release {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<u64>,
    },
    /// Downgrade a writer, or try to upgrade a reader. Answered by `held`, with a new token, or by `free` if it is
    /// still a reader. After an error the client holds nothing.
    Convert {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<u64>,
        to: Mode,
    },
}

/// What is asked for by an acquire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Acquire {
    /// The name of the lock.
    pub(crate) key: String,
    /// How to lock it.
    pub(crate) mode: Mode,
    /// The lease, in ms.
    pub(crate) lease_ms: u64,
    /// The longest wait, in ms. Zero tries once.
    pub(crate) wait_ms: u64,
    /// What other commands call this hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hold: Option<u64>,
    /// Further keys, all or nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) also: Vec<String>,
    /// Whether to ask through the reentrant handle that the process has for this key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) reentrant: bool,
    /// Drop the future after this time, in ms, if it isn't ready by then. Answered by `free`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) drop_ms: Option<u64>,
}

impl Acquire {
    pub(crate) const fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    pub(crate) const fn wait(&self) -> Duration {
        Duration::from_millis(self.wait_ms)
    }
}

/// How a key is locked. A key is always used in ways that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// The only mode that each subject has.
    Mutex,
    /// For reading, beside other readers.
    Read,
    /// For writing.
    Write,
    /// One of this many permits.
    Permit(u32),
}

impl Mode {
    /// How much of the key's capacity a holder takes.
    pub(crate) const fn weight(self) -> u64 {
        match self {
            Self::Mutex | Self::Read | Self::Permit(_) => 1,
            Self::Write => self.capacity(),
        }
    }

    /// The capacity of the key.
    pub(crate) const fn capacity(self) -> u64 {
        match self {
            Self::Mutex => 1,
            Self::Read | Self::Write => u32::MAX as u64,
            Self::Permit(count) => count as u64,
        }
    }
}

/// The reply to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "got", rename_all = "snake_case")]
pub(crate) enum Reply {
    /// The process can take commands.
    Ready,
    /// The client holds the lock, as far as the library tells.
    Held {
        /// The fencing token, if the library has them. Only needed after an acquire.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
    },
    /// The client doesn't hold the lock: it is contended, or was lost.
    Free,
    /// The library failed. The outcome may be unknown.
    Error {
        /// What it said.
        text: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As docs/torture.md shows it to those who know nothing else.
    #[test]
    fn what_is_absent_is_left_out() {
        let acquire = Command::Acquire(Acquire {
            key: "one".into(),
            mode: Mode::Mutex,
            lease_ms: 1_000,
            wait_ms: 0,
            hold: None,
            also: Vec::new(),
            reentrant: false,
            drop_ms: None,
        });
        let hold = None;
        let asked = [acquire, Command::Check { hold }, Command::Release { hold }];
        let lines = [
            r#"{"do":"acquire","key":"one","mode":"mutex","lease_ms":1000,"wait_ms":0}"#,
            r#"{"do":"check"}"#,
            r#"{"do":"release"}"#,
        ];
        for (command, line) in asked.into_iter().zip(lines) {
            assert_eq!(serde_json::to_string(&command).expect("JSON"), line);
            let read: Command = serde_json::from_str(line).expect("a command");
            assert_eq!(read, command);
        }
    }
}
