//! Injects the faults of a run, and heals them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_api::bounds::DRIFT_FLOOR;
use leasehold_api::{ForceMode, Key, LockClient};
use leasehold_sim::{Call, Data, Fault, Latency, SimBackend, SimServer, Tail};

use crate::stress::healed::Healed;
use crate::stress::machine::Machine;
use crate::stress::plan::{LONGEST_STEP, LONGEST_VISIT, Plan, span};

/// The longest time for which a subscription stays at a server that is a replica now.
const LONGEST_DETOUR: Duration = Duration::from_secs(30);

/// Injects the faults that the plan allows.
pub(crate) struct Chaos {
    pub(crate) sim: SimServer,
    pub(crate) plan: Plan,
    pub(crate) clients: Vec<SimBackend>,
    pub(crate) machines: Vec<Arc<Machine>>,
    pub(crate) dead: Vec<Arc<AtomicBool>>,
    pub(crate) admin: Option<LockClient>,
    pub(crate) keys: Vec<Key>,
    /// Set when the faulty phase has ended.
    pub(crate) healed: Arc<Healed>,
    /// Whether there are two primaries.
    pub(crate) split: bool,
    /// How far the clocks of the servers are ahead, at least.
    pub(crate) region: Duration,
}

/// A kind of fault.
#[derive(Clone, Copy)]
enum FaultKind {
    Lost,
    Late,
    Doubled,
    Push,
    Connection,
    Isolation,
    Pause,
    Kill,
    Silence,
    Restart,
    RefusePublish,
    Revoke,
    Drift,
    Switchover,
    Replica,
    Refusal,
    Shutdown,
    Eviction,
    DataLoss,
    Failover,
    ClockStep,
}

impl Chaos {
    /// Runs the faulty phase.
    pub(crate) async fn run(&mut self) {
        let kinds = self.fault_kinds();
        let pause = self.plan.pace.max(Duration::from_millis(20));
        for n in 0..self.plan.incidents {
            // The first fault may come at once.
            if n > 0 || self.sim.draw(2) == 1 {
                self.sim.sleep(self.span(pause)).await;
            }
            let count = u32::try_from(kinds.len()).unwrap_or(0);
            if count > 0 {
                let kind = kinds[self.sim.draw(count) as usize];
                self.cause(kind).await;
            }
        }
        self.sim.sleep(self.span(pause)).await;
    }

    fn fault_kinds(&self) -> Vec<FaultKind> {
        let on = self.plan.fault_mix;
        let all = [
            (on.lost, FaultKind::Lost),
            (on.late, FaultKind::Late),
            (on.doubled, FaultKind::Doubled),
            (on.pushes, FaultKind::Push),
            (on.connections, FaultKind::Connection),
            (on.connections, FaultKind::Isolation),
            (on.pauses, FaultKind::Pause),
            (on.kills, FaultKind::Kill),
            (on.late && (on.pauses || on.kills), FaultKind::Silence),
            (on.restarts, FaultKind::Restart),
            (on.publish_refused, FaultKind::RefusePublish),
            (on.revokes, FaultKind::Revoke),
            (on.drift, FaultKind::Drift),
            (on.switchovers, FaultKind::Switchover),
            (on.replicas, FaultKind::Replica),
            (on.refusals, FaultKind::Refusal),
            (on.shutdowns, FaultKind::Shutdown),
            (on.evictions, FaultKind::Eviction),
            (on.data, FaultKind::DataLoss),
            (on.failovers, FaultKind::Failover),
            (on.clock, FaultKind::ClockStep),
        ];
        all.into_iter()
            .filter_map(|(on, kind)| on.then_some(kind))
            .collect()
    }

    fn span(&self, most: Duration) -> Duration {
        span(&self.sim, most)
    }

    pub(crate) fn is_dead(&self, client: usize) -> bool {
        self.dead[client].load(Ordering::Relaxed)
    }

    /// Draws the delay of a message: often less than a lease, sometimes longer than a call.
    fn delay(&self) -> Duration {
        match self.sim.draw(3) {
            0 => self.span(Duration::from_millis(50)),
            1 => self.span(self.plan.terms.lease),
            _ => self.span(Duration::from_secs(4)),
        }
    }

    fn victim(&self) -> usize {
        let count = u32::try_from(self.clients.len()).unwrap_or(1);
        self.sim.draw(count) as usize
    }

    /// Injects a fault into one message of a drawn kind of call, or of the next call.
    fn inject(&self, victim: usize, fault: Fault) {
        let call = match self.sim.draw(13) {
            0..=4 => Call::Acquire,
            5 => Call::Poll,
            6 | 7 => Call::Renew,
            8 => Call::Release,
            9 => Call::Convert,
            10 => Call::Note,
            _ => return self.clients[victim].inject(fault),
        };
        self.clients[victim].inject_into(call, fault);
    }

    /// Does something after this time.
    fn later(&self, time: Duration, act: impl FnOnce() + Send + 'static) {
        let sim = self.sim.clone();
        drop(self.sim.spawn(async move {
            sim.sleep(time).await;
            act();
        }));
    }

