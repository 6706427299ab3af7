//! CMD, from its start to the end of its process group.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, wait};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGQUIT, SIGTERM, SIGTTIN, SIGTTOU};

use crate::arguments::{MARGIN, Run, URL};
use crate::clock::now;
use crate::ending::{Ending, LOST, MAX_HOLD};
use crate::group::Group;
use crate::output::say;
use crate::protocol::{self, FromKeeper, Held, Kind, Request, ToKeeper};
use crate::run::events::Events;
use crate::run::keeper::Keeper;
use crate::run::terminal::Terminal;
use crate::run::{Ended, RELEASE, this_program};
use crate::starter;

/// How long a killed group may take to disappear.
const AFTER_KILL: Duration = Duration::from_secs(10);
/// Who looks at the clock this much too late was stopped.
const STOPPED: Duration = Duration::from_secs(1);
/// The keeper looks every 0.1 s for a deadline that it has not told.
const KEEPER_SPEAKS: Duration = Duration::from_millis(200);

/// CMD, its process group, and what the keeper says about the lock.
pub(super) struct Running<'a> {
    request: &'a Request,
    keeper: Keeper,
    events: &'a mut Events,
    terminal: Terminal,
    group: Group,
    /// Where the permission to start CMD goes, until it is given.
    starter: Option<UnixStream>,
    /// Whether the keeper knows the group.
    guarded: bool,
    deadline: Duration,
    /// Why the lock was not renewed, as far as the keeper knows.
    overdue: Option<String>,
    /// When CMD must end, because of `--max-hold`.
    max_hold: Option<Duration>,
    /// Whether a signal has asked CMD to end, or asks the command not to stand for election again.
    asked_to_end: bool,
    /// How CMD itself ended.
    status: Option<WaitStatus>,
    /// Set once CMD must end.
    stop: Option<Stop>,
}

/// CMD must end.
struct Stop {
    why: Why,
    kill_at: Duration,
    /// Whether CMD was running.
    started: bool,
}

enum Why {
    /// The lock is about to be lost, because it was not renewed.
    Overdue,
    /// The lock is lost.
    Lost(String),
    KeeperGone,
    MaxHold,
}

impl<'a> Running<'a> {
    /// Creates the process that will be CMD, and tells the keeper its process group.
    pub(super) fn start(
        options: &Run,
        request: &'a Request,
        mut keeper: Keeper,
        events: &'a mut Events,
        held: Held,
    ) -> std::io::Result<Self> {
        let spawned = spawn(options, request, &held);
        let (starter, child) = spawned.inspect_err(|_| {
            keeper.end_within(RELEASE);
        })?;
        let group = Group(Pid::from_child(&child));
        keeper.send(&ToKeeper::Group(group.0.as_raw_pid()));
        Ok(Self {
            request,
            terminal: Terminal::open(group.0),
            keeper,
            events,
            group,
            starter: Some(starter),
            guarded: false,
            deadline: held.deadline,
            overdue: None,
            max_hold: None,
            asked_to_end: false,
            status: None,
            stop: None,
        })
    }

    /// Runs until no process of the group is left. Passes signals on, and ends the group before the lock
    /// is lost. Returns how the command ends.
    pub(super) fn until_empty(mut self) -> Ended {
        loop {
            let signals = match self.events.wait(Some(&self.keeper), Some(self.next_step())) {
                Ok(signals) => signals,
                Err(error) => {
                    // The keeper sees that the command has ended.
                    say(&error.to_string());
                    return Ending::Status(LOST).into();
                }
            };
            // First, because CMD may have ended since the lock was lost.
            self.hear_keeper();
            for signal in signals {
                match signal {
                    SIGCHLD => {}
                    SIGTTIN | SIGTTOU => self.terminal.take_for_own_group(),
                    signal => {
                        self.asked_to_end |= [SIGINT, SIGQUIT, SIGTERM].contains(&signal);
                        if let Some(signal) = Signal::from_named_raw(signal) {
                            self.group.signal(signal);
                        }
                    }
                }
            }
            self.reap();
            // `reap` returns only after `fg` if the user has stopped CMD. The keeper has renewed the lock meanwhile.
            self.hear_keeper();
            self.look_at_the_clock();
            self.permit();
            let given_up = |stop: &Stop| now() > stop.kill_at + AFTER_KILL;
            let ended = self.status.is_some() && self.group.is_empty();
            if ended || self.stop.as_ref().is_some_and(given_up) {
                return self.end();
            }
        }
    }

