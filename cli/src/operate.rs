//! `leasehold ls`, `show` and `revoke`: what an operator asks and does.

use std::fmt::Display;
use std::io::Write;
use std::time::{Duration, SystemTime};

use leasehold::backend::ServerTime;
use leasehold::inspect::{Inspection, Mode, Role};
use leasehold::{
    ConnectError, Error, FencingToken, FireTime, ForceMode, ForceReply, JobReset, JobState,
    JobStatus, Key, Label, LockClient,
};
use serde_json::{Value, json};

use crate::arguments::{Database, Ls, Reset, Revoke, Schema, Service, Show, ShowJob};
use crate::connection::Connection;
use crate::ending::{self, CANNOT_START, CONTENDED, Ending, UNREACHABLE, USAGE};
use crate::output::say;

/// Nobody holds the key, or nobody with this token.
const NOT_HELD: u8 = 1;

/// Why a command has failed: how it ends, and what to print.
pub(crate) struct Failed {
    ending: Ending,
    text: String,
}

impl Failed {
    fn new(status: u8, text: String) -> Self {
        let ending = Ending::Status(status);
        Self { ending, text }
    }

    /// The lock service didn't answer in time.
    pub(crate) fn unreachable(text: String) -> Self {
        Self::new(UNREACHABLE, text)
    }
}

impl From<ConnectError> for Failed {
    fn from(error: ConnectError) -> Self {
        Self::new(ending::of_connect_error(&error), ending::chain(&error))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::new(ending::of_error(&error), ending::chain(&error))
    }
}

/// Standard output is closed, or full.
impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        let (ending, text) = (
            ending::of_output(&error),
            format!("standard output: {error}"),
        );
        Self { ending, text }
    }
}

/// Runs a command, and prints why it has failed.
pub(crate) fn block_on(command: impl Future<Output = Result<u8, Failed>>) -> Ending {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| Failed::new(CANNOT_START, error.to_string()));
    let ended = runtime.and_then(|runtime| runtime.block_on(command));
    match ended {
        Ok(status) => Ending::Status(status),
        // Whoever has closed the pipe knows it.
        Err(Failed { ending, .. }) if matches!(ending, Ending::Signal(_)) => ending,
        Err(Failed { ending, text }) => {
            say(&text);
            ending
        }
    }
}

/// The service that the user named.
pub(crate) fn connection(to: &Service) -> Result<Connection, Failed> {
    to.connection().map_err(|text| Failed::new(USAGE, text))
}

pub(crate) async fn connect(to: &Service) -> Result<LockClient, Failed> {
    let connection = connection(to)?;
    Ok(connection.client(connection.options()).await?)
}

pub(crate) fn ls(options: &Ls) -> Ending {
    block_on(async {
        let locks = connect(&options.service).await?;
        let mut listing = locks.list(&options.prefix)?;
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        while let Some(keys) = listing.next_page().await? {
            for key in keys {
                if !options.long && !options.json {
                    write_key(&mut out, &key)?;
                    continue;
                }
                let state = match locks.inspect(&key).await {
                    // Something else lives under a name like that of a lock.
                    Err(Error::ForeignValue { .. }) => continue,
                    state => state?,
                };
                if state.spec().is_some() || !options.long {
                    write_state(&mut out, &state, options.json)?;
                }
            }
            // A page may be long in coming.
            out.flush()?;
        }
        Ok(0)
    })
}

pub(crate) fn show(options: &Show) -> Ending {
    block_on(async {
        let locks = connect(&options.service).await?;
        let state = locks.inspect(&options.key).await?;
        write_state(&mut std::io::stdout(), &state, options.json)?;
        Ok(if state.is_held() { 0 } else { NOT_HELD })
    })
}

