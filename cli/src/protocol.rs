//! What the command and its lock keeper say to each other: lines of JSON over two pipes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::connection::Connection;

/// A line to the keeper. The first one is `Acquire`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToKeeper {
    /// Acquire this lock.
    Acquire(Box<Request>),
    /// The process group of CMD. CMD starts when the keeper has answered [`FromKeeper::Guards`].
    Group(i32),
    /// No process of the group is left. Release the lock.
    Empty(Ended),
}

/// How CMD has ended.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// Whether it has succeeded.
    pub(crate) done: bool,
    /// The exit status of the command, if CMD has ended.
    pub(crate) status: Option<u8>,
}

/// A line from the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromKeeper {
    /// The lock is held.
    Held(Held),
    /// The lock was renewed.
    Renewed {
        /// The new deadline.
        deadline: Duration,
    },
    /// The keeper knows the process group of CMD, and kills it if the lock is lost.
    Guards,
    /// The lock should have been renewed by now. The text says what went wrong.
    Overdue(String),
    /// The keeper has killed CMD, because the lock was not renewed in time. Perhaps it is renewed later.
    Killed,
    /// The lock is lost for certain.
    Lost(String),
    /// The command has not ended CMD when `--max-hold` was over.
    MaxHold,
    /// CMD need not run: the job was done within the time.
    Done(String),
    /// The lock service doesn't answer. The keeper goes on trying.
    Unreachable(String),
    /// Somebody else has the lock, and the time to wait is over.
    Contended(String),
    /// The lock can't be had.
    Failed {
        /// The exit status.
        status: u8,
        /// What happened.
        message: String,
    },
    /// The release has ended. The text is what the user should know, if it went wrong.
    Released(Option<String>),
}

/// What the keeper gets to know when the lock is held.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    /// The fencing token.
    pub(crate) token: u64,
    /// When the lock is lost without another renewal, on the clock of [`now`](crate::clock::now).
    pub(crate) deadline: Duration,
    /// Only for a job: its fire time in milliseconds since 1970, and the number of the attempt.
    pub(crate) attempt: Option<(u64, u32)>,
}

/// The lock to acquire.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) connection: Connection,
    pub(crate) key: String,
    pub(crate) kind: Kind,
    pub(crate) wait: Wait,
    pub(crate) lease: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) kill_after: Duration,
}

/// The kind of lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Kind {
    Mutex,
    Read,
    Write,
    /// One permit of so many.
    Permit(u32),
    /// A mutex, for a job that was not done within the window.
    Job {
        window: Duration,
        attempts: u32,
    },
    /// A mutex whose holder leads, and tells this to the others.
    Election {
        info: String,
    },
}

/// How long to wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wait {
    No,
    Within(Duration),
    Forever,
}

/// A message as a line.
pub(crate) fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("a message is JSON");
    line.push(b'\n');
    line
}
