//! What a client does: acquires locks, asks whether it still holds them, counts in the registers that
//! they protect, and releases.

use std::process::Command as Program;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::checker::{BESIDE, DOWNGRADE, DROPPED, REENTRY, SEVERAL};
use crate::client::{Client, Target};
use crate::history::{Answer, Call, Form, Operation};
use crate::protocol::{Acquire, Command, Mode};
use crate::random::{Random, between, percent};
use crate::record::Record;
use crate::run::{Plan, millis};
use crate::topology::Topology;

/// The keys, and how they are locked. Each client takes one after the other.
pub(crate) const MUTEXES: [&str; 2] = ["one", "two"];
/// All of them.
pub(crate) const KEYS: [&str; 4] = [MUTEXES[0], MUTEXES[1], READERS_AND_WRITERS, PERMITS];
const READERS_AND_WRITERS: &str = "book";
const PERMITS: &str = "seats";
const SEATS: u32 = 2;
/// The lock that only the probe takes. Each client has one of its own, with its number.
pub(crate) const PROBE: &str = "probe";

/// How long a client pauses between two locks.
const PAUSE: Duration = Duration::from_millis(20);
/// How long it pauses after the library failed.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// How many of a hundred locks of a client that does more are taken in other ways.
const MORE: usize = 30;
/// The longest time until the future of an acquire is dropped.
const DROPPED_WITHIN: Duration = Duration::from_millis(60);
/// The lease and the wait of one of the client's own lock, in leases: what it leaves lasts longer than the next one waits.
const DROPPED_LEASES: u32 = 5;
const DROPPED_IN_A_ROW: usize = 4;
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

