//! Many runs of a scenario, each with choices of its own, until one fails.

mod failure;
mod fault_mix;
mod quiet;
pub(crate) mod shrink;

use std::fmt::Display;
use std::future::Future;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::Map;

use crate::driver::tasks::message;
use crate::engine::choices::Scheduling;
use crate::engine::tape::{Site, Tape};
use crate::explore::shrink::{SHRINK_RUNS, StepsAllowed, shrink};
use crate::handle::SimServer;
use crate::handle::environment::{self, Wish};
use crate::network::options::{Latency, SimOptions};
use crate::simulation::{Ending, RunReport, Simulation, parting};

pub use failure::Failure;
pub use fault_mix::FaultMix;

/// Runs a scenario many times, each time with other latencies, another order of what happens at
/// the same instant, another order of tasks, and other [`FaultMix`]; looks for a run that fails.
///
/// The scenario makes clients of the [`SimServer`] that it is given, lets code under test work
/// with them, and checks what it promises. A run fails if the scenario or a task of it panics (an
/// `assert!` of yours), if it returns an error, if nothing can go on, or if it takes too long.
///
/// A failing run is made as simple as possible and printed: what failed, the timeline, and the line
/// that repeats it. See the page `docs/simulation.md` of the repository.
///
/// **Nothing in the scenario may need a tokio runtime**: see [`Simulation`].
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// use leasehold_api::LockClient;
/// use leasehold_sim::{Exploration, SimServer};
///
/// async fn two_workers(sim: SimServer) {
///     let inside = Arc::new(AtomicU32::new(0));
///     let workers = ["a", "b"].map(|name| {
///         let locks = LockClient::new(sim.client(name));
///         let (sim_of_worker, inside) = (sim.clone(), Arc::clone(&inside));
///         sim.spawn(async move {
///             let guard = locks.mutex("job").unwrap().lock().await.unwrap();
///             assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two at once");
///             sim_of_worker.yield_now().await;
///             inside.fetch_sub(1, Ordering::Relaxed);
///             guard.release().await.unwrap();
///         })
///     });
///     for worker in workers {
///         worker.await;
///     }
/// }
///
/// Exploration::new().with_seeds(0..200).check(two_workers);
/// ```
///
/// # Environment
/// - `LEASEHOLD_SIM_REPLAY`: a tape; only the run that it says is made.
/// - `LEASEHOLD_SIM_SEED`: a number; only this seed is run.
/// - `LEASEHOLD_SIM_PAGES`: the folder for pages of failed runs, `leasehold-sim` in the folder for
///   temporary files if it is not set.
#[derive(Clone, Debug)]
pub struct Exploration {
    seeds: Range<u64>,
    scheduling: Scheduling,
    latency: Latency,
    atomic_calls: bool,
    fault_mix: FaultMix,
    time_limit: Duration,
    step_limit: u64,
    run_limit: u64,
    shrink_runs: u32,
}

/// What [`Exploration::check_all`] varies. Not the order of tasks: in which order messages of no
/// latency arrive is drawn anyway.
const EVERY: [Site; 3] = [Site::Order, Site::ReplyFirst, Site::User];

type Judged<F> = Map<F, fn(<F as Future>::Output) -> Option<String>>;

impl Default for Exploration {
    fn default() -> Self {
        Self::new()
    }
}

impl Exploration {
    /// 1,000 seeds from 0 under [`Scheduling::Random`], latencies of 0 to 3 ms, no faults; at most
    /// an hour of virtual time and a million steps for each run.
    pub fn new() -> Self {
        Self {
            seeds: 0..1_000,
            scheduling: Scheduling::Random,
            latency: Latency::between(Duration::ZERO, Duration::from_millis(3)),
            atomic_calls: false,
            fault_mix: FaultMix::none(),
            time_limit: Duration::from_secs(3_600),
            step_limit: 1_000_000,
            run_limit: 100_000,
            shrink_runs: SHRINK_RUNS,
        }
    }

    /// The same with other seeds.
    ///
    /// # Panics
    /// If the range is empty: a check that runs nothing passes whatever the code does.
    #[must_use]
    #[track_caller]
    pub const fn with_seeds(mut self, seeds: Range<u64>) -> Self {
        assert!(
            seeds.start < seeds.end,
            "no seed is in this range, so nothing would run"
        );
        self.seeds = seeds;
        self
    }

    /// The same with choices made in another way.
    #[must_use]
    pub fn with_scheduling(mut self, scheduling: Scheduling) -> Self {
        self.scheduling = scheduling;
        self
    }

    /// The same with another latency of all messages.
    #[must_use]
    pub const fn with_latency(mut self, latency: Latency) -> Self {
        self.latency = latency;
        self
    }

