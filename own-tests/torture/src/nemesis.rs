//! Torments the clients and the servers of a run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_test_servers::SteppedClock;
use rustix::process::Signal;

use crate::checker::{STALL, STOPPED, SUSPENDED};
use crate::client::Target;
use crate::history::Assumption;
use crate::link::{Cut, Link};
use crate::random::{Random, between};
use crate::record::Record;
use crate::run::Plan;
use crate::topology::{Injection, Kind, Servers, outside, within};

/// Both nemeses pause between two faults.
const PAUSES: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(2_000)];
/// The controller notes when it wakes up this late.
const LATE: Duration = Duration::from_millis(200);
/// A stopped process may run on for this long. Its monotonic clock must not be seen to go back.
const UNTIL_STOPPED: Duration = Duration::from_millis(50);
/// How far the wall clock of a client is set from the machine's.
const STEP: Duration = Duration::from_secs(6 * 3_600);

const KILLED: &str = "kill client";
const STEPPED: &str = "step the wall clock of client";
const CUT_OFF: &str = "cut off client";
const LOSE_REQUESTS: &str = "lose requests";
const LOSE_REPLIES: &str = "lose replies";
const REFUSED: &str = "refuse connections";
const OF_CLIENTS: [&str; 11] = [
    KILLED,
    KILLED,
    STEPPED,
    SUSPENDED,
    SUSPENDED,
    STOPPED,
    STOPPED,
    CUT_OFF,
    LOSE_REQUESTS,
    LOSE_REPLIES,
    REFUSED,
];

/// What both nemeses know.
#[derive(Debug)]
pub(crate) struct Nemesis<'a> {
    pub(crate) plan: Plan<'a>,
    pub(crate) record: &'a Record,
    /// Set when the faults must end.
    pub(crate) calm: &'a AtomicBool,
}

