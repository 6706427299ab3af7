//! Many runs of a scenario, each with other choices, until one fails.

mod cores;
mod explored;
mod failed_run;
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
use crate::explore::shrink::{SHRINK_RUNS, Shrunk, StepsAllowed, shrink};
use crate::handle::SimServer;
use crate::handle::environment::{self, RequestedRun};
use crate::network::options::{Latency, SimOptions};
use crate::network::tally::Counts;
use crate::simulation::{Ending, RunReport, Simulation, first_difference};

pub use explored::Explored;
pub use failed_run::FailedRun;
pub use fault_mix::FaultMix;

/// Runs a scenario many times and looks for a run that fails.
///
/// Each run has other latencies, another order of simultaneous events, another order of tasks, and
/// other faults ([`FaultMix`]). A scenario is a function from a [`SimServer`] to a future. It
/// creates clients, runs the code under test with them, and asserts what must be true. A run fails
/// if:
///
/// - the scenario or one of its tasks panics;
/// - the scenario returns an error;
/// - every task waits and no event is left;
/// - the run exceeds the [time limit](Self::time_limit) or the
///   [step limit](Self::step_limit).
///
/// The exploration simplifies the failing run and reports it as a [`FailedRun`]: the reason, the
/// timeline, and the command that repeats it. The page `docs/simulation.md` of the repository says
/// more.
///
/// **Nothing in the scenario may need a tokio runtime**: see [`Simulation`].
///
/// # Examples
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
/// Exploration::new().seeds(0..200).check(two_workers);
/// ```
///
/// # Environment
/// - `LEASEHOLD_SIM_REPLAY`: a [`Tape`]. Only its run is made.
/// - `LEASEHOLD_SIM_SEED`: a number. Only this seed is run.
/// - `LEASEHOLD_SEEDS`: the number of seeds, instead of that of [`seeds`](Self::seeds).
/// - `LEASEHOLD_SIM_PAGES`: the folder for pages of failed runs. The default is `leasehold-sim` in
///   the folder for temporary files.
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
    time_budget: Option<Duration>,
}

/// The sites that [`Exploration::check_all`] varies. The order of tasks isn't among them, because
/// the order in which their messages arrive is.
const ALL_SITES: [Site; 3] = [Site::Order, Site::ReplyFirst, Site::User];

/// The report of a run, whose output says why the scenario failed, if it did.
type Report = RunReport<Option<String>>;

type WithVerdict<F> = Map<F, fn(<F as Future>::Output) -> Option<String>>;

impl Default for Exploration {
    fn default() -> Self {
        Self::new()
    }
}

