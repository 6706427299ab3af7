//! `leasehold run`: the process that the user starts.

mod events;
mod keeper;
mod running;
mod terminal;

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::arguments::Run;
use crate::clock::now;
use crate::ending::{CANNOT_START, Ending, LOST, MAX_HOLD, UNREACHABLE, USAGE};
use crate::keeper::time_limit;
use crate::output::say;
use crate::protocol::{FromKeeper, Held, Request};
use events::Events;
use keeper::Keeper;
use running::Running;

/// How long the keeper may take beyond its own limits.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the keeper may take to release the lock, or to leave the queue: three calls, and what a shutdown takes.
const RELEASE: Duration = Duration::from_secs(10);

/// How long to wait before another term, if the last one was shorter than a lease. Each further pause is twice as long.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Runs CMD while the keeper holds the lock.
pub(crate) fn run(options: &Run) -> Ending {
    let request = match options.request() {
        Ok(request) => request,
        Err(problem) => {
            say(&problem);
            return Ending::Status(USAGE);
        }
    };
    run_with(options, &request).unwrap_or_else(|error| {
        say(&format!("CMD was not started: {error}"));
        Ending::Status(CANNOT_START)
    })
}

fn run_with(options: &Run, request: &Request) -> std::io::Result<Ending> {
    // On Linux, processes whose parent ends become children of this one, which reaps them. A group with
    // an unreaped process is not empty.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let mut events = Events::new()?;
    let mut pause = Duration::ZERO;
    loop {
        let mut keeper = Keeper::start(request)?;
        let acquired = acquire(options, request, &mut events, &mut keeper)?;
        let began = now();
        let ended = match acquired {
            Ok(held) => Running::start(options, request, keeper, &mut events, held)?.until_empty(),
            Err(ended) => ended,
        };
        if !(options.again && ended.lost) {
            return Ok(ended.ending);
        }
        // A term that ended at once may do so again.
        pause = match now() - began < request.lease {
            true => (pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE),
            false => Duration::ZERO,
        };
        match pause.is_zero() {
            true => say("standing for election again"),
            false => say(&format!("standing for election again in {pause:?}")),
        }
        if let Some(signal) = pause_for(pause, &mut events)? {
            return Ok(Ending::Signal(signal));
        }
    }
}

/// Waits for this time. Returns the signal that asks the command to end meanwhile.
fn pause_for(time: Duration, events: &mut Events) -> std::io::Result<Option<i32>> {
    let until = now() + time;
    while now() < until {
        let signals = events.wait(None, Some(until))?;
        let signal = signals.into_iter().find(|it| events::is_passed_on(*it));
        if signal.is_some() {
            return Ok(signal);
        }
    }
    Ok(None)
}

/// How a term as the holder of the lock has ended.
struct Ended {
    ending: Ending,
    /// Whether it was lost, nothing of CMD is left, and nobody has asked the command to end.
    lost: bool,
}

impl From<Ending> for Ended {
    fn from(ending: Ending) -> Self {
        Self {
            ending,
            lost: false,
        }
    }
}

/// Waits for the lock. Returns what is held, or how the command ends instead. A signal ends the wait, and then the
/// command.
fn acquire(
    options: &Run,
    request: &Request,
    events: &mut Events,
    keeper: &mut Keeper,
) -> std::io::Result<Result<Held, Ended>> {
    // The keeper has its own limits; it confirms a grant within the lease. This one counts if it was stopped.
    let until = time_limit(request).map(|limit| now() + limit + request.lease + PATIENCE);
    let mut held: Option<Held> = None;
    loop {
        let signals = events.wait(Some(keeper), until)?;
        for message in keeper.messages() {
            match message {
                FromKeeper::Held(now_held) => held = Some(now_held),
                FromKeeper::Renewed { deadline } => {
                    held = held.map(|held| Held { deadline, ..held });
                }
                FromKeeper::Unreachable(why) => say(&format!("{why}; trying again")),
                message => {
                    let lost = matches!(
                        message,
                        FromKeeper::Lost(_) | FromKeeper::Failed { status: LOST, .. }
                    );
                    if let Some(status) = not_acquired(options, message) {
                        if lost {
                            // It releases what the server may still have.
                            keeper.end_within(RELEASE);
                        }
                        let ending = Ending::Status(status);
                        return Ok(Err(Ended { ending, lost }));
                    }
                }
            }
        }
        if let Some(signal) = signals.into_iter().find(|it| events::is_passed_on(*it)) {
            // It leaves the queue, or releases the lock.
            keeper.end_within(RELEASE);
            return Ok(Err(Ending::Signal(signal).into()));
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
        say(message);
        keeper.kill();
        return Ok(Err(Ending::Status(UNREACHABLE).into()));
    }
}

/// Prints why CMD doesn't run, and returns the exit status.
fn not_acquired(options: &Run, message: FromKeeper) -> Option<u8> {
    let (status, text) = match message {
        FromKeeper::Done(text) => {
            // Nothing is wrong, so a crontab line stays silent.
            if std::io::stderr().is_terminal() {
                say(&text);
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
        FromKeeper::MaxHold => (MAX_HOLD, "--max-hold was over before CMD started".into()),
        FromKeeper::Held(_)
        | FromKeeper::Renewed { .. }
        | FromKeeper::Unreachable(_)
        | FromKeeper::Guards
        | FromKeeper::Overdue(_)
        | FromKeeper::Killed
        | FromKeeper::Released(_) => return None,
    };
    say(&text);
    Some(status)
}

/// A command that starts this program again: the same file, even if another one has its name by now.
fn this_program() -> std::io::Result<Command> {
    let own = "/proc/self/exe";
    let path = match std::path::Path::new(own).exists() {
        true => own.into(),
        false => std::env::current_exe().map_err(|error| {
            let problem = format!("can't find this program, is /proc there? {error}");
            std::io::Error::new(error.kind(), problem)
        })?,
    };
    let mut command = Command::new(path);
    command.arg0("leasehold");
    Ok(command)
}
