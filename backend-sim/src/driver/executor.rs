//! The executor that runs a whole scenario, with its tasks, to its end.

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

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending<T> {
    /// The scenario's future completed.
    Completed(T),
    /// The scenario waits, nothing can run, and nothing is going to happen.
    Deadlock,
    /// The scenario was not done in its virtual time.
    TimeLimit,
    /// The scenario was not done in its number of steps.
    StepLimit,
    /// What the rest of the run could bring does not matter any more.
    Stopped,
    /// The scenario or a task of it panicked, with this message.
    Panicked(String),
    /// The run is not that of the tape that it was to replay.
    Diverged(Divergence),
}

/// When a run ends that does not end by itself.
pub(crate) struct Limits {
    /// Of virtual time.
    pub(crate) time: Duration,
    pub(crate) steps: u64,
    /// Ends the run once it is true.
    pub(crate) stop: Option<Arc<AtomicBool>>,
}

/// Runs a future and the tasks that it spawns until the future completes.
///
/// `report` gets how it ended, and how many steps it took, while future and tasks still exist: their
/// destructors are no part of the run.
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

/// Goes on until it is the turn of the scenario's own future.
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
