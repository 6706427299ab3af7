//! The ready queue: the tasks that can run, and the wakers of those that wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use leasehold_api::BoxFuture;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    pub(crate) index: usize,
    /// The number of earlier tasks with the same index.
    round: u32,
}

/// The tasks that can run.
#[derive(Default)]
pub(crate) struct ReadyQueue(Mutex<State>);

#[derive(Default)]
struct State {
    queue: VecDeque<TaskId>,
    /// By the index of the task.
    slots: Vec<Slot>,
    /// Spawned tasks that the driver has not taken yet.
    spawned: Vec<BoxFuture<'static, ()>>,
    /// The waker of the driver, while it sleeps.
    driver: Option<Waker>,
    /// Whether the driver has ended and takes no more tasks.
    closed: bool,
}

/// The state of a task index.
#[derive(Default)]
struct Slot {
    round: u32,
    /// Whether the task is in the queue.
    queued: bool,
}

impl State {
    /// Adds a task to the queue, unless it is queued already or has ended.
    fn enqueue(&mut self, task: TaskId) -> bool {
        let slot = &mut self.slots[task.index];
        if slot.queued || slot.round != task.round || self.closed {
            return false;
        }
        slot.queued = true;
        self.queue.push_back(task);
        true
    }
}

impl ReadyQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn spawn(&self, future: BoxFuture<'static, ()>) {
        let mut state = self.lock();
        if !state.closed {
            state.spawned.push(future);
            wake_driver_of(state);
        }
    }

    fn wake(&self, task: TaskId) {
        let mut state = self.lock();
        if state.enqueue(task) {
            wake_driver_of(state);
        }
    }

    /// Registers a task at an index, and adds it to the queue.
    pub(crate) fn enter(&self, index: usize) -> TaskId {
        let mut state = self.lock();
        if state.slots.len() == index {
            state.slots.push(Slot::default());
        }
        let round = state.slots[index].round;
        let task = TaskId { index, round };
        state.enqueue(task);
        task
    }

    /// Removes a task that has ended. Its wakers must not run the next task with its index.
    pub(crate) fn leave(&self, task: TaskId) {
        let mut state = self.lock();
        let slot = &mut state.slots[task.index];
        slot.round = slot.round.wrapping_add(1);
        if std::mem::take(&mut slot.queued) {
            state.queue.retain(|&ready| ready != task);
        }
    }

    /// Wakes the driver, because the next event is earlier than it expects.
    pub(crate) fn wake_driver(&self) {
        wake_driver_of(self.lock());
    }

    /// Lets the driver sleep, unless a task can run. Returns whether it may sleep.
    pub(crate) fn sleep(&self, driver: &Waker) -> bool {
        let mut state = self.lock();
        let idle = state.queue.is_empty() && state.spawned.is_empty();
        if idle {
            state.driver = Some(driver.clone());
        }
        idle
    }

    pub(crate) fn waker(self: &Arc<Self>, task: TaskId) -> Waker {
        let ready = Arc::clone(self);
        Waker::from(Arc::new(TaskWaker { ready, task }))
    }

    pub(crate) fn take_spawned(&self) -> Vec<BoxFuture<'static, ()>> {
        std::mem::take(&mut self.lock().spawned)
    }

    /// Locks the queue for a choice.
    pub(crate) fn locked(&self) -> ReadyGuard<'_> {
        ReadyGuard(self.lock())
    }

    pub(crate) fn close(&self) -> Vec<BoxFuture<'static, ()>> {
        let mut state = self.lock();
        state.closed = true;
        state.driver = None;
        std::mem::take(&mut state.spawned)
    }
}

/// Unlocks the queue, and wakes its driver if that sleeps.
fn wake_driver_of(mut state: MutexGuard<'_, State>) {
    let driver = state.driver.take();
    drop(state);
    driver.into_iter().for_each(Waker::wake);
}

pub(crate) struct ReadyGuard<'a>(MutexGuard<'a, State>);

impl ReadyGuard<'_> {
    /// Returns whether there are spawned tasks that the driver has not taken yet.
    pub(crate) fn has_spawned(&self) -> bool {
        !self.0.spawned.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.queue.len()
    }

    pub(crate) fn actor(&self, index: usize) -> u64 {
        let task = self.0.queue.get(index);
        task.map_or(u64::MAX, |task| task.index as u64 | 1 << 63)
    }

    /// Takes the task at an index. The first task takes its position.
    pub(crate) fn take(&mut self, index: usize) -> Option<TaskId> {
        let task = self.0.queue.swap_remove_front(index)?;
        self.0.slots[task.index].queued = false;
        Some(task)
    }
}

struct TaskWaker {
    ready: Arc<ReadyQueue>,
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

#[derive(Debug)]
pub(crate) enum Wakeup {
    /// A task of the simulation, which is queued without a call of its waker.
    Task(TaskId),
    Other(Waker),
}

impl Wakeup {
    pub(crate) fn wake(self, ready: &ReadyQueue) {
        match self {
            Self::Task(task) => ready.wake(task),
            Self::Other(waker) => waker.wake(),
        }
    }
}

/// The wakers of the simulation's tasks.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    /// By the index of the task.
    tasks: Vec<(TaskId, Waker)>,
    /// Index of the task that ran last.
    running: usize,
}

impl Wakers {
    pub(crate) const fn run(&mut self, task: TaskId) {
        self.running = task.index;
    }

    pub(crate) fn enter(&mut self, task: TaskId, waker: Waker) -> Option<Waker> {
        match self.tasks.get_mut(task.index) {
            Some(before) => Some(std::mem::replace(before, (task, waker)).1),
            None => {
                self.tasks.push((task, waker));
                None
            }
        }
    }

    #[inline]
    pub(crate) fn waiter(&self, waker: &Waker) -> Wakeup {
        match self.tasks.get(self.running) {
            Some((task, own)) if own.will_wake(waker) => Wakeup::Task(*task),
            _ => Wakeup::Other(waker.clone()),
        }
    }

    /// Registers a waker. Returns the previous one, which the caller must drop outside the lock.
    pub(crate) fn replace(&self, waiter: &mut Option<Wakeup>, waker: &Waker) -> Option<Wakeup> {
        let known = match waiter {
            Some(Wakeup::Task(task)) => {
                let own = self.tasks.get(task.index);
                own.and_then(|(now, own)| (now == task).then_some(own))
            }
            Some(Wakeup::Other(known)) => Some(&*known),
            None => None,
        };
        if known.is_some_and(|known| known.will_wake(waker)) {
            return None;
        }
        waiter.replace(self.waiter(waker))
    }
}

/// The wakeups to make after the lock is released, because a waker may run any code.
#[derive(Debug, Default)]
pub(crate) struct Wakes(Vec<Wakeup>);

impl Wakes {
    pub(crate) fn add(&mut self, waiter: Option<Wakeup>) {
        self.0.extend(waiter);
    }

    /// Wakes a single task of the simulation at once. Returns `false` if other wakeups are left.
    pub(crate) fn enqueue(&mut self, ready: &mut ReadyGuard<'_>) -> bool {
        if let [Wakeup::Task(task)] = self.0[..] {
            ready.0.enqueue(task);
            self.0.clear();
        }
        self.0.is_empty()
    }

    /// Takes the wakeups, if there are any.
    pub(crate) fn take(&mut self) -> Option<Self> {
        (!self.0.is_empty()).then(|| std::mem::take(self))
    }

    pub(crate) fn wake(self, ready: &ReadyQueue) {
        self.0.into_iter().for_each(|waiter| waiter.wake(ready));
    }
}
