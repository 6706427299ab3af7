//! What all handles, guards and tasks of one client share.

mod calls;

pub(crate) use calls::not_executed;

use std::fmt;
use std::ops::Deref;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::select;
use futures_util::stream::FuturesUnordered;

use crate::backend::{Capabilities, LockBackend};
use crate::client::error::{Error, Loss};
use crate::client::state::batches::Batcher;
use crate::client::state::clock::ServerClock;
use crate::client::state::floors::Floors;
use crate::client::state::hold_state::HoldState;
use crate::client::state::holder::HolderCell;
use crate::client::state::lease_status::LeaseStatus;
use crate::client::state::release_queue::{PendingRelease, ReleaseQueue, give_up_at};
use crate::client::state::renewals::Renewals;
use crate::client::state::session::Session;
use crate::client::state::settings::Settings;
use crate::client::state::signal::Signal;
use crate::client::telemetry::events::Events;
use crate::id::{Key, Operation};
use crate::runtime::{BoxFuture, Moment, Runtime};
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};

/// Longest time for which a suspend of the machine goes unnoticed after its end.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

pub(crate) struct Core {
    pub(crate) backend: Arc<dyn LockBackend>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) capabilities: Capabilities,
    pub(crate) settings: Settings,
    pub(crate) clock: ServerClock,
    pub(crate) floors: Floors,
    pub(crate) events: Events,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) releases: ReleaseQueue,
    pub(crate) batcher: Batcher,
    session: Mutex<Option<Arc<Session>>>,
    closed: AtomicBool,
    pub(crate) closing: Signal,
    /// Set when nothing of the user's is left: handles, guards, attempts.
    orphaned: AtomicBool,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("backend", &self.backend)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// The user's side of a client: the background tasks end when the last of these is gone.
#[derive(Debug)]
pub(crate) struct ClientHandle(Arc<Core>);

impl Deref for ClientHandle {
    type Target = Arc<Core>;

    fn deref(&self) -> &Arc<Core> {
        &self.0
    }
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        self.0.orphaned.store(true, Ordering::Release);
        self.0.wake_tasks();
    }
}

impl Core {
    pub(crate) fn new_handle(
        backend: Arc<dyn LockBackend>,
        runtime: Arc<dyn Runtime>,
        settings: Settings,
    ) -> Arc<ClientHandle> {
        let capabilities = backend.capabilities();
        Arc::new(ClientHandle(Arc::new(Self {
            capabilities,
            events: Events::new(&settings, capabilities),
            renewals: Arc::new(Renewals::new(runtime.random_u64())),
            backend,
            runtime,
            settings,
            clock: ServerClock::default(),
            floors: Floors::default(),
            releases: ReleaseQueue::default(),
            batcher: Batcher::new(capabilities.batches),
            session: Mutex::new(None),
            closed: AtomicBool::new(false),
            closing: Signal::default(),
            orphaned: AtomicBool::new(false),
        })))
    }

    pub(crate) fn now(&self) -> Moment {
        self.runtime.now()
    }

    /// Sleeps until a moment, or not at all if it is over; without one, for ever.
    ///
    /// It wakes now and then to look at the clock: timers may not count a suspend, the clock does.
    pub(crate) async fn sleep_until(&self, until: Option<Moment>) {
        let Some(until) = until else {
            return std::future::pending().await;
        };
        loop {
            let left = until.saturating_since(self.now());
            if left.is_zero() {
                return;
            }
            self.runtime.sleep(left.min(LONGEST_SLEEP)).await;
        }
    }

    /// For a task that keeps a schedule: ends at `until`, when `signal` has changed, or when one
    /// of the calls under way has ended.
    pub(crate) async fn until_work(
        &self,
        signal: &Signal,
        version: u64,
        until: Option<Moment>,
        calls: &mut FuturesUnordered<BoxFuture<'static, ()>>,
    ) {
        let asleep = pin!(self.sleep_until(until));
        let woken = select(signal.changed(version), asleep);
        if calls.is_empty() {
            woken.await;
        } else {
            select(calls.next(), woken).await;
        }
    }

    /// A duration between `from` and `to`.
    pub(crate) fn random_between(&self, from: Duration, to: Duration) -> Duration {
        let spread = u64::try_from(to.saturating_sub(from).as_micros()).unwrap_or(u64::MAX);
        if spread == 0 {
            return from;
        }
        from + Duration::from_micros(self.runtime.random_u64() % spread)
    }