    async fn cause(&mut self, kind: FaultKind) {
        let victim = self.victim();
        let backend = &self.clients[victim];
        match kind {
            FaultKind::Lost if self.sim.draw(3) == 2 => self.inject(victim, Fault::LoseRequest),
            FaultKind::Lost => self.inject(victim, Fault::LoseReply),
            FaultKind::Late if self.sim.draw(2) == 1 => {
                self.inject(victim, Fault::DelayReply(self.delay()));
            }
            FaultKind::Late => self.inject(victim, Fault::DelayRequest(self.delay())),
            FaultKind::Doubled if self.sim.draw(2) == 1 => {
                self.inject(victim, Fault::DuplicateRequest(self.delay()));
            }
            // Soon, while the effect of the first delivery still lasts.
            FaultKind::Doubled => {
                let soon = self.span(Duration::from_millis(5));
                self.inject(victim, Fault::DuplicateRequest(soon));
            }
            FaultKind::Push => backend.inject(match self.sim.draw(3) {
                0 => Fault::LosePush,
                1 => Fault::DuplicatePush,
                _ => Fault::DelayPush(self.delay()),
            }),
            FaultKind::Connection => backend.drop_connection(),
            FaultKind::Isolation => self.isolate(victim),
            FaultKind::Pause => self.pause(victim),
            FaultKind::Kill => self.kill(victim),
            FaultKind::Silence => self.silence(victim).await,
            FaultKind::Restart => self.restart(),
            FaultKind::RefusePublish => self.refuse_publish(),
            FaultKind::Revoke => self.revoke().await,
            FaultKind::Drift => self.drift(victim),
            FaultKind::Switchover => self.switch_over(),
            FaultKind::Replica => self.lead_to_replica(victim),
            FaultKind::Refusal => self.deny(victim),
            FaultKind::Shutdown => self.shut_down(victim),
            FaultKind::Eviction => self.evict(),
            FaultKind::DataLoss => self.lose_data(),
            FaultKind::Failover => self.fail_over(),
            FaultKind::ClockStep => self.step_clock(),
        }
    }

    fn isolate(&self, victim: usize) {
        let backend = self.clients[victim].clone();
        backend.isolate();
        let time = self.span(Duration::from_secs(3));
        self.later(time, move || backend.rejoin());
    }

    /// Refuses all calls of a client for some time, as after a changed password or a revoked right.
    fn deny(&self, victim: usize) {
        let backend = self.clients[victim].clone();
        backend.deny();
        let time = self.span(Duration::from_secs(3));
        self.later(time, move || backend.admit());
    }

    /// Shuts a client down while its users go on.
    fn shut_down(&self, victim: usize) {
        let machine = Arc::clone(&self.machines[victim]);
        drop(self.sim.spawn(async move { machine.shut_down().await }));
    }

    fn pause(&self, victim: usize) {
        let backend = self.clients[victim].clone();
        if self.is_dead(victim) {
            return;
        }
        backend.pause();
        let most = [self.plan.terms.lease * 2, Duration::from_secs(7)];
        let time = self.span(most[self.sim.draw(2) as usize]);
        let dead = Arc::clone(&self.dead[victim]);
        self.later(time, move || {
            if !dead.load(Ordering::Relaxed) {
                backend.resume();
            }
        });
    }

    /// Kills a client, unless it is the last one alive.
    fn kill(&self, victim: usize) {
        let alive = (0..self.dead.len()).filter(|client| !self.is_dead(*client));
        if alive.count() > 1 {
            self.dead[victim].store(true, Ordering::Relaxed);
            self.clients[victim].kill();
        }
    }

    /// Delays an acquire past its delivery window, and pauses or kills its client. So neither a
    /// retry nor a release arrives before it.
    async fn silence(&self, victim: usize) {
        let late = Duration::from_secs(2) + self.span(Duration::from_secs(2));
        self.clients[victim].inject_into(Call::Acquire, Fault::DelayRequest(late));
        self.sim.sleep(self.span(Duration::from_secs(1))).await;
        let on = self.plan.fault_mix;
        if on.kills && (!on.pauses || self.sim.draw(2) == 1) {
            self.kill(victim);
        } else {
            self.pause(victim);
        }
    }

    /// Restarts the server at once, or after an outage. In every second outage, it then loads its data.
    fn restart(&self) {
        if self.sim.draw(2) == 0 {
            return self.sim.restart(Data::Kept);
        }
        self.sim.stop();
        let (away, sim) = (self.span(Duration::from_secs(3)), self.sim.clone());
        self.later(away, move || sim.start(Data::Kept));
        if self.sim.draw(2) == 1 {
            self.sim.begin_loading();
            let (loads, sim) = (self.span(Duration::from_secs(3)), self.sim.clone());
            self.later(away + loads, move || sim.end_loading());
        }
    }

    /// Refuses to publish for some time, or for the rest of the faulty phase.
    fn refuse_publish(&self) {
        self.sim.refuse_publish();
        if self.sim.draw(2) == 1 {
            return;
        }
        let (time, sim) = (self.span(Duration::from_secs(3)), self.sim.clone());
        self.later(time, move || sim.allow_publish());
    }

