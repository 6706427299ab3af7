//! How the command ends: its exit status, or the signal that ended CMD.

use leasehold::{ConnectError, Error};
use rustix::process::{Resource, Rlimit, Signal, WaitStatus, getpid, kill_process, setrlimit};
use signal_hook::consts::SIGPIPE;
use signal_hook::low_level::emulate_default_handler;

/// The command line can't be used.
pub(crate) const USAGE: u8 = 64;
/// The lock service can't be reached.
pub(crate) const UNREACHABLE: u8 = 69;
/// The lock was lost, or the keeper ended.
pub(crate) const LOST: u8 = 70;
/// This machine lacks what the command needs, such as processes or files.
pub(crate) const CANNOT_START: u8 = 71;
/// Standard output can't be written.
pub(crate) const OUTPUT: u8 = 74;
/// CMD has failed so often that nobody tries it again.
pub(crate) const GAVE_UP: u8 = 73;
/// Somebody else has the lock.
pub(crate) const CONTENDED: u8 = 75;
/// The lock service refuses the request.
pub(crate) const REJECTED: u8 = 77;
/// `--max-hold` was over, as `timeout` says it.
pub(crate) const MAX_HOLD: u8 = 124;
/// CMD was found, but can't be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// CMD was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// How the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Status(u8),
    Signal(i32),
}

impl Ending {
    /// As CMD ended.
    pub(crate) fn of(status: WaitStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Self::Status(u8::try_from(code).unwrap_or(LOST)),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Status(LOST),
        }
    }

    /// The exit status that a shell shows.
    pub(crate) fn shown(self) -> u8 {
        match self {
            Self::Status(status) => status,
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(LOST),
        }
    }

    /// Ends this process.
    pub(crate) fn end(self) -> ! {
        if let Self::Signal(signal) = self
            // The first process of a PID namespace can't end by a signal that it sends itself.
            && !getpid().is_init()
        {
            end_by(signal);
        }
        std::process::exit(self.shown().into())
    }
}

/// Ends this process by a signal, if that is possible.
fn end_by(signal: i32) {
    // CMD has left its core. Ours would replace it.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    if signal == Signal::KILL.as_raw() {
        let _ = kill_process(getpid(), Signal::KILL);
    }
    let _ = emulate_default_handler(signal);
}

/// How the command ends if standard output can't be written. If nobody reads it any more, as other commands do.
pub(crate) fn of_output(error: &std::io::Error) -> Ending {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Ending::Signal(SIGPIPE),
        _ => Ending::Status(OUTPUT),
    }
}

/// The exit status for an error while connecting.
pub(crate) fn of_connect_error(error: &ConnectError) -> u8 {
    match error {
        ConnectError::Backend(error) if error.is_transient() => UNREACHABLE,
        ConnectError::Backend(_) => REJECTED,
        _ => USAGE,
    }
}

/// The exit status for an error of the client.
pub(crate) fn of_error(error: &Error) -> u8 {
    match error {
        Error::InvalidInput { .. } => USAGE,
        Error::Lost { .. } | Error::Closed | Error::Released { .. } => LOST,
        error if error.is_transient() => UNREACHABLE,
        _ => REJECTED,
    }
}

/// The text of an error and its sources.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += ": ";
        text += &error.to_string();
        source = error.source();
    }
    text
}
