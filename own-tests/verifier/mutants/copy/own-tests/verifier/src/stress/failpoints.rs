//! Tasks that stop at failpoints, and machines that die there.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::select;
use leasehold_api::mutants::failpoints::{self, OF_LOCKS};
use leasehold_api::{BoxFuture, LockBackend as _};

use crate::stress::chaos::Chaos;
use crate::stress::monitor::Monitor;
use crate::stress::plan::span;

/// How many failpoints a fault arms at most.
const MOST_PLACES: u32 = 8;

impl Chaos {
    /// Arms failpoints of a client.
    pub(crate) fn arm(&self, victim: usize) {
        let process = self.clients[victim].runtime().process_id();
        let places = u32::try_from(OF_LOCKS.len()).expect("a few dozen");
        for _ in 0..=self.sim.draw(MOST_PLACES) {
            let place = OF_LOCKS[self.sim.draw(places) as usize];
            let fault = match self.plan.fault_mix.kills && self.sim.draw(8) == 7 {
                true => self.dies(victim),
                false => self.stops(victim),
            };
            failpoints::arm(process, place, fault);
        }
    }

    /// The task stops for some time, at most until everything is healed. The others of its machine go on.
    fn stops(&self, victim: usize) -> BoxFuture<'static, ()> {
        let most = [
            Duration::from_millis(20),
            self.plan.terms.lease * 2,
            Duration::from_secs(4),
        ];
        let time = span(&self.sim, most[self.sim.draw(3) as usize]);
        let (healed, monitor) = (
            Arc::clone(&self.healed),
            self.machines[victim].monitor.clone(),
        );
        Box::pin(async move {
            let sim = monitor.sim.clone();
            let _stopped = Stopped::begin(monitor, victim);
            select(pin!(sim.sleep(time)), pin!(healed.wait())).await;
        })
    }

    /// The machine dies, unless it is the last one alive.
    fn dies(&self, victim: usize) -> BoxFuture<'static, ()> {
        let (dead, backend) = (self.dead.clone(), self.clients[victim].clone());
        Box::pin(async move {
            let alive = dead.iter().filter(|dead| !dead.load(Ordering::Relaxed));
            if alive.count() > 1 {
                dead[victim].store(true, Ordering::Relaxed);
                backend.kill();
                std::future::pending::<()>().await;
            }
        })
    }
}

/// A task that has stopped. To the checker, its whole machine is disturbed.
struct Stopped(Monitor, usize);

impl Stopped {
    fn begin(monitor: Monitor, client: usize) -> Self {
        monitor.stops(client, 1);
        Self(monitor, client)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.stops(self.1, -1);
    }
}
