//! Foreign values: another program uses the key. Every command reports it and changes nothing.

use leasehold_api::{BackendError, Convert, FencingToken, ForceMode, ForceRelease};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, want};
use crate::world::{Attempt, Lock, World};

pub(super) const CASES: &[Case] = cases!("foreign";
    acquire_reports_it: ["rule 14"], [PlantForeign];
    renew_and_release_report_it: ["rule 14"], [PlantForeign];
    poll_reports_it: ["rule 14"], [PlantForeign, Queue];
    convert_reports_it: ["rule 14"], [PlantForeign, RwLocks, Convert];
    inspect_reports_it: ["rule 14"], [PlantForeign, Inspect];
    force_release_reports_it: ["rule 14"], [PlantForeign, ForceRelease];
    note_reports_it: ["rule 14"], [PlantForeign, Notes];
    other_keys_work_beside_it: ["rule 14"], [PlantForeign];
);

fn is_foreign<T: std::fmt::Debug>(answer: Result<T, BackendError>) -> Verdict {
    want!(answer, Err(BackendError::ForeignValue { .. }))
        .promised("rule 14: every command reports a foreign value with a typed error")
}

/// Creates an attempt that was never granted, on a key with a foreign value.
async fn attempt(world: &World, lock: &Lock) -> Result<Attempt, Failure> {
    world.plant_foreign(&lock.key).await?;
    let a = world.session().await?;
    // The commands need an operation, so it holds another key.
    let elsewhere = Lock::new("elsewhere", lock.spec);
    let mut attempt = a.ask(&elsewhere).acquired("S1").await?;
    attempt.request.key = lock.key.clone();
    Ok(attempt)
}

async fn acquire_reports_it(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    world.plant_foreign(&lock.key).await?;
    let a = world.session().await?;
    for ask in [a.ask(&lock), a.ask(&lock).wait()] {
        is_foreign(a.backend.acquire(&[ask.build().await?]).await.remove(0))?;
    }
    world.foreign_is_untouched(&lock.key).await
}

async fn renew_and_release_report_it(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let attempt = attempt(world, &lock).await?;
    let backend = &attempt.session.backend;
    let renewal = attempt.renew_request(world.units(5))?;
    for answer in backend.renew(&[renewal]).await {
        is_foreign(answer)?;
    }
    for answer in backend.release(&[attempt.release_request()]).await {
        is_foreign(answer)?;
    }
    world.foreign_is_untouched(&lock.key).await
}

async fn poll_reports_it(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let attempt = attempt(world, &lock).await?;
    let poll = attempt.poll_request(false);
    for answer in attempt.session.backend.poll(&[poll]).await {
        is_foreign(answer)?;
    }
    world.foreign_is_untouched(&lock.key).await
}

async fn convert_reports_it(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let attempt = attempt(world, &lock).await?;
    let (key, operation) = (lock.key.clone(), attempt.operation());
    let request = Convert::to_shared(key, operation, FencingToken::new(1));
    is_foreign(attempt.session.backend.convert(&request).await)?;
    world.foreign_is_untouched(&lock.key).await
}

async fn note_reports_it(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let attempt = attempt(world, &lock).await?;
    let note = attempt.note_request(1, b"text", world.units(5))?;
    is_foreign(attempt.session.backend.write_note(&note).await)?;
    world.foreign_is_untouched(&lock.key).await
}

async fn inspect_reports_it(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    world.plant_foreign(&lock.key).await?;
    is_foreign(world.backend().await?.inspect(&lock.key).await)?;
    world.foreign_is_untouched(&lock.key).await
}

async fn force_release_reports_it(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    world.plant_foreign(&lock.key).await?;
    for how in [ForceMode::Revoke, ForceMode::Now] {
        let tokens = vec![FencingToken::new(1)];
        let request = ForceRelease::new(lock.key.clone(), tokens).with_how(how);
        is_foreign(world.backend().await?.force_release(&request).await)?;
    }
    world.foreign_is_untouched(&lock.key).await
}

async fn other_keys_work_beside_it(world: &World) -> Verdict {
    let (lock, other) = (Lock::mutex("k"), Lock::mutex("k2"));
    world.plant_foreign(&lock.key).await?;
    let a = world.session().await?;
    let held = a.ask(&other).acquired("rule 14").await?;
    let batch = [a.ask(&lock).build().await?];
    is_foreign(a.backend.acquire(&batch).await.remove(0))?;
    held.released("S3").await?;
    world.foreign_is_untouched(&lock.key).await
}
