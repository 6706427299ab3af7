//! Time, tasks and randomness of one simulated client.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_api::bounds::MAX_LABEL_BYTES;
use leasehold_api::{BoxFuture, Moment, Runtime};

use crate::gate::{Gate, Turnstile};
use crate::queue::{ClientIndex, Happening, Ticket};
use crate::world::World;

/// The [`Runtime`] of one simulated client.
///
/// Its clock is virtual, and like the clock of a real machine it counts on while the client is
/// paused. What it spawns, and its timers, stand still meanwhile.
pub(crate) struct SimRuntime {
    pub(crate) world: Arc<World>,
    pub(crate) client: ClientIndex,
    pub(crate) gate: Gate,
    /// What its clock showed at the start.
    booted: Duration,
    /// Whether its clock was ever touched; one that was not shows true time.
    pub(crate) drifts: AtomicBool,
}

impl fmt::Debug for SimRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimRuntime")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// Each client's machine was booted at another time: points of two clients' clocks have nothing
/// to do with each other, and code that compares them should show.
const BOOTED_AGO: Duration = Duration::from_secs(1_000);

impl SimRuntime {
    pub(crate) fn new(world: Arc<World>, client: ClientIndex, gate: Gate) -> Self {
        let process = process_id(client);
        Self {
            world,
            client,
            gate,
            booted: BOOTED_AGO.saturating_mul(process),
            drifts: AtomicBool::new(false),
        }
    }
}

fn process_id(client: ClientIndex) -> u32 {
    u32::try_from(client).map_or(u32::MAX, |index| index.saturating_add(1))
}

impl Runtime for SimRuntime {
    fn now(&self) -> Moment {
        let elapsed = self.world.clock.elapsed();
        let shown = if self.drifts.load(Ordering::Relaxed) {
            self.world
                .act(|inner, _| inner.clients[self.client].clock.show(elapsed))
        } else {
            elapsed
        };
        Moment::from_origin(self.booted.saturating_add(shown))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let duration = if self.drifts.load(Ordering::Relaxed) {
            self.world
                .act(|inner, _| inner.clients[self.client].clock.true_span(duration))
        } else {
            duration
        };
        Box::pin(Gated {
            future: Sleep::of(Arc::clone(&self.world), duration),
            turnstile: Turnstile::new(self.gate.clone()),
        })
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        let turnstile = Turnstile::new(self.gate.clone());
        self.world
            .ready
            .spawn(Box::pin(Gated { future, turnstile }));
    }

    fn process_id(&self) -> u32 {
        process_id(self.client)
    }

    fn default_label(&self) -> String {
        let name = self
            .world
            .act(|inner, _| inner.clients[self.client].name.clone());
        let mut label = String::new();
        for c in name.chars() {
            if label.len() + c.len_utf8() > MAX_LABEL_BYTES {
                break;
            }
            label.push(c);
        }
        label
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.world
            .act(|inner, _| inner.clients[self.client].identities.fill(bytes));
    }
}

/// A future that is polled only while its client's gate is open.
struct Gated<F> {
    future: F,
    turnstile: Turnstile<Gate>,
}

impl<F: Future<Output = ()> + Unpin> Future for Gated<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.turnstile.poll_open(cx) {
            Poll::Ready(()) => Pin::new(&mut self.future).poll(cx),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A timer in a simulation's queue, from the first poll on; dropping it takes it out.
#[derive(Debug)]
pub(crate) struct Sleep<W: Deref<Target = World>> {
    world: W,
    at: Duration,
    /// Whether it ends after all else that is due at the same time.
    last: bool,
    timer: Option<Ticket>,
    done: bool,
}

impl<W: Deref<Target = World>> Sleep<W> {
    /// Sleeps; among what is due at the same time, it ends in an order drawn from the tape.
    pub(crate) fn of(world: W, duration: Duration) -> Self {
        Self::new(world, duration, false)
    }

    /// Sleeps until all else that is due at the same time has happened.
    pub(crate) fn last(world: W, duration: Duration) -> Self {
        Self::new(world, duration, true)
    }

    fn new(world: W, duration: Duration, last: bool) -> Self {
        world.clock.assert_paused();
        world.assert_sound();
        Self {
            at: world.clock.elapsed().saturating_add(duration),
            world,
            last,
            timer: None,
            done: false,
        }
    }
}

impl<W: Deref<Target = World> + Unpin> Future for Sleep<W> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.done {
            return Poll::Ready(());
        }
        let waker = cx.waker();
        let Some(timer) = self.timer else {
            let (at, last) = (self.at, self.last);
            let timer = self.world.act(|inner, _| {
                let timer = Happening::Timer(Some(inner.wakers.waiter(waker)));
                if last {
                    inner.queue.insert_last(at, timer)
                } else {
                    inner.queue.insert(at, timer)
                }
            });
            self.timer = Some(timer);
            return Poll::Pending;
        };
        let (done, before) = self.world.act(|inner, _| match inner.queue.get_mut(timer) {
            Some(Happening::Timer(waiter)) => (false, inner.wakers.replace(waiter, waker)),
            _ => (true, None),
        });
        // It may own the task that is polled here: let it go outside of the lock.
        drop(before);
        if done {
            (self.timer, self.done) = (None, true);
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl<W: Deref<Target = World>> Drop for Sleep<W> {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            let timer = self.world.act(|inner, _| inner.queue.cancel(timer));
            drop(timer);
        }
    }
}
