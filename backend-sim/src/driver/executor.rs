//! The executor that runs a scenario and its tasks.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use crate::driver::tasks::{Tasks, Turn, message};
use crate::driver::world::{Course, World};
use crate::engine::choices::Divergence;

/// How a run ended. `T` is the output of the scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending<T> {
    /// The scenario's future completed.
    Completed(T),
    /// Every task waits, and no event is left.
    Deadlock,
    /// The scenario exceeded its [time limit](crate::Simulation::time_limit).
    TimeLimit,
    /// The scenario exceeded its [step limit](crate::Simulation::step_limit).
    StepLimit,
    /// The flag of [`Simulation::stop_flag`](crate::Simulation::stop_flag) was set.
    Stopped,
    /// The scenario or one of its tasks panicked, with this message.
    Panicked(String),
    /// The replay diverged from its tape.
    Diverged(Divergence),
}

/// Runs a future and the tasks that it spawns until the future completes, or `stop` is true.
///
/// Calls `report` with the ending and the number of steps while the future and the tasks still
/// exist, because their destructors are not part of the run.
pub(crate) fn execute<F: Future, R>(
    world: &World,
    root: F,
    mut course: Course,
    stop: Option<&AtomicBool>,
    report: impl FnOnce(Ending<F::Output>, u64) -> R,
) -> R {
    let mut tasks = Tasks::new(&world.ready);
    let waker = tasks.add_root(world);
    let mut root = pin!(root);
    let mut cx = Context::from_waker(&waker);
    let ending = loop {
        if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            break Ending::Stopped;
        }
        match tasks.turn(world, &mut course) {
            Ok(Turn::Root) => {}
            Ok(Turn::Done) => continue,
            Ok(Turn::Idle(None)) => break Ending::Deadlock,
            Ok(Turn::Idle(Some(_))) => break Ending::TimeLimit,
            Ok(Turn::OutOfSteps) => break Ending::StepLimit,
            Err(panic) => break Ending::Panicked(message(&panic)),
        }
        match catch_unwind(AssertUnwindSafe(|| root.as_mut().poll(&mut cx))) {
            Ok(Poll::Ready(output)) => break Ending::Completed(output),
            Ok(Poll::Pending) => {}
            Err(panic) => break Ending::Panicked(message(&panic)),
        }
    };
    report(ending, course.steps)
}
