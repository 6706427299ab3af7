//! Looks for the end of an outage, for callers that don't wait for it themselves.
//!
//! A handle whose limit for outages has passed sends nothing. If no other call was under way, nobody would learn that
//! the service is back.

use crate::backoff::Backoff;
use crate::client::core::Core;
use crate::sync::{Arc, Ordering};

/// Spawns the task, unless it runs.
pub(crate) fn start(core: &Arc<Core>) {
    if !core.outage.probing.swap(true, Ordering::AcqRel) {
        core.runtime.spawn(core.background(run(Arc::clone(core))));
    }
}

async fn run(core: Arc<Core>) {
    let mut backoff = Backoff::background();
    while !core.is_orphaned() && !core.is_closed() {
        // Its result is noted like that of any other call.
        let _ = core.ping().await;
        if core.outage.since(core.now()).is_none() {
            break;
        }
        core.runtime.sleep(core.jittered(backoff.next())).await;
    }
    core.outage.probing.store(false, Ordering::Release);
}
