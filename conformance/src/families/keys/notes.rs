//! The note of a key: who may write it, which one stands, and how long.

use std::time::Duration;

use leasehold_api::bounds::MAX_NOTE_BYTES;
use leasehold_api::{NoteReply, NoteView};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, at_most, ensure, want, want_eq};
use crate::world::{Attempt, Lock, Session, World};

pub(super) const CASES: &[Case] = cases!("notes";
    note_stands_after_the_release: ["rule 16"], [Notes, Inspect, FencingTokens];
    newer_note_replaces_an_older_one: ["rule 16", "rule 12"], [Notes, FencingTokens];
    only_a_holder_leaves_a_note: ["rule 16", "S3"], [Notes, FencingTokens];
    late_note_reverts_nothing: ["rule 16", "rule 12", "S3"], [Notes, FencingTokens];
    note_ends_with_its_epoch: ["rule 16"], [Notes, Inspect, FencingTokens];
    kept_note_outlives_its_epoch: ["rule 16", "rule 1"], [Notes, Inspect, FencingTokens];
    note_of_any_bytes: ["rule 16"], [Notes, Inspect, FencingTokens];
    lock_with_a_note_is_a_lock: ["rule 16", "S1", "rule 8"], [Notes, Inspect, Queue, FencingTokens];
    note_between_many_waiters: ["rule 16", "rule 7"], [Notes, Inspect, Queue, FencingTokens];
    readers_and_permits_leave_notes: ["rule 16"], [Notes, RwLocks, Semaphores, FencingTokens];
);

/// Leaves a note and expects that it is the one that stands.
async fn noted(held: &Attempt, version: u32, text: &str, keep: Duration) -> Verdict {
    let note = stands(held, version, text, keep).await?;
    let standing = String::from_utf8_lossy(&note.bytes);
    let written = (note.version, standing.into_owned());
    want_eq!(written, (version, text.to_owned()))
        .promised("rule 16: a newer note replaces the one before")
}

/// Leaves a note and returns the one that stands.
async fn stands(
    held: &Attempt,
    version: u32,
    text: &str,
    keep: Duration,
) -> Result<NoteView, Failure> {
    want!(held.note(version, text.as_bytes(), keep).await?, NoteReply::Noted(note) => note)
        .promised("rule 16: a holder may leave a note")
}

async fn lost(held: &Attempt) -> Result<Option<NoteView>, Failure> {
    want!(
        held.note(1_000, b"late", Duration::from_secs(60)).await?,
        NoteReply::Lost { note, .. } => note
    )
    .promised("S3: only a live hold leaves a note")
}

async fn shows(session: &Session, lock: &Lock, text: Option<&str>) -> Verdict {
    let note = session.inspect(lock).await?.reply.note;
    let shown = note.map(|note| String::from_utf8_lossy(&note.bytes).into_owned());
    want_eq!(shown.as_deref(), text).promised("rule 16: an inspection shows the note that stands")
}

async fn note_stands_after_the_release(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k");
    shows(&b, &lock, None).await?;
    let held = a.ask(&lock).acquired("S1").await?;
    noted(&held, 3, "done", world.units(0)).await?;
    shows(&b, &lock, Some("done")).await?;
    held.released("S3").await?;
    let note = b.inspect(&lock).await?.reply.note;
    let note = note.map(|note| (note.token, note.version, note.bytes));
    let expected = Some((held.token(), 3, b"done".to_vec()));
    want_eq!(note, expected).promised("rule 16: a note stands while its token is the last one")
}

async fn newer_note_replaces_an_older_one(world: &World) -> Verdict {
    let a = world.session().await?;
    let held = a.ask(&Lock::mutex("k")).acquired("S1").await?;
    noted(&held, 1, "one", world.units(60)).await?;
    noted(&held, 3, "three", world.units(50)).await?;
    for version in [0, 1, 2, 3] {
        let note = stands(&held, version, "older", world.units(900)).await?;
        want_eq!((note.version, note.bytes), (3, b"three".to_vec()))
            .promised("rule 16: an older note, or a copy, reverts nothing")?;
        at_most(note.kept_for, world.units(50))
            .promised("rule 16: a copy doesn't keep the note longer")?;
    }
    noted(&held, 4, "four", world.units(0)).await
}

async fn only_a_holder_leaves_a_note(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_for(2).await?;
    let mut other = b.ask(&Lock::mutex("other")).acquired("S1").await?;
    other.request.key = lock.key.clone();
    want_eq!(lost(&other).await?, None).promised("S3: another session leaves no note")?;
    noted(&held, 1, "in time", world.units(60)).await?;
    world.pass(3).await;
    let note = lost(&held).await?.map(|note| note.bytes);
    want_eq!(note, Some(b"in time".to_vec()))
        .promised("rule 16: the reply has the note that stands")
}

