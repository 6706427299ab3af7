//! The state that all handles, guards and background tasks of one client share.
//!
//! [`Core`] owns the backend, the runtime, the settings and the schedules of the background tasks:
//! renewals, releases and batches. The polls and the notification router belong to the
//! [`Session`]. A process that was forked gets a new session at its first use.
//!
//! Handles, guards and attempts share a [`ClientHandle`]; the tasks share only the `Core`. Dropping
//! the last `ClientHandle` marks the core as orphaned and wakes the tasks, which return. The
//! release task empties its queue first. `close` fails calls that acquire a lock, new and waiting
//! ones; the tasks go on until the core is orphaned. A shutdown waits until the release queue is
//! empty and no [`Busy`] is left, because such work may still queue a release.
//!
//! A task that is dropped before its end closes the core: the client's runtime has ended, and nobody is left
//! to serve the calls that wait on another one.

mod calls;

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::select;
use futures_util::stream::FuturesUnordered;

use crate::backend::{Capabilities, LockBackend};
use crate::client::error::{Error, Loss};
use crate::client::state::answer::LeaseStatus;
use crate::client::state::batches::Batcher;
use crate::client::state::clock::ServerClock;
use crate::client::state::floors::Floors;
use crate::client::state::hold_state::HoldState;
use crate::client::state::holder::{HolderCell, Validity};
use crate::client::state::observers::Observed;
use crate::client::state::outage::Outage;
use crate::client::state::release_queue::{PendingRelease, ReleaseQueue, give_up_at};
use crate::client::state::renewals::Renewals;
use crate::client::state::session::Session;
use crate::client::state::settings::ClientSettings;
use crate::client::state::signal::Signal;
use crate::client::telemetry::events::Events;
use crate::id::{Key, Operation};
use crate::runtime::{BoxFuture, Moment, Runtime};
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};

/// The longest single sleep. After a suspend, a sleeper reads the clock at the latest after this.
const MAX_SLEEP: Duration = Duration::from_secs(1);

pub(crate) struct Core {
    pub(crate) backend: Arc<dyn LockBackend>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) capabilities: Capabilities,
    pub(crate) settings: ClientSettings,
    pub(crate) clock: ServerClock,
    pub(crate) floors: Floors,
    pub(crate) events: Events,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) releases: ReleaseQueue,
    pub(crate) batcher: Batcher,
    pub(crate) observed: Observed,
    pub(crate) outage: Outage,
    session: Mutex<Option<Arc<Session>>>,
    closed: AtomicBool,
    pub(crate) closing: Signal,
    /// Set when the last [`ClientHandle`] is dropped.
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

/// What handles, guards and attempts keep of a client. When the last one is dropped, the
/// background tasks finish and return.
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
        let session = self.0.session.lock().clone();
        if let Some(session) = session {
            session.polls.changed.notify();
        }
        self.0.renewals.changed.notify();
        self.0.releases.changed.notify();
        self.0.closing.notify();
    }
}

impl Core {
    pub(crate) fn new_handle(
        backend: Arc<dyn LockBackend>,
        runtime: Arc<dyn Runtime>,
        settings: ClientSettings,
    ) -> Arc<ClientHandle> {
        let capabilities = backend.capabilities();
        Arc::new(ClientHandle(Arc::new(Self {
            capabilities,
            events: Events::new(&settings),
            renewals: Arc::new(Renewals::new(runtime.random_u64())),
            backend,
            runtime,
            outage: Outage::new(settings.call_timeout),
            settings,
            clock: ServerClock::new(capabilities.clock_error),
            floors: Floors::default(),
            releases: ReleaseQueue::default(),
            batcher: Batcher::new(capabilities.batches),
            observed: Observed::default(),
            session: Mutex::new(None),
            closed: AtomicBool::new(false),
            closing: Signal::default(),
            orphaned: AtomicBool::new(false),
        })))
    }

    pub(crate) fn now(&self) -> Moment {
        self.runtime.now()
    }

    /// Sleeps until a moment, or forever without one. Returns at once if the moment has passed.
    ///
    /// It sleeps in short steps and reads the clock after each one: the clock counts a suspend of
    /// the machine, but timers may not.
    pub(crate) async fn sleep_until(&self, until: Option<Moment>) {
        let Some(until) = until else {
            return std::future::pending().await;
        };
        loop {
            let left = until.saturating_since(self.now());
            if left.is_zero() {
                return;
            }
            self.runtime.sleep(left.min(MAX_SLEEP)).await;
        }
    }

    /// Waits until a task has work: at `until`, when `signal` changes, or when one of its calls
    /// completes.
    pub(crate) async fn wait_for_work(
        &self,
        signal: &Signal,
        version: u64,
        until: Option<Moment>,
        calls: &mut FuturesUnordered<BoxFuture<'static, ()>>,
    ) {
        let timer = pin!(self.sleep_until(until));
        let changed = select(signal.changed(version), timer);
        if calls.is_empty() {
            changed.await;
        } else {
            select(calls.next(), changed).await;
        }
    }

    pub(crate) fn random_between(&self, from: Duration, to: Duration) -> Duration {
        self.runtime.random_between(from, to)
    }

    pub(crate) fn jittered(&self, max: Duration) -> Duration {
        self.runtime.jittered(max)
    }

    /// The session of this process. It is created at the first use, and again after a fork.
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