    /// Lets CMD start, if the keeper knows its group.
    ///
    /// The permission comes after a look at what the keeper says and at the clock. If the command is stopped just
    /// before, the keeper kills the group, and the starter looks at the clock again.
    fn permit(&mut self) {
        if !self.guarded || self.starter.is_none() {
            return;
        }
        self.terminal.give();
        self.hear_keeper();
        self.enforce();
        if let Some(starter) = self.starter.take() {
            self.max_hold = self.request.max_hold.map(|max| now() + max);
            // Without the permission, the starter ends.
            let _ = starter::permit(&starter, std::io::stdin(), self.kill_at());
        }
    }

    /// When `enforce` has something to do.
    fn next_step(&self) -> Duration {
        match &self.stop {
            Some(stop) => stop.kill_at.min(self.kill_at()).max(now()),
            None => self.max_hold.unwrap_or(Duration::MAX).min(self.term_at()),
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
                FromKeeper::Guards => self.guarded = true,
                FromKeeper::Renewed { deadline } => {
                    self.deadline = deadline;
                    self.overdue = None;
                }
                FromKeeper::Overdue(why) => self.overdue = Some(why),
                FromKeeper::Killed => self.stop(Why::Overdue),
                FromKeeper::Lost(reason) => {
                    self.stop(Why::Lost(reason));
                    // Somebody else may have it already.
                    self.deadline = Duration::ZERO;
                }
                FromKeeper::MaxHold => self.stop(Why::MaxHold),
                _ => {}
            }
        }
        if self.keeper.is_gone() {
            self.stop(Why::KeeperGone);
        }
    }

    /// Ends the group: with SIGTERM now, and with SIGKILL later.
    fn stop(&mut self, why: Why) {
        if self.stop.is_none() {
            self.group.signal(Signal::TERM);
            self.stop = Some(Stop {
                why,
                kill_at: now() + self.request.kill_after,
                // Without the permission, the starter ends.
                started: self.starter.take().is_none(),
            });
        }
    }

    /// Does what is due, unless the command was stopped for so long that the pipe had no room for the newest deadline. The
    /// keeper, which guards CMD, says it again within 0.1 s.
    fn look_at_the_clock(&mut self) {
        if self.stop.is_none() && now() > self.term_at() + STOPPED {
            std::thread::sleep(KEEPER_SPEAKS);
            self.hear_keeper();
        }
        self.enforce();
    }

    /// Does what is due.
    fn enforce(&mut self) {
        if self.max_hold.is_some_and(|end| now() >= end) {
            self.stop(Why::MaxHold);
        }
        if now() >= self.term_at() {
            self.stop(Why::Overdue);
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
    fn end(mut self) -> Ended {
        self.terminal.take_back();
        let empty = self.group.is_empty();
        let stopped = self.stop.as_ref().map(|stop| self.describe(stop));
        if empty {
            let status = match &stopped {
                Some((status, _)) => Some(*status),
                None => self.status.map(|status| Ending::of(status).shown()),
            };
            let done = status == Some(0);
            self.keeper
                .send(&ToKeeper::Empty(protocol::Ended { done, status }));
        } else {
            say("some processes of CMD can't be killed; the lock is not released");
        }
        if let Some((_, why)) = &stopped {
            say(why);
        }
        let mut answered = false;
        for message in self.keeper.end_within(self.time_to_release()) {
            if let FromKeeper::Released(problem) = message {
                answered = true;
                if let Some(problem) = problem {
                    say(&problem);
                }
            }
        }
        if let Some((status, _)) = stopped {
            return Ended {
                ending: Ending::Status(status),
                lost: status == LOST && empty && !self.asked_to_end,
            };
        }
        if !answered && empty {
            say("the lock may stay taken until its lease ends: its keeper gave no answer");
        }
        self.status.map_or(Ending::Status(LOST), Ending::of).into()
    }

    /// The exit status and the text for the user.
    fn describe(&self, stop: &Stop) -> (u8, String) {
        let (status, text) = match &stop.why {
            Why::Lost(reason) => (LOST, format!("the lock was lost: {reason}")),
            Why::KeeperGone => (LOST, "the lock keeper has ended".into()),
            Why::Overdue => {
                let why = self.overdue.as_deref();
                let why = why.unwrap_or("it was not renewed in time");
                (LOST, format!("the lock was about to be lost: {why}"))
            }
            Why::MaxHold => (MAX_HOLD, "the time of --max-hold was over".into()),
        };
        let what = match stop.started {
            true => "CMD was ended",
            false => "CMD was not started",
        };
        (status, format!("{what}: {text}"))
    }
}

/// Starts the process that becomes CMD when it gets the permission through the socket.
fn spawn(options: &Run, request: &Request, held: &Held) -> std::io::Result<(UnixStream, Child)> {
    let (permission, socket) = UnixStream::pair()?;
    let mut starter = this_program()?;
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
        .stdin(Stdio::from(OwnedFd::from(socket)))
        .process_group(0)
        .spawn()?;
    Ok((permission, child))
}
