//! A lock is lost while its holder works: the work is stopped, and late writes are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Error, FencingToken};

use crate::stage::{Result, Stage};

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    stage.scene("6. Loss: the network fails while the lock is in use")?;
    let (ann, bob) = (stage.enter("ann").await?, stage.enter("bob").await?);
    let key = "tour:sync";
    let lease = Duration::from_secs(2);

    let steps = Arc::new(AtomicU32::new(0));
    let mutex = ann.locks.mutex(key)?.lease(lease);
    let counted = Arc::clone(&steps);
    let working = tokio::spawn(async move {
        mutex
            .with(async |_guard| {
                loop {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            })
            .await
    });
    stage.tell(&ann, "works under a lock of 2 s, which is renewed")?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    stage.claim(
        !working.is_finished(),
        "work may last longer than its lease: it is renewed",
    )?;

    stage.tell(&ann, "loses the network")?;
    ann.cable.pull();
    let cut = stage.elapsed();
    let result: Result<(), Error> = working.await?;
    let stopped = stage.elapsed() - cut;
    let steps_done = steps.load(Ordering::Relaxed);
    stage.tell_then(&ann, "is stopped")?;
    stage.claim(
        matches!(result, Err(Error::Lost { .. })) && stopped <= lease,
        "the body is stopped before its lease is over, with no word from the server",
    )?;

    let bobs = bob.locks.mutex(key)?.lock().await?;
    stage.tell_then(&bob, "has the lock")?;
    stage.claim(
        steps.load(Ordering::Relaxed) == steps_done,
        "ann's work did not go on",
    )?;
    bobs.release().await?;
    ann.cable.plug_in();
    ann.leave().await?;
    bob.leave().await
}

/// The resource: it remembers the greatest token that it has accepted.
#[derive(Debug)]
struct Account {
    highest: FencingToken,
    balance: i64,
}

impl Account {
    fn write(&mut self, token: FencingToken, balance: i64) -> Result<(), FencingToken> {
        if token < self.highest {
            return Err(self.highest);
        }
        self.highest = token;
        self.balance = balance;
        Ok(())
    }
}

pub(crate) async fn play_fencing(stage: &mut Stage) -> Result<()> {
    stage.scene("7. Fencing: the late write that no lock can prevent")?;
    let (ann, bob) = (stage.enter("ann").await?, stage.enter("bob").await?);
    let key = "tour:account";
    let mut account = Account {
        highest: FencingToken::new(0),
        balance: 100,
    };

    let lease = Duration::from_secs(1);
    let anns = ann
        .locks
        .mutex(key)?
        .lease(lease)
        .fixed_lease()
        .lock()
        .await?;
    let read = account.balance;
    stage.tell(
        &ann,
        "has the lock, reads 100, and is suspended before she writes 110",
    )?;
    let bobs = bob.locks.mutex(key)?.lock().await?;
    let written = account.write(bobs.fencing_token()?, account.balance + 50);
    stage.tell(&bob, "has the lock, reads 100, writes 150")?;
    stage.claim(written.is_ok(), "the account takes bob's token")?;
    stage.tell(
        &ann,
        "wakes up and writes 110, without looking at her guard",
    )?;
    let late = account.write(anns.fencing_token()?, read + 10);
    stage.claim(
        late == Err(bobs.fencing_token()?) && account.balance == 150,
        "the account refuses her older token; bob's 150 stands",
    )?;
    bobs.release().await?;
    drop(anns);
    ann.leave().await?;
    bob.leave().await
}
