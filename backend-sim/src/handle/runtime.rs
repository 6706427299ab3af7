//! Time, tasks and randomness of one simulated client.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_api::bounds::MAX_LABEL_BYTES;
use leasehold_api::{BoxFuture, Moment, Runtime};

use crate::driver::sleep::Sleep;
use crate::driver::world::World;
use crate::engine::gate::Gate;
use crate::engine::local_clock::LocalClock;
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
    pub(crate) fn new(world: Arc<World>, client: ClientIndex) -> Self {
        Self {
            client,
            gate: world.act(|network| network.clients[client].gate.clone()),
            world,
            booted: BOOTED_AGO.saturating_mul(process_id(client)),
            drifts: AtomicBool::new(false),
        }
    }

    /// Converts a time by the client's clock, unless that shows true time.
    #[inline]
    fn convert(&self, time: Duration, by: fn(&LocalClock, Duration) -> Duration) -> Duration {
        if self.drifts.load(Ordering::Relaxed) {
            self.world
                .act(|network| by(&network.clients[self.client].clock, time))
        } else {
            time
        }
    }
}

fn process_id(client: ClientIndex) -> u32 {
    u32::try_from(client).map_or(u32::MAX, |index| index.saturating_add(1))
}

impl Runtime for SimRuntime {
    fn now(&self) -> Moment {
        let shown = self.convert(self.world.clock.elapsed(), LocalClock::show);
        Moment::from_origin(self.booted.saturating_add(shown))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let duration = self.convert(duration, LocalClock::true_span);
        let sleep = Sleep::new(&self.world, duration);
        Box::pin(self.gate.clone().through(sleep))
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        let gated = self.gate.clone().through(future);
        self.world.ready.spawn(Box::pin(gated));
    }

    fn process_id(&self) -> u32 {
        process_id(self.client)
    }

    fn default_label(&self) -> String {
        let name = self
            .world
            .act(|network| network.clients[self.client].name.clone());
        let chars = name.char_indices();
        let fits = |(at, c): &(usize, char)| at + c.len_utf8() <= MAX_LABEL_BYTES;
        chars.take_while(fits).map(|(_, c)| c).collect()
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.world
            .act(|network| network.clients[self.client].identities.fill(bytes));
    }
}
