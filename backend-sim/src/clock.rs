//! The virtual clock, and the driver that runs a simulation inside the user's own test.
//!
//! The only place of this crate that touches tokio. The clock of a tokio runtime that is paused
//! stands still while any task can run, and jumps to the next timer when none can.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this driver is where virtual time and tasks come from"
)]

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::tasks::{Course, Tasks, Turn, message};
use crate::world::World;

const NOT_PAUSED: &str = "\
leasehold-sim runs in virtual time, but the clock of this tokio runtime is not paused.
Write the test as #[tokio::test(start_paused = true)] (feature \"test-util\" of tokio), or build \
the runtime with Builder::new_current_thread().enable_time().start_paused(true).";

const NO_RUNTIME: &str = "\
leasehold-sim needs a tokio runtime here, and its clock must be paused.
Write the test as #[tokio::test(start_paused = true)] (feature \"test-util\" of tokio). The scenario of an \
Exploration or a Simulation needs no runtime: it uses the SimServer that it is given.";

/// The virtual clock.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Nanoseconds since the start, as of when the driver last looked.
    nanos: AtomicU64,
    /// Whether the driver is at work: time stands still then.
    working: AtomicBool,
    tokio: Option<TokioClock>,
}

#[derive(Debug)]
struct TokioClock {
    runtime: tokio::runtime::Handle,
    origin: tokio::time::Instant,
}

impl Clock {
    /// A clock that its driver moves.
    pub(crate) const fn own() -> Self {
        Self {
            nanos: AtomicU64::new(0),
            working: AtomicBool::new(true),
            tokio: None,
        }
    }

    /// The clock of the tokio runtime of the caller.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one whose clock is not paused.
    #[track_caller]
    pub(crate) fn tokio() -> Self {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            panic!("{NO_RUNTIME}");
        };
        assert!(is_paused(), "{NOT_PAUSED}");
        let origin = now();
        Self {
            nanos: AtomicU64::new(0),
            working: AtomicBool::new(false),
            tokio: Some(TokioClock { runtime, origin }),
        }
    }

    /// Virtual time since the start.
    #[inline]
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    /// The same in nanoseconds.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        match &self.tokio {
            Some(clock) if !self.working.load(Ordering::Relaxed) => nanos(clock.elapsed()),
            _ => self.nanos.load(Ordering::Relaxed),
        }
    }

    /// Moves the clock to a later time.
    pub(crate) fn set(&self, nanos: u64) {
        self.nanos.store(nanos, Ordering::Relaxed);
    }

    /// Whether this is the clock of a tokio runtime.
    pub(crate) const fn is_tokio(&self) -> bool {
        self.tokio.is_some()
    }

    /// Whether somebody must be told that something is to happen earlier than before: the driver
    /// sleeps.
    pub(crate) fn driver_may_sleep(&self) -> bool {
        !self.working.load(Ordering::Relaxed)
    }

    /// Checks that nobody has let the clock run: the simulation would sleep for real.
    ///
    /// # Panics
    /// If somebody has.
    #[inline]
    #[track_caller]
    pub(crate) fn assert_paused(&self) {
        if let Some(clock) = self.tokio.as_ref().filter(|_| self.driver_may_sleep()) {
            let _inside = clock.runtime.enter();
            assert!(is_paused(), "{NOT_PAUSED}");
        }
    }
}

/// 584 years at most.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl TokioClock {
    fn elapsed(&self) -> Duration {
        // Callers may be outside of the runtime: a guard that is dropped after `block_on`.
        let _inside = self.runtime.enter();
        now().saturating_duration_since(self.origin)
    }
}

fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Whether tokio's clock stands still: it shows the same before and after a moment in which the
/// real clock has visibly moved.
///
/// tokio has no question for it. A running tokio clock is the real clock plus a constant, so it
/// moves whenever that one does; a paused one is moved only by the runtime's own thread, which is
/// busy here.
fn is_paused() -> bool {
    let before = now();
    let real = std::time::Instant::now();
    while std::time::Instant::now() == real {
        std::hint::spin_loop();
    }
    now() == before
}

/// Starts the task that runs a simulation in its tokio runtime.
pub(crate) fn start_pump(world: &Arc<World>) {
    let Some(clock) = &world.clock.tokio else {
        return;
    };
    let pump = Pump {
        world: Arc::downgrade(world),
        busy: None,
        tasks: Tasks::new(&world.ready),
        alarm: None,
        alarms: 0,
        origin: clock.origin,
    };
    clock.runtime.spawn(pump.run());
}

/// The clock is looked at before every so many alarms: it takes as long as a step.
const CHECK_EVERY: u32 = 64;

/// Runs the tasks of a simulation and lets happen what is due, as long as the simulation lives.
struct Pump {
    world: Weak<World>,
    /// Keeps the world while there are tasks.
    busy: Option<Arc<World>>,
    tasks: Tasks,
    alarm: Option<(Duration, Pin<Box<tokio::time::Sleep>>)>,
    /// How often it has been set.
    alarms: u32,
    origin: tokio::time::Instant,
}

impl Pump {
    async fn run(mut self) {
        // Tasks of the set that use tokio's own resources would use up the budget of this one.
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
            // Asked only now: a thread may have asked for something since the work was done.
            if self.wait(world.next_at(), cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Does all that can be done at this instant.
    fn work(&mut self, world: &World) {
        let clock = &world.clock;
        clock.set(clock.nanos());
        let _working = Working::new(&clock.working);
        // tokio moves the clock, and there is no limit to the steps.
        let mut course = Course {
            steps: 0,
            step_limit: u64::MAX,
            until: 0,
        };
        loop {
            match self.tasks.turn(world, &mut course) {
                Ok(Turn::Done | Turn::Root) => {}
                Ok(Turn::Idle(_) | Turn::OutOfSteps) => return,
                Err(panic) => {
                    let why = message(&panic);
                    world.fail(format!("a task of the simulation panicked: {why}"));
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
        match &mut self.alarm {
            Some((set, _)) if *set == next => {}
            Some((set, sleep)) => {
                *set = next;
                sleep.as_mut().reset(at);
            }
            None => self.alarm = Some((next, Box::pin(tokio::time::sleep_until(at)))),
        }
        self.alarm
            .as_mut()
            .map_or(Poll::Pending, |(_, sleep)| sleep.as_mut().poll(cx))
    }
}

/// Time stands still while this exists.
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
