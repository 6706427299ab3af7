//! Torments the clients and the servers of a run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold_test_servers::SteppedClock;
use rustix::process::{Pid, Signal};

use crate::checker::{STALL, STOPPED, SUSPENDED};
use crate::client::Target;
use crate::history::Assumption;
use crate::link::{Cut, Link};
use crate::random::{Deck, Random, between, percent};
use crate::record::Record;
use crate::run::Plan;
use crate::subject::Subject;
use crate::topology::{Kind, Servers, Topology, outside, within};

/// Both nemeses pause between two faults.
const PAUSES: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(2_000)];
const PAUSES_OF_CLIENTS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(1_000)];
/// Every second pause of the servers is longer, so that some promises can be judged without them.
const CALM: [Duration; 2] = [Duration::from_millis(4_000), Duration::from_millis(6_000)];
/// How often the nemesis looks whether the servers have failed over on their own. They may go back and forth.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// The controller notes when it wakes up this late.
const LATE: Duration = Duration::from_millis(200);
/// A stopped process may run on for this long. Its monotonic clock must not be seen to go back.
const UNTIL_STOPPED: Duration = Duration::from_millis(50);

const KILLED: &str = "kill client";
const STEPPED: &str = "step the wall clock of client";
const CUT_OFF: &str = "cut off client";
const LOSE_REQUESTS: &str = "lose requests";
const LOSE_REPLIES: &str = "lose replies";
const REFUSED: &str = "refuse connections";
/// How many of a hundred faults of clients wait for some that are in the way of others, and how many of those they hit.
const IN_THE_WAY: usize = 75;
const AT_ONCE: usize = 2;

/// The kinds of faults that a client can have.
pub(crate) fn kinds_of_clients(subject: &Subject, on: Topology) -> Vec<&'static str> {
    let mut kinds = vec![KILLED, STOPPED];
    if subject.is_leasehold() {
        kinds.extend([STEPPED, SUSPENDED]);
    }
    if on.has_links() {
        kinds.extend([CUT_OFF, LOSE_REQUESTS, LOSE_REPLIES, REFUSED]);
    }
    kinds
}

/// The handles by which faults reach the clients. Clocks and links may be missing.
#[derive(Debug)]
pub(crate) struct Clients<'a> {
    targets: &'a [Target],
    links: &'a [Vec<Link>],
    clocks: &'a [SteppedClock],
    /// For how long each was suspended, on its clock, in µs.
    suspended: Vec<i64>,
}

