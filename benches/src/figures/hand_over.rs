//! A contended mutex that nobody keeps: how fast it goes from client to client.

use std::sync::Arc;
use std::time::Duration;

use leasehold::LockClient;

use crate::Result;
use crate::contend::{Contention, Pace, contend};
use crate::contenders::{mutexes, signal_locks, token_locks};
use crate::drain::{Parked, drain};
use crate::figures::{Goal, Place, Reading, median, micros};
use crate::load::one_by_one;
use crate::server_stats::ServerStats;

const CONTENDERS: [usize; 3] = [2, 8, 32];

pub(super) async fn close(clients: Vec<LockClient>) -> Result<()> {
    for client in clients {
        client.shutdown().await?;
        client.backend().close().await?;
    }
    Ok(())
}

fn time(place: &Place) -> Duration {
    Duration::from_millis(place.effort.of(100, 800))
}

/// Hand-overs beside a bare message.
pub(super) async fn measure(place: &Place) -> Result<Vec<Reading>> {
    let messages = place.effort.of(50, 3_000);
    let mut readings = Vec::new();
    for count in CONTENDERS {
        let floor = place.library.push_floor(&place.url(), messages).await?;
        let seen = ours(place, count).await?;
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
            "acquisitions between the client with most and with fewest",
        );
        readings.push(unfair);
    }
    Ok(readings)
}

async fn ours(place: &Place, count: usize) -> Result<Contention> {
    let (clients, mutexes) = mutexes(
        place.library,
        &place.url(),
        &format!("contended-{count}"),
        count,
    )
    .await?;
    let seen = contend(mutexes, Pace::default(), time(place)).await?;
    close(clients).await?;
    Ok(seen)
}

/// Acquisitions a second without a hold, beside the locks on `BLPOP`.
pub(super) async fn measure_rates(place: &Place) -> Result<Vec<Reading>> {
    let mut server = ServerStats::connect(&place.url()).await?;
    let (pace, time) = (Pace::default(), time(place));
    let mut readings = Vec::new();
    for count in CONTENDERS {
        let signals = signal_locks(
            place.library,
            &place.url(),
            &format!("signal-{count}"),
            count,
        )
        .await?;
        let signal = contend(signals, pace, time).await?;
        let (clients, mutexes) = mutexes(
            place.library,
            &place.url(),
            &format!("contended-{count}"),
            count,
        )
        .await?;
        one_by_one(&mutexes[0], 1).await?;
        let before = server.commands().await?;
        let own = contend(mutexes, pace, time).await?;
        let scripts = server.commands().await?.since(&before).scripts();
        close(clients).await?;
        let tokens = token_locks(
            place.library,
            &place.url(),
            &format!("token-{count}"),
            count,
        )
        .await?;
        let token = contend(tokens, pace, time).await?;
        readings.extend(beside_blpop(
            &format!("zero_hold.{count}"),
            own.per_second(),
            [signal.per_second(), token.per_second()],
            "acquisitions/s",
        ));
        readings.push(Reading::new(
            format!("zero_hold.{count}.commands"),
            scripts.calls as f64 / own.all as f64,
            "calls an acquisition",
        ));
    }
    Ok(readings)
}

fn beside_blpop(id: &str, own: f64, [signal, token]: [f64; 2], unit: &'static str) -> [Reading; 2] {
    [
        Reading::new(id, own, unit)
            .over(signal)
            .goal(Goal::RatioAtLeast(1.5)),
        Reading::new(format!("{id}.beside_token"), own, unit).over(token),
    ]
}

/// How fast a queue of parked waiters gets through, beside the locks on `BLPOP`.
pub(super) async fn measure_drains(place: &Place) -> Result<Vec<Reading>> {
    let mut server = ServerStats::connect(&place.url()).await?;
    let mut readings = Vec::new();
    for count in CONTENDERS {
        let drains = place.effort.of(1, 8 + 32 / count);
        let (mut own, mut signal, mut token) = (Vec::new(), Vec::new(), Vec::new());
        let (clients, mut mutexes) =
            mutexes(place.library, &place.url(), "drained", count + 1).await?;
        let mut signals = signal_locks(place.library, &place.url(), "signal", count + 1).await?;
        let mut tokens = token_locks(place.library, &place.url(), "token", count + 1).await?;
        let gates = (mutexes.pop(), signals.pop(), tokens.pop());
        let (Some(gate), Some(signal_gate), Some(token_gate)) = gates else {
            return Err("there is one gate more than waiters".into());
        };
        let (mutexes, signals) = (Arc::new(mutexes), Arc::new(signals));
        let tokens = Arc::new(tokens);
        for _ in 0..=drains {
            let parked = Parked::OnBlpop(&mut server);
            signal.push(drain(&signal_gate, &signals, parked).await?);
            let parked = Parked::OnLeasehold(&clients[0], "drained");
            own.push(drain(&gate, &mutexes, parked).await?);
            let parked = Parked::OnBlpop(&mut server);
            token.push(drain(&token_gate, &tokens, parked).await?);
        }
        close(clients).await?;
        // The first of each made its connections ready.
        let rate = |times: &[Duration]| {
            let rates = times[1..].iter();
            median(
                rates
                    .map(|time| count as f64 / time.as_secs_f64())
                    .collect(),
            )
        };
        readings.extend(beside_blpop(
            &format!("drain.{count}"),
            rate(&own),
            [rate(&signal), rate(&token)],
            "hand-overs/s",
        ));
    }
    Ok(readings)
}