impl Nemesis<'_> {
    fn goes_on(&self) -> bool {
        !self.calm.load(Ordering::Relaxed)
    }

    fn pause(&self, random: &mut Random) {
        self.record.sleep(between(random, PAUSES[0], PAUSES[1]));
    }

    /// Kills, stops, suspends and cuts off clients, and steps their clocks, one at a time. There may be no clocks.
    pub(crate) fn torment_clients(
        &self,
        targets: &[Target],
        links: &[Vec<Link>],
        clocks: &[SteppedClock],
        random: &mut Random,
    ) {
        let kinds = self.kinds_of_clients(links, clocks);
        let lease = self.plan.lease();
        let mut suspended = vec![0; targets.len()];
        while self.goes_on() {
            self.pause(random);
            if kinds.is_empty() {
                continue;
            }
            let client = random.usize(..targets.len());
            let (target, all_links, links) = (&targets[client], links, &links[client]);
            let time = between(random, lease / 2, lease * 3);
            match kinds[random.usize(..kinds.len())] {
                KILLED => self.kill(client, target),
                STOPPED => self.stop(client, target, time, STOPPED, |_| {}),
                STEPPED => self.step(client, &clocks[client], random),
                // When it goes on, its monotonic clock has stood still.
                SUSPENDED => self.stop(client, target, time, SUSPENDED, |slept| {
                    let (clock, suspended) = (&clocks[client], &mut suspended[client]);
                    *suspended += clock.shown(micros(slept.saturating_sub(UNTIL_STOPPED)));
                    clock.set_monotonic(-*suspended);
                }),
                REFUSED if random.bool() => self.refuse(None, all_links, random),
                REFUSED => self.refuse(Some(client), &all_links[client..=client], random),
                cut => {
                    let one = random.usize(..links.len());
                    let links = if random.bool() {
                        links
                    } else {
                        &links[one..=one]
                    };
                    self.cut(client, links, time, cut);
                }
            }
        }
    }

    /// What is done to clients, the frequent ones more than once. Not all have clocks, or links.
    fn kinds_of_clients(&self, links: &[Vec<Link>], clocks: &[SteppedClock]) -> Vec<&'static str> {
        let has_links = links.iter().all(|it| !it.is_empty());
        let possible = |kind: &&str| match *kind {
            STEPPED | SUSPENDED => !clocks.is_empty(),
            CUT_OFF | LOSE_REQUESTS | LOSE_REPLIES | REFUSED => has_links,
            _ => true,
        };
        let all = OF_CLIENTS.into_iter().filter(possible);
        all.filter(|kind| self.plan.chooses(kind)).collect()
    }

    fn kill(&self, client: usize, target: &Target) {
        let from = self.record.now();
        if target.signal(Signal::KILL) {
            self.record.fault(within(KILLED), Some(client), from);
        }
    }

    /// Stops a process. Before it goes on, `wakes_up` learns how long it has slept.
    fn stop(
        &self,
        client: usize,
        target: &Target,
        time: Duration,
        kind: &'static str,
        wakes_up: impl FnOnce(Duration),
    ) {
        let stopped = target.signal(Signal::STOP);
        let from = self.record.now();
        if stopped {
            self.record.sleep(time);
            wakes_up(Duration::from_micros(self.record.now() - from));
            // Noted before the process goes on, so it certainly slept for all of it.
            self.record.fault(within(kind), Some(client), from);
            target.signal(Signal::CONT);
        }
    }

    /// Steps the wall clock of a client. It may show the future or the past. No deadline depends on it.
    fn step(&self, client: usize, clock: &SteppedClock, random: &mut Random) {
        let from = self.record.now();
        let by = micros(between(random, Duration::ZERO, STEP));
        clock.set(if random.bool() { by } else { -by });
        self.record.fault(within(STEPPED), Some(client), from);
    }

    /// Cuts a client off from one server, or from all.
    fn cut(&self, client: usize, links: &[Link], time: Duration, kind: &'static str) {
        let cut = match kind {
            LOSE_REQUESTS => Cut::Requests,
            LOSE_REPLIES => Cut::Replies,
            _ => Cut::Both,
        };
        let from = self.record.now();
        links.iter().for_each(|it| it.set(cut));
        self.record.sleep(time);
        links.iter().for_each(|it| it.set(Cut::None));
        self.record.fault(within(kind).delays(), Some(client), from);
    }

    /// Cuts a client, or all, off from all servers. After some time, what is under way is lost, and connections
    /// are refused at once, as by a firewall that restarts. So calls are in doubt first, and then fail fast.
    fn refuse(&self, client: Option<usize>, links: &[Vec<Link>], random: &mut Random) {
        let set = |cut| links.iter().flatten().for_each(|it| it.set(cut));
        let lease = self.plan.lease();
        let cut = between(random, Duration::ZERO, lease / 2);
        // Long enough for the pauses of what is tried again in the background to get longer than those of a caller.
        let refused = between(random, lease / 2, lease * 3 / 2);
        let from = self.record.now();
        set(Cut::Both);
        self.record.sleep(cut);
        set(Cut::Refused);
        self.record.sleep(refused);
        set(Cut::None);
        self.record.fault(within(REFUSED).delays(), client, from);
    }

    /// Does these faults to the servers, one at a time.
    pub(crate) fn torment_servers<S: Servers>(
        &self,
        servers: &mut S,
        faults: &[Injection<S>],
        random: &mut Random,
    ) {
        let mut looked = self.record.now();
        while self.goes_on() {
            self.pause(random);
            looked = note_failovers(self.record, servers, looked);
            let Some((kind, inject)) = random.choice(faults) else {
                continue;
            };
            let from = self.record.now();
            inject(servers, random);
            self.record.fault(*kind, None, from);
            looked = note_failovers(self.record, servers, looked);
        }
    }

    /// Notes when the machine stalls: then all answers are late.
    pub(crate) fn watch_for_stalls(&self) {
        const INTERVAL: Duration = Duration::from_millis(20);
        while !self.record.has_ended() {
            let from = self.record.now();
            std::thread::sleep(INTERVAL);
            let took = Duration::from_micros(self.record.now() - from);
            if took > INTERVAL + LATE {
                self.record.fault(within(STALL), None, from);
            }
        }
    }
}

/// Notes that the servers have promoted a replica on their own since the last look. The last writes may not have
/// reached it. Returns the time of this look.
pub(crate) fn note_failovers(record: &Record, servers: &mut impl Servers, looked: u64) -> u64 {
    const KIND: Kind = outside("failover that nobody asked for", Assumption::A1).delays();
    let now = record.now();
    if servers.have_failed_over() {
        record.fault(KIND, None, looked);
    }
    now
}

pub(crate) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).expect("a short time")
}
