//! The mix of faults that an exploration injects.

use std::time::Duration;

use crate::handle::{SimBackend, SimServer};
use crate::record::{Data, Fault};

/// The kinds of faults that an [`Exploration`](crate::Exploration) injects.
///
/// A run has at most eight faults, at random times in its first minute or so of virtual time. They
/// affect the clients that the scenario has created by then. Each run switches a random half of the
/// kinds off, because a few kinds of faults often reach further than all of them.
///
/// After the faults everything works again, so a scenario may require that every client gets the
/// lock in the end. All faults stay within the assumptions of `docs/guarantees.md`. No client is
/// killed, because a future that runs on a killed client never completes.
///
/// # Examples
/// ```
/// use leasehold_api::LockClient;
/// use leasehold_sim::{Exploration, FaultMix};
///
/// let faults = FaultMix::none().messages(true).restarts(true);
/// Exploration::new().seeds(0..50).fault_mix(faults).check(|sim| async move {
///     let locks = LockClient::new(sim.client("a"));
///     let guard = locks.mutex("job")?.lock().await?;
///     guard.release().await?;
///     Ok::<(), leasehold_api::Error>(())
/// });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultMix {
    /// Requests, replies and pushes are lost or delayed; requests and pushes are duplicated.
    pub messages: bool,
    /// Connections break, or lose all messages for up to 3 s.
    pub connections: bool,
    /// Clients are paused, with everything inside their [`SimBackend::run`]: for up to 40 s, or, every second time, while
    /// they hold a lock, until shortly after another client has got it.
    pub pauses: bool,
    /// The server restarts at once, with its data.
    pub restarts: bool,
    /// The server is down for up to 3 s, and then starts with its data. Every second time it then
    /// [loads](SimServer::begin_loading) them for up to 3 s.
    pub outages: bool,
    /// The server fails over gracefully: it [switches over](SimServer::switch_over) to a replica with
    /// all data. Subscriptions of some clients stay at the old server for up to 10 s. The clocks of
    /// the servers differ by up to 10 ms, which the drift allowance covers.
    pub failovers: bool,
    /// The server [denies](SimBackend::deny) a client every call for up to 3 s, as after a changed password or a
    /// revoked right. Not in [`all`](Self::all), because `lock()` fails then instead of waiting on.
    pub refusals: bool,
}

#[derive(Clone, Copy)]
enum FaultKind {
    Message,
    Connection,
    Pause,
    Restart,
    Outage,
    Failover,
    Refusal,
}

const MAX_FAULTS: u32 = 8;

impl FaultMix {
    /// No faults.
    pub const fn none() -> Self {
        Self::every(false)
    }

    /// All kinds of faults that a waiting `lock()` survives: all but [`refusals`](Self::refusals).
    pub const fn all() -> Self {
        Self::every(true).refusals(false)
    }

    const fn every(on: bool) -> Self {
        Self {
            messages: on,
            connections: on,
            pauses: on,
            restarts: on,
            outages: on,
            failovers: on,
            refusals: on,
        }
    }

    /// Sets [`messages`](Self::messages).
    #[must_use]
    pub const fn messages(mut self, messages: bool) -> Self {
        self.messages = messages;
        self
    }

    /// Sets [`connections`](Self::connections).
    #[must_use]
    pub const fn connections(mut self, connections: bool) -> Self {
        self.connections = connections;
        self
    }

    /// Sets [`pauses`](Self::pauses).
    #[must_use]
    pub const fn pauses(mut self, pauses: bool) -> Self {
        self.pauses = pauses;
        self
    }

    /// Sets [`restarts`](Self::restarts).
    #[must_use]
    pub const fn restarts(mut self, restarts: bool) -> Self {
        self.restarts = restarts;
        self
    }

    /// Sets [`outages`](Self::outages).
    #[must_use]
    pub const fn outages(mut self, outages: bool) -> Self {
        self.outages = outages;
        self
    }

    /// Sets [`failovers`](Self::failovers).
    #[must_use]
    pub const fn failovers(mut self, failovers: bool) -> Self {
        self.failovers = failovers;
        self
    }

    /// Sets [`refusals`](Self::refusals).
    #[must_use]
    pub const fn refusals(mut self, refusals: bool) -> Self {
        self.refusals = refusals;
        self
    }