    /// Whether this process has drawn the session. A fork copies guards and calls: those of the parent are its own,
    /// and nothing that the child does with its copies may end them.
    pub(crate) fn owns(&self, session: &Session) -> bool {
        session.process == self.runtime.process_id()
    }

    /// Whether a hold is valid. In a forked child, those of the parent count as released.
    pub(crate) fn validity(&self, holder: &HolderCell, sequence: u64) -> Validity {
        if !self.owns(&holder.session) {
            return Validity::Released;
        }
        holder.validity(self.now(), sequence)
    }

    /// Refuses what needs notes.
    pub(crate) const fn ensure_notes(&self, what: &'static str) -> Result<(), Error> {
        let has = self.capabilities;
        Error::require(has.notes && has.inspect, what)
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

    /// Makes a background task of a future. Spawn it at once.
    pub(crate) fn background(
        self: &Arc<Self>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> BoxFuture<'static, ()> {
        let running = Running(Some(Arc::clone(self)));
        Box::pin(async move {
            task.await;
            running.end();
        })
    }

    /// Applies a renewed or reported lease to a holder. Returns whether the holder is still valid.
    pub(crate) fn extend(&self, holder: &HolderCell, status: LeaseStatus) -> bool {
        // Later acquires send this token as their floor.
        if status.token > holder.token() {
            self.floors.saw(&holder.key, status.token);
        }
        let is_from_before_a_step = || self.clock.has_stepped(status.clock, status.sent);
        if !is_from_before_a_step() {
            let valid = holder.extend(self.now(), status);
            // The step may be noticed meanwhile (decision 0076).
            if !(valid && is_from_before_a_step()) {
                return holder.lost().is_none();
            }
        }
        holder.lose_unless_later(status.sent)
    }

    /// Schedules a new holder, or a holder with a new hold.
    pub(crate) fn schedule(
        &self,
        holder: &Arc<HolderCell>,
        status: LeaseStatus,
        due: Option<Moment>,
    ) {
        self.renewals.schedule(holder, self.now(), due);
        // A step that was noticed before that has not reached the holder (decision 0076).
        if self.clock.has_stepped(status.clock, status.sent) {
            holder.lose(Loss::ClockStepped);
        }
    }

    /// Like [`extend`](Self::extend), for the answer to a renewal.
    pub(crate) fn renewed(&self, holder: &HolderCell, status: LeaseStatus) -> bool {
        let valid = self.extend(holder, status);
        // Not before: until then, the deadline of an offer doesn't count.
        holder.confirm();
        valid
    }

    /// Queues the releases of all holds, for a shutdown. Their guards are lost.
    pub(crate) fn release_all_holds(&self) {
        let holders = self.renewals.holders().into_iter();
        for holder in holders.filter(|holder| self.owns(&holder.session)) {
            let now = self.now();
            for (hold, lost) in holder.shut_down(now) {
                self.report_releasing(&holder, &hold, lost, now);
                self.releases.push(self.release_of(&holder, hold));
            }
        }
    }

    /// Creates the release of a hold that was removed from `holder`.
    pub(crate) fn release_of(&self, holder: &Arc<HolderCell>, hold: HoldState) -> PendingRelease {
        holder.session.router.set_releasing(hold.operation.sequence);
        self.renewals.remove_if_released(holder);
        let give_up = give_up_at(self.now(), hold.lease);
        let (key, session) = (holder.key.clone(), Arc::clone(&holder.session));
        PendingRelease {
            holder: Some(Arc::clone(holder)),
            was_lost: hold.was_lost(),
            ..PendingRelease::new(key, hold.operation, session, give_up, hold.release_result)
        }
    }

    /// Releases an operation in the background if it may have left something on the server but
    /// gets no guard.
    pub(crate) fn abandon(
        &self,
        session: &Arc<Session>,
        key: &Key,
        operation: Operation,
        lease: Duration,
    ) {
        let give_up = give_up_at(self.now(), lease);
        let (key, session) = (key.clone(), Arc::clone(session));
        let job = PendingRelease::new(key, operation, session, give_up, Arc::default());
        self.releases.push(job);
    }

    /// Reports that the release of a hold has begun, or that the hold was lost before.
    pub(crate) fn report_releasing(
        &self,
        holder: &HolderCell,
        hold: &HoldState,
        lost: Option<Loss>,
        now: Moment,
    ) {
        match lost {
            Some(loss) => {
                self.events.lost(holder, hold, loss, now);
                // Only the renewal task calls the hook.
                self.renewals.changed.notify();
            }
            None if hold.was_lost() => {}
            None => self.events.releasing(holder, hold, now),
        }
    }

    pub(crate) async fn closed(&self) {
        let closed = || self.is_closed().then_some(());
        self.closing.wait_for(closed).await;
    }

    pub(crate) fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::Acquire)
    }
}

/// A background task, until it has ended.
struct Running(Option<Arc<Core>>);

impl Running {
    fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(core) = self.0.take() {
            core.close();
        }
    }
}

/// Lets every task that is ready run once.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        // The scheduler queues this task behind all that are ready.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Work that may still queue a release. A shutdown waits until it is dropped.
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
        // This check comes after `end_work`: a shutdown that found the work unfinished waits for a
        // notification.
        if self.0.is_closed() {
            self.0.releases.changed.notify();
        }
    }
}
