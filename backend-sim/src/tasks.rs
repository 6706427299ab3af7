//! The tasks of a simulation: which can run, and which of them does.
//!
//! Both drivers poll the same set in the same way, so that a run depends on its tape alone.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use leasehold_api::BoxFuture;

use crate::world::World;

/// Names a task of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    index: u32,
    /// How many tasks before it had its index.
    round: u32,
}

/// Which tasks can run.
#[derive(Default)]
pub(crate) struct Ready(Mutex<State>);

#[derive(Default)]
struct State {
    line: VecDeque<TaskId>,
    /// For each index of the set.
    places: Vec<Place>,
    /// Not in the set yet.
    spawned: Vec<BoxFuture<'static, ()>>,
    /// Wakes the driver; there while it sleeps.
    driver: Option<Waker>,
    /// Whether the driver is gone, and takes no more tasks.
    closed: bool,
}

/// What is to be known of the task at an index.
struct Place {
    round: u32,
    /// Whether it is in the line.
    queued: bool,
}

impl State {
    /// Puts a task into the line, unless it is there already, or has ended.
    fn line_up(&mut self, task: TaskId) -> bool {
        let Some(place) = self.places.get_mut(task.index as usize) else {
            return false;
        };
        if place.queued || place.round != task.round || self.closed {
            return false;
        }
        place.queued = true;
        self.line.push_back(task);
        true
    }
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

    /// Wakes a task.
    fn wake(&self, task: TaskId) {
        let mut state = self.lock();
        let driver = if state.line_up(task) {
            state.driver.take()
        } else {
            None
        };
        drop(state);
        driver.into_iter().for_each(Waker::wake);
    }

    /// Makes room for a task, and puts it into the line.
    fn enter(&self, index: u32) -> TaskId {
        let mut state = self.lock();
        if state.places.len() == index as usize {
            state.places.push(Place {
                round: 0,
                queued: false,
            });
        }
        let round = state.places[index as usize].round;
        let task = TaskId { index, round };
        state.line_up(task);
        task
    }

    /// A task has ended: whoever gets its index must not be run for it.
    fn leave(&self, task: TaskId) {
        let mut state = self.lock();
        let place = &mut state.places[task.index as usize];
        place.round = place.round.wrapping_add(1);
        if std::mem::take(&mut place.queued) {
            state.line.retain(|&ready| ready != task);
        }
    }

    /// Wakes the driver, because something is to happen earlier than it knows.
    pub(crate) fn wake_driver(&self) {
        let driver = self.lock().driver.take();
        driver.into_iter().for_each(Waker::wake);
    }

    /// Lets the driver sleep, unless there is something to run.
    pub(crate) fn sleep(&self, driver: &Waker) -> bool {
        let mut state = self.lock();
        let idle = state.line.is_empty() && state.spawned.is_empty();
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
        self.0.line.len()
    }

    /// Whose turn it would be.
    pub(crate) fn actor(&self, index: usize) -> u64 {
        let task = self.0.line.get(index);
        task.map_or(u64::MAX, |task| u64::from(task.index) | 1 << 63)
    }

    /// Takes the task at an index; the first takes its place there.
    pub(crate) fn take(&mut self, index: usize) -> Option<TaskId> {
        let task = self.0.line.swap_remove_front(index)?;
        self.0.places[task.index as usize].queued = false;
        Some(task)
    }

    /// Wakes a task; the driver is at work.
    pub(crate) fn wake(&mut self, task: TaskId) {
        self.0.line_up(task);
    }
}

/// Wakes one task.
struct TaskWaker {
    ready: Arc<Ready>,
    task: TaskId,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.wake(self.task);
    }
}

/// Who goes on when something has happened.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A task of the set: it is lined up without a call of its waker.
    Task(TaskId),
    /// Somebody else.
    Other(Waker),
}

impl Waiter {
    pub(crate) fn wake(self, ready: &Ready) {
        match self {
            Self::Task(task) => ready.wake(task),
            Self::Other(waker) => waker.wake(),
        }
    }
}

/// The wakers of the set's tasks.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    /// For each index of the set.
    tasks: Vec<(TaskId, Waker)>,
    /// Which of them was last let run.
    running: u32,
}

impl Wakers {
    pub(crate) const fn run(&mut self, task: TaskId) {
        self.running = task.index;
    }

    fn enter(&mut self, task: TaskId, waker: Waker) -> Option<Waker> {
        match self.tasks.get_mut(task.index as usize) {
            Some(before) => Some(std::mem::replace(before, (task, waker)).1),
            None => {
                self.tasks.push((task, waker));
                None
            }
        }
    }

