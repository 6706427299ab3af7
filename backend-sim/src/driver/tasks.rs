//! The tasks of a simulation.
//!
//! Both drivers poll the tasks in the same way, so a run depends only on its tape.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold_api::BoxFuture;
use slab::Slab;

use crate::driver::world::{Chosen, Course, World};
use crate::engine::ready::{ReadyQueue, TaskId};

struct Task {
    /// `None` for the task that the driver polls itself.
    future: Option<BoxFuture<'static, ()>>,
    waker: Waker,
}

#[derive(Debug)]
pub(crate) enum Turn {
    /// A task ran, or an event happened.
    Done,
    /// It is the turn of the task that the driver polls itself.
    Root,
    /// Nothing can run or happen before this time, or before code outside the simulation acts.
    Idle(Option<Duration>),
    OutOfSteps,
}

pub(crate) type Panic = Box<dyn Any + Send>;

/// The initial capacity, enough for small runs.
const CAPACITY: usize = 16;

pub(crate) struct Tasks {
    ready: Arc<ReadyQueue>,
    tasks: Slab<Task>,
}

impl Tasks {
    pub(crate) fn new(ready: &Arc<ReadyQueue>) -> Self {
        Self {
            ready: Arc::clone(ready),
            tasks: Slab::with_capacity(CAPACITY),
        }
    }

    /// Adds the task that the driver polls itself, as the first task.
    pub(crate) fn add_root(&mut self, world: &World) -> Waker {
        self.add(world, None)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    fn add(&mut self, world: &World, future: Option<BoxFuture<'static, ()>>) -> Waker {
        let entry = self.tasks.vacant_entry();
        let id = self.ready.enter(entry.key());
        let waker = self.ready.waker(id);
        let before = world.act(|network| network.wakers.enter(id, waker.clone()));
        drop(before);
        let own = waker.clone();
        entry.insert(Task { future, waker });
        own
    }

    /// Runs one task or one event, which the tape chooses.
    pub(crate) fn turn(&mut self, world: &World, course: &mut Course) -> Result<Turn, Panic> {
        loop {
            match world.choose(course) {
                Chosen::Task(task) => return self.run(task),
                Chosen::Event => return Ok(Turn::Done),
                Chosen::Idle(next) => return Ok(Turn::Idle(next)),
                Chosen::OutOfSteps => return Ok(Turn::OutOfSteps),
                Chosen::Spawned => {
                    for future in self.ready.take_spawned() {
                        self.add(world, Some(future));
                    }
                }
            }
        }
    }

    fn run(&mut self, id: TaskId) -> Result<Turn, Panic> {
        let Some(task) = self.tasks.get_mut(id.index) else {
            return Ok(Turn::Done);
        };
        let Some(future) = &mut task.future else {
            return Ok(Turn::Root);
        };
        let mut cx = Context::from_waker(&task.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
        if !matches!(polled, Ok(Poll::Pending)) {
            let task = self.tasks.remove(id.index);
            self.ready.leave(id);
            // The task's destructors may spawn and wake tasks.
            drop(task);
        }
        polled.map(|_| Turn::Done)
    }
}

impl Drop for Tasks {
    /// Breaks the cycle between the tasks and their world.
    fn drop(&mut self) {
        let spawned = self.ready.close();
        self.tasks.clear();
        drop(spawned);
    }
}

pub(crate) fn message(panic: &Panic) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