    /// A pause between half of `most` and `most`.
    pub(crate) fn jittered(&self, most: Duration) -> Duration {
        self.random_between(most / 2, most)
    }

    /// The session of this process; drawn at the first use, and anew after a fork.
    pub(crate) fn session(&self) -> Arc<Session> {
        let process = self.runtime.process_id();
        let mut current = self.session.lock();
        match &*current {
            Some(session) if session.process == process => Arc::clone(session),
            _ => {
                let drawn = Arc::new(Session::draw(&*self.runtime, process));
                *current = Some(Arc::clone(&drawn));
                drawn
            }
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn ensure_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closing.notify();
    }

    /// Takes what a reply says about a holder, if it still matters; whether it does.
    pub(crate) fn extend(&self, holder: &HolderCell, status: LeaseStatus) -> bool {
        // Later acquires bring the highest token that a guard has shown.
        if status.token > holder.token() {
            self.floors.saw(&holder.key, status.token);
        }
        holder.extend(self.now(), status)
    }

    /// Queues the end of everything that is held, over the guards' heads.
    pub(crate) fn release_all_holds(&self) {
        for holder in self.renewals.holders() {
            let now = self.now();
            for (hold, lost) in holder.shut_down(now) {
                self.tell_releasing(&holder, &hold, lost, now);
                self.releases.push(self.release_of(&holder, hold));
            }
        }
    }

    /// The release of a hold that `holder` no longer counts.
    pub(crate) fn release_of(&self, holder: &Arc<HolderCell>, hold: HoldState) -> PendingRelease {
        holder.session.router.ending(hold.operation.sequence);
        self.renewals.remove_if_over(holder);
        let give_up = give_up_at(self.now(), hold.lease, hold.waiter_lease);
        let (key, session) = (holder.key.clone(), Arc::clone(&holder.session));
        PendingRelease {
            holder: Some(Arc::clone(holder)),
            was_lost: hold.told,
            ..PendingRelease::new(key, hold.operation, session, give_up, hold.ended)
        }
    }

    /// Releases in the background whatever an operation may have left on the server, if nobody
    /// gets a guard of it.
    pub(crate) fn abandon(
        &self,
        session: &Arc<Session>,
        key: &Key,
        operation: Operation,
        lease: Duration,
        waiter_lease: Duration,
    ) {
        let give_up = give_up_at(self.now(), lease, waiter_lease);
        let (key, session) = (key.clone(), Arc::clone(session));
        let job = PendingRelease::new(key, operation, session, give_up, Arc::default());
        self.releases.push(job);
    }

    /// Tells of the guards of a holder that are lost by now; of each once.
    pub(crate) fn tell_losses(&self, holder: &HolderCell, now: Moment) {
        for (hold, loss) in holder.take_losses(now) {
            self.events.lost(holder, &hold, loss, now);
        }
    }

    /// Tells that the end of a hold has begun, or that it was lost before.
    pub(crate) fn tell_releasing(
        &self,
        holder: &HolderCell,
        hold: &HoldState,
        lost: Option<Loss>,
        now: Moment,
    ) {
        match lost {
            Some(loss) => {
                self.events.lost(holder, hold, loss, now);
                // The hook is called by the task that renews, and only there.
                self.renewals.changed.notify();
            }
            None if hold.told => {}
            None => self.events.ending(holder, hold, now),
        }
    }

    /// Ends when the client is shut down.
    pub(crate) async fn closed(&self) {
        loop {
            let version = self.closing.version();
            if self.is_closed() {
                return;
            }
            self.closing.changed(version).await;
        }
    }

    pub(crate) fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::Acquire)
    }

    fn wake_tasks(&self) {
        let session = self.session.lock().clone();
        if let Some(session) = session {
            session.polls.changed.notify();
        }
        self.renewals.changed.notify();
        self.releases.changed.notify();
        self.closing.notify();
    }
}

/// Work under way that may still queue a release: a shutdown waits for it.
#[derive(Debug)]
pub(crate) struct Busy<'a>(&'a Core);

impl<'a> Busy<'a> {
    pub(crate) fn begin(core: &'a Core) -> Self {
        core.releases.begin_work();
        Self(core)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.releases.end_work();
        // Looked at only now: who closes the client and finds it busy then waits to be told.
        if self.0.is_closed() {
            self.0.releases.changed.notify();
        }
    }
}
