//! Torments the clients and the servers of a run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::checker::{STALL, STOPPED};
use crate::client::Target;
use crate::link::{Cut, Link};
use crate::random::Random;
use crate::record::Record;
use crate::topology::{Kind, Servers, within};

/// Both nemeses pause between two faults.
const PAUSES: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(2_000)];
/// The controller notes when it wakes up this late.
const LATE: Duration = Duration::from_millis(200);

/// What both nemeses know.
#[derive(Debug)]
pub(crate) struct Nemesis<'a> {
    pub(crate) record: &'a Record,
    /// Set when the faults must end.
    pub(crate) calm: &'a AtomicBool,
    pub(crate) lease: Duration,
}

impl Nemesis<'_> {
    fn goes_on(&self) -> bool {
        !self.calm.load(Ordering::Relaxed)
    }

    fn pause(&self, random: &mut Random) {
        self.record.sleep(random.between(PAUSES[0], PAUSES[1]));
    }

    /// Kills, stops and cuts off clients, one at a time.
    pub(crate) fn torment_clients(
        &self,
        targets: &[Target],
        links: &[Vec<Link>],
        random: &mut Random,
    ) {
        while self.goes_on() {
            self.pause(random);
            let client = random.below(targets.len());
            let (target, links) = (&targets[client], &links[client]);
            let time = random.between(self.lease / 2, self.lease * 3);
            match random.below(if links.is_empty() { 5 } else { 8 }) {
                0 | 1 => self.kill(client, target),
                2..5 => self.stop(client, target, time),
                _ => self.cut(client, &links[random.below(links.len())], time, random),
            }
        }
    }

    fn kill(&self, client: usize, target: &Target) {
        let from = self.record.now();
        if target.signal(Signal::KILL) {
            self.record.fault(within("kill client"), Some(client), from);
        }
    }

    fn stop(&self, client: usize, target: &Target, time: Duration) {
        let stopped = target.signal(Signal::STOP);
        let from = self.record.now();
        if stopped {
            self.record.sleep(time);
            // Noted before the process goes on, so it certainly slept for all of it.
            self.record.fault(within(STOPPED), Some(client), from);
            target.signal(Signal::CONT);
        }
    }

    fn cut(&self, client: usize, link: &Link, time: Duration, random: &mut Random) {
        let (cut, kind) = match random.below(3) {
            0 => ((true, true), "cut off client"),
            1 => ((true, false), "lose requests"),
            _ => ((false, true), "lose replies"),
        };
        let from = self.record.now();
        link.set(Cut {
            requests: cut.0,
            replies: cut.1,
        });
        self.record.sleep(time);
        link.set(Cut::default());
        self.record.fault(within(kind).delays(), Some(client), from);
    }

    /// Does these kinds of faults to the servers, one at a time.
    pub(crate) fn torment_servers(
        &self,
        servers: &mut dyn Servers,
        kinds: &[(usize, Kind)],
        random: &mut Random,
    ) {
        while self.goes_on() && !kinds.is_empty() {
            self.pause(random);
            let (number, kind) = kinds[random.below(kinds.len())];
            let from = self.record.now();
            servers.inject(number, random);
            self.record.fault(kind, None, from);
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
