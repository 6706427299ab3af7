//! What all machines together have seen of a job.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_api::{FireTime, Job};
use leasehold_sim::{SimBackend, SimServer};

use crate::plan::{Form, LEASE, WINDOW};

/// From then on, the exploration injects no faults. Those of messages wait for the next message.
const FAULTS: Duration = Duration::from_secs(130);
/// How long a message may be under way then.
const LATE: Duration = Duration::from_secs(15);
/// How long nobody may run an occurrence that is due, while a machine asks for it and nothing is broken.
pub(crate) const SLACK: Duration = Duration::from_secs(10);

/// An occurrence that was tried.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    pub(crate) starts: u32,
    /// When its last body began, on the server's clock.
    pub(crate) started: u64,
    /// When the next attempt may begin, in virtual time.
    pub(crate) next: Duration,
    /// When its body succeeded, on the server's clock, if the call returned that this is recorded.
    pub(crate) done: Option<u64>,
}

/// A body that runs.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) job: Job,
    /// When it began, in virtual time.
    pub(crate) began: Duration,
    /// What [`Log::forgotten`] was.
    forgotten: u32,
}

/// A call that runs an occurrence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) machine: usize,
    pub(crate) began: Duration,
    /// The occurrence that it is about, and when that is due. `None` if it begins one.
    pub(crate) fire: Option<(FireTime, Duration)>,
    /// Until when the occurrence may start, in virtual time.
    pub(crate) ends: Duration,
    pub(crate) forgotten: u32,
    /// How many calls there were before.
    pub(crate) calls: u32,
    /// Whether another call was under way.
    pub(crate) others: bool,
}

/// All times on the server's clock are milliseconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) form: Form,
    /// Whether no assumption was broken yet.
    pub(crate) intact: bool,
    /// Whether the record may be ahead of the server's clock.
    pub(crate) ahead: bool,
    /// The bodies that run, by machine.
    pub(crate) running: BTreeMap<usize, Body>,
    pub(crate) known: BTreeMap<FireTime, Known>,
    /// When bodies have succeeded, on the server's clock.
    pub(crate) succeeded: BTreeMap<FireTime, u64>,
    /// The last body of each machine that has succeeded: which occurrence, when, and what `forgotten` was.
    pub(crate) last: BTreeMap<usize, (FireTime, u64, u32)>,
    /// When the last body ended.
    pub(crate) last_end: Duration,
    /// From then on, nothing disturbs a machine, as far as it is known.
    pub(crate) quiet: Duration,
    /// How often the record was, or may have been, lost or reset.
    pub(crate) forgotten: u32,
    pub(crate) calls: u32,
    pub(crate) calls_now: u32,
    pub(crate) problems: Vec<String>,
}

impl Log {
    pub(crate) fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    /// The record is gone, or may be. Returns what was known.
    pub(crate) fn forget(&mut self) -> BTreeMap<FireTime, Known> {
        self.forgotten += 1;
        std::mem::take(&mut self.known)
    }

    /// The record is still there after all.
    pub(crate) fn remember(&mut self, before: BTreeMap<FireTime, Known>) {
        for (fire, before) in before {
            let known = self.known.entry(fire).or_default();
            known.starts += before.starts;
            known.started = known.started.max(before.started);
            known.next = known.next.max(before.next);
            known.done = known.done.or(before.done);
        }
    }
}

/// The log of a run, and its clocks.
pub(crate) struct Watch {
    pub(crate) sim: SimServer,
    /// The server's time minus the virtual time, while nobody steps the clock.
    offset: u64,
    log: Mutex<Log>,
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("short")
}

/// The pause after this many attempts.
pub(crate) fn pause(attempts: u32) -> Duration {
    Duration::from_secs(30) * (1 << attempts.saturating_sub(1).min(4))
}

impl Watch {
    pub(crate) fn new(sim: SimServer, form: Form) -> Self {
        let offset = sim.server_time().as_micros() / 1_000 - millis(sim.elapsed());
        let log = Mutex::new(Log {
            form,
            intact: true,
            quiet: Duration::MAX,
            ..Log::default()
        });
        Self { sim, offset, log }
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server's time.
    pub(crate) fn now(&self) -> u64 {
        self.sim.server_time().as_micros() / 1_000
    }

    /// When this occurrence is due, in virtual time.
    pub(crate) fn due(&self, fire: FireTime) -> Duration {
        Duration::from_millis(fire.as_millis().saturating_sub(self.offset))
    }

    /// The occurrence that is due at this virtual time.
    pub(crate) fn fire(&self, due: Duration) -> FireTime {
        FireTime::from_millis(self.offset + millis(due))
    }

    /// Ends all faults when no more are injected. Without this, some wait for the messages of later occurrences.
    pub(crate) fn end_faults(&self, clients: Vec<SimBackend>) {
        self.log().quiet = FAULTS + LATE;
        let sim = self.sim.clone();
        drop(self.sim.spawn(async move {
            sim.sleep(FAULTS).await;
            for client in clients {
                client.clear_faults();
            }
        }));
    }

    /// Something happens now that may keep machines from their work.
    pub(crate) fn disturb(&self) {
        let quiet = self.sim.elapsed() + LEASE + SLACK;
        let mut log = self.log();
        log.quiet = log.quiet.max(quiet);
    }

    /// A machine asks for this occurrence, or for one that is due now.
    pub(crate) fn call(&self, machine: usize, fire: Option<FireTime>) -> Call {
        let began = self.sim.elapsed();
        let mut log = self.log();
        let window = log.form.window();
        // An occurrence that has failed goes on until its window is over.
        let open = |(fire, known): (&FireTime, &Known)| {
            let goes_on = known.done.is_none() && began < self.due(*fire) + WINDOW;
            goes_on.then_some(*fire)
        };
        let fire = fire.or_else(|| log.known.iter().next_back().and_then(open));
        let fire = fire.map(|fire| (fire, self.due(fire)));
        let others = log.calls_now > 0;
        log.calls += 1;
        log.calls_now += 1;
        Call {
            machine,
            began,
            fire,
            ends: fire.map_or(began, |(_, due)| due) + window,
            forgotten: log.forgotten,
            calls: log.calls,
            others,
        }
    }

    /// A body begins.
    pub(crate) fn start(&self, machine: usize, job: Job) {
        let (fire, now) = (job.fire_time(), self.now());
        let began = self.sim.elapsed();
        let mut log = self.log();
        if log.intact {
            log.check_start(fire, now);
        }
        let known = log.known.entry(fire).or_default();
        known.starts += 1;
        known.started = now;
        let forgotten = log.forgotten;
        let body = Body {
            job,
            began,
            forgotten,
        };
        log.running.insert(machine, body);
    }

    /// A body ends, or is dropped.
    pub(crate) fn end(&self, machine: usize, succeeds: bool) {
        let (now, elapsed) = (self.now(), self.sim.elapsed());
        let mut log = self.log();
        log.last_end = elapsed;
        let Some(body) = log.running.remove(&machine) else {
            return;
        };
        let fire = body.job.fire_time();
        if let Some(known) = log.known.get_mut(&fire) {
            known.next = elapsed + pause(known.starts);
        }
        if succeeds {
            log.succeeded.insert(fire, now);
            log.last.insert(machine, (fire, now, body.forgotten));
        }
        // It may be the last one to drop its guard, which takes other locks.
        drop(log);
        drop(body);
    }
}
