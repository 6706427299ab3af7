//! The tasks of a simulation.
//!
//! Both drivers poll the tasks in the same way, so a run depends only on its tape.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use leasehold_api::BoxFuture;

use crate::driver::world::{Chosen, Course, World};
use crate::engine::ready::{ReadyQueue, TaskId};

struct Task {
    id: TaskId,
    future: Option<BoxFuture<'static, ()>>,
    waker: Waker,
}

/// The result of a turn of the driver.
#[derive(Debug)]
pub(crate) enum Turn {
    /// A task ran, or an event happened.
    Done,
    /// It is the turn of the task that the driver polls itself.
    Root,
    /// Nothing can run or happen before this time, or before code outside the simulation acts.
    Idle(Option<Duration>),
    /// The step limit is reached.
    OutOfSteps,
}

/// The payload of a panic.
pub(crate) type Panic = Box<dyn Any + Send>;

/// The initial capacity, enough for small runs.
const CAPACITY: usize = 16;

/// The tasks of a simulation.
pub(crate) struct Tasks {
    ready: Arc<ReadyQueue>,
    tasks: Vec<Option<Task>>,
    free: Vec<u32>,
    /// The number of tasks without the root.
    alive: usize,
}

impl Tasks {
    pub(crate) fn new(ready: &Arc<ReadyQueue>) -> Self {
        Self {
            ready: Arc::clone(ready),
            tasks: Vec::with_capacity(CAPACITY),
            free: Vec::with_capacity(CAPACITY),
            alive: 0,
        }
    }

    /// Adds the task that the driver polls itself, as the first task.
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
        let waker = self.ready.waker(id);
        let before = world.act(|network, _| network.wakers.enter(id, waker.clone()));
        drop(before);
        self.alive += usize::from(future.is_some());
        self.tasks[index as usize] = Some(Task {
            id,
            future,
            waker: waker.clone(),
        });
        waker
    }

    /// Adds the spawned tasks.
    fn add_spawned(&mut self, world: &World) {
        let spawned = self.ready.take_spawned();
        for future in spawned {
            self.add(world, Some(future));
        }
    }

    /// Runs one task or one event, which the tape chooses.
    pub(crate) fn turn(&mut self, world: &World, course: &mut Course) -> Result<Turn, Panic> {
        loop {
            match world.choose(course) {
                Chosen::Task(task) => return self.run(task),
                Chosen::Event => return Ok(Turn::Done),
                Chosen::Idle(next) => return Ok(Turn::Idle(next)),
                Chosen::OutOfSteps => return Ok(Turn::OutOfSteps),
                Chosen::Spawned => self.add_spawned(world),
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
        // The task's destructors may spawn and wake tasks.
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
    /// Breaks the cycle between the tasks and their world.
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the message of a panic.
pub(crate) fn message(panic: &Panic) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}
