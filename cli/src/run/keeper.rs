//! The keeper, as the command sees it.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::arguments::URL;
use crate::clock::now;
use crate::keeper::NAME;
use crate::protocol::{FromKeeper, Request, ToKeeper, line};
use crate::run::this_program;

pub(super) struct Keeper {
    process: Child,
    input: Option<ChildStdin>,
    /// `None` once the keeper has ended.
    output: Option<ChildStdout>,
    /// The part of a line that was read so far.
    unread: Vec<u8>,
}

impl Keeper {
    /// Starts the keeper in a process group of its own, so that signals of the terminal don't reach it.
    pub(super) fn start(request: &Request) -> std::io::Result<Self> {
        let mut process = this_program()?
            .arg(NAME)
            .env_remove(URL)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let mut keeper = Self {
            input: process.stdin.take(),
            output: process.stdout.take(),
            process,
            unread: Vec::new(),
        };
        if let Some(output) = &keeper.output {
            fcntl_setfl(output, fcntl_getfl(output)? | OFlags::NONBLOCK)?;
        }
        keeper.send(&ToKeeper::Acquire(Box::new(request.clone())));
        Ok(keeper)
    }

    /// Sends a line. If the keeper has ended, its output says so.
    pub(super) fn send(&mut self, message: &ToKeeper) {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(&line(message));
        }
    }

    pub(super) const fn output(&self) -> Option<&ChildStdout> {
        self.output.as_ref()
    }

    pub(super) const fn is_gone(&self) -> bool {
        self.output.is_none()
    }

    /// Reads the lines that have arrived.
    pub(super) fn messages(&mut self) -> Vec<FromKeeper> {
        let mut bytes = [0; 4_096];
        while let Some(output) = &mut self.output {
            match output.read(&mut bytes) {
                Ok(0) => self.output = None,
                Ok(read) => self.unread.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => self.output = None,
            }
        }
        let end = self.unread.iter().rposition(|byte| *byte == b'\n');
        let lines: Vec<u8> = self.unread.drain(..end.map_or(0, |end| end + 1)).collect();
        let lines = lines.split(|byte| *byte == b'\n');
        lines
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }

    /// Closes the keeper's input and waits for its end. Returns what it said last.
    pub(super) fn end_within(&mut self, limit: Duration) -> Vec<FromKeeper> {
        self.input = None;
        let until = now() + limit;
        let mut said = self.messages();
        while let Some(output) = &self.output
            && now() < until
        {
            let left = until.saturating_sub(now());
            let left = Timespec::try_from(left).unwrap_or_default();
            let mut ready = [PollFd::new(output, PollFlags::IN)];
            let _ = poll(&mut ready, Some(&left));
            said.extend(self.messages());
        }
        self.kill();
        said
    }

    /// Kills the keeper, if it still runs. It leaves no process behind for others to reap.
    pub(super) fn kill(&mut self) {
        // Once it has ended, it may be reaped, and another process may have its number.
        if !self.is_gone() {
            let _ = self.process.kill();
        }
        // An error means that it was reaped.
        let _ = self.process.wait();
    }
}
