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

use leasehold::{ConnectError, Error, Guard, LockClient, Loss, Outcome};
use leasehold_api::bounds::MIN_CALL_TIMEOUT;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{sleep, timeout};

use crate::clock::now;
use crate::ending;
use crate::group::Group;
use crate::operate::printable;
use crate::protocol::{Ended, FromKeeper, Held, Kind, Request, ToKeeper, Wait, line};
use hold::Hold;

/// The argument of this program as a keeper.
pub(crate) const NAME: &str = "__keep";
/// If the command has not killed the group so long before the deadline, the keeper does. It is half the
/// margin of the command.
const MARGIN: Duration = Duration::from_millis(250);
/// How long to try to connect, if the user doesn't wait for the lock. If they wait for longer, they are told after this
/// time that the lock service doesn't answer.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a killed group may take to disappear. After that, the lock is not released.
const AFTER_KILL: Duration = Duration::from_secs(10);
/// How often to ask why the lock isn't renewed.
const RENEW_AGAIN: Duration = Duration::from_secs(1);
/// How often to look whether a group is empty.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long it takes at most to get the lock, apart from the last call.
pub(crate) fn time_limit(request: &Request) -> Option<Duration> {
    match request.wait {
        Wait::No => Some(CONNECT),
        // Enough for one attempt to connect.
        Wait::Within(time) => Some(time.max(request.connection.call_timeout())),
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
    // It was started through a link, whose name `ps` would show.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"leasehold-keep");
    if let Err(error) = run() {
        say(&FromKeeper::Failed {
            status: ending::CANNOT_START,
            message: format!("the lock keeper can't start: {error}"),
        });
    }
    std::process::exit(0);
}

fn run() -> std::io::Result<()> {
    // The keeper never waits for a command that is stopped. It drops what doesn't fit in the pipe.
    let flags = rustix::fs::fcntl_getfl(rustix::stdio::stdout())?;
    let flags = flags | rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(rustix::stdio::stdout(), flags)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(keep(commands()?));
    Ok(())
}

/// The lines from the command. The channel closes when the command ends.
fn commands() -> std::io::Result<UnboundedReceiver<ToKeeper>> {
    let (sender, receiver) = unbounded_channel();
    std::thread::Builder::new().spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(command) = serde_json::from_str(&line) else {
                return;
            };
            if sender.send(command).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
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
    let may_be_free = match acquired {
        Some(Ok(lock)) => hold(&locks, &request, lock, commands).await,
        Some(Err(why)) => {
            say(&why);
            true
        }
        None => true,
    };
    if may_be_free {
        // It leaves the queue, and waits for the release of all that was granted.
        let _ = locks.shutdown().await;
    }
}

/// Connects. It tries for as long as the user waits for the lock; for [`CONNECT`] if they don't.
async fn connect(request: &Request) -> Result<LockClient, ConnectError> {
    let limit = time_limit(request);
    let until = limit.map(|limit| now() + limit);
    let mut told = limit.is_some_and(|limit| limit <= CONNECT);
    loop {
        let left = until.map_or(CONNECT, |until| until.saturating_sub(now()));
        let limit = left.clamp(MIN_CALL_TIMEOUT, CONNECT);
        let options = request.connection.options().initial_connect_timeout(limit);
        match request.connection.client(options).await {
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
    let hold = match &request.kind {
        Kind::Job { window, attempts } => {
            let attempt = job::acquire(locks, request, *window, *attempts).await?;
            return Ok(Hold::Job(attempt));
        }
        Kind::Election { info } => campaign(locks, request, info).await?,
        _ => match lock(locks, request).await? {
            Outcome::Acquired(hold) => hold,
            Outcome::Contended(contention) => {
                return Err(FromKeeper::Contended(contention.to_string()));
            }
        },
    };
    confirm(request, &hold).await?;
    Ok(hold)
}

/// Stands for election, for as long as the user waits.
async fn campaign(locks: &LockClient, request: &Request, info: &str) -> Result<Hold, FromKeeper> {
    let election = locks.election(&request.key)?;
    let election = election.lease(request.lease).info(info)?;
    let campaign = async { election.campaign().await.map(Hold::Term) };
    let limit = match request.wait {
        Wait::Forever => return Ok(campaign.await?),
        Wait::Within(time) => time,
        // The command line has no such election.
        Wait::No => Duration::ZERO,
    };
    if let Ok(elected) = timeout(limit, campaign).await {
        return Ok(elected?);
    }
    // An error says that the service didn't answer.
    let leader = election.leader().await?;
    let by = leader
        .as_ref()
        .map_or_else(|| "somebody else".into(), |it| printable(it.label.as_str()));
    let text = format!("{:?} is led by {by}", request.key);
    Err(FromKeeper::Contended(text))
}

/// Locks the key as the user wants.
async fn lock(locks: &LockClient, request: &Request) -> Result<Outcome<Hold>, Error> {
    let (key, lease, wait) = (&request.key, request.lease, request.wait);
    Ok(match request.kind {
        // A job is a mutex with a record, and an election one with a note.
        Kind::Mutex | Kind::Job { .. } | Kind::Election { .. } => {
            let lock = locks.mutex(key)?.lease(lease);
            let within = async |time| lock.try_lock_for(time).await;
            let guard = waited(wait, within, async || lock.lock().await).await?;
            guard.map(Hold::Mutex)
        }
        Kind::Read => {
            let lock = locks.rw_lock(key)?.lease(lease);
            let within = async |time| lock.try_read_for(time).await;
            let guard = waited(wait, within, async || lock.read().await).await?;
            guard.map(Hold::Read)
        }
        Kind::Write => {
            let lock = locks.rw_lock(key)?.lease(lease);
            let within = async |time| lock.try_write_for(time).await;
            let guard = waited(wait, within, async || lock.write().await).await?;
            guard.map(Hold::Write)
        }
        Kind::Permit(capacity) => {
            let lock = locks.semaphore(key, capacity)?.lease(lease);
            let within = async |time| lock.try_acquire_for(time).await;
            let guard = waited(wait, within, async || lock.acquire().await).await?;
            guard.map(Hold::Permit)
        }
    })
}

/// Calls what waits as long as the user wants.
async fn waited<K>(
    wait: Wait,
    within: impl AsyncFnOnce(Duration) -> Result<Outcome<Guard<K>>, Error>,
    forever: impl AsyncFnOnce() -> Result<Guard<K>, Error>,
) -> Result<Outcome<Guard<K>>, Error> {
    match wait {
        Wait::No => within(Duration::ZERO).await,
        Wait::Within(time) => within(time).await,
        Wait::Forever => forever().await.map(Outcome::Acquired),
    }
}

/// Renews a lock that was granted after a wait. Until its first renewal, it is an offer, which may end
/// long before the lease would.
async fn confirm(request: &Request, hold: &Hold) -> Result<(), Error> {
    while hold.valid_for() < request.lease * 2 / 3 {
        match hold.renew().await {
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

/// What ends a hold.
enum End {
    /// No process of CMD is left.
    Empty(Ended),
    /// The command has ended, and CMD may be running.
    CommandGone,
    /// The time of `--max-hold` is over, and the command has not ended CMD, because it is stopped.
    MaxHold,
    Lost(Loss),
}

/// Holds the lock for the command. Returns whether it may be free.
async fn hold(
    locks: &LockClient,
    request: &Request,
    lock: Hold,
    mut commands: UnboundedReceiver<ToKeeper>,
) -> bool {
    let mut group = None;
    let end = watch(request, &lock, &mut commands, &mut group).await;
    let mut ended = Ended::default();
    match end {
        End::Empty(told) => ended = told,
        End::CommandGone => terminate(request, &lock, group).await,
        End::MaxHold => {
            say(&FromKeeper::MaxHold);
            kill(group).await;
        }
        End::Lost(loss) => {
            say(&FromKeeper::Lost(loss.to_string()));
            kill(group).await;
            // The server may still have it: its clock was set back, or the lock was revoked. `keep` waits for the
            // release that this queues.
            return true;
        }
    }
    if group.is_some_and(|group| !group.is_empty()) {
        // They may be working. The lock is free when the lease ends.
        std::mem::forget(lock);
        return false;
    }
    say(&FromKeeper::Released(lock.release(locks, ended).await));
    true
}

/// Waits until something ends the hold. Meanwhile tells the command of renewals, and kills the group if the command has
/// not done so in time. `group` is set when the command says it.
async fn watch(
    request: &Request,
    lock: &Hold,
    commands: &mut UnboundedReceiver<ToKeeper>,
    group: &mut Option<Group>,
) -> End {
    let mut told = deadline(lock);
    say(&FromKeeper::Held(Held {
        token: lock.token(),
        deadline: told,
        attempt: lock.attempt(),
    }));
    // The command says how CMD has ended, if it can. It begins to count when CMD starts.
    let limit = || Some(now() + request.max_hold? + request.kill_after + MARGIN * 2);
    let mut max_hold = limit();
    let mut answered = true;
    let look_again = (request.lease / 20).min(Duration::from_millis(100));
    let mut lost = lock.lost();
    let (mut has_killed, mut killed_told) = (false, false);
    let mut renewal = None;
    let mut renew_at = Duration::ZERO;
    loop {
        tokio::select! {
            // A loss comes first: a lost lock isn't valid either, and the user shall read why it was lost.
            biased;
            loss = &mut lost => return End::Lost(loss),
            command = commands.recv() => match command {
                Some(ToKeeper::Group(id)) => {
                    *group = Pid::from_raw(id).map(Group);
                    max_hold = limit();
                    answered = say(&FromKeeper::Guards);
                }
                Some(ToKeeper::Empty(ended)) => return End::Empty(ended),
                Some(ToKeeper::Acquire(_)) => {}
                None => return End::CommandGone,
            },
            renewed = ended(&mut renewal) => {
                renewal = None;
                renew_at = now() + RENEW_AGAIN;
                if let Err(error) = renewed {
                    say(&FromKeeper::Overdue(text_of(&error)));
                }
            }
            () = sleep(look_again) => {
                answered = answered || say(&FromKeeper::Guards);
                let deadline = deadline(lock);
                // It moves by less than this if the lock was not renewed.
                if deadline > told + look_again / 10 && say(&FromKeeper::Renewed { deadline }) {
                    told = deadline;
                }
                // The client renews it too. This renewal says why that fails.
                let overdue = lock.valid_for() < request.lease / 2;
                if overdue && renewal.is_none() && now() >= renew_at {
                    renewal = Some(Box::pin(lock.renew()));
                }
                if let Some(group) = group && lock.valid_for() < MARGIN {
                    group.signal(Signal::KILL);
                    has_killed = true;
                }
                killed_told = killed_told || has_killed && say(&FromKeeper::Killed);
                if max_hold.is_some_and(|limit| now() > limit) {
                    return End::MaxHold;
                }
            }
        }
    }
}

/// Completes with the output of a future, if there is one.
async fn ended<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Ends CMD as the command would have done. The lock is renewed meanwhile.
async fn terminate(request: &Request, lock: &Hold, group: Option<Group>) {
    let Some(group) = group else { return };
    group.signal(Signal::TERM);
    let until = now() + request.kill_after;
    while !group.is_empty() && now() < until && lock.valid_for() >= MARGIN * 2 {
        sleep(LOOK_AGAIN).await;
    }
    kill(Some(group)).await;
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
