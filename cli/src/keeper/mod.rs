//! The keeper: it acquires the lock, renews it, and releases it when the process group of CMD is empty.
//!
//! It also kills that group: when the command ends first, which closes the keeper's input, and when the
//! lease ends although the command should have killed the group before, because the command is stopped.

mod hold;
mod job;

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use leasehold::{ConnectError, Error, LockClient, MultiGuard, MultiLock, Outcome};
use leasehold_api::bounds::MIN_CALL_TIMEOUT;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{sleep, timeout};

use crate::clock::now;
use crate::ending;
use crate::group::Group;
use crate::operate::connect_options;
use crate::protocol::{FromKeeper, Held, Kind, Request, ToKeeper, Wait, line};
use hold::Hold;

/// The argument of this program as a keeper.
pub(crate) const NAME: &str = "__keep";
/// If the command has not killed the group so long before the deadline, the keeper does. It is half the
/// margin of the command.
const MARGIN: Duration = Duration::from_millis(250);
/// How long to try to connect, if the user doesn't wait longer for the lock. If they do, they are told after this
/// time that the lock service doesn't answer.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a killed group may take to disappear. After that, the lock is not released.
const AFTER_KILL: Duration = Duration::from_secs(10);
/// How long the keeper may take to leave the queue, after the command has ended.
const LEAVE: Duration = Duration::from_secs(5);
/// How often to look whether a group is empty.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long it takes at most to get the lock, apart from the last call.
pub(crate) fn time_limit(wait: Wait) -> Option<Duration> {
    match wait {
        Wait::No => Some(CONNECT),
        Wait::Within(time) => Some(time.max(CONNECT)),
        Wait::Forever => None,
    }
}

