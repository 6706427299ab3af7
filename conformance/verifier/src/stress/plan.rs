//! What one seed runs: everything here is drawn, 0 the simplest.

use std::time::Duration;

use leasehold_api::{Kind, Policy};
use leasehold_sim::{Latency, SimServer};

use crate::stress::Assumption;

/// Which kinds of faults a run has: each seed switches about half of them off, because a run in
/// which everything goes wrong reaches less than one in which some things do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FaultMix {
    pub(crate) lost: bool,
    pub(crate) late: bool,
    pub(crate) doubled: bool,
    pub(crate) pushes: bool,
    pub(crate) connections: bool,
    pub(crate) pauses: bool,
    pub(crate) kills: bool,
    pub(crate) restarts: bool,
    /// The server cannot tell who listens, for a while.
    pub(crate) mute: bool,
    pub(crate) cancels: bool,
    pub(crate) revokes: bool,
    /// Clients' clocks run at other rates, or jump ahead.
    pub(crate) drift: bool,
    /// Outside of the model only.
    pub(crate) evictions: bool,
    pub(crate) data: bool,
    pub(crate) fail_overs: bool,
    pub(crate) clock: bool,
}

impl FaultMix {
    fn draw(sim: &SimServer, out_of_model: bool) -> Self {
        let flip = || sim.draw(2) == 1;
        Self {
            lost: flip(),
            late: flip(),
            doubled: flip(),
            pushes: flip(),
            connections: flip(),
            pauses: flip(),
            kills: flip(),
            restarts: flip(),
            mute: sim.draw(4) == 3,
            cancels: flip(),
            revokes: sim.draw(4) == 3,
            drift: flip(),
            evictions: out_of_model && flip(),
            data: out_of_model && flip(),
            fail_overs: out_of_model && flip(),
            clock: out_of_model && flip(),
        }
    }
}

/// What a key is taken for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) kind: Kind,
    pub(crate) capacity: u32,
    pub(crate) policy: Policy,
    pub(crate) reentrant: bool,
    pub(crate) lease: Duration,
    pub(crate) waiter_lease: Duration,
    /// Without renewal.
    pub(crate) fixed: bool,
    /// How often an owner may hold.
    pub(crate) holds: u32,
}

/// Everything that a seed fixes before it starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) clients: u32,
    pub(crate) rounds: u32,
    pub(crate) keys: u32,
    /// Every client also asks for a key under which a value of another program lives.
    pub(crate) foreign: bool,
    pub(crate) terms: Terms,
    pub(crate) latency: Latency,
    /// The longest way to the server and back.
    pub(crate) round_trip: Duration,
    pub(crate) out_of_model: bool,
    /// Pushes overtake replies, and each other.
    pub(crate) unordered: bool,
    /// Users go on with what they have begun, whatever becomes of their guards meanwhile.
    pub(crate) stubborn: bool,
    pub(crate) fault_mix: FaultMix,
    /// How often something goes wrong.
    pub(crate) incidents: u32,
    /// Longest time between two incidents, and longest work under the lock.
    pub(crate) pace: Duration,
}

/// How many keys a client uses at once in a run with many.
const MANY_KEYS: u32 = 4;

/// How far the server's clock is set at most.
pub(crate) const LONGEST_STEP: Duration = Duration::from_secs(20);

/// Longest work under the lock, but for what is meant to outlast a lease: others who wait meanwhile
/// do nothing but poll, each second.
const LONGEST_WORK: Duration = ms(5_000);

