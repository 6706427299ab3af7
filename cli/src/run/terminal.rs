//! Gives the terminal to CMD, as a shell does with a job.
//!
//! CMD has a process group of its own, so that all of it can be killed. But only the foreground group of a
//! terminal may read from it. So if the command is in the foreground, it puts CMD there:
//!
//! - when CMD starts, and when CMD is stopped because it wants the terminal;
//! - the command takes the terminal back when CMD has ended, when the user stops CMD (Ctrl-Z), and when
//!   another process of its own group wants it, as the pager in `leasehold run … | less`.
//!
//! When the user stops CMD, the command stops its own group, as the terminal would have done. The shell sees
//! that, and continues the group with `fg` or `bg`.

use std::fs::{File, OpenOptions};

use nix::unistd::getpgrp;
use rustix::process::{Pid, Signal, kill_current_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use crate::group::Group;
use crate::output::without_stopping;

pub(super) struct Terminal {
    /// `None` without a controlling terminal.
    terminal: Option<File>,
    /// The group of the command.
    own: Pid,
    /// The group of CMD.
    group: Pid,
    /// Whether CMD is stopped, and waits until it can get the terminal.
    wanted: bool,
}

impl Terminal {
    /// Opens the controlling terminal.
    pub(super) fn open(group: Pid) -> Self {
        // It has no number here if this is the first process of a PID namespace, and its group is outside.
        // The terminal can't be managed then.
        let own = Pid::from_raw(getpgrp().as_raw());
        let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
        Self {
            terminal: own.and_then(|_| terminal.ok()),
            own: own.unwrap_or(Pid::INIT),
            group,
            wanted: false,
        }
    }

    fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(self.terminal.as_ref()?).ok()
    }

    fn set_foreground(&self, group: Pid) {
        if let Some(terminal) = &self.terminal {
            let _ = without_stopping(|| tcsetpgrp(terminal, group));
        }
    }

    /// Puts CMD in the foreground if the command is there. Returns whether CMD is there now.
    pub(super) fn give(&self) -> bool {
        if self.foreground() == Some(self.own) {
            self.set_foreground(self.group);
        }
        self.foreground() == Some(self.group)
    }

    /// Puts the command's group in the foreground if CMD is there.
    pub(super) fn take_back(&self) {
        if self.foreground() == Some(self.group) {
            self.set_foreground(self.own);
        }
    }

    /// Another process of the command's group was stopped because it wants the terminal.
    pub(super) fn take_for_own_group(&self) {
        self.take_back();
        if self.foreground() == Some(self.own) {
            let _ = kill_current_process_group(Signal::CONT);
        }
    }

    /// CMD was stopped: by the user, by itself, or because it wants the terminal.
    pub(super) fn stopped(&mut self, signal: i32) {
        let wants = signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw();
        if wants && self.give() {
            Group(self.group).signal(Signal::CONT);
            return;
        }
        let was_in_front = self.foreground() == Some(self.group);
        if self.terminal.is_none() || !was_in_front && !wants {
            // Whoever stopped it continues it.
            return;
        }
        self.take_back();
        // This stops the command too, and returns when the shell continues it. Without a shell that
        // controls jobs, the kernel ignores it.
        let _ = kill_current_process_group(Signal::TSTP);
        if wants {
            self.wanted = true;
            self.look_again();
        } else {
            self.give();
            Group(self.group).signal(Signal::CONT);
        }
    }

    /// Continues CMD if it waits for the terminal and can have it now.
    pub(super) fn look_again(&mut self) {
        if self.wanted && self.give() {
            self.wanted = false;
            Group(self.group).signal(Signal::CONT);
        }
    }
}
