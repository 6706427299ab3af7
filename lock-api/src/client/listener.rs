//! The task that keeps a session's subscription and carries its notices to the hub.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};

use crate::backend::Notices;
use crate::client::core::Core;
use crate::client::session::Session;
use crate::error::BackendError;
use crate::sync::{Arc, Ordering};

const PAUSE: Duration = Duration::from_millis(500);

/// Starts the task for a session, once, if the backend pushes.
pub(crate) fn start(core: &Arc<Core>, session: &Arc<Session>) {
    if core.capabilities.push && !session.hub.started.swap(true, Ordering::AcqRel) {
        core.runtime
            .spawn(Box::pin(run(Arc::clone(core), Arc::clone(session))));
    }
}

async fn run(core: Arc<Core>, session: Arc<Session>) {
    loop {
        if !listen_once(&core, &session).await {
            return;
        }
        session.hub.set_listening(false);
        let pause = core.random_between(PAUSE / 2, PAUSE);
        if let Either::Left(_) = select(pin!(unused(&core)), core.runtime.sleep(pause)).await {
            return;
        }
    }
}

/// Subscribes and carries notices until the subscription ends; whether to subscribe again.
async fn listen_once(core: &Core, session: &Session) -> bool {
    let listen = pin!(core.backend.listen(session.id));
    let timeout = core.runtime.sleep(core.settings.call_timeout);
    match select(listen, timeout).await {
        Either::Left((Ok(notices), _)) => carry(core, session, notices).await,
        Either::Left((Err(BackendError::Closed | BackendError::Unsupported { .. }), _)) => false,
        Either::Left((Err(_), _)) | Either::Right(_) => true,
    }
}

async fn carry(core: &Core, session: &Session, mut notices: Notices) -> bool {
    session.hub.set_listening(true);
    let mut unused = pin!(unused(core));
    loop {
        match select(unused.as_mut(), notices.next()).await {
            Either::Left(_) => return false,
            Either::Right((Some(notice), _)) => session.hub.deliver(notice, core.now()),
            Either::Right((None, _)) => return true,
        }
    }
}

/// Ends when the client has no user left.
async fn unused(core: &Core) {
    loop {
        let version = core.closing.version();
        if core.is_orphaned() {
            return;
        }
        core.closing.changed(version).await;
    }
}