impl<'a> Clients<'a> {
    pub(crate) fn new(
        targets: &'a [Target],
        links: &'a [Vec<Link>],
        clocks: &'a [SteppedClock],
    ) -> Self {
        Self {
            targets,
            links,
            clocks,
            suspended: vec![0; targets.len()],
        }
    }
}

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

    /// Kills, stops, suspends and cuts off clients, and steps their clocks.
    pub(crate) fn torment_clients(&self, mut clients: Clients<'_>, random: &mut Random) {
        let kinds = kinds_of_clients(self.plan.subject, self.plan.args.on);
        let chosen = kinds.into_iter().filter(|kind| self.plan.deals(kind));
        let mut deck = Deck::new(chosen.collect());
        while self.goes_on() {
            let [least, most] = PAUSES_OF_CLIENTS;
            self.record.sleep(between(random, least, most));
            let victims = self.victims(clients.targets.len(), random);
            let Some(kind) = deck.deal(random).filter(|_| self.goes_on()) else {
                continue;
            };
            let all: Vec<usize> = (0..clients.targets.len()).collect();
            let done = match kind {
                KILLED => self.kill(&clients, &victims),
                STOPPED | SUSPENDED => self.stop(&mut clients, &victims, kind, random),
                STEPPED => self.step(&clients, &victims, random),
                REFUSED if random.bool() => self.refuse(&clients, &all, random),
                REFUSED => self.refuse(&clients, &victims, random),
                _ => self.cut(&clients, &victims, kind, random),
            };
            if !done {
                deck.put_back(kind);
            }
        }
    }

    /// The next clients. Mostly some that have locks which others wait for: nobody notices what happens to the rest. If
    /// there are none for a while, any.
    fn victims(&self, clients: usize, random: &mut Random) -> Vec<usize> {
        const ASK_AGAIN: Duration = Duration::from_millis(5);
        let until = Instant::now() + self.plan.lease();
        let waits = percent(random, IN_THE_WAY);
        while waits && self.goes_on() && Instant::now() < until {
            let mut victims = self.record.in_the_way();
            if !victims.is_empty() {
                random.shuffle(&mut victims);
                victims.truncate(AT_ONCE);
                return victims;
            }
            self.record.sleep(ASK_AGAIN);
        }
        vec![random.usize(..clients)]
    }

    /// Returns whether there were processes.
    fn kill(&self, clients: &Clients<'_>, victims: &[usize]) -> bool {
        let mut done = false;
        for client in victims {
            let from = self.record.now();
            if clients.targets[*client].kill() {
                self.record.fault(within(KILLED), Some(*client), from);
                done = true;
            }
        }
        done
    }

    /// Stops processes. When a suspended one goes on, its monotonic clock has stood still. Returns whether there were any.
    fn stop(
        &self,
        clients: &mut Clients<'_>,
        victims: &[usize],
        kind: &'static str,
        random: &mut Random,
    ) -> bool {
        let (lease, longest) = (self.plan.lease(), self.plan.lasts_asleep());
        // Half of them sleep past the end of any lock.
        let time = match random.bool() {
            true => between(random, longest + lease / 5, longest + lease),
            false => between(random, lease / 2, longest),
        };
        let stop = |it: &usize| Some((*it, clients.targets[*it].signal(Signal::STOP)?));
        let stopped: Vec<(usize, Pid)> = victims.iter().filter_map(stop).collect();
        let from = self.record.now();
        if stopped.is_empty() {
            return false;
        }
        self.record.sleep(time);
        for (client, process) in stopped {
            // Its successor was not stopped.
            if !clients.targets[client].is(process) {
                continue;
            }
            let slept = Duration::from_micros(self.record.now() - from);
            if kind == SUSPENDED {
                let suspended = &mut clients.suspended[client];
                *suspended +=
                    clients.clocks[client].shown(micros(slept.saturating_sub(UNTIL_STOPPED)));
                clients.clocks[client].set_monotonic(-*suspended);
            }
            // Noted before the process goes on, so it certainly slept for all of it.
            self.record.fault(within(kind), Some(client), from);
            clients.targets[client].signal(Signal::CONT);
        }
        true
    }

    /// Steps the wall clocks of clients. They may show the future or the past. No deadline depends on them.
    fn step(&self, clients: &Clients<'_>, victims: &[usize], random: &mut Random) -> bool {
        for client in victims {
            let from = self.record.now();
            let by = micros(between(
                random,
                Duration::ZERO,
                self.plan.args.on.longest_step(),
            ));
            clients.clocks[*client].set(if random.bool() { by } else { -by });
            self.record.fault(within(STEPPED), Some(*client), from);
        }
        true
    }

    /// Cuts clients off from one server, or from all.
    fn cut(
        &self,
        clients: &Clients<'_>,
        victims: &[usize],
        kind: &'static str,
        random: &mut Random,
    ) -> bool {
        let cut = match kind {
            LOSE_REQUESTS => Cut::Requests,
            LOSE_REPLIES => Cut::Replies,
            _ => Cut::Both,
        };
        let lease = self.plan.lease();
        let time = between(random, lease / 2, lease * 3);
        let servers = clients.links[0].len();
        let one = random.usize(..servers);
        let range = if random.bool() {
            0..servers
        } else {
            one..one + 1
        };
        let links = || {
            victims
                .iter()
                .flat_map(|it| &clients.links[*it][range.clone()])
        };
        let from = self.record.now();
        links().for_each(|it| it.set(cut));
        self.record.sleep(time);
        links().for_each(|it| it.set(Cut::None));
        for client in victims {
            self.record
                .fault(within(kind).delays(), Some(*client), from);
        }
        true
    }

    /// Cuts clients off from all servers. After some time, what is under way is lost, and connections are
    /// refused at once, as by a firewall that restarts. So calls are in doubt first, and then fail fast.
    fn refuse(&self, clients: &Clients<'_>, victims: &[usize], random: &mut Random) -> bool {
        let links = || victims.iter().flat_map(|it| &clients.links[*it]);
        let set = |cut| links().for_each(|it| it.set(cut));
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
        let is_all = victims.len() == clients.targets.len();
        let named: Vec<Option<usize>> = match is_all {
            true => vec![None],
            false => victims.iter().copied().map(Some).collect(),
        };
        for client in named {
            self.record.fault(within(REFUSED).delays(), client, from);
        }
        true
    }

    /// Does these faults to the servers, one at a time.
    pub(crate) fn torment_servers<S: Servers>(&self, servers: &mut S, random: &mut Random) {
        let all = S::FAULTS.iter().copied();
        let mut deck = Deck::new(all.filter(|(kind, _)| self.plan.deals(kind.name)).collect());
        let mut looked = self.record.now();
        for pauses in [PAUSES, CALM].into_iter().cycle() {
            let until = Instant::now() + between(random, pauses[0], pauses[1]);
            while self.goes_on() && Instant::now() < until {
                self.record.sleep(LOOK_AGAIN);
                looked = note_failovers(self.record, servers, looked);
            }
            if !self.goes_on() {
                return;
            }
            let Some((kind, inject)) = deck.deal(random) else {
                continue;
            };
            let from = self.record.now();
            inject(servers, random);
            self.record.fault(kind, None, from);
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
