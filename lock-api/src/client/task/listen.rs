//! The task that keeps a session's subscription and carries its notifications to the router.
//!
//! Without a subscription waiters are served all the same, by their polls. A server that refuses
//! it (the user may not subscribe) is asked again now and then, since its rights may be mended.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};

use crate::backend::{Notification, Notifications};
use crate::bounds::CALL_TIMEOUT;
use crate::client::core::Core;
use crate::client::state::session::Session;
use crate::error::BackendError;
use crate::mutants::mutant;
use crate::sync::{Arc, Ordering};

const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(5);

/// Starts the task for a session, once, if the backend pushes.
pub(crate) fn start(core: &Arc<Core>, session: &Arc<Session>) {
    let started = session.router.started.swap(true, Ordering::AcqRel);
    if core.capabilities.push && (!started || mutant!(SubscribesForEachWaiter)) {
        core.runtime
            .spawn(Box::pin(run(Arc::clone(core), Arc::clone(session))));
    }
}

async fn run(core: Arc<Core>, session: Arc<Session>) {
    let mut told = false;
    loop {
        let pause = match listen_once(&core, &session).await {
            Listened::Over => return,
            Listened::Interrupted => {
                told = false;
                PAUSE
            }
            Listened::Failed(error) => {
                // An outage is told once, not with every try.
                if !std::mem::replace(&mut told, true) {
                    core.events.not_subscribed(&error);
                }
                if error.is_transient() {
                    PAUSE
                } else {
                    PAUSE_AFTER_REFUSAL
                }
            }
        };
        set_listening(&core, &session, false);
        let pause = core.jittered(pause);
        if let Either::Left(_) = select(pin!(unused(&core)), core.runtime.sleep(pause)).await {
            return;
        }
    }
}

/// What a subscription came to.
enum Listened {
    /// Nobody needs another.
    Over,
    /// It stood and ended.
    Interrupted,
    Failed(BackendError),
}

/// Subscribes and carries notifications until the subscription ends.
async fn listen_once(core: &Core, session: &Session) -> Listened {
    let listen = pin!(core.backend.listen(session.id));
    // Nobody waits for it, and it needs more round trips than a call whose limit is short.
    let limit = core.settings.call_timeout.max(CALL_TIMEOUT);
    match core.bounded(limit, listen).await {
        Ok(notifications) => carry(core, session, notifications).await,
        Err(BackendError::Closed | BackendError::Unsupported { .. }) => Listened::Over,
        Err(error) => Listened::Failed(error),
    }
}

async fn carry(core: &Core, session: &Session, mut notifications: Notifications) -> Listened {
    set_listening(core, session, true);
    let mut unused = pin!(unused(core));
    loop {
        match select(unused.as_mut(), notifications.next()).await {
            Either::Left(_) => return Listened::Over,
            Either::Right((Some(Notification::Missed { listening }), _)) => {
                set_listening(core, session, listening);
            }
            Either::Right((Some(notification), _)) => {
                session.router.deliver(notification, core.now())
            }
            Either::Right((None, _)) => return Listened::Interrupted,
        }
    }
}

fn set_listening(core: &Core, session: &Session, listening: bool) {
    let before = session.router.is_listening();
    session
        .router
        .deliver(Notification::Missed { listening }, core.now());
    if before != listening {
        core.events.subscription(listening);
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