/// A lock that the client has.
struct Taken {
    hold: u64,
    mode: Mode,
    keys: Vec<String>,
    /// That of the first key.
    token: Option<u64>,
}

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
        let more = self.plan.subject.more();
        if !self.probes() && !more.is_empty() && percent(&mut self.random, MORE) {
            let which = more[self.random.usize(..more.len())];
            return self.does_more(client, which);
        }
        let (key, mode) = self.choose();
        let wait = self.wait();
        match self.acquire(client, &[&key], mode, Form::Plain, wait)? {
            Some(taken) if self.probes() => self.release(client, &taken),
            Some(taken) => self.work(client, &taken),
            None => Ok(()),
        }
    }

    fn does_more(&mut self, client: &mut Client<'_>, which: &str) -> Result<(), Gone> {
        let either = [MUTEXES[self.random.usize(..MUTEXES.len())]];
        let takes: &[(&[&str], Form)] = match which {
            SEVERAL => &[(&MUTEXES, Form::Several)],
            // A quorum refuses longer leases.
            DROPPED if self.plan.args.on != Topology::Quorum && self.random.bool() => {
                return self.drops(client);
            }
            DROPPED => &[(&either, Form::Dropped)],
            // Always in this order, so two clients don't wait for each other.
            BESIDE => &[(&MUTEXES[..1], Form::Plain), (&MUTEXES[1..], Form::Beside)],
            REENTRY => &[(&either, Form::Reentrant), (&either, Form::Reentry)],
            DOWNGRADE => return self.converts(client, Mode::Write),
            _ => return self.converts(client, Mode::Read),
        };
        let mut all = Vec::new();
        for (keys, form) in takes {
            let wait = self.wait();
            match self.acquire(client, keys, Mode::Mutex, *form, wait)? {
                Some(taken) => all.push(taken),
                None => break,
            }
        }
        // Holds may be released in any order.
        self.random.shuffle(&mut all);
        let mut all = all.into_iter();
        all.try_for_each(|taken| self.work(client, &taken))
    }

    /// Drops acquires of the client's own lock, in the queue or while they are granted. Nobody is in the way of the next one.
    fn drops(&mut self, client: &mut Client<'_>) -> Result<(), Gone> {
        let (own, lease) = (format!("{PROBE}-{}", self.number), self.plan.lease());
        let (keys, mode, wait) = ([&*own], Mode::Mutex, lease * DROPPED_LEASES);
        for number in 0..DROPPED_IN_A_ROW {
            let mut taken = Vec::new();
            for form in &[Form::Plain, Form::Dropped][number % 2..] {
                taken.extend(self.acquire(client, &keys, mode, *form, wait)?);
            }
            for before in &taken {
                self.release(client, before)?;
            }
            let after = self.acquire(client, &keys, mode, Form::Plain, lease * 3)?;
            after.map_or(Ok(()), |after| self.release(client, &after))?;
        }
        Ok(())
    }

    /// Takes the lock in this mode, and converts it to the other one and back.
    fn converts(&mut self, client: &mut Client<'_>, mode: Mode) -> Result<(), Gone> {
        let keys = [READERS_AND_WRITERS];
        let wait = self.wait();
        let Some(mut taken) = self.acquire(client, &keys, mode, Form::Plain, wait)? else {
            return Ok(());
        };
        for _ in 0..2 {
            let pause = between(&mut self.random, Duration::ZERO, PAUSE);
            self.record.sleep(pause);
            self.check(client, &taken)?;
            let to = match taken.mode {
                Mode::Write => Mode::Read,
                _ => Mode::Write,
            };
            let hold = self.name(taken.hold);
            let begun = self.begin(taken.hold, keys[0], Call::Convert { to });
            match self.ask(client, &Command::Convert { hold, to }, begun)? {
                Answer::Held { token } => (taken.mode, taken.token) = (to, token),
                Answer::Free => {}
                // The hold is released.
                _ => return Ok(()),
            }
        }
        self.work(client, &taken)
    }

    /// How long to wait for a lock. Zero tries once.
    fn wait(&mut self) -> Duration {
        let lease = self.plan.lease();
        match self.random.usize(..5) {
            1.. if !self.probes() => between(&mut self.random, lease / 2, lease * 3),
            _ => Duration::ZERO,
        }
    }

    /// What the process calls a hold. One that has one at most needs no name.
    fn name(&self, hold: u64) -> Option<u64> {
        (!self.plan.subject.more().is_empty()).then_some(hold)
    }

    fn acquire(
        &mut self,
        client: &mut Client<'_>,
        keys: &[&str],
        mode: Mode,
        form: Form,
        wait: Duration,
    ) -> Result<Option<Taken>, Gone> {
        let (wait_ms, hold) = (millis(wait), self.record.next_hold());
        let drops = form == Form::Dropped;
        let is_own = drops && keys[0].starts_with(PROBE);
        let leases = if is_own { DROPPED_LEASES } else { 1 };
        // Mostly soon, while a request is under way.
        let dropped = DROPPED_WITHIN.mul_f64(self.random.f64().powi(3));
        let command = Command::Acquire(Acquire {
            key: keys[0].into(),
            mode,
            lease_ms: millis(self.plan.lease() * leases),
            wait_ms,
            hold: self.name(hold),
            also: keys[1..].iter().copied().map(Into::into).collect(),
            reentrant: form.is_reentrant(),
            drop_ms: drops.then(|| millis(dropped)),
        });
        let call = Call::Acquire {
            mode,
            wait_ms,
            form,
        };
        let begun: Vec<_> = keys.iter().map(|key| self.begin(hold, key, call)).collect();
        begun.iter().for_each(|it| self.record.asks(it));
        let answer = Answer::from(client.ask(&command));
        for (number, it) in begun.into_iter().enumerate() {
            let answer = match answer {
                Answer::Held { .. } if number > 0 => Answer::Held { token: None },
                ref other => other.clone(),
            };
            self.record.operation(it, answer);
        }
        match answer {
            Answer::Killed | Answer::Silence => Err(Gone),
            Answer::Held { token } => {
                let keys = keys.iter().map(|key| (*key).into()).collect();
                Ok(Some(Taken {
                    hold,
                    mode,
                    keys,
                    token,
                }))
            }
            Answer::Error(_) => {
                self.record.sleep(AFTER_FAILURE);
                Ok(None)
            }
            _ => Ok(None),
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
    fn work(&mut self, client: &mut Client<'_>, taken: &Taken) -> Result<(), Gone> {
        let writes = matches!(taken.mode, Mode::Mutex | Mode::Write);
        // The token is claimed before the first read. Otherwise an earlier holder could still write
        // between this read and the first write.
        let token = taken.token.filter(|_| writes);
        let plain = taken.keys.iter().map(|key| self.record.plain(key));
        let plain: Vec<u64> = plain.collect();
        let claimed = match token {
            Some(token) => self.pass(client, taken, 0, Call::Claim { token })?,
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
            valid = self.check(client, taken)?;
            late = asked.elapsed() > LATE;
        }
        // Right before the writes, as docs/guarantees.md says.
        valid = valid && self.check(client, taken)?;
        if valid && writes {
            if let (Answer::Accepted { value: Some(value) }, Some(token)) = (claimed, token) {
                let value = value + 1;
                self.pass(client, taken, 0, Call::Write { token, value })?;
            }
            for (key, plain) in plain.into_iter().enumerate() {
                self.pass(client, taken, key, Call::PlainWrite { value: plain + 1 })?;
            }
        }
        // Also after a loss, and perhaps long after it: a late release must not touch the next holder.
        if !valid {
            let pause = between(&mut self.random, Duration::ZERO, self.plan.lease());
            self.record.sleep(pause);
        }
        self.release(client, taken)
    }

    fn release(&self, client: &mut Client<'_>, taken: &Taken) -> Result<(), Gone> {
        let begun = self.begin(taken.hold, &taken.keys[0], Call::Release);
        let hold = self.name(taken.hold);
        self.ask(client, &Command::Release { hold }, begun)
            .map(drop)
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

    fn check(&self, client: &mut Client<'_>, taken: &Taken) -> Result<bool, Gone> {
        let begun = self.begin(taken.hold, &taken.keys[0], Call::Check);
        let hold = self.name(taken.hold);
        let answer = self.ask(client, &Command::Check { hold }, begun)?;
        Ok(matches!(answer, Answer::Held { .. }))
    }

    /// Does something to the register of a key, once the process has passed it on.
    fn pass(
        &self,
        client: &mut Client<'_>,
        taken: &Taken,
        key: usize,
        call: Call,
    ) -> Result<Answer, Gone> {
        let begun = self.begin(taken.hold, &taken.keys[key], call);
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
