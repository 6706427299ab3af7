//! The primary, the old primary while there are two, the process that was demoted last, and a replica
//! that has lost its link.

use std::time::Duration;

use leasehold_api::ClockId;

use crate::record::{Data, Reads, ServerEvent, Tail};
use crate::server::store::{Slot, Store};

/// A server, whose process runs unless it is down.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) store: Store,
    /// Number of the process. Messages to one process don't reach the next.
    pub(crate) process: u64,
    pub(crate) up: bool,
}

/// A replica that has lost its link to the primary.
#[derive(Debug)]
pub(crate) struct Replica {
    /// The data of the moment when it lost its link.
    pub(crate) store: Store,
    pub(crate) process: u64,
    pub(crate) reads: Reads,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Serves,
    /// It is the replica that has lost its link.
    IsReplica,
    /// It executes nothing, and says why.
    Refuses(&'static str),
    /// It has ended, and doesn't answer.
    Gone,
}

#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) primary: Server,
    /// The old primary, during a split.
    pub(crate) old: Option<Box<Server>>,
    /// The replica that lost its link last.
    pub(crate) replica: Option<Box<Replica>>,
    /// The process that was the primary before the last switchover. It is a replica now.
    demoted: Option<u64>,
    /// Whether the primary refuses every call, as while it loads its data.
    pub(crate) loading: bool,
    /// The number of clocks so far.
    clocks: u64,
    processes: u64,
}

impl Servers {
    pub(crate) fn new(journal: usize) -> Self {
        Self {
            primary: Server {
                store: Store::new(journal),
                process: 1,
                up: true,
            },
            old: None,
            replica: None,
            demoted: None,
            loading: false,
            clocks: 1,
            processes: 1,
        }
    }

    /// Whether there is one primary, which runs.
    pub(crate) const fn has_one_primary(&self) -> bool {
        self.old.is_none() && self.primary.up
    }

    /// Returns the old primary for a client that stayed with it, or else the primary.
    pub(crate) fn of(&mut self, on_old: bool) -> &mut Server {
        match &mut self.old {
            Some(old) if on_old => old,
            _ => &mut self.primary,
        }
    }

    /// Returns the server of a process that has not ended.
    pub(crate) fn at(&mut self, process: u64) -> Option<&mut Server> {
        let servers = std::iter::once(&mut self.primary).chain(self.old.as_deref_mut());
        servers.into_iter().find(|server| server.process == process)
    }

    pub(crate) fn standing(&mut self, process: u64) -> Standing {
        let demoted = self.demoted == Some(process);
        let replica = self.replica.as_ref().map(|it| it.process);
        let loading = self.loading && process == self.primary.process;
        match self.at(process) {
            Some(server) if server.up && loading => {
                Standing::Refuses("LOADING: the server reads its data")
            }
            Some(server) if server.up => Standing::Serves,
            Some(_) => Standing::Refuses("connection refused"),
            None if replica == Some(process) => Standing::IsReplica,
            None if demoted => Standing::Refuses("READONLY: the server is a replica now"),
            None => Standing::Gone,
        }
    }

    pub(crate) fn is_old(&self, process: u64) -> bool {
        self.old.as_ref().is_some_and(|old| old.process == process)
    }

    /// Returns the data of the server with this clock, or else of the primary.
    pub(crate) fn by_clock(&mut self, clock: ClockId) -> &mut Store {
        match (&mut self.old, &mut self.replica) {
            (Some(old), _) if old.store.clock() == clock => &mut old.store,
            (_, Some(replica)) if replica.store.clock() == clock => &mut replica.store,
            _ => &mut self.primary.store,
        }
    }

    /// Converts a tail to a number of commands.
    pub(crate) fn resolve(&self, now: Duration, tail: Tail) -> Tail {
        Tail::Commands(self.primary.store.tail(now, tail))
    }

    pub(crate) fn apply(&mut self, event: &ServerEvent) {
        let store = &mut self.primary.store;
        match event {
            ServerEvent::Stopped => {
                store.listeners.clear();
                self.primary.up = false;
                self.primary.process = self.next_process();
            }
            ServerEvent::Started { data } => {
                self.start_primary();
                match data {
                    Data::Kept => {}
                    Data::Lost => self.primary.store.clear(),
                    Data::AllBut(tail) => self.primary.store.lose(*tail),
                }
            }
            ServerEvent::LoadingBegan => self.loading = true,
            ServerEvent::LoadingEnded => self.loading = false,
            ServerEvent::FailedOver { lost } => {
                self.primary.process = self.next_process();
                self.start_primary();
                self.primary.store.lose(*lost);
            }
            ServerEvent::SwitchedOver { .. } => {
                self.demoted = Some(self.primary.process);
                self.primary.process = self.next_process();
                self.start_primary();
            }
            ServerEvent::ReplicaCutOff { reads } => {
                let replica = Replica {
                    store: self.copy(),
                    process: self.next_process(),
                    reads: *reads,
                };
                self.replica = Some(Box::new(replica));
            }
            ServerEvent::Split { lost, .. } => {
                let mut new = Server {
                    store: self.copy(),
                    process: self.next_process(),
                    up: true,
                };
                new.store.lose(*lost);
                self.old = Some(Box::new(std::mem::replace(&mut self.primary, new)));
            }
            ServerEvent::Healed => self.old = None,
            ServerEvent::ClockStepped { forward: true, by } => store.stepped.0 += *by,
            ServerEvent::ClockStepped { forward: false, by } => store.stepped.1 += *by,
            ServerEvent::ForeignPlanted { key, found } => {
                let foreign = Slot::Foreign(found.clone());
                store.slots.insert(key.clone(), foreign);
            }
            ServerEvent::KeyRemoved { key } => drop(store.slots.remove(key)),
            ServerEvent::PublishRefused => store.mute = true,
            ServerEvent::PublishAllowed => store.mute = false,
            ServerEvent::CountRefused => store.uncounted = true,
            ServerEvent::CountAllowed => store.uncounted = false,
        }
    }

    /// Starts the primary on its data, with a new clock.
    fn start_primary(&mut self) {
        let clock = self.next_clock();
        self.primary.up = true;
        self.primary.store.start(clock);
    }

    /// Returns the data of the primary, for a process with a new clock.
    fn copy(&mut self) -> Store {
        let mut store = self.primary.store.clone();
        store.start(self.next_clock());
        store
    }

    const fn next_process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    const fn next_clock(&mut self) -> ClockId {
        self.clocks += 1;
        ClockId::new(self.clocks)
    }
}
