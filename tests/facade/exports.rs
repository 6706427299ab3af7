//! Every type in a signature that users meet has a name at the root of the facade.

use std::sync::Arc;
use std::time::Duration;

use leasehold::guard_kind::Transferable;
use leasehold::sim::SimServer;
use leasehold::{
    Capabilities, Cause, Contention, Error, FencingToken, ForceMode, ForceReply, Guard,
    HandoffFailed, HolderView, Inspection, Key, Kind, Label, Limits, LockBackend, LockClient,
    LockSpec, Loss, LossEvent, Mode, MultiGuard, MultiReleaseError, Outcome, Refused, WaiterView,
};

async fn hand_off<K: Transferable>(guard: Guard<K>) -> Result<(), HandoffFailed<Guard<K>>> {
    let handoff = guard.into_handoff().await?;
    let _: (&Key, Mode, FencingToken) = (handoff.key(), handoff.mode(), handoff.fencing_token());
    Ok(())
}

fn parts(
    error: Error,
) -> (
    Option<LockSpec>,
    Option<Refused>,
    Option<Loss>,
    Option<Cause>,
) {
    match error {
        Error::Refused { asked, reason, .. } => (Some(asked), Some(reason), None, None),
        Error::HandoffSpent { reason, .. } => (None, None, Some(reason), None),
        Error::Unavailable { source, .. } => (None, None, None, source),
        _ => (None, None, None, None),
    }
}

fn hook(event: &LossEvent) -> (Key, Mode, FencingToken, Loss, Label) {
    let LossEvent {
        key,
        mode,
        token,
        reason,
        label,
        ..
    } = event;
    (key.clone(), *mode, *token, *reason, label.clone())
}

#[tokio::test(start_paused = true)]
async fn types_of_signatures_are_at_the_root() {
    let server = SimServer::new(1);
    let builder = LockClient::builder(server.client("a")).limits(Limits::default());
    let builder = builder.on_loss(|event| drop(hook(event)));
    let locks = builder.build().expect("valid");
    let backend: &dyn LockBackend = locks.backend();
    let capabilities: Capabilities = backend.capabilities();
    assert!(capabilities.fencing_tokens);
    let runtime = locks.runtime();
    tokio::spawn(async move { runtime.sleep(Duration::from_millis(1)).await })
        .await
        .expect("no panic");

    let all: MultiGuard = locks.lock_all(["k"]).await.expect("free");
    let Outcome::Contended(contention) = locks
        .mutex("k")
        .expect("valid")
        .try_lock()
        .await
        .expect("answered")
    else {
        panic!("{}", server.timeline());
    };
    let contention: Contention = contention;
    assert_eq!(contention.key.as_str(), "k");
    let inspection: Inspection = locks.inspect(contention.key).await.expect("answered");
    let holders: &[HolderView] = inspection.holders();
    let waiters: &[WaiterView] = inspection.waiters();
    assert_eq!((holders.len(), waiters.len()), (1, 0));
    let kind: Option<Kind> = inspection.spec().map(|spec: LockSpec| spec.kind());
    assert_eq!(kind, Some(Kind::Mutex));
    let mismatch = locks.rw_lock("k").expect("valid").try_read().await;
    let (asked, reason, ..) = parts(mismatch.expect_err("a mismatch"));
    assert!(matches!(
        (asked, reason),
        (Some(_), Some(Refused::Mismatch { .. }))
    ));
    let released: Result<(), MultiReleaseError> = all.release().await;
    released.expect("answered");

    let guard = locks.mutex("k").expect("valid").lock().await.expect("free");
    let tokens = vec![guard.fencing_token()];
    let forced = locks.force_release("k", tokens, ForceMode::Now).await;
    let forced: ForceReply = forced.expect("answered");
    assert_eq!(forced, ForceReply::Forced { holders: 1 });
    drop(guard);
    let guard = locks
        .mutex("other")
        .expect("valid")
        .lock()
        .await
        .expect("free");
    hand_off(guard).await.expect("handed off");
    let shared: Arc<dyn LockBackend> = Arc::new(server.client("b"));
    drop(LockClient::new(shared));
}
