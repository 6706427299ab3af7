//! Time, tasks and randomness of one simulated client.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_api::bounds::MAX_LABEL_BYTES;
use leasehold_api::{BoxFuture, Moment, Runtime};

use crate::driver::sleep::Sleep;
use crate::driver::world::World;
use crate::engine::gate::{Gate, Turnstile};
use crate::network::event::ClientIndex;

/// The [`Runtime`] of one simulated client.
///
/// The clock is virtual. Like the clock of a real machine, it runs on while the client is paused,
/// but the client's tasks and timers stop.
pub(crate) struct SimRuntime {
    pub(crate) world: Arc<World>,
    pub(crate) client: ClientIndex,
    pub(crate) gate: Gate,
    /// What the clock showed at the start.
    booted: Duration,
    /// Whether the clock's rate or time was ever changed. Otherwise it shows true time.
    pub(crate) drifts: AtomicBool,
}

impl fmt::Debug for SimRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimRuntime")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// The time since boot differs by this much from client to client. Code that compares the clocks of
/// two clients is wrong, and this makes it fail.
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
                .act(|network, _| network.clients[self.client].clock.show(elapsed))
        } else {
            elapsed
        };
        Moment::from_origin(self.booted.saturating_add(shown))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let duration = if self.drifts.load(Ordering::Relaxed) {
            self.world
                .act(|network, _| network.clients[self.client].clock.true_span(duration))
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
            .act(|network, _| network.clients[self.client].name.clone());
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
            .act(|network, _| network.clients[self.client].identities.fill(bytes));
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
