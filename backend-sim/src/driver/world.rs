//! A simulation and its clock, behind one lock.
//!
//! Everything that takes time is an event in one queue, and everything that runs is a task. A
//! driver runs one of them at a time, which the tape chooses. When nothing can run, it moves the
//! clock to the next event.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::driver::clock::Clock;
use crate::engine::event_queue::nanos;
use crate::engine::ready::{ReadyGuard, ReadyQueue, TaskId};
use crate::engine::tape::Site;
use crate::network::Network;
use crate::network::event::SimEvent;

pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) ready: Arc<ReadyQueue>,
    inner: Mutex<Inner>,
    /// Whether the run has failed, so that its results mean nothing.
    unsound: AtomicBool,
    /// Called if a panicking thread drops the simulation.
    on_panic: Option<fn(&Network)>,
}

struct Inner {
    network: Network,
    /// Why the run has failed.
    failed: Option<String>,
}

/// The limits of a driver.
#[derive(Debug)]
pub(crate) struct Course {
    /// The number of steps so far. A step is one poll of a task, one event, or one movement of the
    /// clock.
    pub(crate) steps: u64,
    pub(crate) step_limit: u64,
    /// The time up to which the clock moves, in nanoseconds.
    pub(crate) until: u64,
}

impl Course {
    pub(crate) const fn new(step_limit: u64, until: u64) -> Self {
        Self {
            steps: 0,
            step_limit,
            until,
        }
    }
}

pub(crate) enum Chosen {
    Task(TaskId),
    /// An event. It has been carried out already.
    Event,
    Idle(Option<Duration>),
    OutOfSteps,
    /// The driver must add spawned tasks first.
    Spawned,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

impl World {
    /// Creates a simulation that its caller drives.
    pub(crate) fn new(clock: Clock, network: Network, on_panic: Option<fn(&Network)>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            ready: Arc::default(),
            unsound: AtomicBool::default(),
            inner: Mutex::new(Inner {
                network,
                failed: None,
            }),
            on_panic,
        })
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accesses the simulation at the current virtual time.
    pub(crate) fn act<R>(&self, act: impl FnOnce(&mut Network) -> R) -> R {
        let elapsed = self.clock.elapsed();
        let mut inner = self.lock();
        let network = &mut inner.network;
        // Read this under the lock, because a driver that goes to sleep reads the next time under
        // it.
        let outside = self.clock.driver_may_sleep();
        let before = if outside {
            network.queue.next_at()
        } else {
            None
        };
        network.now = network.now.max(elapsed);
        let result = act(network);
        self.check(network);
        let sooner = outside && network.queue.next_at() != before;
        let wakes = network.wakes.take();
        drop(inner);
        wakes.into_iter().for_each(|wakes| wakes.wake(&self.ready));
        if sooner {
            self.ready.wake_driver();
        }
        result
    }

    /// Chooses a task or an event. Applies events until a task must run or the driver is needed.
    ///
    /// The choice is among all ready tasks and, as one more value, the due events. So tasks run in
    /// any order, before or after events of the same instant. Without a choice, the clock moves.
    pub(crate) fn choose(&self, course: &mut Course) -> Chosen {
        let mut inner = self.lock();
        let network = &mut inner.network;
        let mut ready = self.ready.locked();
        loop {
            if course.steps >= course.step_limit {
                return Chosen::OutOfSteps;
            }
            network.now = network.now.max(self.clock.elapsed());
            self.check(network);
            network.queue.collect(nanos(network.now));
            if ready.has_spawned() {
                return Chosen::Spawned;
            }
            course.steps += 1;
            let (task, event) = pick(network, &mut ready);
            if let Some(task) = task {
                network.wakers.run(task);
                return Chosen::Task(task);
            }
            let Some(event) = event else {
                match network.queue.next_at() {
                    Some(next) if next <= course.until => self.clock.set(next),
                    next => return Chosen::Idle(next.map(Duration::from_nanos)),
                }
                continue;
            };
            if matches!(event, SimEvent::Timer(_)) {
                network.apply(event);
            } else {
                // An observer is user code and may wake tasks. It doesn't see timers.
                drop(ready);
                network.apply(event);
                ready = self.ready.locked();
            }
            if !network.wakes.enqueue(&mut ready) {
                drop(ready);
                let wakes = network.wakes.take();
                drop(inner);
                wakes.into_iter().for_each(|wakes| wakes.wake(&self.ready));
                return Chosen::Event;
            }
        }
    }

    pub(crate) fn next_at(&self) -> Option<Duration> {
        let next = self.lock().network.queue.next_at();
        next.map(Duration::from_nanos)
    }

    /// Marks the run as failed if it has diverged from its tape.
    fn check(&self, network: &Network) {
        if network.choices.divergence.is_some() {
            self.unsound.store(true, Ordering::Release);
        }
    }

    /// Marks the run as failed. The first reason counts.
    pub(crate) fn fail(&self, reason: String) {
        self.lock().failed.get_or_insert(reason);
        self.unsound.store(true, Ordering::Release);
    }

    /// Checks that the run has not failed.
    ///
    /// # Panics
    /// Panics if it has, unless the thread panics already.
    #[inline]
    #[track_caller]
    pub(crate) fn assert_sound(&self) {
        if self.unsound.load(Ordering::Acquire) {
            self.assert_not_failed();
        }
    }

    #[track_caller]
    fn assert_not_failed(&self) {
        let inner = self.lock();
        let diverged = inner.network.choices.divergence;
        let reason = inner.failed.clone();
        drop(inner);
        if let Some(reason) = reason.or_else(|| diverged.map(|reason| reason.to_string())) {
            assert!(std::thread::panicking(), "{reason}");
        }
    }

    /// Checks that a replay has used all of its tape.
    ///
    /// # Panics
    /// Panics if it has not, unless the thread panics already.
    pub(crate) fn assert_replayed(&self) {
        let unused = self.lock().network.choices.unused();
        if let Some(unused) = unused.filter(|_| !std::thread::panicking()) {
            panic!("{unused}");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(report) = self.on_panic.filter(|_| std::thread::panicking()) {
            report(&self.lock().network);
        }
        self.ready.wake_driver();
    }
}

/// Picks the task that runs next or the event that happens next, if there is one.
fn pick(network: &mut Network, ready: &mut ReadyGuard<'_>) -> (Option<TaskId>, Option<SimEvent>) {
    let (tasks, events) = (ready.len(), network.queue.due());
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let answers = count(tasks) + u32::from(events > 0);
    let actor = |n| ready.actor(n as usize);
    let turn = network.choices.pick(Site::Task, answers, actor);
    if let Some(task) = ready.take(turn as usize) {
        return (Some(task), None);
    }
    if events == 0 {
        return (None, network.queue.take_last());
    }
    let queue = &network.queue;
    let actor = |n| queue.actor(n as usize);
    let turn = network.choices.pick(Site::Order, count(events), actor);
    (None, network.queue.take_due(turn as usize))
}
