//! The process group of CMD, as both the command and the keeper see it.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// The process group of CMD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group(pub(crate) Pid);

impl Group {
    /// Sends a signal to all processes of the group. A stopped process is continued, so that it can act
    /// on the signal.
    pub(crate) fn signal(self, signal: Signal) {
        // An error means that the group is empty, or that none of its processes may be signalled.
        let _ = kill_process_group(self.0, signal);
        if signal != Signal::KILL && signal != Signal::CONT {
            let _ = kill_process_group(self.0, Signal::CONT);
        }
    }

    /// Whether no process of the group is left, not even one that nobody has reaped.
    pub(crate) fn is_empty(self) -> bool {
        test_kill_process_group(self.0) == Err(Errno::SRCH)
    }
}
