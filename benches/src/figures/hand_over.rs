//! A contended mutex that each client holds for no time: how fast it passes from client to client.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{LockClient, Mutex};

use crate::Result;
use crate::blpop::{self, SignalLock, TokenLock};
use crate::contend::{Contention, Pace, contend};
use crate::drain::{Parked, drain};
use crate::figures::{Fixture, Goal, Reading, median, micros};
use crate::library::mutexes;
use crate::load::one_by_one;
use crate::server_stats::ServerStats;

const CLIENTS: [usize; 3] = [2, 8, 32];

pub(crate) async fn close(clients: Vec<LockClient>) -> Result<()> {
    for client in clients {
        client.shutdown().await?;
        client.backend().close().await?;
    }
    Ok(())
}

fn time(fixture: &Fixture) -> Duration {
    Duration::from_millis(fixture.effort.of(100, 800))
}

/// Hand-overs, next to a bare message.
pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let messages = fixture.effort.of(50, 3_000);
    let mut readings = Vec::new();
    for count in CLIENTS {
        let floor = fixture
            .library
            .message_floor(&fixture.url(), messages)
            .await?;
        let seen = ours(fixture, count).await?;
        let at = |percent| {
            let value = micros(seen.hand_over.percentile(percent));
            Reading::new(format!("hand_over.{count}.p{percent}"), value, "µs")
                .over(micros(floor.percentile(percent)))
        };
        readings.push(at(50).goal(Goal::RatioAtMost(1.2)));
        readings.push(at(99));
        let most = seen.by_client.iter().max().copied().unwrap_or_default();
        let least = seen.by_client.iter().min().copied().unwrap_or_default();
        let unfair = Reading::new(
            format!("hand_over.{count}.difference"),
            (most - least) as f64,
            "acquisitions, most − fewest of a client",
        );
        readings.push(unfair);
    }
    Ok(readings)
}

async fn ours(fixture: &Fixture, count: usize) -> Result<Contention> {
    let (clients, mutexes) = own(fixture, &format!("contended-{count}"), count).await?;
    let seen = contend(mutexes, Pace::default(), time(fixture)).await?;
    close(clients).await?;
    Ok(seen)
}

async fn own(fixture: &Fixture, key: &str, count: usize) -> Result<(Vec<LockClient>, Vec<Mutex>)> {
    mutexes(fixture.library, &fixture.url(), key, count).await
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
    let (pace, time) = (Pace::default(), time(fixture));
    let mut readings = Vec::new();
    for count in CLIENTS {
        let signals = signal_locks(fixture, &format!("signal-{count}"), count).await?;
        let signal = contend(signals, pace, time).await?;
        let (clients, mutexes) = own(fixture, &format!("contended-{count}"), count).await?;
        one_by_one(&mutexes[0], 1).await?;
        let before = server.commands().await?;
        let own = contend(mutexes, pace, time).await?;
        let scripts = server.commands().await?.since(&before).scripts();
        close(clients).await?;
        let tokens = token_locks(fixture, &format!("token-{count}"), count).await?;
        let token = contend(tokens, pace, time).await?;
        readings.extend(over_blpop(
            &format!("zero_hold.{count}"),
            own.per_second(),
            [signal.per_second(), token.per_second()],
            "acquisitions/s",
        ));
        readings.push(Reading::new(
            format!("zero_hold.{count}.commands"),
            scripts.calls as f64 / own.all as f64,
            "calls per acquisition",
        ));
    }
    Ok(readings)
}

fn over_blpop(id: &str, own: f64, [signal, token]: [f64; 2], unit: &'static str) -> [Reading; 2] {
    [
        Reading::new(id, own, unit)
            .over(signal)
            .goal(Goal::RatioAtLeast(1.5)),
        Reading::new(format!("{id}.beside_token"), own, unit).over(token),
    ]
}

/// How fast a queue of parked waiters drains, next to the locks on `BLPOP`.
pub(super) async fn measure_drains(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut server = ServerStats::connect(&fixture.url()).await?;
    let mut readings = Vec::new();
    for count in CLIENTS {
        let drains = fixture.effort.of(1, 8 + 32 / count);
        let (mut ours, mut signal, mut token) = (Vec::new(), Vec::new(), Vec::new());
        let (clients, mut mutexes) = own(fixture, "drained", count + 1).await?;
        let mut signals = signal_locks(fixture, "signal", count + 1).await?;
        let mut tokens = token_locks(fixture, "token", count + 1).await?;
        let gates = (mutexes.pop(), signals.pop(), tokens.pop());
        let (Some(gate), Some(signal_gate), Some(token_gate)) = gates else {
            return Err("no lock is left for the first holder".into());
        };
        let (mutexes, signals) = (Arc::new(mutexes), Arc::new(signals));
        let tokens = Arc::new(tokens);
        for _ in 0..=drains {
            let parked = Parked::OnBlpop(&mut server);
            signal.push(drain(&signal_gate, &signals, parked).await?);
            let parked = Parked::OnLeasehold(&clients[0], "drained");
            ours.push(drain(&gate, &mutexes, parked).await?);
            let parked = Parked::OnBlpop(&mut server);
            token.push(drain(&token_gate, &tokens, parked).await?);
        }
        close(clients).await?;
        // The first drain of each lock only warms up its connections.
        let rate = |times: &[Duration]| {
            let rates = times[1..].iter();
            median(
                rates
                    .map(|time| count as f64 / time.as_secs_f64())
                    .collect(),
            )
        };
        readings.extend(over_blpop(
            &format!("drain.{count}"),
            rate(&ours),
            [rate(&signal), rate(&token)],
            "hand-overs/s",
        ));
    }
    Ok(readings)
}
