//! Machines that run the same occurrences of a job, with bodies that fail, hang and poison.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_api::{Error, FireTime, Job, JobOutcome, LockClient, ServerTime};
use leasehold_sim::{Data, SimBackend, SimServer};

/// From one occurrence to the next, and the window to start one.
const PERIOD: Duration = Duration::from_secs(200);
const OCCURRENCES: u64 = 3;
const ATTEMPTS: u32 = 3;

/// Whether the assumptions hold. Outside, the server loses data, and its clock is stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    Within,
    Outside,
}

/// What all machines together have done.
#[derive(Debug, Default)]
struct Log {
    /// The bodies that run, by machine.
    running: BTreeMap<usize, Job>,
    starts: BTreeMap<FireTime, u32>,
    /// The latest occurrence whose body has succeeded.
    succeeded: Option<FireTime>,
    /// The latest occurrence that was recorded as done.
    done: Option<FireTime>,
    problems: Vec<String>,
}

type Shared = Arc<Mutex<Log>>;

fn log(shared: &Shared) -> MutexGuard<'_, Log> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Machine {
    number: usize,
    backend: SimBackend,
    sim: SimServer,
    shared: Shared,
    model: Model,
    poison: FireTime,
}

/// Counts a body as running until it is dropped.
struct Running<'a>(&'a Machine);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let job = log(&self.0.shared).running.remove(&self.0.number);
        drop(job);
    }
}

impl Machine {
    async fn body(&self, job: Job) -> Result<(), &'static str> {
        let fire = job.fire_time();
        let body = {
            let mut log = log(&self.shared);
            let starts = log.starts.entry(fire).or_default();
            *starts += 1;
            let starts = *starts;
            if self.model == Model::Within {
                // A machine that is paused hasn't dropped a body that it has lost, and runs none of it.
                if starts > ATTEMPTS {
                    log.problems.push(format!("attempt {starts} at {fire}"));
                }
                if log.done >= Some(fire) {
                    log.problems
                        .push(format!("{fire} runs again after it was done"));
                }
            }
            log.running.insert(self.number, job);
            Running(self)
        };
        let time = Duration::from_millis(self.sim.draw(10_000).into());
        for _ in 0..4 {
            self.check_alone();
            self.sim.sleep(time).await;
        }
        drop(body);
        if fire == self.poison || self.sim.draw(4) == 0 {
            return Err("the body fails");
        }
        let mut log = log(&self.shared);
        log.succeeded = log.succeeded.max(Some(fire));
        Ok(())
    }

    /// At most one body runs while its lock is valid. Others may run that haven't noticed their loss yet.
    fn check_alone(&self) {
        let mut log = log(&self.shared);
        let valid = log.running.values().filter(|job| job.guard().is_valid());
        let fires: Vec<_> = valid.map(Job::fire_time).collect();
        if self.model == Model::Within && fires.len() > 1 {
            log.problems.push(format!("{fires:?} run at once"));
        }
    }

    async fn occurrence(&self, locks: &LockClient, fire: FireTime) {
        let late = Duration::from_millis(self.sim.draw(250_000).into());
        self.sim.sleep(late).await;
        let job = locks.once("job").expect("valid").attempts(ATTEMPTS);
        let job = job
            .lease(Duration::from_secs(6))
            .at(fire)
            .start_before(PERIOD);
        let outcome = job.run(|job| self.body(job)).await;
        self.judge(fire, outcome);
    }

    fn judge(&self, fire: FireTime, outcome: Result<JobOutcome<(), &'static str>, Error>) {
        let now = self.sim.server_time();
        let mut log = log(&self.shared);
        let within = self.model == Model::Within;
        match outcome {
            Ok(JobOutcome::Done(())) => {
                if within && log.done >= Some(fire) {
                    log.problems.push(format!("{fire} was done twice"));
                }
                log.done = log.done.max(Some(fire));
            }
            Ok(JobOutcome::AlreadyDone { fire: done }) => {
                if done < fire || log.succeeded < Some(fire) {
                    let text = format!("{fire} counts as done, but no body has succeeded");
                    log.problems.push(text);
                }
                let ahead = ahead(done, now);
                // The clock may be stepped once more between the answer and this check.
                if ahead > PERIOD + 2 * STEP {
                    let text = format!("{done}, which is {ahead:?} ahead, silences {fire}");
                    log.problems.push(text);
                }
            }
            Ok(JobOutcome::GaveUp { attempts, .. }) => {
                let starts = log.starts.get(&fire).copied().unwrap_or_default();
                if attempts < ATTEMPTS || within && starts > ATTEMPTS {
                    log.problems
                        .push(format!("{fire} gave up after {starts} starts"));
                }
            }
            Ok(JobOutcome::Missed { .. }) => {
                let window =
                    now.as_micros() / 1_000 >= fire.as_millis() + PERIOD.as_millis() as u64;
                let later = log.starts.keys().next_back() > Some(&fire);
                if within && !window && !later {
                    log.problems.push(format!("{fire} was missed too early"));
                }
            }
            Ok(JobOutcome::RanUnrecorded(())) | Err(Error::FireTimeAhead { .. }) => {}
            Ok(other) => log.problems.push(format!("{fire}: {other:?}")),
            Err(error) if within || !error.is_transient() => {
                log.problems.push(format!("{fire}: {error}"));
            }
            Err(_) => {}
        }
    }

    async fn run(self, fires: Vec<FireTime>) {
        let locks = LockClient::new(self.backend.clone());
        let backend = self.backend.clone();
        let all = async {
            for fire in fires {
                self.occurrence(&locks, fire).await;
            }
        };
        backend.run(all).await;
    }
}