pub(crate) fn revoke(options: &Revoke) -> Ending {
    block_on(async {
        let locks = connect(&options.service).await?;
        let mode = match options.now {
            true => ForceMode::Now,
            false => ForceMode::Revoke,
        };
        let tokens = vec![FencingToken::new(options.token)];
        match locks.force_release(&options.key, tokens, mode).await? {
            ForceReply::Forced { holders } => {
                let done = if options.now { "removed" } else { "revoked" };
                writeln!(std::io::stdout(), "{done}: {holders}")?;
                Ok(0)
            }
            ForceReply::WrongEpoch => {
                say(&format!("nobody holds {:?} with this token", options.key));
                Ok(NOT_HELD)
            }
        }
    })
}

/// A time of the lock service.
pub(crate) fn date(time: FireTime) -> impl Display {
    // Later years have no such text.
    let millis = time.as_millis().min(253_402_300_799_999);
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
    humantime::format_rfc3339_seconds(time)
}

/// The milliseconds since 1970 began.
fn millis(time: ServerTime) -> u64 {
    time.as_micros() / 1_000
}

pub(crate) fn show_job(options: &ShowJob) -> Ending {
    block_on(async {
        let locks = connect(&options.service).await?;
        let status = locks.once(&options.key)?.status().await?;
        let mut out = std::io::stdout();
        match options.json {
            true => writeln!(out, "{}", json_of_job(&options.key, &status))?,
            false => write_job(&mut out, &status)?,
        }
        Ok(0)
    })
}

fn json_of_job(key: &str, status: &JobStatus) -> Value {
    json!({
        "key": key,
        "state": match status.state {
            JobState::NoRecord => "no_record",
            JobState::Running => "running",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Interrupted => "interrupted",
            JobState::GaveUp => "gave_up",
            JobState::Missed => "missed",
            _ => "other",
        },
        "done_ms": status.done.map(FireTime::as_millis),
        "done_at_ms": status.done_at.map(millis),
        "tried_ms": status.tried.map(FireTime::as_millis),
        "tried_at_ms": status.tried_at.map(millis),
        "attempts": status.attempts,
        "last_status": last_status(status),
        "exit_status": status.exit_status,
        "tried_by": status.tried_by.as_ref().map(Label::as_str),
        "running": status.running.as_ref().map(Label::as_str),
        "next_ms": status.next.map(millis),
    })
}

/// How the last attempt has ended, if there was one.
fn last_status(status: &JobStatus) -> Option<&'static str> {
    status.tried?;
    Some(match status.state {
        JobState::Running => "running",
        JobState::Done => "succeeded",
        _ if status.failed => "failed",
        _ => "interrupted",
    })
}

fn write_job(out: &mut impl Write, status: &JobStatus) -> std::io::Result<()> {
    let at = |time| date(FireTime::from_millis(millis(time)));
    let by = |label: Option<&Label>| printable(label.map_or("somebody", Label::as_str));
    let state = match status.state {
        JobState::NoRecord => "no record: it has not run, or long ago".into(),
        JobState::Running => format!("run by {}", by(status.running.as_ref())),
        JobState::Done => "done".into(),
        JobState::Failed => "failed, waits for the next attempt".into(),
        JobState::Interrupted => "interrupted, waits for the next attempt".into(),
        JobState::GaveUp => "given up: all attempts have failed".into(),
        JobState::Missed => "missed: too late for another attempt".into(),
        state => format!("{state:?}"),
    };
    writeln!(out, "{state}")?;
    if let Some((fire, ended)) = status.done.zip(status.done_at) {
        let (began, ended) = (date(fire), at(ended));
        writeln!(out, "last success: began at {began}, ended at {ended}")?;
    }
    if let Some((last, time)) = last_status(status).zip(status.tried_at) {
        let (number, by, time) = (status.attempts, by(status.tried_by.as_ref()), at(time));
        let exit = status.exit_status;
        let exit = exit.map_or_else(String::new, |it| format!(" with exit status {it}"));
        let what = match last {
            "running" => format!("began at {time}"),
            "interrupted" => format!("began at {time}, and didn't end"),
            // The time of a success is that of its record.
            "succeeded" => last.into(),
            _ => format!("{last} at {time}{exit}"),
        };
        writeln!(out, "last attempt: number {number}, by {by}, {what}")?;
    }
    if let Some(next) = status.next {
        writeln!(out, "next: not before {}", at(next))?;
    }
    Ok(())
}

