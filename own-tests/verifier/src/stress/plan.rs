//! The plan of a stress run. The seed draws each part of it; 0 is the simplest draw.

use std::time::Duration;

use leasehold_api::Kind;
use leasehold_api::bounds::DEFAULT_WAITER_LEASE;
use leasehold_sim::{Latency, Reads, SimServer};

/// An assumption of docs/semantics.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assumption {
    /// A1: one write history for each key.
    OneHistory,
    /// A2: nobody evicts our keys.
    NoEviction,
    /// A3: clocks run at the same rate within the drift allowance.
    SameRate,
    /// A3: while a key is held, the clocks of its servers show the same time within 10 ms.
    SameTime,
    /// A4: the user stops at the reported deadline.
    UserStops,
}

/// The kinds of faults of a run. Each seed switches about half of them off, because a run with some
/// kinds of faults reaches more than a run with all of them.
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
    /// The server refuses to publish for some time, and so cannot tell who listens.
    pub(crate) publish_refused: bool,
    /// The server publishes, but cannot tell who listens, for the whole run.
    pub(crate) count_refused: bool,
    pub(crate) cancels: bool,
    pub(crate) revokes: bool,
    /// Clients' clocks run at other rates, or jump forward.
    pub(crate) drift: bool,
    /// The server switches over to a replica with all data, whose clock differs within the drift
    /// allowance. Some subscriptions stay at the old server.
    pub(crate) switchovers: bool,
    /// A replica loses its link, and the requests of some clients go there for some time.
    pub(crate) replicas: bool,
    /// The server refuses all calls of a client for some time.
    pub(crate) refusals: bool,
    /// Clients are shut down while they are used, and replaced.
    pub(crate) shutdowns: bool,
    /// Outside of the model only, like those below.
    pub(crate) evictions: bool,
    pub(crate) data: bool,
    pub(crate) failovers: bool,
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
            publish_refused: sim.draw(4) == 3,
            count_refused: sim.draw(4) == 3,
            cancels: flip(),
            revokes: sim.draw(4) == 3,
            drift: flip(),
            switchovers: flip(),
            replicas: flip(),
            refusals: flip(),
            shutdowns: sim.draw(4) == 3,
            evictions: out_of_model && flip(),
            data: out_of_model && flip(),
            failovers: out_of_model && flip(),
            clock: out_of_model && flip(),
        }
    }
}

/// The settings of the lock handles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) kind: Kind,
    pub(crate) capacity: u32,
    pub(crate) reentrant: bool,
    pub(crate) lease: Duration,
    /// Whether the lease is fixed, without renewals.
    pub(crate) fixed: bool,
    /// The maximum number of holds of an owner.
    pub(crate) holds: u32,
}

/// The plan of a run, drawn before it starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) clients: u32,
    pub(crate) rounds: u32,
    pub(crate) keys: u32,
    /// Whether every client also tries to lock a key that holds another program's value.
    pub(crate) foreign: bool,
    /// Whether holders leave notes on their keys.
    pub(crate) leaves_notes: bool,
    pub(crate) terms: Terms,
    pub(crate) latency: Latency,
    /// The longest round trip to the server.
    pub(crate) round_trip: Duration,
    pub(crate) out_of_model: bool,
    /// Whether pushes overtake replies, and each other.
    pub(crate) unordered: bool,
    /// Whether users finish their work even if they lose the guard meanwhile.
    pub(crate) stubborn: bool,
    pub(crate) fault_mix: FaultMix,
    /// What a replica does with commands that write nothing.
    pub(crate) reads: Reads,
    /// The number of faults.
    pub(crate) incidents: u32,
    /// The longest time between two faults, and the longest work under the lock.
    pub(crate) pace: Duration,
}

/// The number of keys that a client uses at once in a run with many keys.
const MANY_KEYS: u32 = 4;

/// The largest step of the server's clock.
pub(crate) const LONGEST_STEP: Duration = Duration::from_secs(20);

/// The longest time for which a client's requests go to a replica.
pub(crate) const LONGEST_VISIT: Duration = Duration::from_secs(3);

/// The longest work under the lock, unless it is meant to outlast a lease. Meanwhile the waiters only
/// poll once a second.
const LONGEST_WORK: Duration = ms(5_000);

/// One in this many seeds is slow, with the default lease. Only then a copy of a message arrives after
/// the server has forgotten the watermark of its sender. A slow seed costs as much as ten others.
const SLOW_SEEDS: u32 = 64;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Draws a time on the grid of 1 ms, up to `most`.
pub(crate) fn span(sim: &SimServer, most: Duration) -> Duration {
    let most = u32::try_from(most.as_millis()).unwrap_or(u32::MAX);
    ms(sim.draw(most.saturating_add(1)).into())
}

