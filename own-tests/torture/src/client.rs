//! A client process, as the controller sees it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command as Program, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Failure;
use crate::history::Answer;
use crate::protocol::{Command, Reply};

/// How long a process may take to start.
const START_WITHIN: Duration = Duration::from_secs(30);
/// After this time the controller gives up on a reply.
const REPLY_WITHIN: Duration = Duration::from_secs(30);
/// How long a process may take to exit after its input has closed.
const EXIT_WITHIN: Duration = Duration::from_secs(10);

impl From<Result<Reply, Self>> for Answer {
    fn from(reply: Result<Reply, Self>) -> Self {
        match reply {
            Ok(Reply::Held { token }) => Self::Held { token },
            Ok(Reply::Free) => Self::Free,
            Ok(Reply::Ready) => Self::Error("an answer to another command".into()),
            Ok(Reply::Error { text }) => Self::Error(text),
            Err(gone) => gone,
        }
    }
}

/// What the nemesis sees of a client: the process of the moment.
#[derive(Debug, Default)]
pub(crate) struct Target {
    process: Mutex<Option<Pid>>,
}

impl Target {
    /// Sends a signal. Returns the process, if there was one.
    pub(crate) fn signal(&self, signal: Signal) -> Option<Pid> {
        self.lock().filter(|it| kill_process(*it, signal).is_ok())
    }

    /// Kills the process. Nothing else can happen to it from here on. Returns whether there was one.
    pub(crate) fn kill(&self) -> bool {
        let process = self.lock().take();
        process.is_some_and(|it| kill_process(it, Signal::KILL).is_ok())
    }

    /// Whether this is still the process.
    pub(crate) fn is(&self, process: Pid) -> bool {
        *self.lock() == Some(process)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pid>> {
        self.process
            .lock()
            .expect("no thread panics while it has it")
    }
}

/// A running client process. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Client<'a> {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    target: &'a Target,
}

impl<'a> Client<'a> {
    /// Starts a process and waits until it is ready.
    pub(crate) fn start(program: &mut Program, target: &'a Target) -> Result<Self, Failure> {
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        *target.lock() = Some(Pid::from_child(&child));
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or("no output")?;
        // The controller waits for each reply, so at most one line is on its way.
        let (sender, lines) = sync_channel(1);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let client = Self {
            child,
            input,
            lines,
            target,
        };
        match client.reply(START_WITHIN) {
            Ok(Reply::Ready) => Ok(client),
            other => {
                let answer = Answer::from(other);
                Err(format!("the client process is not ready: {answer}").into())
            }
        }
    }

    /// Sends a command and waits for the reply. The error says why there is none: the process has ended, or is silent,
    /// and is killed for it.
    pub(crate) fn ask(&mut self, command: &Command) -> Result<Reply, Answer> {
        let mut line = serde_json::to_string(command).expect("a command is JSON");
        line.push('\n');
        let input = self.input.as_mut().ok_or(Answer::Killed)?;
        let sent = input.write_all(line.as_bytes());
        sent.map_err(|_| Answer::Killed)?;
        self.reply(REPLY_WITHIN)
    }

    fn reply(&self, within: Duration) -> Result<Reply, Answer> {
        match self.lines.recv_timeout(within) {
            Ok(line) => Ok(serde_json::from_str(&line).unwrap_or_else(|error| {
                let text = format!("not a reply: {line}: {error}");
                Reply::Error { text }
            })),
            Err(RecvTimeoutError::Disconnected) => Err(Answer::Killed),
            Err(RecvTimeoutError::Timeout) => Err(Answer::Silence),
        }
    }

    /// The most memory that the process ever used, in KiB, if the system tells.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let peak = status.lines().find_map(|it| it.strip_prefix("VmHWM:"))?;
        peak.split_whitespace().next()?.parse().ok()
    }

    /// Closes the input. Returns whether the process then exits by itself.
    pub(crate) fn end(mut self) -> bool {
        self.input = None;
        let began = Instant::now();
        while began.elapsed() < EXIT_WITHIN {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        // Before the process is waited for: afterwards, its number may be another process's.
        *self.target.lock() = None;
        // An error means that it has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signal to a process that was killed, and that nobody has waited for yet, does not fail.
    #[test]
    fn killed_process_gets_no_signals() {
        let child = Program::new("sleep").arg("60").spawn();
        let mut child = child.expect("it runs");
        let target = Target::default();
        assert_eq!(target.signal(Signal::STOP), None);
        let process = Pid::from_child(&child);
        *target.lock() = Some(process);
        assert_eq!(target.signal(Signal::STOP), Some(process));
        assert!(target.is(process) && target.kill());
        assert!(!target.is(process) && !target.kill());
        assert_eq!(target.signal(Signal::STOP), None);
        child.wait().expect("it has ended");
    }
}