    /// The same with calls that take no time and are one event each, whatever the latency
    /// ([`SimOptions::with_atomic_calls`]). What can happen between a request and its reply is then
    /// not explored, and a small scope has far fewer orders.
    #[must_use]
    pub const fn with_atomic_calls(mut self, atomic: bool) -> Self {
        self.atomic_calls = atomic;
        self
    }

    /// The same with things that go wrong.
    #[must_use]
    pub const fn with_fault_mix(mut self, fault_mix: FaultMix) -> Self {
        self.fault_mix = fault_mix;
        self
    }

    /// The same with another limit to the virtual time of a run.
    #[must_use]
    pub const fn with_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// The same with another limit to the steps of a run.
    #[must_use]
    pub const fn with_step_limit(mut self, steps: u64) -> Self {
        self.step_limit = steps;
        self
    }

    /// The same with another limit to the runs of [`check_all`](Self::check_all); 100,000 if
    /// nothing is said, which takes a minute or two in a debug build.
    #[must_use]
    pub const fn with_run_limit(mut self, runs: u64) -> Self {
        self.run_limit = runs;
        self
    }

    /// The same with another limit to the runs that make a failing one simpler; 0 leaves it as it
    /// was found.
    #[must_use]
    pub const fn with_shrink_runs(mut self, runs: u32) -> Self {
        self.shrink_runs = runs;
        self
    }

    /// Runs the scenario with each seed.
    ///
    /// # Panics
    /// At the first run that fails, with all that [`Failure`] prints; and if the first seed, run
    /// twice, is not the same run.
    #[track_caller]
    pub fn check<F, S>(&self, scenario: S)
    where
        S: Fn(SimServer) -> F,
        F: Future<Output: Verdict>,
    {
        if let Some(failure) = self.find(scenario) {
            failure.panic();
        }
    }

    /// Runs the scenario with each seed, until a run fails.
    ///
    /// # Panics
    /// If the environment asks for a seed or a tape that is none.
    #[track_caller]
    pub fn find<F, S>(&self, scenario: S) -> Option<Failure>
    where
        S: Fn(SimServer) -> F,
        F: Future<Output: Verdict>,
    {
        let seeds = match environment::wish() {
            Wish::Nothing => self.seeds.start..=self.seeds.end - 1,
            Wish::Seed(seed) => seed..=seed,
            Wish::Replay(tape) => return self.replay(tape, &scenario),
        };
        if let Some(failure) = self.determinism_check(*seeds.start(), &scenario) {
            return Some(failure);
        }
        (1..).zip(seeds).find_map(|(runs, seed)| {
            let unlogged = self.options(seed).with_log_limit(0);
            let quick = unlogged.with_recording(false);
            let failed = self.run(quick, self.scheduling.clone(), &scenario).1?;
            // The same once more, with its tape.
            let (report, reason) = self.run(unlogged, self.scheduling.clone(), &scenario);
            Some(match reason {
                Some(reason) => self.simplest(runs, report, &reason, &scenario),
                None => self.unrepeated(runs, seed, &failed, &scenario),
            })
        })
    }

