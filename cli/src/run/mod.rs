//! `leasehold run`: the process that the user starts.

mod events;
mod keeper;
mod terminal;

use std::io::IsTerminal;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, wait};
use signal_hook::consts::{SIGCHLD, SIGTTIN, SIGTTOU};

use crate::arguments::{MARGIN, Run, URL};
use crate::clock::now;
use crate::ending::{Ending, LOST, UNREACHABLE, USAGE};
use crate::group::Group;
use crate::keeper::time_limit;
use crate::protocol::{FromKeeper, Held, Kind, Request, ToKeeper};
use crate::starter;
use events::Events;
use keeper::Keeper;
use terminal::Terminal;

/// How long the keeper may take beyond its own limits.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the keeper may take to release the lock, or to leave the queue.
const RELEASE: Duration = Duration::from_secs(5);
/// How long a killed group may take to disappear.
const AFTER_KILL: Duration = Duration::from_secs(10);

/// Runs CMD while the keeper holds the lock.
pub(crate) fn run(options: &Run) -> Ending {
    let request = match options.request() {
        Ok(request) => request,
        Err(problem) => {
            terminal::say(&problem);
            return Ending::Status(USAGE);
        }
    };
    run_with(options, &request).unwrap_or_else(|error| {
        terminal::say(&error.to_string());
        Ending::Status(LOST)
    })
}

fn run_with(options: &Run, request: &Request) -> std::io::Result<Ending> {
    // On Linux, processes whose parent ends become children of this one, which reaps them. A group with
    // an unreaped process is not empty.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let mut events = Events::new()?;
    let mut keeper = Keeper::start(request)?;
    let held = match acquire(options, request, &mut events, &mut keeper)? {
        Ok(held) => held,
        Err(ending) => return Ok(ending),
    };
    let mut running = Running::start(options, request, keeper, events, held)?;
    running.until_empty()?;
    Ok(running.end())
}

/// Waits for the lock. Returns what is held, or how the command ends instead. A signal ends the wait, and then the
/// command.
fn acquire(
    options: &Run,
    request: &Request,
    events: &mut Events,
    keeper: &mut Keeper,
) -> std::io::Result<Result<Held, Ending>> {
    // The keeper has its own limits; it confirms a grant within the lease. This one counts if it was stopped.
    let until = time_limit(request.wait).map(|limit| now() + limit + request.lease + PATIENCE);
    let mut held: Option<Held> = None;
    loop {
        let signals = events.wait(keeper, until)?;
        for message in keeper.messages() {
            match message {
                FromKeeper::Held(now_held) => held = Some(now_held),
                FromKeeper::Renewed { deadline } => {
                    held = held.map(|held| Held { deadline, ..held });
                }
                FromKeeper::Unreachable(why) => terminal::say(&format!("{why}; trying again")),
                message => {
                    if let Some(status) = not_acquired(options, message) {
                        return Ok(Err(Ending::Status(status)));
                    }
                }
            }
        }
        if let Some(signal) = signals.into_iter().find(|it| events::is_passed_on(*it)) {
            // It leaves the queue, or releases the lock.
            keeper.end_within(RELEASE);
            return Ok(Err(Ending::Signal(signal)));
        }
        if let Some(held) = held {
            return Ok(Ok(held));
        }
        let message = if keeper.is_gone() {
            "the lock keeper has ended"
        } else if until.is_some_and(|until| now() > until) {
            "the lock keeper does not answer"
        } else {
            continue;
        };
        terminal::say(message);
        keeper.kill();
        return Ok(Err(Ending::Status(UNREACHABLE)));
    }
}

/// Prints why CMD doesn't run, and returns the exit status.
fn not_acquired(options: &Run, message: FromKeeper) -> Option<u8> {
    let (status, text) = match message {
        FromKeeper::Done(text) => {
            // Nothing is wrong, so a crontab line stays silent.
            if std::io::stderr().is_terminal() {
                terminal::say(&text);
            }
            return Some(0);
        }
        FromKeeper::Contended(_) if options.conflict_exit_code == 0 => return Some(0),
        FromKeeper::Contended(text) => (options.conflict_exit_code, text),
        FromKeeper::Failed { status, message } => (status, message),
        FromKeeper::Lost(reason) => {
            let text = format!("the lock was lost before CMD started: {reason}");
            (LOST, text)
        }
        FromKeeper::Held(_)
        | FromKeeper::Renewed { .. }
        | FromKeeper::Unreachable(_)
        | FromKeeper::Released(_) => return None,
    };
    terminal::say(&text);
    Some(status)
}

/// CMD, its process group, and what the keeper says about the lock.
struct Running<'a> {
    request: &'a Request,
    keeper: Keeper,
    events: Events,
    terminal: Terminal,
    group: Group,
    deadline: Duration,
    /// How CMD itself ended.
    status: Option<WaitStatus>,
    /// Set once CMD must end.
    stop: Option<Stop>,
}

/// CMD must end.
struct Stop {
    why: String,
    kill_at: Duration,
}