async fn late_note_reverts_nothing(world: &World) -> Verdict {
    let (_, b, lock, first) = world.held(Lock::mutex("k")).await?;
    noted(&first, 9, "first", world.units(60)).await?;
    first.released("S3").await?;
    let second = b.ask(&lock).acquired("S1").await?;
    let note = lost(&first).await?.map(|note| note.bytes);
    want_eq!(note, Some(b"first".to_vec())).promised("rule 16: a kept note outlives its epoch")?;
    noted(&second, 1, "second", world.units(60)).await?;
    let note = lost(&first).await?.map(|note| note.bytes);
    want_eq!(note, Some(b"second".to_vec())).promised("rule 16: the note of the later epoch stands")
}

async fn note_ends_with_its_epoch(world: &World) -> Verdict {
    let (a, b, lock, first) = world.held(Lock::mutex("k")).await?;
    noted(&first, 1, "leader", world.units(0)).await?;
    first.released("S3").await?;
    shows(&b, &lock, Some("leader")).await?;
    let second = b.ask(&lock).acquired("S1").await?;
    shows(&a, &lock, None).await?;
    noted(&second, 0, "next", world.units(0)).await?;
    shows(&a, &lock, Some("next")).await
}

async fn kept_note_outlives_its_epoch(world: &World) -> Verdict {
    let (_, b, lock, first) = world.held(Lock::mutex("k")).await?;
    noted(&first, 1, "kept", world.units(5)).await?;
    first.released("S3").await?;
    b.ask(&lock).acquired("S1").await?;
    shows(&b, &lock, Some("kept")).await?;
    world.pass(6).await;
    shows(&b, &lock, None).await
}

async fn note_of_any_bytes(world: &World) -> Verdict {
    let (a, _, lock, held) = world.held(Lock::mutex("k")).await?;
    let all: Vec<u8> = (0..=255).collect();
    let (text, more) = all.split_at(MAX_NOTE_BYTES);
    let texts = [&[], &text[..1], text, more];
    for (version, text) in (1..).zip(texts) {
        held.note(version, text, world.units(3)).await?;
        let note = a.inspect(&lock).await?.reply.note.map(|note| note.bytes);
        want_eq!(note.as_deref(), Some(text))
            .promised("rule 16: a note comes back as it was written")?;
    }
    Ok(())
}

async fn lock_with_a_note_is_a_lock(world: &World) -> Verdict {
    let (a, b, lock, first) = world.held(Lock::mutex("k")).await?;
    noted(&first, 1, "note", world.units(300)).await?;
    b.ask(&lock).finds_contention("S1").await?;
    first.renewed(world.units(30), "rule 2").await?;
    let (second, _) = b.ask(&lock).wait().queued("rule 7").await?;
    second.poll_queued("S1").await?;
    first.released("S3").await?;
    second.poll_granted("rule 8").await?;
    second.renewed(world.units(30), "rule 10").await?;
    a.ask(&lock).finds_contention("S1").await?;
    second.released("S3").await?;
    let third = a.ask(&lock).lease(world.units(2)).acquired("S1").await?;
    world.pass(3).await;
    let fourth = b.ask(&lock).acquired("L1").await?;
    ensure!(
        fourth.token() > third.token() && third.token() > first.token(),
        fourth.token()
    )
    .promised("S4: tokens increase whether a note stands or not")?;
    shows(&a, &lock, Some("note")).await
}

async fn note_between_many_waiters(world: &World) -> Verdict {
    // None of them expires before its turn.
    let lock = Lock::mutex("k").waiter_lease(Duration::from_secs(60));
    let (a, _, lock, held) = world.held(lock).await?;
    let mut waiters = Vec::new();
    for n in 0..50 {
        waiters.push(a.ask(&lock).wait().queued("rule 7").await?.0);
        if n == 20 {
            noted(&held, 1, "early", world.units(300)).await?;
        }
    }
    noted(&held, 2, "late", world.units(300)).await?;
    held.released("S3").await?;
    for waiter in &waiters {
        waiter.poll_granted("rule 7").await?;
        waiter.released("S3").await?;
    }
    shows(&a, &lock, Some("late")).await
}

async fn readers_and_permits_leave_notes(world: &World) -> Verdict {
    let (a, b, lock, one) = world.held_shared(Lock::rw("rw")).await?;
    let other = b.ask(&lock).shared().acquired("S1").await?;
    noted(&one, 2, "reader", world.units(0)).await?;
    let note = stands(&other, 1, "older", world.units(0)).await?;
    want_eq!(note.version, 2).promised("rule 16: readers of one epoch share its versions")?;
    let lock = Lock::semaphore("permits", 2);
    let older = a.ask(&lock).permits(1).acquired("S1").await?;
    let newer = b.ask(&lock).permits(1).acquired("S1").await?;
    noted(&newer, 1, "newer", world.units(0)).await?;
    let note = stands(&older, 9, "older", world.units(60)).await?;
    want_eq!(note.version, 1).promised("rule 16: the note of the higher token stands")
}
