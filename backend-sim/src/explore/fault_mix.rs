//! The mix of faults that an exploration injects by itself.

use std::time::Duration;

use crate::handle::{SimBackend, SimServer};
use crate::record::{Data, Fault};

/// The kinds of faults that an [`Exploration`](crate::Exploration) makes, to the clients that the
/// scenario has made by then.
///
/// Each run switches a random half of them off, because a run in which everything goes wrong
/// reaches less than one in which some things do. At most eight things go wrong, in the first
/// minute or so of virtual time; then everything is in order again, so that a scenario can demand
/// that everyone gets its turn in the end. All of it stays within the assumptions that
/// `docs/guarantees.md` names: a lock that is used as documented keeps its promises.
///
/// Nobody is killed: what runs on a killed client never ends, and the scenario must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultMix {
    /// Requests, replies and pushes are lost, late or doubled.
    pub messages: bool,
    /// Connections break, or let nothing through for up to 3 s.
    pub connections: bool,
    /// Clients stand still, for up to 40 s: what they run in [`SimBackend::run`] does too.
    pub pauses: bool,
    /// The server restarts, with its data.
    pub restarts: bool,
    /// The server is down for up to 3 s, and then starts with its data.
    pub outages: bool,
}

#[derive(Clone, Copy)]
enum FaultKind {
    Message,
    Connection,
    Pause,
    Restart,
    Outage,
}

/// How many things go wrong in a run, at most.
const INCIDENTS: u32 = 8;

impl FaultMix {
    /// Nothing goes wrong by itself.
    pub const fn none() -> Self {
        Self {
            messages: false,
            connections: false,
            pauses: false,
            restarts: false,
            outages: false,
        }
    }

    /// Everything.
    pub const fn all() -> Self {
        Self {
            messages: true,
            connections: true,
            pauses: true,
            restarts: true,
            outages: true,
        }
    }

    /// The same with this switched.
    #[must_use]
    pub const fn with_messages(mut self, messages: bool) -> Self {
        self.messages = messages;
        self
    }

    /// The same with this switched.
    #[must_use]
    pub const fn with_connections(mut self, connections: bool) -> Self {
        self.connections = connections;
        self
    }

    /// The same with this switched.
    #[must_use]
    pub const fn with_pauses(mut self, pauses: bool) -> Self {
        self.pauses = pauses;
        self
    }

    /// The same with this switched.
    #[must_use]
    pub const fn with_restarts(mut self, restarts: bool) -> Self {
        self.restarts = restarts;
        self
    }

    /// The same with this switched.
    #[must_use]
    pub const fn with_outages(mut self, outages: bool) -> Self {
        self.outages = outages;
        self
    }

    /// Starts making them in a run.
    pub(super) fn begin(self, sim: &SimServer) {
        let sorts = [
            (self.messages, FaultKind::Message),
            (self.connections, FaultKind::Connection),
            (self.pauses, FaultKind::Pause),
            (self.restarts, FaultKind::Restart),
            (self.outages, FaultKind::Outage),
        ];
        let on = sorts.into_iter().filter(|(on, _)| *on && sim.draw(2) == 1);
        let on: Vec<FaultKind> = on.map(|(_, fault_kind)| fault_kind).collect();
        if on.is_empty() {
            return;
        }
        let sim = sim.clone();
        drop(sim.clone().spawn(async move {
            for _ in 0..sim.draw(INCIDENTS + 1) {
                sim.sleep(span(&sim)).await;
                let clients = sim.clients();
                if !clients.is_empty() {
                    let victim = &clients[draw(&sim, clients.len())];
                    happen(&sim, victim, on[draw(&sim, on.len())]);
                }
            }
        }));
    }
}

fn draw(sim: &SimServer, count: usize) -> usize {
    sim.draw(u32::try_from(count).unwrap_or(u32::MAX)) as usize
}

/// A time on the grid of milliseconds: soon, within a call's time, within a lease's.
fn span(sim: &SimServer) -> Duration {
    let most = [5, 60, 1_200, 10_000][draw(sim, 4)];
    Duration::from_millis(sim.draw(most).into())
}

fn happen(sim: &SimServer, victim: &SimBackend, fault_kind: FaultKind) {
    match fault_kind {
        FaultKind::Message => victim.inject(match draw(sim, 8) {
            0 => Fault::LoseReply,
            1 => Fault::LoseRequest,
            2 => Fault::DelayReply(span(sim)),
            3 => Fault::DelayRequest(span(sim)),
            4 => Fault::DuplicateRequest(span(sim)),
            5 => Fault::LosePush,
            6 => Fault::DelayPush(span(sim)),
            _ => Fault::DuplicatePush,
        }),
        FaultKind::Connection if sim.draw(2) == 0 => victim.drop_connection(),
        FaultKind::Connection => {
            victim.isolate();
            let time = Duration::from_millis(sim.draw(3_000).into());
            later(sim, time, victim, SimBackend::rejoin);
        }
        FaultKind::Pause => {
            victim.pause();
            let most = [60, 5_000, 40_000][draw(sim, 3)];
            let time = Duration::from_millis(sim.draw(most).into());
            later(sim, time, victim, |victim| {
                if !victim.is_killed() {
                    victim.resume();
                }
            });
        }
        FaultKind::Restart => sim.restart(Data::Kept),
        FaultKind::Outage => {
            sim.stop();
            let (sim_then, time) = (sim.clone(), Duration::from_millis(sim.draw(3_000).into()));
            drop(sim.spawn(async move {
                sim_then.sleep(time).await;
                sim_then.start(Data::Kept);
            }));
        }
    }
}

fn later(sim: &SimServer, time: Duration, victim: &SimBackend, what: fn(&SimBackend)) {
    let (sim_then, victim) = (sim.clone(), victim.clone());
    drop(sim.spawn(async move {
        sim_then.sleep(time).await;
        what(&victim);
    }));
}