    pub(super) fn spawn(self, sim: &SimServer) {
        let kinds = [
            (self.messages, FaultKind::Message),
            (self.connections, FaultKind::Connection),
            (self.pauses, FaultKind::Pause),
            (self.restarts, FaultKind::Restart),
            (self.failovers, FaultKind::Failover),
            (self.outages, FaultKind::Outage),
            (self.refusals, FaultKind::Refusal),
        ];
        let enabled = kinds.into_iter().filter(|(on, _)| *on && sim.draw(2) == 1);
        let enabled: Vec<FaultKind> = enabled.map(|(_, kind)| kind).collect();
        if enabled.is_empty() {
            return;
        }
        let sim = sim.clone();
        drop(sim.clone().spawn(async move {
            for _ in 0..sim.draw(MAX_FAULTS + 1) {
                sim.sleep(duration(&sim)).await;
                let clients = sim.clients();
                if clients.is_empty() {
                    continue;
                }
                let victim = &clients[draw(&sim, clients.len())];
                match enabled[draw(&sim, enabled.len())] {
                    FaultKind::Pause if sim.draw(2) == 1 => oversleep(&sim).await,
                    kind => inject(&sim, victim, kind),
                }
            }
        }));
    }
}

fn draw(sim: &SimServer, count: usize) -> usize {
    sim.draw(u32::try_from(count).unwrap_or(u32::MAX)) as usize
}

/// Draws a duration in whole milliseconds. Its range is drawn too, from that of a latency to that
/// of a lease.
fn duration(sim: &SimServer) -> Duration {
    let below = [5, 60, 1_200, 10_000][draw(sim, 4)];
    millis(sim, below)
}

fn millis(sim: &SimServer, below: u32) -> Duration {
    Duration::from_millis(sim.draw(below).into())
}

fn inject(sim: &SimServer, victim: &SimBackend, kind: FaultKind) {
    match kind {
        FaultKind::Message => victim.inject(match draw(sim, 8) {
            0 => Fault::LoseReply,
            1 => Fault::LoseRequest,
            2 => Fault::DelayReply(duration(sim)),
            3 => Fault::DelayRequest(duration(sim)),
            4 => Fault::DuplicateRequest(duration(sim)),
            5 => Fault::LosePush,
            6 => Fault::DelayPush(duration(sim)),
            _ => Fault::DuplicatePush,
        }),
        FaultKind::Connection if sim.draw(2) == 0 => victim.drop_connection(),
        FaultKind::Connection => {
            victim.isolate();
            let (time, victim) = (millis(sim, 3_000), victim.clone());
            later(sim, time, move || victim.rejoin());
        }
        FaultKind::Pause => {
            victim.pause();
            let (time, victim) = (
                millis(sim, [60, 5_000, 40_000][draw(sim, 3)]),
                victim.clone(),
            );
            later(sim, time, move || resume(&victim));
        }
        FaultKind::Restart => sim.restart(Data::Kept),
        FaultKind::Failover if sim.is_up() => {
            let mut staying = sim.clients();
            staying.retain(|_| sim.draw(2) == 1);
            sim.switch_over(millis(sim, 11), &staying);
            for client in staying {
                later(sim, millis(sim, 10_000), move || client.follow_primary());
            }
        }
        FaultKind::Failover => {}
        FaultKind::Outage => {
            sim.stop();
            let (away, loads) = (millis(sim, 3_000), sim.draw(2) == 1);
            let (server, then) = (sim.clone(), sim.clone());
            later(sim, away, move || server.start(Data::Kept));
            if loads {
                sim.begin_loading();
                later(sim, away + millis(sim, 3_000), move || then.end_loading());
            }
        }
        FaultKind::Refusal => {
            victim.deny();
            let (time, victim) = (millis(sim, 3_000), victim.clone());
            later(sim, time, move || victim.admit());
        }
    }
}

/// How long [`oversleep`] waits for a holder, or for the next one after the end of the lease.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pauses a client that holds a lock, until its lease has ended and another client has got the lock, and a moment
/// longer. A holder that wakes up then doesn't know yet that it lost its lock.
async fn oversleep(sim: &SimServer) {
    until(sim, || !sim.holders().is_empty()).await;
    // At some point of its work.
    sim.sleep(moment(sim)).await;
    let holders = sim.holders();
    if holders.is_empty() {
        return;
    }
    let (holder, left) = holders[draw(sim, holders.len())].clone();
    let before = sim.second_holders();
    holder.pause();
    sim.sleep(left).await;
    until(sim, || sim.second_holders() > before).await;
    sim.sleep(moment(sim)).await;
    resume(&holder);
}

/// Draws a short time, from that of a message to that of some work.
fn moment(sim: &SimServer) -> Duration {
    millis(sim, [5, 60, 1_200][draw(sim, 3)])
}

/// Waits until `ready`, at most [`PATIENCE`].
async fn until(sim: &SimServer, ready: impl Fn() -> bool) {
    let end = sim.elapsed() + PATIENCE;
    while !ready() && sim.elapsed() < end {
        sim.sleep(Duration::from_millis(5)).await;
    }
}

fn resume(client: &SimBackend) {
    if !client.is_killed() {
        client.resume();
    }
}

fn later(sim: &SimServer, time: Duration, action: impl FnOnce() + Send + 'static) {
    let sim_then = sim.clone();
    drop(sim.spawn(async move {
        sim_then.sleep(time).await;
        action();
    }));
}