    /// Runs the scenario in every order in which messages can arrive and timers run out, with every
    /// answer of [`SimServer::draw`]; all with the first of the seeds, and with a latency of
    /// [`ZERO`](Latency::ZERO). In which order tasks run that could at the same instant is not
    /// varied: explore seeds for tasks that share memory.
    ///
    /// Only for a small scope. Two clients that try a lock once are some hundred runs, and two that
    /// wait for it several 100,000; with [atomic calls](Self::with_atomic_calls) they are 14, and
    /// 2,500.
    ///
    /// Returns how many runs that were.
    ///
    /// # Panics
    /// At the first run that fails; if the first run, made twice, is not the same; if there are more
    /// runs than the [limit](Self::with_run_limit).
    #[track_caller]
    pub fn check_all<F, S>(&self, scenario: S) -> u64
    where
        S: Fn(SimServer) -> F,
        F: Future<Output: Verdict>,
    {
        let scope = self.clone().with_latency(Latency::ZERO);
        if let Wish::Replay(tape) = environment::wish() {
            if let Some(failure) = scope.replay(tape, &scenario) {
                failure.panic();
            }
            return 1;
        }
        if let Some(failure) = scope.determinism_check(scope.seeds.start, &scenario) {
            failure.panic();
        }
        let limit = self.run_limit;
        let (mut runs, mut failed) = (0, None);
        let options = scope.options(self.seeds.start).with_log_limit(0);
        let each = |report: &_| {
            runs += 1;
            failed = scope
                .why_in_scope(report)
                .map(|reason| (report.tape.clone(), reason));
            match failed.is_some() || runs > limit {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let all = scope.simulation(options);
        quietly(|| all.run_all(&EVERY, scope.troubled(&scenario), each))
            .unwrap_or_else(|reason| left_over(options.seed, &reason));
        if let Some((tape, reason)) = failed {
            // The same once more, for what it took.
            let (found, _) = scope.run(options, Scheduling::Replay(tape), &scenario);
            scope.simplest(runs, found, &reason, &scenario).panic();
        }
        assert!(
            runs <= limit,
            "the scope has more than {limit} runs: make it smaller (fewer clients, fewer calls, `try_…`), \
             make its calls atomic, raise `with_run_limit`, or explore seeds"
        );
        runs
    }

    fn options(&self, seed: u64) -> SimOptions {
        SimOptions::new(seed)
            .with_latency(self.latency)
            .with_atomic_calls(self.atomic_calls)
    }

    /// One run, and why it failed, if it did.
    fn run<F, S>(
        &self,
        options: SimOptions,
        scheduling: Scheduling,
        scenario: &S,
    ) -> (RunReport<()>, Option<String>)
    where
        S: Fn(SimServer) -> F,
        F: Future<Output: Verdict>,
    {
        self.try_run(options, scheduling, scenario)
            .unwrap_or_else(|reason| left_over(options.seed, &reason))
    }

    /// The same; an error if what it left panicked when it was dropped.
    fn try_run<F, S>(
        &self,
        options: SimOptions,
        scheduling: Scheduling,
        scenario: &S,
    ) -> Result<(RunReport<()>, Option<String>), String>
    where
        S: Fn(SimServer) -> F,
        F: Future<Output: Verdict>,
    {
        let simulation = self.simulation(options).with_scheduling(scheduling);
        let scenario = self.troubled(scenario);
        quietly(|| {
            let report = simulation.run(scenario);
            let reason = self.reason(&report);
            (report.without_output(), reason)
        })
    }

    const fn simulation(&self, options: SimOptions) -> Simulation {
        Simulation::new(options)
            .with_time_limit(self.time_limit)
            .with_step_limit(self.step_limit)
    }

    /// The scenario, with what goes wrong by itself, and what it says is wrong.
    fn troubled<F, S>(&self, scenario: &S) -> impl Fn(SimServer) -> Judged<F>
    where
        S: Fn(SimServer) -> F,
        F: Future<Output: Verdict>,
    {
        let fault_mix = self.fault_mix;
        move |sim| {
            fault_mix.begin(&sim);
            scenario(sim).map(Verdict::failure as fn(F::Output) -> Option<String>)
        }
    }

    /// Why a run failed, if it did.
    fn reason(&self, report: &RunReport<Option<String>>) -> Option<String> {
        let (limit, steps) = (self.time_limit, self.step_limit);
        match &report.ending {
            Ending::Completed(reason) => reason.clone(),
            Ending::Stopped => None,
            Ending::Deadlock => Some(STUCK.to_owned()),
            Ending::TimeLimit => Some(format!("not done after {limit:?} of virtual time")),
            Ending::StepLimit => Some(format!("not done after {steps} steps")),
            Ending::Panicked(message) => Some(panicked(message)),
            Ending::Diverged(divergence) => Some(divergence.to_string()),
        }
    }

    /// Why a run of a small scope failed: each follows what an earlier one has drawn.
    fn why_in_scope(&self, report: &RunReport<Option<String>>) -> Option<String> {
        let reason = self.reason(report)?;
        Some(match report.ending {
            Ending::Diverged(_) => format!(
                "two runs with the same choices differ: the scenario does something that they do not \
                 decide\n{reason}"
            ),
            _ => reason,
        })
    }

    /// Runs one seed twice: a difference comes from the scenario.
    fn determinism_check<F, S>(&self, seed: u64, scenario: &S) -> Option<Failure>
    where
        S: Fn(SimServer) -> F,
        F: Future<Output: Verdict>,
    {
        let (first, reason) = self.run(self.options(seed), self.scheduling.clone(), scenario);
        let (second, again) = self.run(self.options(seed), self.scheduling.clone(), scenario);
        // The hash says when things happened, the log says what did.
        if first.trace == second.trace && reason == again && first.log().eq(second.log()) {
            return None;
        }
        let texts = (first.timeline(), second.timeline());
        let came_of = |reason: Option<String>| reason.unwrap_or_else(|| "it passes".to_owned());
        let (a, b) = match parting(&texts.0, &texts.1) {
            Some((a, b)) => (a.to_owned(), b.to_owned()),
            None if reason != again => (came_of(reason), came_of(again)),
            None => ("the same events".into(), "they, chosen otherwise".into()),
        };
        let reason = format!(
            "two runs of one seed differ: the scenario does something that the seed does not decide \
             (select! without biased, the order of a HashMap, a real clock, a thread)\n  first: {a}\n  then:  {b}"
        );
        Some(Failure::new(1, seed, reason, &second, None))
    }

    /// A run that failed, and did not when it was run again: that is a failure too.
    fn unrepeated<F, S>(&self, runs: u64, seed: u64, reason: &str, scenario: &S) -> Failure
    where
        S: Fn(SimServer) -> F,
        F: Future<Output: Verdict>,
    {
        let (report, _) = self.run(self.options(seed), self.scheduling.clone(), scenario);
        let reason = format!(
            "{reason}\n(but not when it was repeated: the scenario does something that the seed does \
             not decide; below is what happened when it was repeated)"
        );
        Failure::new(runs, seed, reason, &report, None)
    }

    fn replay<F, S>(&self, tape: Tape, scenario: &S) -> Option<Failure>
    where
        S: Fn(SimServer) -> F,
        F: Future<Output: Verdict>,
    {
        let (seed, wanted) = (tape.seed, tape.clone());
        let (report, reason) = self.run(self.options(seed), Scheduling::Replay(tape), scenario);
        let mut reason = reason?;
        if let Ending::Diverged(_) = report.ending {
            reason.push_str(
                "\n(the code, or leasehold, is another than that which recorded the tape: explore anew)",
            );
        }
        Some(Failure::new(1, seed, reason, &report, None).of_tape(wanted))
    }

    /// The simplest run that fails as this one did.
    fn simplest<F, S>(&self, runs: u64, found: RunReport<()>, reason: &str, scenario: &S) -> Failure
    where
        S: Fn(SimServer) -> F,
        F: Future<Output: Verdict>,
    {
        let wanted = sort(reason);
        let mut allowed = StepsAllowed::of(&found, self.step_limit);
        let tape = found.tape;
        let (seed, draws) = (tape.seed, tape.draws.len());
        let fails = |tape| {
            let options = self.options(seed).with_log_limit(0);
            let limited = self.clone().with_step_limit(allowed.steps());
            let run = limited.try_run(options, Scheduling::Guided(tape), scenario);
            let (report, reason) = run.ok()?;
            let same = reason.is_some_and(|reason| sort(&reason) == wanted);
            (same && allowed.suffice(&report)).then_some(report.tape)
        };
        let (tape, tried) = match self.shrink_runs {
            0 => (tape, 0),
            most => {
                let shrunk = shrink(tape, most, fails);
                (shrunk.tape, shrunk.runs)
            }
        };
        let options = self.options(seed);
        let (report, shown) = self.run(options, Scheduling::Replay(tape), scenario);
        let reason = shown.unwrap_or_else(|| format!("{reason}\n(but not when it was repeated)"));
        Failure::new(runs, seed, reason, &report, Some((draws, tried)))
    }
}

/// Runs a simulation whose panics are not printed; an error if it panicked by itself.
fn quietly<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let _quiet = quiet::panics();
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| panicked(&message(&panic)))
}