/// Keeps a lock for the command, which talks over standard input and output.
pub(crate) fn main() -> ! {
    // Whoever signals the command may signal its keeper too: a terminal, a service manager. The keeper
    // ends when its input does.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    // The keeper never waits for a command that is stopped. It drops what doesn't fit in the pipe.
    let nonblocking = rustix::fs::fcntl_getfl(rustix::stdio::stdout()).and_then(|flags| {
        let flags = flags | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(rustix::stdio::stdout(), flags)
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    if let (Ok(()), Ok(runtime)) = (nonblocking, runtime) {
        runtime.block_on(keep(commands()));
    }
    std::process::exit(0);
}

/// The lines from the command. The channel closes when the command ends.
fn commands() -> UnboundedReceiver<ToKeeper> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(command) = serde_json::from_str(&line) else {
                return;
            };
            if sender.send(command).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Sends a line to the command. Returns whether it fits in the pipe: a line is shorter than `PIPE_BUF`, so
/// it is written as a whole or not at all.
fn say(message: &FromKeeper) -> bool {
    rustix::io::write(rustix::stdio::stdout(), &line(message)).is_ok()
}

impl From<ConnectError> for FromKeeper {
    fn from(error: ConnectError) -> Self {
        let (status, message) = (ending::of_connect_error(&error), text_of(&error));
        Self::Failed { status, message }
    }
}

impl From<Error> for FromKeeper {
    fn from(error: Error) -> Self {
        let (status, message) = (ending::of_error(&error), text_of(&error));
        Self::Failed { status, message }
    }
}

/// An error and its sources, so short that the line fits in the pipe.
fn text_of(error: &dyn std::error::Error) -> String {
    ending::chain(error).chars().take(800).collect()
}

async fn keep(mut commands: UnboundedReceiver<ToKeeper>) {
    let Some(ToKeeper::Acquire(mut request)) = commands.recv().await else {
        return;
    };
    let began = now();
    let connected = tokio::select! {
        connected = connect(&request) => connected,
        None = commands.recv() => return,
    };
    if let Wait::Within(time) = &mut request.wait {
        *time = time.saturating_sub(now() - began);
    }
    let locks = match connected {
        Ok(locks) => locks,
        Err(error) => {
            say(&error.into());
            return;
        }
    };
    let acquired = tokio::select! {
        acquired = acquire(&locks, &request) => Some(acquired),
        None = commands.recv() => None,
    };
    match acquired {
        Some(Ok(lock)) => hold(&request, lock, commands).await,
        Some(Err(why)) => {
            say(&why);
        }
        None => {
            // It leaves the queue, or releases what was granted at this moment.
            let _ = timeout(LEAVE, locks.shutdown()).await;
        }
    }
}

/// Connects. It tries for as long as the user waits for the lock, and for at least [`CONNECT`].
async fn connect(request: &Request) -> Result<LockClient, ConnectError> {
    let limit = time_limit(request.wait);
    let until = limit.map(|limit| now() + limit);
    let mut told = limit == Some(CONNECT);
    loop {
        let left = until.map_or(CONNECT, |until| until.saturating_sub(now()));
        let options = connect_options(request.key_prefix.as_deref())
            .initial_connect_timeout(left.clamp(MIN_CALL_TIMEOUT, CONNECT));
        match options.connect(&request.url).await {
            Err(ConnectError::Backend(error))
                if error.is_transient() && until.is_none_or(|until| now() < until) =>
            {
                if !told {
                    told = say(&FromKeeper::Unreachable(text_of(&error)));
                }
            }
            connected => return connected,
        }
    }
}

/// Returns what is held, or what the command gets to know instead.
async fn acquire(locks: &LockClient, request: &Request) -> Result<Hold, FromKeeper> {
    if let Kind::Job { window, attempts } = request.kind {
        return job::acquire(locks, request, window, attempts).await;
    }
    let lock = handle(locks, request)?;
    let outcome = match request.wait {
        Wait::No => lock.try_lock().await?,
        Wait::Within(time) => lock.try_lock_for(time).await?,
        Wait::Forever => Outcome::Acquired(lock.lock().await?),
    };
    match outcome {
        Outcome::Acquired(guard) => {
            confirm(request, &guard).await?;
            Ok(Hold::Lock(guard))
        }
        Outcome::Contended(contention) => Err(FromKeeper::Contended(contention.to_string())),
    }
}

/// A handle for one key, of any kind.
fn handle(locks: &LockClient, request: &Request) -> Result<MultiLock, Error> {
    let mut multi = locks.multi().lease(request.lease);
    if let Some(max) = request.max_hold {
        multi = multi.max_hold(max);
    }
    match request.kind {
        // A job is a mutex with a record.
        Kind::Mutex | Kind::Job { .. } => multi.mutex(&request.key),
        Kind::Read => multi.read(&request.key),
        Kind::Write => multi.write(&request.key),
        Kind::Permit(capacity) => multi.permits(&request.key, capacity, 1),
    }
}

/// Renews a lock that was granted after a wait. Until its first renewal, it is an offer, which may end
/// long before the lease would.
async fn confirm(request: &Request, guard: &MultiGuard) -> Result<(), Error> {
    let whole = request.lease.min(request.max_hold.unwrap_or(Duration::MAX));
    while guard.valid_for() < whole * 2 / 3 {
        match guard.renew().await {
            Ok(_) => {}
            Err(error) if error.is_transient() => sleep(LOOK_AGAIN).await,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The deadline of a hold, or a moment before it.
fn deadline(lock: &Hold) -> Duration {
    let before = now();
    before + lock.valid_for()
}

/// Holds the lock until the command says that the group is empty, or ends, or the lock is lost.
async fn hold(request: &Request, lock: Hold, mut commands: UnboundedReceiver<ToKeeper>) {
    let mut told = deadline(&lock);
    say(&FromKeeper::Held(Held {
        token: lock.token(&request.key),
        deadline: told,
        attempt: lock.attempt(),
    }));
    let mut group = None;
    let look_again = (request.lease / 20).min(Duration::from_millis(100));
    let mut lost = lock.lost();
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(ToKeeper::Group(id)) => group = Pid::from_raw(id).map(Group),
                Some(ToKeeper::Empty { done }) => return release(lock, done).await,
                Some(ToKeeper::Acquire(_)) => {}
                None => return clean_up(request, lock, group).await,
            },
            loss = &mut lost => {
                say(&FromKeeper::Lost(loss.to_string()));
                return kill(group).await;
            }
            () = sleep(look_again) => {
                let deadline = deadline(&lock);
                // It moves by less than this if the lock was not renewed.
                if deadline > told + look_again / 10 && say(&FromKeeper::Renewed { deadline }) {
                    told = deadline;
                }
                if let Some(group) = group && lock.valid_for() < MARGIN {
                    group.signal(Signal::KILL);
                }
            }
        }
    }
}

/// The command has ended, and CMD may be running: ends CMD as the command would have done, and releases
/// the lock if no process is left. The lock is renewed meanwhile.
async fn clean_up(request: &Request, lock: Hold, group: Option<Group>) {
    if let Some(group) = group {
        group.signal(Signal::TERM);
        let until = now() + request.kill_after;
        while !group.is_empty() && now() < until && lock.valid_for() >= MARGIN * 2 {
            sleep(LOOK_AGAIN).await;
        }
        kill(Some(group)).await;
        if !group.is_empty() {
            return;
        }
    }
    release(lock, false).await;
}

/// Kills the group until it is empty.
async fn kill(group: Option<Group>) {
    let Some(group) = group else { return };
    let until = now() + AFTER_KILL;
    while !group.is_empty() && now() < until {
        group.signal(Signal::KILL);
        sleep(LOOK_AGAIN).await;
    }
}

async fn release(lock: Hold, done: bool) {
    say(&FromKeeper::Released(lock.release(done).await));
}