    async fn revoke(&self) {
        let Some(admin) = &self.admin else { return };
        let key = self.keys[0].as_str();
        // The result doesn't matter: the command may be lost like any other.
        if let Ok(seen) = admin.inspect(key).await {
            let mut tokens = seen.held_tokens();
            if self.sim.draw(2) == 1 {
                // One holder of several.
                tokens.truncate(1);
            }
            let forced = admin.force_release(key, tokens, ForceMode::Revoke);
            drop(forced.await);
        }
    }

    /// Changes the rate of a client's clock, or lets it jump. Within the model, the rate stays within
    /// the drift allowance.
    fn drift(&self, victim: usize) {
        let backend = &self.clients[victim];
        let most = if self.plan.out_of_model { 300 } else { 9 };
        if self.sim.draw(3) == 2 {
            backend.jump_clock(self.span(self.plan.terms.lease * 2));
        } else {
            // The draws 0, 1, 2, 3, 4 give 0, 1, -1, 2, -2 thousandths.
            let nth = i32::try_from(self.sim.draw(2 * most + 1)).unwrap_or(0);
            let rate = match nth % 2 {
                1 => nth / 2 + 1,
                _ => -(nth / 2),
            };
            backend.set_clock_rate(rate * 1_000);
        }
    }

    /// Switches over to a replica. The subscriptions of some clients stay at the old server for some
    /// time.
    fn switch_over(&mut self) {
        if self.split || !self.sim.is_up() {
            return;
        }
        let mut staying = self.clients.clone();
        staying.retain(|_| self.sim.draw(2) == 1);
        let lag = [0, 1_000][self.sim.draw(2) as usize];
        let lag = Latency::between(Duration::ZERO, Duration::from_millis(lag));
        self.sim.set_replication_lag(lag);
        let ahead = self.node_clock();
        self.sim.switch_over(ahead, &staying);
        for client in staying {
            let time = self.span(LONGEST_DETOUR);
            self.later(time, move || client.follow_primary());
        }
    }

    /// Cuts off a replica. Later, the requests of a client go there for some time.
    fn lead_to_replica(&self, victim: usize) {
        self.sim.cut_off_replica(self.plan.reads);
        let (later, time) = (self.span(self.plan.pace * 2), self.span(LONGEST_VISIT));
        let (sim, healed) = (self.sim.clone(), Arc::clone(&self.healed));
        let client = self.clients[victim].clone();
        drop(self.sim.spawn(async move {
            sim.sleep(later).await;
            if !healed.is() {
                client.visit_replica();
                sim.sleep(time).await;
                client.leave_replica();
            }
        }));
    }

    /// Draws how far the next server's clock is ahead. While a lock is held, the clocks of its
    /// servers differ by the fixed part of the drift allowance at most, because the clients' clocks
    /// may use up the rest. At other times they may differ by more.
    fn node_clock(&mut self) -> Duration {
        // A clock that is behind revives what a dead client has left in the state, although it has expired.
        let dead = || (0..self.dead.len()).any(|client| self.is_dead(client));
        let any = || self.plan.out_of_model || (self.sim.left_behind().is_empty() && !dead());
        if self.sim.draw(2) == 1 && any() {
            let most = [Duration::from_secs(1), LONGEST_STEP][self.sim.draw(2) as usize];
            self.region = self.span(most);
        }
        self.region + self.span(DRIFT_FLOOR)
    }

    fn tail(&self) -> Tail {
        if self.sim.draw(2) == 1 {
            Tail::Last(self.span(self.plan.terms.lease))
        } else {
            Tail::Commands(1 + self.sim.draw(16) as usize)
        }
    }

    fn evict(&self) {
        self.sim.remove_key(&self.keys[0]);
    }

    fn lose_data(&self) {
        self.sim.restart(match self.sim.draw(2) {
            0 => Data::AllBut(self.tail()),
            _ => Data::Lost,
        });
    }

    fn fail_over(&mut self) {
        if self.split {
            self.split = false;
            self.sim.heal();
        } else if self.sim.draw(2) == 1 && self.sim.is_up() {
            self.split = true;
            let staying = &self.clients[..self.victim()];
            self.sim.split(self.tail(), staying);
        } else {
            self.sim.fail_over(self.tail());
        }
    }

    fn step_clock(&self) {
        let by = self.span(LONGEST_STEP);
        match self.sim.draw(2) {
            0 => self.sim.step_clock_forward(by),
            _ => self.sim.step_clock_back(by),
        }
    }

    /// Heals every fault. Dead clients stay dead, and subscriptions at a replica stay there for their
    /// time, because nothing is wrong with them.
    pub(crate) fn heal(&mut self) {
        self.sim.start(Data::Kept);
        self.sim.end_loading();
        self.sim.allow_publish();
        if std::mem::take(&mut self.split) {
            self.sim.heal();
        }
        for (n, client) in self.clients.iter().enumerate() {
            client.clear_faults();
            client.rejoin();
            client.admit();
            client.leave_replica();
            if !self.is_dead(n) {
                client.resume();
            }
        }
    }
}
