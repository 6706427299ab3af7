//! Every type in a signature that users meet has a name at the root of the facade, what tools and operators read in
//! `inspect`, and that of a backend in `backend`.
//! It is enough that this compiles.

#![expect(dead_code, reason = "it is enough that it compiles")]

use leasehold::backend::{Capabilities, LockBackend, LockSpec};
use leasehold::inspect::{HolderView, Inspection, Kind, Mode, WaiterView};
use leasehold::{
    Cause, Contention, Error, FencingToken, ForceReply, Key, Label, Limits, LockClient, Loss,
    LossEvent, MultiGuard, MultiReleaseError, MutexGuard, Outcome, Refused,
};

fn of_an_error(error: Error) -> (Option<(LockSpec, Refused)>, Option<Loss>, Option<Cause>) {
    match error {
        Error::Refused { asked, reason, .. } => (Some((asked, reason)), None, None),
        Error::Lost { reason, .. } => (None, Some(reason), None),
        Error::Unavailable { source, .. } => (None, None, source),
        _ => (None, None, None),
    }
}

fn of_the_loss_hook(event: LossEvent) -> (Key, Mode, FencingToken, Loss, Label) {
    let LossEvent {
        key,
        mode,
        token,
        reason,
        label,
        ..
    } = event;
    (key, mode, token, reason, label)
}

async fn of_a_client(backend: impl LockBackend, tried: Outcome<MutexGuard>) -> Result<(), Error> {
    let builder = LockClient::builder(backend).limits(Limits::default());
    let locks: LockClient = builder
        .on_loss(|event: &LossEvent| drop(event.clone()))
        .build()?;
    let backend: &dyn LockBackend = locks.backend();
    let _: Capabilities = backend.capabilities();
    let all: MultiGuard = locks.lock_all(["k"]).await?;
    let _: Result<(), MultiReleaseError> = all.release().await;
    if let Outcome::Contended(contention) = tried {
        let _: Contention = contention;
    }
    let inspection: Inspection = locks.inspect("k").await?;
    let _: (&[HolderView], &[WaiterView]) = (inspection.holders(), inspection.waiters());
    let _: Option<Kind> = inspection.spec().map(|spec: LockSpec| spec.kind());
    let forced = locks.force_release("k", Vec::new(), leasehold::ForceMode::Now);
    let _: ForceReply = forced.await?;
    Ok(())
}
