//! The lock clients of one machine. One is used at first; each that is shut down is replaced.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_api::bounds::SHUTDOWN_TIMEOUT;
use leasehold_api::{Label, LockClient};
use leasehold_sim::SimBackend;

use crate::checker::Situation;
use crate::stress::monitor::Monitor;
use crate::stress::plan::Plan;

/// A lock client, and its label, which no other client has.
#[derive(Clone)]
pub(crate) struct Locks {
    pub(crate) client: LockClient,
    pub(crate) label: Label,
}

pub(crate) struct Machine {
    /// The number of the machine. To the checker, all its lock clients are one.
    pub(crate) client: usize,
    pub(crate) backend: SimBackend,
    pub(crate) plan: Plan,
    pub(crate) monitor: Monitor,
    /// All lock clients so far, the newest last. Only that one may be open.
    clients: Mutex<Vec<Locks>>,
}

impl Machine {
    pub(crate) fn new(client: usize, backend: SimBackend, plan: Plan, monitor: Monitor) -> Self {
        let machine = Self {
            client,
            backend,
            plan,
            monitor,
            clients: Mutex::default(),
        };
        machine.add();
        machine
    }

    /// Makes another client. Returns the one that was the newest before.
    fn add(&self) -> Option<Locks> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let before = clients.last().cloned();
        let name = match clients.len() {
            0 => self.backend.name(),
            n => format!("{}{n}", self.backend.name()),
        };
        let label = Label::new(name).expect("it is short");
        let backend = self.backend.clone();
        let client = LockClient::builder(backend).label(label.clone()).build();
        let client = client.expect("the settings are valid");
        clients.push(Locks { client, label });
        before
    }

    pub(crate) fn newest(&self) -> Locks {
        self.nth_newest(0)
    }

    /// Any of the clients, as a user has it who doesn't know that some are closed.
    pub(crate) fn any(&self) -> Locks {
        match self.plan.fault_mix.shutdowns {
            true => self.nth_newest(self.monitor.sim.draw(3) as usize),
            false => self.newest(),
        }
    }

    fn nth_newest(&self, nth: usize) -> Locks {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let nth = nth.min(clients.len() - 1);
        clients[clients.len() - 1 - nth].clone()
    }

    /// Shuts down the newest client, after another one has taken its place.
    pub(crate) async fn shut_down(&self) {
        let Some(old) = self.add() else { return };
        let at = self.monitor.sim.elapsed();
        let holds = self.monitor.checker(|it| {
            it.duties.shut_down(self.client, at);
            it.guards.shut_down(old.label.clone());
            it.guards.holds(self.client, at)
        });
        self.monitor.reached(match holds {
            true => Situation::ShutDownHolder,
            false => Situation::ShutDown,
        });
        if self.monitor.notes {
            self.backend.note("shuts its lock client down".to_owned());
        }
        let limit = Some(SHUTDOWN_TIMEOUT + Duration::from_millis(1));
        let timed = self
            .monitor
            .timed(self.client, limit, "a shutdown", old.client.shutdown());
        // What it could not release in time is released in the background.
        drop(self.backend.run(timed).await);
    }
}