impl<'a> Running<'a> {
    /// Starts CMD, once the keeper knows its process group.
    fn start(
        options: &Run,
        request: &'a Request,
        keeper: Keeper,
        events: Events,
        held: Held,
    ) -> std::io::Result<Self> {
        let (permission, socket) = UnixStream::pair()?;
        let mut starter = this_program();
        // Those of a job that runs this command are not for CMD.
        starter.env_remove("LEASEHOLD_FIRE_TIME");
        starter.env_remove("LEASEHOLD_ATTEMPT");
        if let Some((fire_time, attempt)) = held.attempt {
            starter.env("LEASEHOLD_FIRE_TIME", fire_time.to_string());
            starter.env("LEASEHOLD_ATTEMPT", attempt.to_string());
        }
        let child = starter
            .arg(starter::NAME)
            .args(&options.command)
            .env("LEASEHOLD_KEY", &request.key)
            .env("LEASEHOLD_TOKEN", held.token.to_string())
            .env_remove(URL)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(socket)))
            .process_group(0)
            .spawn()?;
        let group = Group(Pid::from_child(&child));
        let mut running = Self {
            request,
            terminal: Terminal::open(group.0),
            keeper,
            events,
            group,
            deadline: held.deadline,
            status: None,
            stop: None,
        };
        running.keeper.send(&ToKeeper::Group(group.0.as_raw_pid()));
        running.terminal.give();
        // Without the permission, the starter ends, and the loop finds that.
        let _ = starter::permit(&permission, std::io::stdin());
        Ok(running)
    }

    /// Runs until no process of the group is left. Passes signals on, and ends the group before the lock
    /// is lost.
    fn until_empty(&mut self) -> std::io::Result<()> {
        loop {
            let signals = self.events.wait(&self.keeper, Some(self.next_step()))?;
            // First, because CMD may have ended since the lock was lost.
            self.hear_keeper();
            for signal in signals {
                match signal {
                    SIGCHLD => {}
                    SIGTTIN | SIGTTOU => self.terminal.take_for_own_group(),
                    signal => {
                        if let Some(signal) = Signal::from_named_raw(signal) {
                            self.group.signal(signal);
                        }
                    }
                }
            }
            self.reap();
            self.enforce();
            let given_up = |stop: &Stop| now() > stop.kill_at + AFTER_KILL;
            let ended = self.status.is_some() && self.group.is_empty();
            if ended || self.stop.as_ref().is_some_and(given_up) {
                return Ok(());
            }
        }
    }

    /// When `enforce` has something to do.
    fn next_step(&self) -> Duration {
        match &self.stop {
            Some(stop) => stop.kill_at.min(self.kill_at()).max(now()),
            None => self.term_at(),
        }
    }

    fn kill_at(&self) -> Duration {
        self.deadline.saturating_sub(MARGIN)
    }

    fn term_at(&self) -> Duration {
        self.kill_at().saturating_sub(self.request.kill_after)
    }

    fn hear_keeper(&mut self) {
        for message in self.keeper.messages() {
            match message {
                FromKeeper::Renewed { deadline } => self.deadline = deadline,
                FromKeeper::Lost(reason) => {
                    self.stop(format!("the lock was lost: {reason}"));
                    // Somebody else may have it already.
                    self.deadline = Duration::ZERO;
                }
                _ => {}
            }
        }
        if self.keeper.is_gone() {
            self.stop("the lock keeper has ended".into());
        }
    }

    /// Ends the group: with SIGTERM now, and with SIGKILL later.
    fn stop(&mut self, why: String) {
        if self.stop.is_none() {
            self.group.signal(Signal::TERM);
            let kill_at = now() + self.request.kill_after;
            self.stop = Some(Stop { why, kill_at });
        }
    }

    /// Does what is due by the deadline.
    fn enforce(&mut self) {
        if now() >= self.term_at() {
            self.stop("the lock is about to be lost".into());
        }
        let due = self.stop.as_ref().is_some_and(|stop| now() >= stop.kill_at);
        if due || now() >= self.kill_at() {
            self.group.signal(Signal::KILL);
        }
    }

    /// Reaps all children that have ended, also those that others have left behind.
    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.group.0 => {
                    if status.stopped() {
                        self.terminal.stopped(status.stopping_signal().unwrap_or(0));
                    } else {
                        self.status = Some(status);
                    }
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(_) => break,
            }
        }
        self.terminal.look_again();
    }

    /// That a job is done is worth recording for as long as its lock is held.
    fn time_to_release(&self) -> Duration {
        match self.request.kind {
            Kind::Job { .. } => RELEASE + self.deadline.saturating_sub(now()),
            _ => RELEASE,
        }
    }

    /// Has the lock released. Returns how the command ends.
    fn end(mut self) -> Ending {
        self.terminal.take_back();
        if self.group.is_empty() {
            let succeeded = self.status.and_then(WaitStatus::exit_status) == Some(0);
            let done = succeeded && self.stop.is_none();
            self.keeper.send(&ToKeeper::Empty { done });
        } else {
            terminal::say("some processes of CMD can't be killed; the lock is not released");
        }
        let mut answered = false;
        for message in self.keeper.end_within(self.time_to_release()) {
            if let FromKeeper::Released(problem) = message {
                answered = true;
                if let Some(problem) = problem {
                    terminal::say(&problem);
                }
            }
        }
        if !answered && self.group.is_empty() && self.stop.is_none() {
            terminal::say(
                "the lock may stay taken until its lease ends: its keeper gave no answer",
            );
        }
        if let Some(stop) = self.stop {
            terminal::say(&stop.why);
            return Ending::Status(LOST);
        }
        self.status.map_or(Ending::Status(LOST), Ending::of)
    }
}

/// A command that starts this program again: the same file, even if another one has its name by now.
fn this_program() -> Command {
    let own = "/proc/self/exe";
    let path = match std::path::Path::new(own).exists() {
        true => own.into(),
        false => std::env::current_exe().unwrap_or_default(),
    };
    Command::new(path)
}
