//! What a client does: acquires locks, asks whether it still holds them, counts in the registers that
//! they protect, and releases.

use std::process::Command as Program;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::client::{Client, Target};
use crate::history::{Answer, Call, Operation};
use crate::protocol::{Acquire, Command, Mode};
use crate::random::{Random, between, percent};
use crate::record::Record;
use crate::run::{Plan, millis};

/// The keys, and how they are locked. Each client takes one after the other.
pub(crate) const MUTEXES: [&str; 2] = ["one", "two"];
/// All of them.
pub(crate) const KEYS: [&str; 4] = [MUTEXES[0], MUTEXES[1], READERS_AND_WRITERS, PERMITS];
const READERS_AND_WRITERS: &str = "book";
const PERMITS: &str = "seats";
const SEATS: u32 = 2;
/// The lock that only the probe takes.
pub(crate) const PROBE: &str = "probe";

/// How long a client pauses between two locks.
const PAUSE: Duration = Duration::from_millis(20);
/// How long it pauses after the library failed.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// An answer that takes longer is late.
const LATE: Duration = Duration::from_millis(100);
/// More than any client of a few locks needs, in any language.
const MOST_MEMORY_KIB: u64 = 256 << 10;

/// One client: one process after the other, until the run ends.
pub(crate) struct Worker<'a> {
    pub(crate) plan: Plan<'a>,
    pub(crate) number: usize,
    pub(crate) record: &'a Record,
    pub(crate) target: &'a Target,
    pub(crate) random: Random,
}

/// The period of the first job. The nemesis finds some of its bodies at work.
const SHORT_PERIOD_MS: u64 = 2_000;
/// The period of the others. It is long enough for another attempt.
const LONG_PERIOD_MS: u64 = 60_000;
/// So many that some attempt dies in a run of a few minutes.
const LONG_JOBS: usize = 6;

/// The key of the occurrence of a job that is due, as docs/jobs.md tells: all clients name it by its fire time.
fn occurrence(name: &str, period_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("after 1970").as_millis();
    let now = u64::try_from(now).expect("this century");
    format!("{name}@{}", now - now % period_ms)
}

struct Gone;

