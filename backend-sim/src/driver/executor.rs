//! The executor that runs a scenario and its tasks.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::driver::clock::nanos;
use crate::driver::tasks::{Panic, Tasks, Turn, message};
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

/// The limits of a run.
pub(crate) struct Limits {
    /// The maximum virtual time.
    pub(crate) time: Duration,
    pub(crate) steps: u64,
    /// Ends the run once this is true.
    pub(crate) stop: Option<Arc<AtomicBool>>,
}

/// Runs a future and the tasks that it spawns until the future completes.
///
/// Calls `report` with the ending and the number of steps while the future and the tasks still
/// exist, because their destructors are not part of the run.
pub(crate) fn execute<F: Future, R>(
    world: &World,
    root: F,
    limits: &Limits,
    report: impl FnOnce(Ending<F::Output>, u64) -> R,
) -> R {
    let mut tasks = Tasks::new(&world.ready);
    let waker = tasks.add_root(world);
    let mut root = pin!(root);
    let mut cx = Context::from_waker(&waker);
    let mut course = Course {
        steps: 0,
        step_limit: limits.steps,
        until: nanos(limits.time),
    };
    let stop = limits.stop.as_deref();
    let ending = loop {
        match next_root_turn(world, &mut tasks, &mut course, stop) {
            Ok(()) => {}
            Err(Stop::Panic(panic)) => break Ending::Panicked(message(&panic)),
            Err(Stop::Deadlock) => break Ending::Deadlock,
            Err(Stop::TimeLimit) => break Ending::TimeLimit,
            Err(Stop::StepLimit) => break Ending::StepLimit,
            Err(Stop::Decided) => break Ending::Stopped,
        }
        match catch_unwind(AssertUnwindSafe(|| root.as_mut().poll(&mut cx))) {
            Ok(Poll::Ready(output)) => break Ending::Completed(output),
            Ok(Poll::Pending) => {}
            Err(panic) => break Ending::Panicked(message(&panic)),
        }
    };
    report(ending, course.steps)
}

enum Stop {
    Panic(Panic),
    Deadlock,
    TimeLimit,
    StepLimit,
    Decided,
}

/// Runs tasks and events until it is the turn of the scenario's future.
fn next_root_turn(
    world: &World,
    tasks: &mut Tasks,
    course: &mut Course,
    decided: Option<&AtomicBool>,
) -> Result<(), Stop> {
    loop {
        if decided.is_some_and(|decided| decided.load(Ordering::Relaxed)) {
            return Err(Stop::Decided);
        }
        match tasks.turn(world, course).map_err(Stop::Panic)? {
            Turn::Root => return Ok(()),
            Turn::Done => {}
            Turn::Idle(None) => return Err(Stop::Deadlock),
            Turn::Idle(Some(_)) => return Err(Stop::TimeLimit),
            Turn::OutOfSteps => return Err(Stop::StepLimit),
        }
    }
}
