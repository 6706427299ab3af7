//! Cases that take minutes, for harnesses with virtual time.

use std::time::Duration;

use leasehold_api::{AcquireReply, FencingToken, bounds};

use crate::case::{Case, cases};
use crate::failure::{Verdict, ensure, want, want_eq};
use crate::world::{Lock, World};

pub(super) const CASES: &[Case] = cases!("long_spans";
    token_is_remembered: ["rule 14", "rule 15", "S4"], [FencingTokens, VirtualTime, Clock];
    token_outlives_an_expired_holder: ["rule 14", "rule 15", "S4"], [FencingTokens, VirtualTime, Clock];
    longest_lease: ["L1", "rule 1"], [VirtualTime];
    no_copy_outlives_its_watermark: ["rule 12", "rule 14"], [VirtualTime];
    note_is_kept_for_two_days: ["rule 16", "rule 14"], [Notes, Inspect, FencingTokens, VirtualTime];
);

/// Slightly less than the time for which a token is remembered.
const REMEMBERED: Duration = bounds::TOKEN_RETENTION.saturating_sub(Duration::from_secs(5));

/// A token that the clock doesn't reach while the case runs.
async fn lifted(world: &World) -> Result<FencingToken, crate::Failure> {
    let now = world.session().await?.now().await?.as_micros();
    Ok(FencingToken::new(now + 20 * 3_600_000_000))
}

async fn token_is_remembered(world: &World) -> Verdict {
    let (a, lock) = (world.session().await?, Lock::mutex("k"));
    let ask = a.ask(&lock).floor(lifted(world).await?);
    let held = ask.acquired("S1").await?;
    held.released("S3").await?;
    world.pass_for(REMEMBERED).await;
    let next = a.ask(&lock).acquired("S1").await?;
    let last = held.token();
    ensure!(next.token() > last, next.token()).promised(format!(
        "S4: the last token, {last:?}, is remembered for {:?} after its release",
        bounds::TOKEN_RETENTION
    ))
}

async fn token_outlives_an_expired_holder(world: &World) -> Verdict {
    let (a, lock) = (world.session().await?, Lock::mutex("k"));
    let lease = Duration::from_secs(60);
    let dead = a.ask(&lock).lease(lease).floor(lifted(world).await?);
    let dead = dead.acquired("S1").await?;
    world.pass_for(lease + REMEMBERED).await;
    let next = a.ask(&lock).acquired("L1").await?;
    let last = dead.token();
    ensure!(next.token() > last, next.token()).promised(format!(
        "S4: the last token, {last:?}, is remembered for {:?} after the lease's end",
        bounds::TOKEN_RETENTION
    ))
}

async fn longest_lease(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k");
    a.ask(&lock).lease(bounds::MAX_LEASE).acquired("S1").await?;
    let almost = bounds::MAX_LEASE - Duration::from_secs(2);
    world.pass_for(almost).await;
    b.ask(&lock).finds_contention("S1").await?;
    world.pass_for(Duration::from_secs(3)).await;
    b.ask(&lock).granted("L1").await
}

/// A delayed copy of an acquire is stale or too late, whenever it arrives.
async fn no_copy_outlives_its_watermark(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    held.released("S3").await?;
    for _ in 0..30 {
        world.pass_for(bounds::DELIVERY_WINDOW / 10).await;
        want!(
            held.again().await?.reply,
            AcquireReply::Stale | AcquireReply::TooLate
        )
        .promised("rule 12: watermarks outlive the delivery window of every acquire")?;
    }
    b.ask(&lock).granted("rule 12").await
}

async fn note_is_kept_for_two_days(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    held.note(1, b"kept", bounds::MAX_NOTE_KEEP).await?;
    held.released("S3").await?;
    for _ in 0..2 {
        world.pass_for(Duration::from_secs(23 * 60 * 60)).await;
        let note = b.inspect(&lock).await?.reply.note.map(|note| note.bytes);
        let kept = Some(b"kept".to_vec());
        want_eq!(note, kept).promised("rule 16: a note is kept for as long as was asked")?;
        let next = b.ask(&lock).acquired("S1").await?;
        next.released("S3").await?;
    }
    world.pass_for(Duration::from_secs(2 * 60 * 60)).await;
    let note = b.inspect(&lock).await?.reply.note;
    want_eq!(note, None).promised("rule 16: a note that is kept no longer ends with its epoch")
}