    /// Who waits with this waker.
    #[inline]
    pub(crate) fn waiter(&self, waker: &Waker) -> Waiter {
        match self.tasks.get(self.running as usize) {
            Some((task, own)) if own.will_wake(waker) => Waiter::Task(*task),
            _ => Waiter::Other(waker.clone()),
        }
    }

    /// Lets somebody wait with this waker; returns who waited before, to be dropped where it does
    /// no harm.
    pub(crate) fn replace(&self, waiter: &mut Option<Waiter>, waker: &Waker) -> Option<Waiter> {
        let known = match waiter {
            Some(Waiter::Task(task)) => self
                .tasks
                .get(task.index as usize)
                .and_then(|(now, own)| (now == task).then_some(own)),
            Some(Waiter::Other(known)) => Some(&*known),
            None => None,
        };
        if known.is_some_and(|known| known.will_wake(waker)) {
            return None;
        }
        waiter.replace(self.waiter(waker))
    }
}

struct Task {
    id: TaskId,
    future: Option<BoxFuture<'static, ()>>,
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
    /// It may not go on.
    OutOfSteps,
}

/// How far a driver lets a simulation go on.
#[derive(Debug)]
pub(crate) struct Course {
    /// How many steps were made: a step is a task that runs until it waits, an event, or a
    /// movement of the clock.
    pub(crate) steps: u64,
    pub(crate) step_limit: u64,
    /// Up to when the clock is moved, in nanoseconds.
    pub(crate) until: u64,
}

/// What a task panicked with.
pub(crate) type Panic = Box<dyn Any + Send>;

/// Room from the beginning for the tasks of small runs.
const ROOM: usize = 16;

/// The set of tasks.
pub(crate) struct Tasks {
    ready: Arc<Ready>,
    tasks: Vec<Option<Task>>,
    free: Vec<u32>,
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
    pub(crate) fn add_root(&mut self, world: &World) -> Waker {
        self.add(world, None)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.alive == 0
    }

    fn add(&mut self, world: &World, future: Option<BoxFuture<'static, ()>>) -> Waker {
        let index = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            u32::try_from(self.tasks.len() - 1).expect("fewer than 2^32 tasks at a time")
        });
        let id = self.ready.enter(index);
        let ready = Arc::clone(&self.ready);
        let waker = Waker::from(Arc::new(TaskWaker { ready, task: id }));
        let before = world.act(|inner, _| inner.wakers.enter(id, waker.clone()));
        drop(before);
        self.alive += usize::from(future.is_some());
        self.tasks[index as usize] = Some(Task {
            id,
            future,
            waker: waker.clone(),
        });
        waker
    }

    /// Takes in what was spawned.
    fn take_in(&mut self, world: &World) {
        let spawned = std::mem::take(&mut self.ready.lock().spawned);
        for future in spawned {
            self.add(world, Some(future));
        }
    }

    /// Runs one task or lets one thing happen, as the tape says.
    pub(crate) fn turn(&mut self, world: &World, course: &mut Course) -> Result<Turn, Panic> {
        loop {
            match world.choose(course) {
                Chosen::Task(task) => return self.run(task),
                Chosen::Event => return Ok(Turn::Done),
                Chosen::Idle(next) => return Ok(Turn::Idle(next)),
                Chosen::OutOfSteps => return Ok(Turn::OutOfSteps),
                Chosen::Spawned => self.take_in(world),
            }
        }
    }

    fn run(&mut self, id: TaskId) -> Result<Turn, Panic> {
        let Some(task) = &mut self.tasks[id.index as usize] else {
            return Ok(Turn::Done);
        };
        let Some(future) = &mut task.future else {
            return Ok(Turn::Root);
        };
        let mut cx = Context::from_waker(&task.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
        match polled {
            Ok(poll) if poll.is_pending() => return Ok(Turn::Done),
            Ok(_) => self.end(id),
            Err(panic) => {
                self.end(id);
                return Err(panic);
            }
        }
        Ok(Turn::Done)
    }

    fn end(&mut self, id: TaskId) {
        let Some(task) = self.tasks[id.index as usize].take() else {
            return;
        };
        self.alive -= 1;
        self.ready.leave(task.id);
        self.free.push(id.index);
        // Its destructors may spawn and wake.
        drop(task);
    }

    /// Drops all tasks.
    pub(crate) fn clear(&mut self) {
        let spawned = self.ready.close();
        self.tasks.clear();
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
    Task(TaskId),
    /// It has happened.
    Event,
    Idle(Option<Duration>),
    OutOfSteps,
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