/// One seed of so many takes its time, with the default lease: only then a copy of a message comes
/// after what the server remembers of its sender. Such a seed costs as much as ten others.
const PATIENT: u32 = 64;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Plan {
    pub(crate) fn draw(sim: &SimServer, out_of_model: bool) -> Self {
        let clients = 2 + sim.draw(3);
        let rounds = 1 + sim.draw(4);
        // With many, a client has so much to send at once that it travels together.
        let keys = [1, 2, MANY_KEYS][sim.draw(16).saturating_sub(13) as usize];
        let foreign = keys == MANY_KEYS && sim.draw(2) == 1;
        let patient = sim.draw(PATIENT) == PATIENT - 1;
        let terms = terms(sim, patient);
        let (latency, most) = latency(sim);
        let unordered = sim.draw(4) == 3;
        let fault_mix = FaultMix::draw(sim, out_of_model);
        let incidents = sim.draw(13);
        // Some work is short, so that hand-overs follow closely; some outlasts its lease.
        let longest = if patient { Duration::MAX } else { LONGEST_WORK };
        let pace = match sim.draw(4) {
            0 => ms(3),
            1 => ms(40),
            2 => (terms.lease / 2).min(longest),
            _ => (terms.lease * 2).min(longest),
        };
        Self {
            clients,
            rounds,
            keys,
            foreign,
            terms,
            latency,
            round_trip: most * 2,
            out_of_model,
            unordered,
            stubborn: false,
            fault_mix,
            incidents,
            pace,
        }
    }

    /// So many clients that take one fair mutex so many times.
    pub(crate) fn set_size(&mut self, clients: u32, rounds: u32) {
        (self.clients, self.rounds, self.keys) = (clients.clamp(1, 4), rounds, 1);
        self.foreign = false;
        self.terms.kind = Kind::Mutex;
        (self.terms.policy, self.terms.reentrant) = (Policy::Fair, false);
        self.terms.capacity = 1;
    }

    /// Lets an assumption fail, and nothing else.
    pub(crate) fn break_assumption(&mut self, assumption: Assumption) {
        let stubborn = assumption == Assumption::UserStops;
        self.stubborn = stubborn;
        self.out_of_model = assumption == Assumption::SameRate;
        self.fault_mix = FaultMix {
            fail_overs: assumption == Assumption::OneHistory,
            evictions: assumption == Assumption::NoEviction,
            drift: assumption == Assumption::SameRate,
            pauses: stubborn,
            ..FaultMix::default()
        };
    }

    /// Whether a renewal may take longer than it waits for an answer: a tenth of the lease, and a
    /// nested hold's may be a third of that.
    pub(crate) fn is_slow(&self) -> bool {
        let shortest = (self.terms.lease / 3).max(ms(100));
        self.round_trip >= shortest / 12
    }

    /// For how long a client must be well for what it renews to be kept; `None` if something else
    /// may take it, or a renewal may take longer than it has.
    pub(crate) fn kept(&self) -> Option<Duration> {
        let lease = self.terms.lease;
        (!self.is_slow() && !self.terms.fixed && !self.fault_mix.revokes).then_some(lease / 2)
    }

    /// How long after healing everyone alive has had its turn: what the dead have left behind,
    /// and the work of each, with its hand-over.
    pub(crate) fn wait_limit(&self) -> Duration {
        let Terms {
            lease,
            waiter_lease,
            ..
        } = self.terms;
        let turn = self.pace * 4 + lease + Duration::from_secs(2);
        let all = turn * (self.clients * 2);
        lease * 4 + waiter_lease * 3 + Duration::from_secs(15) + all + self.set_back()
    }

    /// How long the dead may keep what they have.
    pub(crate) fn last_lease(&self) -> Duration {
        self.terms.lease + self.terms.waiter_lease * 2 + self.set_back()
    }

    /// How far the server's clock may have been set back.
    fn set_back(&self) -> Duration {
        if self.fault_mix.clock {
            LONGEST_STEP * self.incidents
        } else {
            Duration::ZERO
        }
    }
}

fn terms(sim: &SimServer, patient: bool) -> Terms {
    let kind = match sim.draw(6) {
        0 => Kind::Mutex,
        5 => Kind::Semaphore,
        _ => Kind::RwLock,
    };
    let reentrant = kind != Kind::Semaphore && sim.draw(2) == 1;
    let policy = match (kind, sim.draw(16)) {
        (_, 0..=11) => Policy::Fair,
        (Kind::RwLock, 12) => Policy::ReaderPreference,
        (Kind::RwLock, 13) => Policy::WriterPreference,
        _ => Policy::Barging,
    };
    let capacity = match kind {
        Kind::Semaphore => 2 + sim.draw(2),
        Kind::Mutex | Kind::RwLock => 1,
    };
    let lease = match sim.draw(16) {
        _ if patient => ms(30_000),
        0..=2 => ms(100),
        3..=5 => ms(300),
        6..=8 => ms(1_000),
        9..=13 => ms(4_000),
        _ => ms(10_000),
    };
    let waiter_lease = [ms(3_000), ms(5_000)][sim.draw(2) as usize];
    Terms {
        kind,
        capacity,
        policy,
        reentrant,
        lease,
        waiter_lease,
        fixed: sim.draw(4) == 3,
        holds: if sim.draw(8) == 7 { 1 } else { 32 },
    }
}

/// Most seeds live on a coarse grid, where things meet at the same instant.
fn latency(sim: &SimServer) -> (Latency, Duration) {
    let fine = Duration::from_micros(3_137);
    match sim.draw(8) {
        0..=2 => (Latency::ZERO, ms(0)),
        3 | 4 => (Latency::between(ms(0), ms(2)), ms(2)),
        5 => (Latency::fixed(ms(1)), ms(1)),
        6 => (Latency::between(Duration::from_micros(137), fine), fine),
        _ => (Latency::between(ms(0), ms(60)), ms(60)),
    }
}
