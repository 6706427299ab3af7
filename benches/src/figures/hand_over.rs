//! A contended mutex that each client holds for no time: how fast it passes from client to client.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold::{LockClient, Mutex};

use crate::Result;
use crate::blpop::{self, SignalLock, TokenLock};
use crate::contend::{Contention, Pace, contend};
use crate::drain::{Parked, drain};
use crate::figures::measurement::{Fixture, Reading, median};
use crate::floor;
use crate::library::mutexes;
use crate::load::one_by_one;
use crate::open_files;
use crate::server_stats::ServerStats;

/// The lengths of the queue. Each client has connections of its own.
pub(crate) const CLIENTS: [usize; 5] = [2, 8, 32, 200, 1_000];
/// A quick run only shows that the measurements work, so its longer queues have this many clients.
const QUICK_CLIENTS: usize = 40;
/// How many clients begin to wait at the same time.
const AT_ONCE: usize = 20;
pub(crate) async fn close(clients: Vec<LockClient>) -> Result<()> {
    let closing = clients.into_iter().map(async |client| {
        client.shutdown().await?;
        client.backend().close().await?;
        Result::Ok(())
    });
    try_join_all(closing).await.map(drop)
}

/// The clients of a queue of this length.
fn clients(fixture: &Fixture, length: usize) -> Result<usize> {
    let count = fixture.effort.of(length.min(QUICK_CLIENTS), length);
    open_files::suffice_for(count)?;
    Ok(count)
}

/// Long enough that each client has several turns.
fn time(fixture: &Fixture, count: usize) -> Duration {
    let full = if count > 500 { 1_600 } else { 800 };
    Duration::from_millis(fixture.effort.of(100, full))
}

/// Hand-overs, next to a bare message.
pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let (url, messages) = (fixture.url(), fixture.effort.of(50, 3_000));
    let mut readings = Vec::new();
    for length in CLIENTS {
        let floor = floor::time_messages(fixture.library, &url, messages).await?;
        let seen = ours(fixture, length).await?;
        let id = format!("hand_over.{length}");
        let at = |percent| Reading::percentile(&id, percent, &seen.hand_over, &floor);
        readings.extend([at(50), at(99)]);
        readings.push(difference(format!("{id}.difference"), &seen));
    }
    Ok(readings)
}

/// How unequal the turns of the clients were.
pub(super) fn difference(id: String, seen: &Contention) -> Reading {
    let [fewest, most] = seen.fewest_and_most();
    Reading::new(id, most - fewest, "acquisitions, most − fewest of a client")
}

async fn ours(fixture: &Fixture, length: usize) -> Result<Contention> {
    let count = clients(fixture, length)?;
    let (clients, mutexes) = own(fixture, &format!("contended-{length}"), count).await?;
    let seen = contend(mutexes, Pace::default(), time(fixture, count)).await?;
    close(clients).await?;
    Ok(seen)
}

/// Connects clients that have waited for the mutex and held it. A client subscribes and polls when it
/// waits for the first time, and it connects for renewals at its first hold. Neither is part of the
/// cost of an acquisition. If a thousand clients did so at once, calls would time out.
async fn own(fixture: &Fixture, key: &str, count: usize) -> Result<(Vec<LockClient>, Vec<Mutex>)> {
    let (clients, mutexes) = mutexes(fixture.library, &fixture.url(), key, count).await?;
    for few in mutexes.chunks(AT_ONCE) {
        try_join_all(few.iter().map(|mutex| one_by_one(mutex, 2))).await?;
    }
    Ok((clients, mutexes))
}

async fn signal_locks(fixture: &Fixture, key: &str, count: usize) -> Result<Vec<SignalLock>> {
    blpop::locks(fixture.library, &fixture.url(), key, count, SignalLock::new).await
}

async fn token_locks(fixture: &Fixture, key: &str, count: usize) -> Result<Vec<TokenLock>> {
    blpop::locks(fixture.library, &fixture.url(), key, count, TokenLock::new).await
}

/// Acquisitions per second without a hold, next to the locks on `BLPOP`.
pub(super) async fn measure_rates(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut server = ServerStats::connect(&fixture.url()).await?;
    let pace = Pace::default();
    let mut readings = Vec::new();
    for length in CLIENTS {
        let count = clients(fixture, length)?;
        let time = time(fixture, count);
        let signals = signal_locks(fixture, &format!("signal-{length}"), count).await?;
        let signal = contend(signals, pace, time).await?.per_second();
        let (clients, mutexes) = own(fixture, &format!("contended-{length}"), count).await?;
        let before = server.commands().await?;
        let own = contend(mutexes, pace, time).await?;
        let scripts = server.commands().await?.since(&before).scripts();
        close(clients).await?;
        let tokens = token_locks(fixture, &format!("token-{length}"), count).await?;
        let token = contend(tokens, pace, time).await?.per_second();
        let id = format!("zero_hold.{length}");
        let beside = [signal, token];
        readings.extend(over_blpop(&id, own.per_second(), beside, "acquisitions/s"));
        let calls = scripts as f64 / own.all as f64;
        readings.push(Reading::new(
            format!("{id}.commands"),
            calls,
            "calls per acquisition",
        ));
    }
    Ok(readings)
}

fn over_blpop(id: &str, own: f64, [signal, token]: [f64; 2], unit: &'static str) -> [Reading; 2] {
    [
        Reading::new(id, own, unit).over(signal),
        Reading::new(format!("{id}.beside_token"), own, unit).over(token),
    ]
}

/// How fast a queue of parked waiters drains, next to the locks on `BLPOP`.
pub(super) async fn measure_drains(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut server = ServerStats::connect(&fixture.url()).await?;
    let mut readings = Vec::new();
    for length in CLIENTS {
        let count = clients(fixture, length)?;
        let full = if count > 100 { 3 } else { 8 + 32 / count };
        let drains = fixture.effort.of(1, full);
        let (mut ours, mut signal, mut token) = (Vec::new(), Vec::new(), Vec::new());
        let (clients, mutexes) = own(fixture, "drained", count + 1).await?;
        let mutexes = Arc::new(mutexes);
        let signals = Arc::new(signal_locks(fixture, "signal", count + 1).await?);
        let tokens = Arc::new(token_locks(fixture, "token", count + 1).await?);
        for _ in 0..=drains {
            let parked = Parked::OnBlpop(&mut server);
            signal.push(drain(&signals, parked).await?);
            let parked = Parked::OnLeasehold(&clients[1], "drained");
            ours.push(drain(&mutexes, parked).await?);
            let parked = Parked::OnBlpop(&mut server);
            token.push(drain(&tokens, parked).await?);
        }
        close(clients).await?;
        // The first drain of each lock only warms up its connections.
        let rate = |drained: &[Duration]| {
            let rate = |time: &Duration| count as f64 / time.as_secs_f64();
            median(drained[1..].iter().map(rate).collect())
        };
        let (id, beside) = (format!("drain.{length}"), [rate(&signal), rate(&token)]);
        readings.extend(over_blpop(&id, rate(&ours), beside, "hand-overs/s"));
    }
    Ok(readings)
}