/// How far this occurrence is ahead of the server's clock.
fn ahead(done: FireTime, now: ServerTime) -> Duration {
    Duration::from_millis(done.as_millis().saturating_sub(now.as_micros() / 1_000))
}

/// By how much the clock is stepped.
const STEP: Duration = Duration::from_secs(50_000);

/// Loses data, or steps the clock forward and back again.
async fn break_assumptions(sim: SimServer) {
    for _ in 0..sim.draw(3) {
        sim.sleep(Duration::from_millis(sim.draw(200_000).into()))
            .await;
        if sim.draw(2) == 0 {
            sim.restart(Data::Lost);
        } else {
            sim.step_clock_forward(STEP);
            sim.sleep(Duration::from_millis(sim.draw(200_000).into()))
                .await;
            sim.step_clock_back(STEP);
        }
    }
}

pub(crate) async fn scenario(sim: SimServer, model: Model) -> Result<(), String> {
    let shared = Shared::default();
    let first = sim.server_time().as_micros() / 1_000 + 1_000;
    let period = PERIOD.as_millis() as u64;
    let fires: Vec<_> = (0..OCCURRENCES)
        .map(|n| FireTime::from_millis(first + n * period))
        .collect();
    let poison = fires[sim.draw(OCCURRENCES as u32) as usize];
    let machines: Vec<_> = ["ann", "bob", "eve"].into_iter().enumerate().collect();
    let tasks: Vec<_> = machines
        .into_iter()
        .map(|(number, name)| {
            let machine = Machine {
                number,
                backend: sim.client(name),
                sim: sim.clone(),
                shared: Arc::clone(&shared),
                model,
                poison,
            };
            sim.spawn(machine.run(fires.clone()))
        })
        .collect();
    if model == Model::Outside {
        // Nobody else steps the clock meanwhile.
        if sim.draw(2) == 0 {
            sim.step_clock_forward(STEP);
            silenced(&sim, &shared).await;
        }
        drop(sim.spawn(break_assumptions(sim.clone())));
    }
    for task in tasks {
        task.await;
    }
    let log = log(&shared);
    match log.problems.first() {
        Some(problem) => Err(problem.clone()),
        None => Ok(()),
    }
}

/// A job is done while the clock is ahead. Then the clock is right again: the job must not be silent.
async fn silenced(sim: &SimServer, shared: &Shared) {
    let locks = LockClient::new(sim.client("admin"));
    let at = |sim: &SimServer| FireTime::from_millis(sim.server_time().as_micros() / 1_000);
    let run = async |fire| {
        let job = locks
            .once("other")
            .expect("valid")
            .at(fire)
            .start_before(PERIOD);
        job.run(async |_job| Ok::<_, &str>(())).await
    };
    let first = run(at(sim)).await;
    sim.step_clock_back(STEP);
    let second = run(at(sim)).await;
    // The admin may have been paused until that time had come.
    if matches!(first, Ok(JobOutcome::Done(())))
        && matches!(second, Ok(JobOutcome::AlreadyDone { fire }) if ahead(fire, sim.server_time()) > PERIOD)
    {
        let text = format!("a done of another time silences the job: {second:?}");
        log(shared).problems.push(text);
    }
}
