//! `leasehold doctor`: checks a lock service before it is used.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant, UNIX_EPOCH};

use leasehold::backend::{BackendError, LockBackend};
use leasehold::postgres::{self, PostgresBackend};
use leasehold::redis_rs::{self, ServerChecks};
use leasehold::{ConnectError, Error, Key, LockClient};
use leasehold_api::{ClockId, Stamp};
use tokio::time::{sleep, timeout};

use crate::arguments::Doctor;
use crate::connection::Connection;
use crate::ending::Ending;
use crate::operate::{Failed, block_on, connection};

/// The exit status if something should be changed.
const CHANGE: u8 = 1;
/// The time limit of all checks together.
const LIMIT: Duration = Duration::from_secs(60);
/// The time limit for each lock.
const WAIT: Duration = Duration::from_secs(10);
/// How many round trips are timed.
const ROUND_TRIPS: usize = 20;
/// How many keys are tried to find all nodes of a cluster.
const KEYS: usize = 200;
/// What assumption A3 allows between the clocks of two servers.
const APART: Duration = Duration::from_millis(10);
/// A waiter that is not told polls about once a second.
const PUSHED: Duration = Duration::from_millis(250);

/// What has been checked when a client is connected, by the beginnings of URLs.
const CHECKED_BEFORE: &[(&[&str], &str)] = &[
    (
        &["sqlite:"],
        "a local file system; each commit is on the disk",
    ),
    (&["mysql:", "mariadb:"], "schema, rights, clock and commits"),
    (
        &["etcd:", "etcds:"],
        "a leader, and the rights of this user to read",
    ),
    (
        &["nats:", "tls:"],
        "bucket, storage, age and limits; sync_interval can't be seen",
    ),
    (&["s3:"], "bucket, rights and conditional writes"),
];

/// The lines of the report.
#[derive(Default)]
struct Report {
    problems: usize,
}

impl Report {
    fn good(&self, what: &str, text: &str) -> std::io::Result<()> {
        writeln!(std::io::stdout(), "ok      {what}: {text}")
    }

    fn problem(&mut self, what: &str, text: &str) -> std::io::Result<()> {
        self.problems += 1;
        writeln!(std::io::stdout(), "problem {what}: {text}")
    }
}

pub(crate) fn doctor(options: &Doctor) -> Ending {
    block_on(async {
        let checking = timeout(LIMIT, check(options)).await;
        let too_slow = |_| Failed::unreachable(format!("no complete answer within {LIMIT:?}"));
        checking.map_err(too_slow)?
    })
}

async fn check(options: &Doctor) -> Result<u8, Failed> {
    let connection = connection(&options.service)?;
    let mut report = Report::default();
    let backend = connection.options().backend(&connection.url).await?;
    report.good("connection", "the lock service accepts this client")?;
    settings(&mut report, &connection).await?;
    round_trips(&mut report, &*backend).await?;
    clocks(&mut report, &*backend).await?;
    let others = connection.client(connection.options()).await?;
    push(&mut report, &LockClient::new(backend), &others).await?;
    listing(&mut report, &others).await?;
    Ok(if report.problems > 0 { CHANGE } else { 0 })
}

