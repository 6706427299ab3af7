//! The task that keeps a session's subscription and delivers its notifications to the router.
//!
//! The task subscribes again after each failure, with a pause that grows. It grows longer if the server
//! refuses the subscription, for example because the user may not subscribe. Without a
//! subscription, polls alone serve the waiters. Whenever the subscription is confirmed or lost, the
//! router asks every waiter for a poll, because notifications may have been missed. When it is
//! confirmed, every holder with automatic renewal is also renewed, because a forced release may have
//! been missed.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};

use crate::backend::{Notification, Notifications};
use crate::bounds::MAX_CALL_TIMEOUT;
use crate::client::core::Core;
use crate::client::state::session::Session;
use crate::error::BackendError;
use crate::sync::Arc;

/// The pause after a failure doubles from the first one to the longest for its cause.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// After the server refused the subscription. Its administrator may be at work, so this begins short too.
const LONGEST_PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(5);

/// Spawns the task of a session, once, if the backend has waiters to notify. A backend without `push` may
/// still notify the waiters of its own client, or refuse the subscription.
pub(crate) fn start(core: &Arc<Core>, session: &Arc<Session>) {
    if core.capabilities.queue && session.listen_started.is_first() {
        let task = run(Arc::clone(core), Arc::clone(session));
        core.runtime.spawn(core.background(task));
    }
}

async fn run(core: Arc<Core>, session: Arc<Session>) {
    let (mut pause, mut reported) = (FIRST_PAUSE, false);
    loop {
        let began = core.now();
        let longest = match listen_once(&core, &session).await {
            Disconnect::Unneeded => return,
            Disconnect::Interrupted => {
                reported = false;
                // One that keeps being interrupted at once is a failure too.
                if core.now().saturating_since(began) >= LONGEST_PAUSE_AFTER_REFUSAL {
                    pause = FIRST_PAUSE;
                }
                LONGEST_PAUSE
            }
            Disconnect::Failed(error) => {
                // An outage is reported once, not with every attempt.
                if !std::mem::replace(&mut reported, true) {
                    core.events.subscription_failed(&error);
                }
                match error.is_transient() {
                    true => LONGEST_PAUSE,
                    false => LONGEST_PAUSE_AFTER_REFUSAL,
                }
            }
        };
        set_listening(&core, &session, false);
        pause = pause.min(longest);
        let sleeping = core.runtime.sleep(core.jittered(pause));
        if let Either::Left(_) = select(pin!(orphaned(&core)), sleeping).await {
            return;
        }
        pause *= 2;
    }
}

enum Disconnect {
    /// The client has no user left, or the backend has no subscriptions.
    Unneeded,
    /// The subscription was confirmed and then lost.
    Interrupted,
    /// The subscription was never confirmed.
    Failed(BackendError),
}

/// Subscribes and delivers notifications until the subscription ends.
async fn listen_once(core: &Core, session: &Session) -> Disconnect {
    let listen = pin!(core.backend.listen(session.id));
    // A new connection to a distant server takes many round trips, and no caller waits for this one. So the
    // call timeout doesn't apply.
    match core.limited(MAX_CALL_TIMEOUT, listen).await {
        Ok(notifications) => deliver(core, session, notifications).await,
        Err(BackendError::Closed | BackendError::Unsupported { .. }) => Disconnect::Unneeded,
        Err(error) => Disconnect::Failed(error),
    }
}

async fn deliver(core: &Core, session: &Session, mut notifications: Notifications) -> Disconnect {
    set_listening(core, session, true);
    let mut orphaned = pin!(orphaned(core));
    loop {
        match select(orphaned.as_mut(), notifications.next()).await {
            Either::Left(_) => return Disconnect::Unneeded,
            Either::Right((Some(Notification::Missed { listening }), _)) => {
                set_listening(core, session, listening);
            }
            Either::Right((Some(notification), _)) => {
                session.router.deliver(notification, core.now());
            }
            Either::Right((None, _)) => return Disconnect::Interrupted,
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
    // A forced release may have been missed. Only a renewal can tell.
    if listening {
        core.renewals.renew_now(core.now());
    }
}

async fn orphaned(core: &Core) {
    let orphaned = || core.is_orphaned().then_some(());
    core.closing.wait_for(orphaned).await;
}
