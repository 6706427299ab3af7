//! One simulation: the server, its clients, and the network between them, in virtual time.
//!
//! Everything that takes time is a [`Happening`] in one queue, and everything that runs is a task
//! in one set. A driver lets one of them go at a time, chosen by the tape, and moves the clock to
//! the next happening when there is nothing else to do.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_api::SessionId;

use crate::calls::Calls;
use crate::choices::{Choices, Policy};
use crate::client::Client;
use crate::clock::{Clock, start_pump};
use crate::explore::failure::command_with_seed;
use crate::history::History;
use crate::log::{Content, Entry, Event, Log};
use crate::observer::Observer;
use crate::options::SimOptions;
use crate::queue::{ClientIndex, Happening, Queue};
use crate::servers::Servers;
use crate::tape::Site;
use crate::tasks::{Chosen, Course, Line, Ready, TaskId, Waiter, Wakers};

/// Whom to wake after the lock is let go: a waker may run other people's code.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    first: Option<Waiter>,
    more: Vec<Waiter>,
}

impl Wakes {
    pub(crate) fn add(&mut self, waiter: Option<Waiter>) {
        match (waiter, &mut self.first) {
            (Some(waiter), first @ None) => *first = Some(waiter),
            (Some(waiter), Some(_)) => self.more.push(waiter),
            (None, _) => {}
        }
    }

    /// Wakes who can be woken at once: nobody, or a single task of the set. False if others are
    /// left.
    fn line_up(&mut self, line: &mut Line<'_>) -> bool {
        if let (Some(Waiter::Task(task)), true) = (&self.first, self.more.is_empty()) {
            line.wake(*task);
            self.first = None;
        }
        self.first.is_none()
    }

    /// Takes out who is to be woken, if there is anybody.
    fn take(&mut self) -> Option<Self> {
        self.first.is_some().then(|| std::mem::take(self))
    }

    fn wake(self, ready: &Ready) {
        for waiter in self.first.into_iter().chain(self.more) {
            waiter.wake(ready);
        }
    }
}

/// A simulation and the clock that it runs on.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) ready: Arc<Ready>,
    inner: Mutex<Inner>,
    /// Whether the run is of no use any more.
    unsound: AtomicBool,
}

/// The part of a simulation that changes.
pub(crate) struct Inner {
    pub(crate) options: SimOptions,
    pub(crate) choices: Choices,
    pub(crate) servers: Servers,
    pub(crate) log: Log,
    pub(crate) observer: Option<Box<dyn Observer>>,
    pub(crate) clients: Vec<Client>,
    pub(crate) calls: Calls,
    pub(crate) queue: Queue,
    /// Who subscribes to a session's channel.
    pub(crate) channels: BTreeSet<(SessionId, ClientIndex, u64)>,
    /// The latest time at which anything happened, in nanoseconds since the start.
    latest: u64,
    pub(crate) wakers: Wakers,
    pub(crate) wakes: Wakes,
    /// Why the run is of no use any more.
    failed: Option<String>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

impl World {
    /// A simulation that its caller drives.
    pub(crate) fn new(clock: Clock, options: SimOptions, policy: Policy) -> Arc<Self> {
        Arc::new(Self {
            clock,
            ready: Arc::default(),
            unsound: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                options,
                choices: Choices::new(options.seed, policy, options.recording),
                servers: Servers::new(options.settings, options.journal),
                log: Log::new(options.log_limit),
                observer: None,
                clients: Vec::new(),
                calls: Calls::default(),
                queue: Queue::default(),
                channels: BTreeSet::new(),
                latest: 0,
                wakers: Wakers::default(),
                wakes: Wakes::default(),
                failed: None,
            }),
        })
    }

    /// A simulation that runs in the tokio runtime of the caller.
    #[track_caller]
    pub(crate) fn start(options: SimOptions, policy: Policy) -> Arc<Self> {
        let world = Self::new(Clock::tokio(), options, policy);
        start_pump(&world);
        world
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the simulation at the present virtual time.
    pub(crate) fn act<R>(&self, act: impl FnOnce(&mut Inner, Duration) -> R) -> R {
        let elapsed = self.clock.nanos();
        let mut inner = self.lock();
        // Under the lock: a driver that goes to sleep asks under it what comes next.
        let outside = self.clock.driver_may_sleep();
        let before = if outside { inner.queue.next_at() } else { None };
        inner.latest = inner.latest.max(elapsed);
        let now = Duration::from_nanos(inner.latest);
        let result = act(&mut inner, now);
        if inner.choices.has_diverged() {
            self.unsound.store(true, Ordering::Release);
        }
        let sooner = outside && inner.queue.next_at() != before;
        let wakes = inner.wakes.take();
        drop(inner);
        if let Some(wakes) = wakes {
            wakes.wake(&self.ready);
        }
        if sooner {
            self.ready.wake_driver();
        }
        result
    }

    /// Lets happen what happens, until a task is to run or the driver is needed.
    ///
    /// The choice is among all tasks that can run and, as one more answer, the events that are
    /// due: so code runs in any order, and may run before or after what happens at the same
    /// instant. The clock is moved if there is nothing to choose.
    pub(crate) fn choose(&self, course: &mut Course) -> Chosen {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let mut line = self.ready.line();
        loop {
            if course.steps >= course.step_limit {
                return Chosen::OutOfSteps;
            }
            let now = inner.latest.max(self.clock.nanos());
            inner.latest = now;
            if inner.choices.has_diverged() {
                self.unsound.store(true, Ordering::Release);
            }
            inner.queue.collect(now);
            if line.has_spawned() {
                return Chosen::Spawned;
            }
            course.steps += 1;
            let (task, happening) = inner.pick(&mut line);
            if let Some(task) = task {
                inner.wakers.run(task);
                return Chosen::Task(task);
            }
            let Some(happening) = happening else {
                match inner.queue.next_at() {
                    Some(next) if next <= course.until => self.clock.set(next),
                    next => return Chosen::Idle(next.map(Duration::from_nanos)),
                }
                continue;
            };
            let now = Duration::from_nanos(now);
            if matches!(happening, Happening::Timer(_)) {
                inner.happen(now, happening);
            } else {
                // An observer is other people's code, and may wake; it is not told of timers.
                drop(line);
                inner.happen(now, happening);
                line = self.ready.line();
            }
            if !inner.wakes.line_up(&mut line) {
                drop(line);
                let wakes = inner.wakes.take();
                drop(guard);
                if let Some(wakes) = wakes {
                    wakes.wake(&self.ready);
                }
                return Chosen::Event;
            }
        }
    }

    /// When the next thing happens.
    pub(crate) fn next_at(&self) -> Option<Duration> {
        self.lock().queue.next_at().map(Duration::from_nanos)
    }

    /// Remembers why the run is of no use any more.
    pub(crate) fn fail(&self, why: String) {
        self.lock().failed.get_or_insert(why);
        self.unsound.store(true, Ordering::Release);
    }

    /// Checks that nothing has happened that makes the run worthless.
    ///
    /// # Panics
    /// If something has, unless the thread panics already.
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
        let diverged = inner.choices.divergence();
        if inner.failed.is_none() && diverged.is_none() {
            return;
        }
        let failed = inner.failed.clone();
        drop(inner);
        let why = failed.or_else(|| diverged.map(|why| why.to_string()));
        assert!(std::thread::panicking(), "{}", why.unwrap_or_default());
    }
}