impl Exploration {
    /// Creates an exploration of the seeds 0 to 999, with [`Scheduling::Random`], latencies of 0 to
    /// 3 ms and no faults. A run may take an hour of virtual time and a million steps.
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
            time_budget: None,
        }
    }

    /// Sets the seeds. Each seed is a run.
    ///
    /// # Panics
    /// Panics if the range is empty, because a check without runs always passes.
    #[must_use]
    #[track_caller]
    pub const fn seeds(mut self, seeds: Range<u64>) -> Self {
        assert!(
            seeds.start < seeds.end,
            "the range of seeds is empty, so nothing would run"
        );
        self.seeds = seeds;
        self
    }

    /// Sets how the runs make their choices. The default is [`Scheduling::Random`].
    #[must_use]
    pub fn scheduling(mut self, scheduling: Scheduling) -> Self {
        self.scheduling = scheduling;
        self
    }

    /// Sets the latency of all messages. The default is 0 to 3 ms.
    #[must_use]
    pub const fn latency(mut self, latency: Latency) -> Self {
        self.latency = latency;
        self
    }

    /// Sets whether each call is one event that takes no time
    /// ([`SimOptions::atomic_calls`]). By default, it isn't.
    ///
    /// Atomic calls give a small scope far fewer orders. Events between a request and its reply are
    /// then not explored.
    #[must_use]
    pub const fn atomic_calls(mut self, atomic: bool) -> Self {
        self.atomic_calls = atomic;
        self
    }

    /// Sets the faults that the runs inject. The default is [`FaultMix::none`].
    #[must_use]
    pub const fn fault_mix(mut self, fault_mix: FaultMix) -> Self {
        self.fault_mix = fault_mix;
        self
    }

    /// Sets the maximum virtual time of a run. The default is one hour.
    #[must_use]
    pub const fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Sets the maximum number of steps of a run. The default is a million.
    #[must_use]
    pub const fn step_limit(mut self, steps: u64) -> Self {
        self.step_limit = steps;
        self
    }

    /// Sets the maximum number of runs of [`check_all`](Self::check_all). The default is 100,000,
    /// which take a minute or two in a debug build.
    #[must_use]
    pub const fn run_limit(mut self, runs: u64) -> Self {
        self.run_limit = runs;
        self
    }

    /// Sets how long the exploration may take, in real time. Then no further seed is begun. There is no limit by default.
    ///
    /// It doesn't limit [`check_all`](Self::check_all), nor simplifying a failure.
    #[must_use]
    pub const fn time_budget(mut self, time: Duration) -> Self {
        self.time_budget = Some(time);
        self
    }

    /// Sets the maximum number of runs that simplify a failing run. The default is [`SHRINK_RUNS`];
    /// 0 leaves the run as it was found.
    #[must_use]
    pub const fn shrink_runs(mut self, runs: u32) -> Self {
        self.shrink_runs = runs;
        self
    }

    /// Runs the scenario with each seed, on all cores. It runs the first seed twice, to check that the scenario
    /// is deterministic. Prints and returns what the runs have tried.
    ///
    /// Runs go on at the same time, so keep what a run changes within the scenario: a static, or what the closure has captured,
    /// is shared by all of them.
    ///
    /// # Panics
    /// Panics at the first run that fails, with the report of a [`FailedRun`]. Panics if two runs of
    /// the first seed differ, or if an environment variable is invalid.
    #[track_caller]
    pub fn check<F, S>(&self, scenario: S) -> Explored
    where
        S: Fn(SimServer) -> F + Sync,
        F: Future<Output: Verdict>,
    {
        match self.explore(&scenario) {
            Ok(explored) => {
                eprintln!("{explored}");
                explored
            }
            Err(failure) => failure.panic(),
        }
    }

    /// Runs the scenario with each seed until a run fails, on all cores. Returns the simplified failure of the first seed
    /// that fails, or `None` if all runs pass.
    ///
    /// Like [`check`](Self::check), it runs the first seed twice. It returns a difference as a
    /// failure.
    ///
    /// # Panics
    /// Panics if an environment variable is invalid, or if a destructor panics after the end of a
    /// run.
    ///
    /// # Examples
    /// ```
    /// use leasehold_sim::Exploration;
    ///
    /// let failure = Exploration::new()
    ///     .find(|sim| async move { assert!(sim.draw(100) < 90, "too high") })
    ///     .expect("a run fails");
    /// assert!(failure.reason.contains("too high"));
    /// assert_eq!(failure.tape.draws[0].value, 90); // the simplest number that fails
    /// ```
    #[track_caller]
    pub fn find<F, S>(&self, scenario: S) -> Option<FailedRun>
    where
        S: Fn(SimServer) -> F + Sync,
        F: Future<Output: Verdict>,
    {
        self.explore(&scenario).err().map(|failure| *failure)
    }

    #[track_caller]
    fn explore<F, S>(&self, scenario: &S) -> Result<Explored, Box<FailedRun>>
    where
        S: Fn(SimServer) -> F + Sync,
        F: Future<Output: Verdict>,
    {
        let (first, count) = match environment::requested() {
            RequestedRun::Nothing => {
                let asked = self.seeds.end - self.seeds.start;
                (self.seeds.start, environment::seeds().unwrap_or(asked))
            }
            RequestedRun::Seed(seed) => (seed, 1),
            RequestedRun::Replay(tape) => return self.replay(tape, scenario),
        };
        if let Some(failure) = self.determinism_check(first, scenario) {
            return Err(Box::new(failure));
        }
        let unlogged = |number| self.options(first.wrapping_add(number)).log_limit(0);
        let runs = cores::run_all(count, self.time_budget, |number| {
            let quick = unlogged(number).recording(false);
            // The repeat below panics for what panics here, and with the first seed that does.
            match self.try_run(quick, self.scheduling.clone(), scenario) {
                Ok((report, reason)) => (report.counts, reason),
                Err(reason) => (Counts::default(), Some(reason)),
            }
        });
        let Some((number, failed)) = runs.failed else {
            return Ok(Explored::new(runs.count, &runs.counts));
        };
        // Repeat the run to record its tape.
        let (report, reason) = self.run(unlogged(number), self.scheduling.clone(), scenario);
        let (runs, seed) = (number + 1, first.wrapping_add(number));
        Err(Box::new(match reason {
            Some(reason) => self.simplest(runs, report, &reason, scenario),
            None => self.unrepeated(runs, seed, &failed, scenario),
        }))
    }

    /// Runs the scenario in every order in which messages can arrive and timers can fire, with
    /// every result of [`SimServer::draw`]. Returns the number of runs.
    ///
    /// All runs have the first seed and a latency of [`ZERO`](Latency::ZERO). The order of tasks
    /// that are ready at the same instant does not vary: if your tasks share memory, explore seeds
    /// instead.
    ///
    /// The scope must be small. Two clients that try a lock once have some 300 runs, and two
    /// clients that wait for it several 100,000. With [atomic calls](Self::atomic_calls) they
    /// have 14 and 2,500.
    ///
    /// # Panics
    /// Panics at the first run that fails, if two runs with the same choices differ, if there are
    /// more runs than the [limit](Self::run_limit), or if an environment variable is invalid.
    ///
    /// # Examples
    /// ```
    /// use leasehold_api::LockClient;
    /// use leasehold_sim::Exploration;
    ///
    /// let runs = Exploration::new().atomic_calls(true).check_all(|sim| async move {
    ///     let tries = ["a", "b"].map(|name| {
    ///         let locks = LockClient::new(sim.client(name));
    ///         sim.spawn(async move { locks.mutex("job").unwrap().try_lock().await.unwrap() })
    ///     });
    ///     let mut guards = Vec::new();
    ///     for attempt in tries {
    ///         guards.extend(attempt.await.into_guard());
    ///     }
    ///     assert_eq!(guards.len(), 1);
    /// });
    /// assert!(runs > 1);
    /// ```
    #[track_caller]
    pub fn check_all<F, S>(&self, scenario: S) -> u64
    where
        S: Fn(SimServer) -> F,
        F: Future<Output: Verdict>,
    {
        let scope = self.clone().latency(Latency::ZERO);
        if let RequestedRun::Replay(tape) = environment::requested() {
            if let Err(failure) = scope.replay(tape, &scenario) {
                failure.panic();
            }
            return 1;
        }
        if let Some(failure) = scope.determinism_check(scope.seeds.start, &scenario) {
            failure.panic();
        }
        let limit = self.run_limit;
        let (mut runs, mut failed) = (0, None);
        let options = scope.options(self.seeds.start).log_limit(0);
        let each = |report: &Report| {
            runs += 1;
            let reason = scope.why_in_scope(report);
            failed = reason.map(|reason| (report.tape.clone(), reason));
            match failed.is_some() || runs > limit {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let all = scope.simulation(options);
        quietly(|| all.run_all(&ALL_SITES, scope.with_faults(&scenario), each))
            .unwrap_or_else(|reason| left_over(options.seed, &reason));
        if let Some((tape, reason)) = failed {
            // Repeat the run for its report.
            let (found, _) = scope.run(options, Scheduling::Replay(tape), &scenario);
            scope.simplest(runs, found, &reason, &scenario).panic();
        }
        assert!(
            runs <= limit,
            "the scope has more than {limit} runs: make it smaller (fewer clients, fewer calls, `try_…`), \
             make its calls atomic, raise `run_limit`, or explore seeds"
        );
        runs
    }

    fn options(&self, seed: u64) -> SimOptions {
        SimOptions::new(seed)
            .latency(self.latency)
            .atomic_calls(self.atomic_calls)
    }

    /// Makes one run. Returns its report, and why it failed, if it did.
    fn run<F: Future<Output: Verdict>>(
        &self,
        options: SimOptions,
        scheduling: Scheduling,
        scenario: &impl Fn(SimServer) -> F,
    ) -> (Report, Option<String>) {
        self.try_run(options, scheduling, scenario)
            .unwrap_or_else(|reason| left_over(options.seed, &reason))
    }

    /// Makes one run, as [`run`](Self::run). Returns an error if a destructor panics after its end.
    fn try_run<F: Future<Output: Verdict>>(
        &self,
        options: SimOptions,
        scheduling: Scheduling,
        scenario: &impl Fn(SimServer) -> F,
    ) -> Result<(Report, Option<String>), String> {
        let simulation = self.simulation(options).scheduling(scheduling);
        let scenario = self.with_faults(scenario);
        quietly(|| {
            let report = simulation.run(scenario);
            let reason = self.reason(&report);
            (report, reason)
        })
    }

    const fn simulation(&self, options: SimOptions) -> Simulation {
        Simulation::new(options)
            .time_limit(self.time_limit)
            .step_limit(self.step_limit)
    }

    /// Returns the scenario with its faults, and with its verdict as output.
    fn with_faults<F: Future<Output: Verdict>>(
        &self,
        scenario: &impl Fn(SimServer) -> F,
    ) -> impl Fn(SimServer) -> WithVerdict<F> {
        let fault_mix = self.fault_mix;
        move |sim| {
            fault_mix.spawn(&sim);
            scenario(sim).map(Verdict::failure as fn(F::Output) -> Option<String>)
        }
    }

    fn reason(&self, report: &Report) -> Option<String> {
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

    /// Returns why a run of a small scope failed. Each of these runs replays choices of an earlier
    /// one.
    fn why_in_scope(&self, report: &Report) -> Option<String> {
        let mut reason = self.reason(report)?;
        if let Ending::Diverged(_) = report.ending {
            reason.insert_str(0, NOT_REPEATED);
        }
        Some(reason)
    }

    /// Runs one seed twice. If the runs differ, the scenario is not deterministic.
    fn determinism_check<F: Future<Output: Verdict>>(
        &self,
        seed: u64,
        scenario: &impl Fn(SimServer) -> F,
    ) -> Option<FailedRun> {
        let (first, reason) = self.run(self.options(seed), self.scheduling.clone(), scenario);
        let (second, again) = self.run(self.options(seed), self.scheduling.clone(), scenario);
        // The hash covers the times of events, the log covers their content.
        if first.trace == second.trace && reason == again && first.log().eq(second.log()) {
            return None;
        }
        let texts = (first.timeline(), second.timeline());
        let (a, b) = match first_difference(&texts.0, &texts.1) {
            Some(lines) => lines,
            None if reason != again => (
                reason.as_deref().unwrap_or("it passes"),
                again.as_deref().unwrap_or("it passes"),
            ),
            None => ("these events", "the same events, by other choices"),
        };
        let reason = format!(
            "two runs of one seed differ: the scenario does something that the seed doesn't determine \
             (`select!` without `biased;`, the order of a `HashMap`, a real clock, a thread)\n  first:  {a}\n  second: {b}"
        );
        Some(FailedRun::new(1, seed, reason, &second, None))
    }

    /// Returns the failure for a run that failed once, but not when it was repeated.
    fn unrepeated<F: Future<Output: Verdict>>(
        &self,
        runs: u64,
        seed: u64,
        reason: &str,
        scenario: &impl Fn(SimServer) -> F,
    ) -> FailedRun {
        let (report, _) = self.run(self.options(seed), self.scheduling.clone(), scenario);
        let reason = format!(
            "{reason}\n(but not when it was repeated: the scenario does something that the seed doesn't \
             determine; the timeline is that of the repeated run)"
        );
        FailedRun::new(runs, seed, reason, &report, None)
    }

    fn replay<F: Future<Output: Verdict>>(
        &self,
        tape: Tape,
        scenario: &impl Fn(SimServer) -> F,
    ) -> Result<Explored, Box<FailedRun>> {
        let (seed, wanted) = (tape.seed, tape.clone());
        let (report, reason) = self.run(self.options(seed), Scheduling::Replay(tape), scenario);
        let Some(mut reason) = reason else {
            return Ok(Explored::new(1, &report.counts));
        };
        if let Ending::Diverged(_) = report.ending {
            reason.push_str(
                "\n(the code or leasehold has changed since the tape was recorded: explore again)",
            );
        }
        let failure = FailedRun::new(1, seed, reason, &report, None);
        Err(Box::new(failure.of_tape(wanted)))
    }

    /// Simplifies a failing run. The result fails in the same way.
    fn simplest<F: Future<Output: Verdict>>(
        &self,
        runs: u64,
        found: Report,
        reason: &str,
        scenario: &impl Fn(SimServer) -> F,
    ) -> FailedRun {
        let wanted = signature(reason);
        let mut allowed = StepsAllowed::of(&found, self.step_limit);
        let tape = found.tape;
        let (seed, draws) = (tape.seed, tape.draws.len());
        let fails = |tape| {
            let options = self.options(seed).log_limit(0);
            let limited = self.clone().step_limit(allowed.steps());
            let run = limited.try_run(options, Scheduling::Guided(tape), scenario);
            let (report, reason) = run.ok()?;
            let same = reason.is_some_and(|reason| signature(&reason) == wanted);
            (same && allowed.suffice(&report)).then_some(report.tape)
        };
        let Shrunk { tape, runs: tried } = shrink(tape, self.shrink_runs, fails);
        let options = self.options(seed);
        let (report, shown) = self.run(options, Scheduling::Replay(tape), scenario);
        let reason = shown.unwrap_or_else(|| format!("{reason}\n(but not when it was repeated)"));
        FailedRun::new(runs, seed, reason, &report, Some((draws, tried)))
    }
}

/// Runs simulations without printing their panics. Returns an error if `run` itself panics.
fn quietly<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let _quiet = quiet::panics();
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| panicked(&message(&panic)))
}