pub(crate) fn schema(options: &Schema) -> Ending {
    block_on(async {
        let statements = match options.of {
            Database::Postgres => leasehold::postgres::SCHEMA,
            #[cfg(feature = "mysql")]
            Database::Mysql => leasehold::mysql::SCHEMA,
        };
        std::io::stdout().write_all(statements.as_bytes())?;
        Ok(0)
    })
}

pub(crate) fn reset_job(options: &Reset) -> Ending {
    block_on(async {
        let locks = connect(&options.service).await?;
        match locks.once(&options.key)?.reset().await? {
            JobReset::Reset => Ok(0),
            JobReset::Running { by } => {
                let by = printable(by.as_ref().map_or("somebody", Label::as_str));
                say(&format!("not reset, because {by} runs {:?}", options.key));
                Ok(CONTENDED)
            }
            other => {
                say(&format!("not reset: {other:?}"));
                Ok(CONTENDED)
            }
        }
    })
}

/// Writes a key as a line. Control characters would end the line, or change the terminal.
fn write_key(out: &mut impl Write, key: &Key) -> std::io::Result<()> {
    writeln!(out, "{}", printable(key.as_str()))
}

pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => printable.extend(character.escape_default()),
            false => printable.push(character),
        }
    }
    printable
}

fn write_state(out: &mut impl Write, state: &Inspection, as_json: bool) -> std::io::Result<()> {
    if as_json {
        return writeln!(out, "{}", json_of(state));
    }
    writeln!(out, "{state}")?;
    if state.role() == Some(Role::Job) {
        writeln!(out, "  a job: see `leasehold once show`")?;
    }
    if let Some(leader) = state.leader() {
        let info = String::from_utf8_lossy(&leader.info);
        writeln!(out, "  info of the leader: {}", printable(&info))?;
    }
    Ok(())
}

fn json_of(state: &Inspection) -> Value {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let last_change = state.last_change().map(millis);
    let holders = state.holders().iter().map(|holder| {
        json!({
            "label": holder.label.as_str(),
            "mode": mode(holder.mode),
            "holds": holder.holds,
            "token": holder.token.get(),
            "remaining_ms": last_change.is_none().then(|| millis(holder.remaining)),
            "revoked": holder.revoked,
        })
    });
    let waiters = state.waiters().iter().map(|waiter| {
        json!({
            "label": waiter.label.as_str(),
            "mode": mode(waiter.mode),
            "unreachable": waiter.unreachable,
        })
    });
    let note = state.note().map(|note| {
        json!({
            "bytes": note.bytes,
            "token": note.token.get(),
            "version": note.version,
            "kept_for_ms": millis(note.kept_for),
        })
    });
    json!({
        "key": state.key().as_str(),
        "role": state.role().and_then(name_of),
        "info": state.leader().and_then(|it| String::from_utf8(it.info).ok()),
        "note": note,
        "kind": state.spec().map(|spec| format!("{:?}", spec.kind())),
        "capacity": state.spec().map(|spec| spec.capacity()),
        "token": state.token().map(FencingToken::get),
        "holder_count": state.holder_count(),
        "holders": holders.collect::<Vec<_>>(),
        "waiter_count": state.waiter_count(),
        "waiters": waiters.collect::<Vec<_>>(),
    })
}

pub(crate) fn name_of(role: Role) -> Option<&'static str> {
    match role {
        Role::Job => Some("job"),
        Role::Election => Some("election"),
        _ => None,
    }
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Permits(permits) => format!("{permits} permits"),
        mode => format!("{mode:?}").to_lowercase(),
    }
}