impl World {
    /// Checks that a replay that ends now has used all of its tape.
    ///
    /// # Panics
    /// If it has not, unless the thread panics already.
    pub(crate) fn assert_replayed(&self) {
        let unused = self.lock().choices.unused();
        if let Some(unused) = unused.filter(|_| !std::thread::panicking()) {
            panic!("{unused}");
        }
    }
}

/// How much of its timeline a test prints that panics, in lines.
const PRINTED: usize = 300;

impl World {
    /// What helps who has to find out why a test failed.
    fn print(&self) {
        let inner = self.lock();
        let seed = inner.choices.tape().seed;
        let text = History::of(&inner.log, inner.client_names()).text();
        let lines: Vec<&str> = text.lines().collect();
        let hidden = lines.len().saturating_sub(PRINTED);
        eprintln!("\nwhat happened in the simulation with seed {seed}:");
        if hidden > 0 {
            eprintln!("({hidden} lines before these)");
        }
        for line in &lines[hidden..] {
            eprintln!("{line}");
        }
        eprintln!("\nto repeat it: {}", command_with_seed(seed));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // An own executor reports its runs itself.
        if std::thread::panicking() && self.clock.is_tokio() {
            self.print();
        }
        self.ready.wake_driver();
    }
}

impl Inner {
    /// Whose turn it is, or what happens; neither if nobody and nothing can.
    fn pick(&mut self, line: &mut Line<'_>) -> (Option<TaskId>, Option<Happening>) {
        let (tasks, events) = (line.len(), self.queue.due());
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let answers = count(tasks) + u32::from(events > 0);
        let actor = |n| line.actor(n as usize);
        let turn = self.choices.pick(Site::Task, answers, actor);
        if let Some(task) = line.take(turn as usize) {
            return (Some(task), None);
        }
        if events == 0 {
            return (None, self.queue.take_last());
        }
        let queue = &self.queue;
        let actor = |n| queue.actor(n as usize);
        let turn = self.choices.pick(Site::Order, count(events), actor);
        (None, self.queue.take_due(turn as usize))
    }

    pub(crate) fn add_client(&mut self, name: &str) -> ClientIndex {
        let index = self.clients.len();
        let identities = self.choices.identities(index);
        self.clients
            .push(Client::new(name.into(), identities, self.options.latency));
        index
    }

    pub(crate) fn client_names(&self) -> Vec<Arc<str>> {
        self.clients
            .iter()
            .map(|client| client.name.clone())
            .collect()
    }

    pub(crate) fn record(&mut self, at: Duration, client: Option<ClientIndex>, event: Event) {
        self.record_of(None, at, client, event);
    }

    /// Records what a message brought.
    pub(crate) fn record_of(
        &mut self,
        message: Option<u64>,
        at: Duration,
        client: Option<ClientIndex>,
        event: Event,
    ) {
        if let Some(observer) = &mut self.observer {
            observer.event(at, client, &event);
        }
        self.keep(message, at, client, || event);
    }

    /// Writes into the log, if one is kept.
    pub(crate) fn keep(
        &mut self,
        message: Option<u64>,
        at: Duration,
        client: Option<ClientIndex>,
        event: impl FnOnce() -> Event,
    ) {
        if !self.log.is_kept() {
            return;
        }
        let client = client.map(|index| self.clients[index].name.clone());
        self.log.push(Entry {
            at,
            client,
            message,
            event: event(),
        });
    }

    /// Notes in the log that a message sets out; returns its number.
    pub(crate) fn note_sent(&mut self, at: Duration, client: ClientIndex, content: Content) -> u64 {
        if !self.log.is_kept() {
            return 0;
        }
        let client = self.clients[client].name.clone();
        self.log.sent(at, client, content)
    }
}