/// Asks the server for its settings. Also for the rights of this user, without which Postgres refuses to connect.
async fn settings(report: &mut Report, connection: &Connection) -> Result<(), Failed> {
    let url = &connection.url;
    let checked = |(beginnings, _): &&(&[&str], _)| beginnings.iter().any(|it| url.starts_with(it));
    if let Some((_, checked)) = CHECKED_BEFORE.iter().find(checked) {
        return Ok(report.good("settings", checked)?);
    }
    if url.starts_with("postgres") {
        let mut options = postgres::Options::new();
        if let Some(limit) = connection.connect_timeout {
            options = options
                .connect_timeout(limit)
                .call_timeout(connection.call_timeout());
        }
        let backend = PostgresBackend::connect_with(url, options).await?;
        let dangers = backend.dangerous_settings().await;
        let dangers = dangers.map_err(ConnectError::from)?;
        for danger in &dangers {
            report.problem("settings", danger)?;
        }
        if dangers.is_empty() {
            let checked = "schema, rights, commits, standbys and autovacuum";
            report.good("settings", checked)?;
        }
        return Ok(());
    }
    let mut options = redis_rs::Options::new().server_checks(ServerChecks::Reject);
    if let Some(prefix) = &connection.key_prefix {
        options = options.key_prefix(prefix);
    }
    if let Some(limit) = connection.connect_timeout {
        options = options
            .connect_timeout(limit)
            .call_timeout(connection.call_timeout());
    }
    match redis_rs::RedisBackend::connect_with(url, options).await {
        Ok(_) => report.good("settings", "persistence, eviction, replicas and rights")?,
        Err(ConnectError::Backend(BackendError::Rejected { reason, .. })) => {
            report.problem("settings", &reason)?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

async fn round_trips(report: &mut Report, backend: &dyn LockBackend) -> Result<(), Failed> {
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        backend.hello().await.map_err(ConnectError::from)?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let (median, longest) = (times[ROUND_TRIPS / 2], times[ROUND_TRIPS - 1]);
    let text = format!("{median:.1?} in the middle, {longest:.1?} at most, of {ROUND_TRIPS}");
    match longest < Duration::from_millis(500) {
        true => report.good("round trips", &text)?,
        false => report.problem("round trips", &format!("{text}; a call may take 1 s"))?,
    }
    Ok(())
}

/// How far the clock of a server is ahead of this machine's, in seconds, and how uncertain that is.
#[derive(Clone, Copy)]
struct Reading {
    ahead: f64,
    uncertain: f64,
}

async fn read(backend: &dyn LockBackend, key: &Key) -> Result<(ClockId, Reading), BackendError> {
    let now = || UNIX_EPOCH.elapsed().unwrap_or_default();
    let before = now();
    let Stamp { clock, at } = backend.read_clock(key).await?;
    let after = now();
    let at = Duration::from_micros(at.as_micros()).as_secs_f64();
    let reading = Reading {
        ahead: at - (before + after).as_secs_f64() / 2.0,
        uncertain: after.saturating_sub(before).as_secs_f64() / 2.0,
    };
    Ok((clock, reading))
}

/// Compares the clocks of all nodes that keys are on. Tries keys until all nodes were met, most likely.
async fn clocks(report: &mut Report, backend: &dyn LockBackend) -> Result<(), Failed> {
    if !backend.capabilities().time_of_day {
        let text = "not used: a lease ends when another client has seen it for that long";
        return Ok(report.good("clock", text)?);
    }
    let mut clocks: BTreeMap<ClockId, Reading> = BTreeMap::new();
    for n in 0..KEYS {
        let key = Key::new(format!("leasehold-doctor:{n}")).map_err(Error::from)?;
        let (clock, reading) = read(backend, &key).await.map_err(ConnectError::from)?;
        let best = clocks.entry(clock).or_insert(reading);
        if reading.uncertain < best.uncertain {
            *best = reading;
        }
        // One server has one clock.
        if n >= 3 && backend.clock(&key).is_none() {
            break;
        }
    }
    let mut readings: Vec<_> = clocks.into_values().collect();
    readings.sort_by(|a, b| a.ahead.total_cmp(&b.ahead));
    let (Some(first), Some(last)) = (readings.first(), readings.last()) else {
        return Ok(());
    };
    let apart = last.ahead - first.ahead;
    let certain = apart - first.uncertain - last.uncertain;
    let (count, millis) = (readings.len(), apart * 1e3);
    let text = format!("{count} nodes, at most {millis:.1} ms apart");
    if certain > APART.as_secs_f64() {
        let text = format!("{text}; a lock that moves between them may end early: use NTP");
        report.problem("clocks", &text)?;
    } else if count > 1 {
        report.good("clocks", &text)?;
    } else {
        let millis = first.ahead * 1e3;
        let text = format!("{millis:.1} ms ahead of this machine, which does no harm");
        report.good("clock", &text)?;
    }
    Ok(())
}

/// Times a hand-over between two clients. A waiter that nobody tells polls about once a second.
async fn push(report: &mut Report, a: &LockClient, b: &LockClient) -> Result<(), Failed> {
    let key = format!("leasehold-doctor:push:{}", std::process::id());
    let (ours, theirs) = (a.mutex(&key)?, b.mutex(&key)?);
    let mut time = Duration::MAX;
    for _ in 0..3 {
        let Some(guard) = ours.try_lock_for(WAIT).await?.into_guard() else {
            report.problem("push", "a lock that nobody else uses is not free")?;
            return Ok(());
        };
        let release = async {
            // The waiter is in the queue, and its subscription works.
            sleep(Duration::from_millis(700)).await;
            let released = Instant::now();
            guard.release().await.map(|_| released)
        };
        let wait = async {
            let outcome = theirs.try_lock_for(WAIT).await;
            (outcome, Instant::now())
        };
        let ((outcome, granted), released) = tokio::join!(wait, release);
        let took = granted.saturating_duration_since(released?);
        let Some(guard) = outcome?.into_guard() else {
            report.problem(
                "push",
                &format!("a waiter did not get the lock within {WAIT:?}"),
            )?;
            return Ok(());
        };
        guard.release().await?;
        time = time.min(took);
    }
    if time < PUSHED {
        let text = format!("a waiter had the lock {time:.1?} after its release");
        report.good("push", &text)?;
    } else {
        let text = format!(
            "a waiter had the lock only {time:.1?} after its release: it is not told, and polls"
        );
        report.problem("push", &text)?;
    }
    Ok(())
}

/// Only `leasehold ls` needs it, so a missing right is no problem.
async fn listing(report: &mut Report, locks: &LockClient) -> Result<(), Failed> {
    let text = match locks.list("leasehold-doctor:none")?.next_page().await {
        Ok(_) => "`leasehold ls` works".into(),
        Err(Error::Rejected { reason, .. }) => format!("not for this user ({reason})"),
        Err(error) => return Err(error.into()),
    };
    Ok(report.good("listing", &text)?)
}