fn left_over(seed: u64, reason: &str) -> ! {
    panic!(
        "with seed {seed}, what was left at the end of the run panicked when it was dropped:\n{reason}"
    )
}

const STUCK: &str = "nothing can go on: every task waits for another, or for what is no part of \
    the simulation (a timer of tokio, a thread, a socket)";

/// What a panic said, where it was, and what to do if it is one of the usual.
fn panicked(message: &str) -> String {
    let mut reason = message.to_owned();
    if message.contains("Tokio 1.x runtime") {
        reason.push_str(
            "\n(a scenario has no tokio runtime: sleep with `sim.sleep` or the `Runtime` of a client, \
             start tasks with `sim.spawn`)",
        );
    }
    if let Some(location) = quiet::last_location() {
        reason.push_str(PANICKED_AT);
        reason.push_str(&location);
    }
    reason
}

const PANICKED_AT: &str = "\npanicked at ";

/// What sort of failure it is: the words without the numbers, which differ from run to run, and the
/// location of a panic.
fn sort(reason: &str) -> (String, Option<&str>) {
    let line = reason.lines().next().unwrap_or_default();
    let words = line.chars().filter(|c| !c.is_ascii_digit()).collect();
    let location = reason
        .rsplit_once(PANICKED_AT)
        .map(|(_, location)| location);
    (words, location)
}

/// What a scenario may return: nothing, or a result.
#[diagnostic::on_unimplemented(
    message = "a scenario returns `()`, or `Result<(), E>` with an error that can be displayed",
    label = "the future of this scenario has the output `{Self}`"
)]
pub trait Verdict {
    /// What is wrong, if anything is.
    fn failure(self) -> Option<String>;
}

impl Verdict for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: Display> Verdict for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| error.to_string())
    }
}