impl Worker<'_> {
    /// Whether it only tries a lock of its own, so that the first success after a fault shows when the servers could be
    /// used again. The others may wait for a holder that is still at work.
    const fn probes(&self) -> bool {
        self.number == self.plan.args.clients
    }

    /// Runs processes until the run ends. Returns the last failure to start one.
    pub(crate) fn run(mut self, program: impl Fn() -> Program) -> Option<String> {
        let mut failure = None;
        while !self.record.has_ended() {
            match Client::start(&mut program(), self.target) {
                Ok(client) => self.serve(client),
                // The servers may be down, or the nemesis killed it.
                Err(error) => {
                    failure = Some(error.to_string());
                    self.record.sleep(AFTER_FAILURE);
                }
            }
        }
        failure
    }

    fn serve(&mut self, mut client: Client<'_>) {
        while !self.record.has_ended() {
            if self.round(&mut client).is_err() {
                return;
            }
            let pause = between(&mut self.random, Duration::ZERO, PAUSE);
            self.record.sleep(pause);
        }
        let left = |what| self.record.left(format!("client {}: {what}", self.number));
        if let Some(peak) = client.peak_memory().filter(|peak| *peak > MOST_MEMORY_KIB) {
            left(format!("the process used {peak} KiB"));
        }
        if !client.end() {
            left("the process stays".into());
        }
    }

    fn round(&mut self, client: &mut Client<'_>) -> Result<(), Gone> {
        let (key, mode) = self.choose();
        let lease = self.plan.lease();
        let wait = match self.random.usize(..5) {
            1.. if !self.probes() => between(&mut self.random, lease / 2, lease * 3),
            _ => Duration::ZERO,
        };
        let wait_ms = millis(wait);
        let command = Command::Acquire(Acquire {
            key: key.clone(),
            mode,
            lease_ms: millis(lease),
            wait_ms,
        });
        let acquire = Call::Acquire { mode, wait_ms };
        let begun = self.begin(self.record.next_hold(), &key, acquire);
        self.record.asks(&begun);
        let like = begun.clone();
        match self.ask(client, &command, begun)? {
            Answer::Held { .. } if self.probes() => self.release(client, &like),
            Answer::Held { token } => self.work(client, &like, mode, token),
            Answer::Error(_) => {
                self.record.sleep(AFTER_FAILURE);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn choose(&mut self) -> (String, Mode) {
        if self.probes() {
            return (PROBE.into(), Mode::Mutex);
        }
        let subject = self.plan.subject;
        let (all_modes, runs_jobs) = (subject.has_all_modes(), subject.runs_jobs());
        let (key, mode) = match self.random.usize(..10) {
            0 if all_modes => (READERS_AND_WRITERS, Mode::Write),
            1 | 2 if all_modes => (READERS_AND_WRITERS, Mode::Read),
            3 if all_modes => (PERMITS, Mode::Permit(SEATS)),
            0..3 if runs_jobs => {
                return (occurrence(MUTEXES[0], SHORT_PERIOD_MS), Mode::Mutex);
            }
            _ if runs_jobs => {
                let name = format!("{}-{}", MUTEXES[1], self.random.usize(..LONG_JOBS));
                return (occurrence(&name, LONG_PERIOD_MS), Mode::Mutex);
            }
            other => (MUTEXES[other % MUTEXES.len()], Mode::Mutex),
        };
        (key.into(), mode)
    }

    /// Counts under the lock, and releases it.
    fn work(
        &mut self,
        client: &mut Client<'_>,
        hold: &Operation,
        mode: Mode,
        token: Option<u64>,
    ) -> Result<(), Gone> {
        let writes = matches!(mode, Mode::Mutex | Mode::Write);
        let plain = self.record.plain(&hold.key);
        // The token is claimed before the first read. Otherwise an earlier holder could still write
        // between this read and the first write.
        let claimed = match token.filter(|_| writes) {
            Some(token) => self.pass(client, hold, Call::Claim { token })?,
            None => Answer::Refused,
        };
        let (mut valid, mut late) = (true, true);
        let work = self.time_of_work();
        let until = Instant::now() + work;
        while valid && Instant::now() < until && !self.record.has_ended() {
            // The question may be older than what has made its answer late.
            if !late {
                self.record.sleep((work / 8).max(Duration::from_millis(2)));
            }
            let asked = Instant::now();
            valid = self.check(client, hold)?;
            late = asked.elapsed() > LATE;
        }
        // Right before the writes, as docs/guarantees.md says.
        valid = valid && self.check(client, hold)?;
        if valid && writes {
            if let (Answer::Accepted { value: Some(value) }, Some(token)) = (claimed, token) {
                let value = value + 1;
                self.pass(client, hold, Call::Write { token, value })?;
            }
            self.pass(client, hold, Call::PlainWrite { value: plain + 1 })?;
        }
        // Also after a loss, and perhaps long after it: a late release must not touch the next holder.
        if !valid {
            let pause = between(&mut self.random, Duration::ZERO, self.plan.lease());
            self.record.sleep(pause);
        }
        self.release(client, hold)
    }

    fn release(&self, client: &mut Client<'_>, hold: &Operation) -> Result<(), Gone> {
        let begun = self.begin(hold.hold, &hold.key, Call::Release);
        self.ask(client, &Command::Release, begun).map(drop)
    }

    /// One holder in five needs renewals. The others are quick.
    fn time_of_work(&mut self) -> Duration {
        let lease = self.plan.lease();
        // Few occurrences of jobs are due, and the nemesis must find some that run.
        let long = if self.plan.subject.runs_jobs() {
            60
        } else {
            20
        };
        let (least, most) = match percent(&mut self.random, long) {
            true => (lease * 11 / 10, lease * 3),
            false => (Duration::ZERO, Duration::from_millis(20)),
        };
        between(&mut self.random, least, most)
    }

    fn check(&self, client: &mut Client<'_>, hold: &Operation) -> Result<bool, Gone> {
        let begun = self.begin(hold.hold, &hold.key, Call::Check);
        let answer = self.ask(client, &Command::Check, begun)?;
        Ok(matches!(answer, Answer::Held { .. }))
    }

    /// Does something to the register, once the process has passed it on.
    fn pass(&self, client: &mut Client<'_>, hold: &Operation, call: Call) -> Result<Answer, Gone> {
        let begun = self.begin(hold.hold, &hold.key, call);
        client.ask(&Command::Pass).map_err(|_| Gone)?;
        Ok(self.record.apply(begun))
    }

    fn begin(&self, hold: u64, key: &str, call: Call) -> Operation {
        Operation::begin(self.number, hold, key, call, self.record.now())
    }

    /// Asks the process, and records its answer.
    fn ask(
        &self,
        client: &mut Client<'_>,
        command: &Command,
        begun: Operation,
    ) -> Result<Answer, Gone> {
        let answer = Answer::from(client.ask(command));
        let gone = matches!(answer, Answer::Killed | Answer::Silence);
        self.record.operation(begun, answer.clone());
        if gone { Err(Gone) } else { Ok(answer) }
    }
}
