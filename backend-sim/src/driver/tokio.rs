//! The driver that runs a simulation inside the user's tokio test.
//!
//! The paused clock of a tokio runtime doesn't advance while any task can run, and jumps to the
//! next timer when none can.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this driver is where tasks come from"
)]

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::driver::clock::{Clock, NOT_PAUSED, is_paused};
use crate::driver::tasks::{Tasks, Turn, message};
use crate::driver::world::{Course, World};
use crate::network::Network;

/// Starts a simulation in the tokio runtime of the caller.
///
/// Calls `on_panic` if a panicking thread drops the simulation.
///
/// # Panics
/// Panics outside a tokio runtime, and in one whose clock is not paused.
#[track_caller]
pub(crate) fn start(network: Network, on_panic: fn(&Network)) -> Arc<World> {
    let world = World::new(Clock::tokio(), network, Some(on_panic));
    if let Some(clock) = &world.clock.tokio {
        let pump = Pump {
            world: Arc::downgrade(&world),
            busy: None,
            tasks: Tasks::new(&world.ready),
            alarm: None,
            alarms: 0,
            origin: clock.origin,
        };
        clock.runtime.spawn(pump.run());
    }
    world
}

/// The number of alarms between checks that the clock is still paused. A check takes as long as a
/// step.
const CHECK_EVERY: u32 = 64;

/// Runs the tasks and events of a simulation, as long as the simulation exists.
struct Pump {
    world: Weak<World>,
    /// Keeps the world alive while there are tasks.
    busy: Option<Arc<World>>,
    tasks: Tasks,
    alarm: Option<Pin<Box<tokio::time::Sleep>>>,
    alarms: u32,
    origin: tokio::time::Instant,
}

impl Pump {
    async fn run(mut self) {
        // Otherwise tasks that use tokio's resources would use up the budget of this one.
        tokio::task::unconstrained(poll_fn(move |cx| self.poll(cx))).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(world) = self.world.upgrade() else {
                return Poll::Ready(());
            };
            self.work(&world);
            self.busy = (!self.tasks.is_empty()).then(|| Arc::clone(&world));
            if !world.ready.sleep(cx.waker()) {
                continue;
            }
            if self.alarms.is_multiple_of(CHECK_EVERY) && !is_paused() {
                world.fail(NOT_PAUSED.to_owned());
            }
            // Read the next time only now, because another thread may have added an event since.
            if self.wait(world.next_at(), cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Runs everything that can run at this instant.
    fn work(&mut self, world: &World) {
        let clock = &world.clock;
        clock.set(clock.nanos());
        let _working = Working::new(&clock.working);
        // tokio moves the clock, and the number of steps is unlimited.
        let mut course = Course::new(u64::MAX, 0);
        loop {
            match self.tasks.turn(world, &mut course) {
                Ok(Turn::Done | Turn::Root) => {}
                Ok(Turn::Idle(_) | Turn::OutOfSteps) => return,
                Err(panic) => {
                    let reason = message(&panic);
                    world.fail(format!("a task of the simulation panicked: {reason}"));
                }
            }
        }
    }

    fn wait(&mut self, next: Option<Duration>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(next) = next else {
            self.alarm = None;
            return Poll::Pending;
        };
        let at = self.origin + next;
        self.alarms = self.alarms.wrapping_add(1);
        let alarm = self
            .alarm
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if alarm.deadline() != at {
            alarm.as_mut().reset(at);
        }
        alarm.as_mut().poll(cx)
    }
}

/// Stops the clock while it exists.
struct Working<'a>(&'a AtomicBool);

impl<'a> Working<'a> {
    fn new(flag: &'a AtomicBool) -> Self {
        flag.store(true, Ordering::Relaxed);
        Self(flag)
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