impl Plan {
    pub(crate) fn draw(sim: &SimServer, out_of_model: bool) -> Self {
        let clients = 2 + sim.draw(3);
        let rounds = 1 + sim.draw(4);
        // With many keys, a client sends several commands at once, which are batched.
        let keys = [1, 2, MANY_KEYS][sim.draw(16).saturating_sub(13) as usize];
        let foreign = keys == MANY_KEYS && sim.draw(2) == 1;
        let leaves_notes = sim.draw(4) == 3;
        let slow = sim.draw(SLOW_SEEDS) == SLOW_SEEDS - 1;
        let terms = terms(sim, slow);
        let (latency, most) = latency(sim);
        let unordered = sim.draw(4) == 3;
        let fault_mix = FaultMix::draw(sim, out_of_model);
        let incidents = sim.draw(13);
        // Some work is short, so that grants follow closely. Some work outlasts its lease.
        let longest = if slow { Duration::MAX } else { LONGEST_WORK };
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
            leaves_notes,
            terms,
            latency,
            round_trip: most * 2,
            out_of_model,
            unordered,
            stubborn: false,
            fault_mix,
            reads: Reads::Refused,
            incidents,
            pace,
        }
    }

    /// Breaks one assumption, and injects no other faults.
    pub(crate) fn break_assumption(&mut self, assumption: Assumption) {
        let stubborn = assumption == Assumption::UserStops;
        self.stubborn = stubborn;
        self.out_of_model = matches!(assumption, Assumption::SameRate | Assumption::SameTime);
        self.fault_mix = FaultMix {
            failovers: assumption == Assumption::OneHistory,
            evictions: assumption == Assumption::NoEviction,
            drift: assumption == Assumption::SameRate,
            switchovers: assumption == Assumption::SameTime,
            pauses: stubborn,
            ..FaultMix::default()
        };
    }

    /// Whether a renewal may take longer than it waits for its reply: a tenth of the lease, or of
    /// the shorter lease of a nested hold.
    pub(crate) fn is_slow(&self) -> bool {
        let shortest = (self.terms.lease / 3).max(ms(100));
        self.round_trip >= shortest / 12
    }

    /// How long a client must have been healthy for its guards to be still valid; `None` if a
    /// guard may be lost anyway: by a forced release, a shutdown, a fixed lease, or a slow network.
    pub(crate) fn kept(&self) -> Option<Duration> {
        let lease = self.terms.lease;
        let on = self.fault_mix;
        let may_end = self.terms.fixed || on.revokes || on.shutdowns;
        (!self.is_slow() && !may_end).then_some(lease / 2)
    }

    /// How soon after recovery every live client has had the lock. The time covers the leases of
    /// dead clients, and the work of each live one.
    pub(crate) fn wait_limit(&self) -> Duration {
        let lease = self.terms.lease;
        let turn = self.pace * 4 + lease + Duration::from_secs(2);
        let all = turn * (self.clients * 2);
        let own = lease * 4 + DEFAULT_WAITER_LEASE * 3 + Duration::from_secs(15);
        own + all + self.set_back()
    }

    /// How long dead clients keep their holds and waiters.
    pub(crate) fn last_lease(&self) -> Duration {
        self.terms.lease + DEFAULT_WAITER_LEASE * 2 + self.set_back()
    }

    /// How far the server's clock may have been set back in total.
    fn set_back(&self) -> Duration {
        if self.fault_mix.clock {
            return LONGEST_STEP * (self.incidents + 1);
        }
        // The next server's clock may be behind. Then an expired hold is live again, unless another client has
        // removed it.
        match self.fault_mix.switchovers && self.out_of_model {
            true => LONGEST_STEP,
            false => Duration::ZERO,
        }
    }
}

fn terms(sim: &SimServer, slow: bool) -> Terms {
    let kind = match sim.draw(6) {
        0 => Kind::Mutex,
        5 => Kind::Semaphore,
        _ => Kind::RwLock,
    };
    let reentrant = kind != Kind::Semaphore && sim.draw(2) == 1;
    let capacity = match kind {
        Kind::Semaphore => 2 + sim.draw(2),
        Kind::Mutex | Kind::RwLock => 1,
    };
    let lease = match sim.draw(16) {
        _ if slow => ms(30_000),
        0..=2 => ms(100),
        3..=5 => ms(300),
        6..=8 => ms(1_000),
        9..=13 => ms(4_000),
        _ => ms(10_000),
    };
    Terms {
        kind,
        capacity,
        reentrant,
        lease,
        fixed: sim.draw(4) == 3,
        holds: if sim.draw(8) == 7 { 1 } else { 32 },
    }
}

/// Draws the latency and its maximum. Most seeds use a coarse grid, so that events coincide.
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