fn left_over(seed: u64, reason: &str) -> ! {
    panic!(
        "with seed {seed}, a value that was left at the end of the run panicked when it was dropped:\n{reason}"
    )
}

const NOT_REPEATED: &str = "two runs with the same choices differ: the scenario does something that \
    the choices don't determine\n";

const STUCK: &str = "nothing can go on: every task waits for another task, or for something outside \
    the simulation (a timer of tokio, a thread, a socket)";

/// Describes a panic: its message, its location, and a hint for a common mistake.
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

/// Returns what identifies a failure: its first line without numbers, which differ from run to run,
/// and the location of a panic.
fn signature(reason: &str) -> (String, Option<&str>) {
    let line = reason.lines().next().unwrap_or_default();
    let words = line.chars().filter(|c| !c.is_ascii_digit()).collect();
    let location = reason.rsplit_once(PANICKED_AT);
    (words, location.map(|(_, location)| location))
}

/// What a scenario may return: `()`, or a `Result<(), E>` whose error can be displayed.
#[diagnostic::on_unimplemented(
    message = "a scenario returns `()`, or `Result<(), E>` with an error that can be displayed",
    label = "the future of this scenario has the output `{Self}`"
)]
pub trait Verdict {
    /// Returns why the scenario failed, if it did.
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
