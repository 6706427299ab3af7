//! A machine: how it calls, and the body of its job, which fails, hangs or is poison.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{Error, FireTime, Job, JobOutcome, LockClient, Occurrence, Once};
use leasehold_sim::SimBackend;

use crate::log::{Call, Watch};
use crate::plan::{ATTEMPTS, Form, LEASE, OCCURRENCES, PERIOD, WINDOW, due};
use crate::work_until;

/// How long a body runs at most.
pub(crate) const LONGEST_BODY: Duration = Duration::from_secs(40);

pub(crate) type Outcome = Result<JobOutcome<(), &'static str>, Error>;

pub(crate) struct Machine {
    pub(crate) number: usize,
    pub(crate) backend: SimBackend,
    pub(crate) watch: Arc<Watch>,
    pub(crate) form: Form,
    /// The bodies of occurrences that are due then fail always.
    pub(crate) poison: Range<Duration>,
    /// When its loop of `every` ends.
    pub(crate) ends: Duration,
}

/// A body that runs. It ends at the latest when it is dropped.
struct Running<'a> {
    machine: &'a Machine,
    succeeds: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let Machine { number, watch, .. } = self.machine;
        watch.end(*number, self.succeeds);
    }
}

impl Machine {
    /// Dies at this time, if there is one.
    pub(crate) async fn run(self, dies: Option<Duration>) {
        let locks = LockClient::new(self.backend.clone());
        let job = locks.once("job").expect("valid");
        let job = job.attempts(ATTEMPTS).lease(LEASE);
        let work = async {
            match self.form {
                Form::At | Form::NotWithin => self.occurrences(&job).await,
                Form::Every => self.every(job).await,
            }
        };
        if work_until(&self.watch.sim, &self.backend, dies, work).await {
            self.watch.disturb();
        }
    }

    fn draw(&self, bound: u32) -> u32 {
        self.watch.sim.draw(bound)
    }

    async fn sleep_up_to(&self, millis: u32) {
        let time = Duration::from_millis(self.draw(millis).into());
        self.watch.sim.sleep(time).await;
    }

    async fn body(&self, job: Job) -> Result<(), &'static str> {
        let watch = &self.watch;
        let fire = job.fire_time();
        watch.start(self.number, job);
        let mut running = Running {
            machine: self,
            succeeds: false,
        };
        let time = Duration::from_millis(self.draw(10_000).into());
        for _ in 0..4 {
            watch.check_alone();
            watch.sim.sleep(time).await;
        }
        if self.poison.contains(&watch.due(fire)) || self.draw(4) == 0 {
            return Err("the body fails");
        }
        running.succeeds = true;
        Ok(())
    }

    async fn occurrences(&self, job: &Once) {
        for number in 0..OCCURRENCES {
            self.sleep_up_to(250_000).await;
            let (fire, occurrence) = match self.form {
                Form::NotWithin => (None, job.not_within(WINDOW)),
                Form::At | Form::Every => {
                    let fire = self.watch.fire(due(number));
                    (Some(fire), job.at(fire).start_before(PERIOD))
                }
            };
            match self.draw(8) {
                0..4 => {
                    let call = self.watch.call(self.number, fire);
                    let outcome = occurrence.run(|job| self.body(job)).await;
                    self.watch.judge(call, &outcome, true);
                }
                4..7 => self.try_until_final(fire, &occurrence).await,
                _ => self.drop_call(fire, &occurrence).await,
            }
        }
    }

    /// Calls `try_run` until it says something final, as a timer that fires often.
    async fn try_until_final(&self, fire: Option<FireTime>, occurrence: &Occurrence) {
        let first = self.watch.call(self.number, fire);
        self.watch.log().calls_now -= 1;
        while self.watch.sim.elapsed() < first.ends {
            let call = self.watch.call(self.number, fire);
            let outcome = occurrence.try_run(|job| self.body(job)).await;
            // It has asked since the first call.
            let asked = Call {
                began: first.began,
                fire: first.fire,
                ends: first.ends,
                ..call
            };
            self.watch.judge(asked, &outcome, false);
            match outcome {
                Ok(JobOutcome::Failed { retry_after, .. }) => {
                    self.watch.sim.sleep(retry_after).await;
                }
                Ok(JobOutcome::Running { .. }) | Err(_) => {
                    self.watch.sim.sleep(Duration::from_secs(1)).await;
                    self.sleep_up_to(4_000).await;
                }
                Ok(_) => return,
            }
        }
    }

    /// A call whose future is dropped, as at the end of a program. The attempt counts.
    async fn drop_call(&self, fire: Option<FireTime>, occurrence: &Occurrence) {
        let call = self.watch.call(self.number, fire);
        let time = Duration::from_millis(self.draw(100_000).into());
        let run = occurrence.run(|job| self.body(job));
        let outcome = self.watch.sim.timeout(time, run).await;
        match outcome {
            Some(outcome) => self.watch.judge(call, &outcome, true),
            None => {
                self.watch.log().calls_now -= 1;
                self.watch.disturb();
            }
        }
    }

    async fn every(&self, job: Once) {
        let watch = &self.watch;
        let loops = self.draw(2) == 0;
        let mut every = job.every(PERIOD);
        let endless = async {
            if loops {
                let Err(error) = every.run(|job| self.body(job)).await;
                watch.log().problem(format!("the loop ends: {error}"));
                return;
            }
            loop {
                let outcome = every.run_next(|job| self.body(job)).await;
                watch.judge_next(self.number, &outcome);
                if outcome.is_err() {
                    watch.sim.sleep(Duration::from_secs(20)).await;
                }
            }
        };
        let left = self.ends.saturating_sub(watch.sim.elapsed());
        watch.sim.timeout(left, endless).await;
    }
}
