//! The tasks of a simulation: which can run, and which of them does.
//!
//! Both drivers poll the same set in the same way, so that a run depends on its tape alone.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use leasehold_api::BoxFuture;

use crate::world::World;

/// Index of a task in its set.
pub(crate) type TaskIndex = u32;

/// Which tasks can run.
#[derive(Default)]
pub(crate) struct Ready(Mutex<State>);

#[derive(Default)]
struct State {
    tasks: VecDeque<TaskIndex>,
    /// Not in the set yet.
    spawned: Vec<BoxFuture<'static, ()>>,
    /// Wakes the driver; there while it sleeps.
    driver: Option<Waker>,
    /// Whether the driver is gone, and takes no more tasks.
    closed: bool,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready").finish_non_exhaustive()
    }
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task.
    pub(crate) fn spawn(&self, future: BoxFuture<'static, ()>) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            drop(future);
            return;
        }
        state.spawned.push(future);
        let driver = state.driver.take();
        drop(state);
        driver.into_iter().for_each(Waker::wake);
    }

    /// Wakes the driver, because something is to happen earlier than it knows.
    pub(crate) fn wake_driver(&self) {
        let driver = self.lock().driver.take();
        driver.into_iter().for_each(Waker::wake);
    }

    /// Lets the driver sleep, unless there is something to run.
    pub(crate) fn sleep(&self, driver: &Waker) -> bool {
        let mut state = self.lock();
        let idle = state.tasks.is_empty() && state.spawned.is_empty();
        if idle {
            state.driver = Some(driver.clone());
        }
        idle
    }

    /// The tasks that can run, for as long as a choice takes.
    pub(crate) fn line(&self) -> Line<'_> {
        Line(self.lock())
    }

    fn close(&self) -> Vec<BoxFuture<'static, ()>> {
        let mut state = self.lock();
        state.closed = true;
        state.driver = None;
        std::mem::take(&mut state.spawned)
    }
}

/// The tasks that can run.
pub(crate) struct Line<'a>(MutexGuard<'a, State>);

impl Line<'_> {
    /// Whether there are tasks that are not in the set yet.
    pub(crate) fn has_spawned(&self) -> bool {
        !self.0.spawned.is_empty()
    }

    /// How many can run.
    pub(crate) fn len(&self) -> usize {
        self.0.tasks.len()
    }

    /// Whose turn it would be.
    pub(crate) fn actor(&self, index: usize) -> u64 {
        let task = self.0.tasks.get(index);
        task.map_or(u64::MAX, |&task| u64::from(task) | 1 << 63)
    }

    /// Takes the task at an index; the first takes its place there.
    pub(crate) fn take(&mut self, index: usize) -> Option<TaskIndex> {
        self.0.tasks.swap_remove_front(index)
    }
}

/// Wakes one task.
struct TaskWaker {
    ready: Arc<Ready>,
    task: TaskIndex,
    /// Whether it is in the line, or has ended.
    queued: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut state = self.ready.lock();
        state.tasks.push_back(self.task);
        let driver = state.driver.take();
        drop(state);
        driver.into_iter().for_each(Waker::wake);
    }
}

struct Task {
    future: Option<BoxFuture<'static, ()>>,
    state: Arc<TaskWaker>,
    waker: Waker,
}

/// What a turn of the driver came to.
#[derive(Debug)]
pub(crate) enum Turn {
    /// A task ran, or something happened.
    Done,
    /// It is the turn of the task that the driver polls itself.
    Root,
    /// Nothing can run or happen before this time, or before somebody outside acts.
    Idle(Option<Duration>),
}

/// What a task panicked with.
pub(crate) type Panic = Box<dyn Any + Send>;

/// Room from the beginning for the tasks of small runs.
const ROOM: usize = 16;

/// The set of tasks.
pub(crate) struct Tasks {
    ready: Arc<Ready>,
    tasks: Vec<Option<Task>>,
    free: Vec<TaskIndex>,
    /// Whether there are any but the root.
    alive: usize,
}

impl Tasks {
    pub(crate) fn new(ready: &Arc<Ready>) -> Self {
        Self {
            ready: Arc::clone(ready),
            tasks: Vec::with_capacity(ROOM),
            free: Vec::with_capacity(ROOM),
            alive: 0,
        }
    }

    /// Adds the task that the driver polls itself, as the first of the set.
    pub(crate) fn add_root(&mut self) -> Waker {
        self.add(None)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.alive == 0
    }

    fn add(&mut self, future: Option<BoxFuture<'static, ()>>) -> Waker {
        let task = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            TaskIndex::try_from(self.tasks.len() - 1).expect("fewer than 2^32 tasks at a time")
        });
        let state = Arc::new(TaskWaker {
            ready: Arc::clone(&self.ready),
            task,
            queued: AtomicBool::new(false),
        });
        let waker = Waker::from(Arc::clone(&state));
        self.alive += usize::from(future.is_some());
        self.tasks[task as usize] = Some(Task {
            future,
            state,
            waker: waker.clone(),
        });
        waker.wake_by_ref();
        waker
    }

    /// Takes in what was spawned.
    fn take_in(&mut self) {
        let spawned = std::mem::take(&mut self.ready.lock().spawned);
        for future in spawned {
            self.add(Some(future));
        }
    }

    /// Runs one task or lets one thing happen, as the tape says.
    pub(crate) fn turn(&mut self, world: &World, now: Duration) -> Result<Turn, Panic> {
        loop {
            match world.choose(now) {
                Chosen::Task(task) => return self.run(task),
                Chosen::Event => return Ok(Turn::Done),
                Chosen::Idle(next) => return Ok(Turn::Idle(next)),
                Chosen::Spawned => self.take_in(),
            }
        }
    }

    fn run(&mut self, index: TaskIndex) -> Result<Turn, Panic> {
        let Some(task) = &mut self.tasks[index as usize] else {
            return Ok(Turn::Done);
        };
        task.state.queued.store(false, Ordering::Release);
        let Some(future) = &mut task.future else {
            return Ok(Turn::Root);
        };
        let mut cx = Context::from_waker(&task.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
        match polled {
            Ok(poll) if poll.is_pending() => return Ok(Turn::Done),
            Ok(_) => self.end(index),
            Err(panic) => {
                self.end(index);
                return Err(panic);
            }
        }
        Ok(Turn::Done)
    }

    fn end(&mut self, index: TaskIndex) {
        let Some(task) = self.tasks[index as usize].take() else {
            return;
        };
        self.alive -= 1;
        if task.state.queued.swap(true, Ordering::AcqRel) {
            // It woke itself before it ended: whoever gets its index must not be run for that.
            self.ready.lock().tasks.retain(|&ready| ready != index);
        }
        self.free.push(index);
        // Its destructors may spawn and wake.
        drop(task);
    }

    /// Drops all tasks.
    pub(crate) fn clear(&mut self) {
        let spawned = self.ready.close();
        for task in self.tasks.drain(..).flatten() {
            task.state.queued.store(true, Ordering::Release);
            drop(task);
        }
        drop(spawned);
    }
}

impl Drop for Tasks {
    /// Tasks keep their world alive, and the world what they spawned.
    fn drop(&mut self) {
        self.clear();
    }
}

/// What the tape chose to come next.
pub(crate) enum Chosen {
    Task(TaskIndex),
    /// It has happened.
    Event,
    Idle(Option<Duration>),
    /// Tasks are to be taken into the set first.
    Spawned,
}

/// What a panic said.
pub(crate) fn message(panic: &Panic) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}
