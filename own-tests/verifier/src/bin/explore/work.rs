//! Runs the explorations.

use std::fs;
use std::ops::{ControlFlow, Range};

use leasehold_sim::tools::{SHRINK_RUNS, Scheduling, Tape};
use leasehold_sim::{Ending, SimOptions};
use leasehold_verifier::{IN_EVERY_BUILD, MutantInfo, SmallScope, Stress, StressRun};

use crate::args::{Args, Choose};
use crate::report::{Progress, Summary, verdict};
use crate::subject::{BUILD, Subject, Variant, activate, mutants, replay_command, stress};

/// The number of failed runs that are simplified and printed.
const PRINTED: u64 = 3;
/// The number of failed runs that the summary lists.
const LISTED: usize = 1_000;

/// Runs what the options choose. Returns whether all promises were kept.
pub(crate) fn run(args: &Args) -> Result<bool, String> {
    if args.list_mutants {
        for mutant in mutants() {
            println!("{} {}", mutant.name, mutant.budget);
        }
        return Ok(true);
    }
    args.check()?;
    if let Some(trials) = args.all_mutants {
        return all_mutants(trials);
    }
    let mutant = args.mutant.as_deref().map(activate).transpose()?;
    let subject = Subject::of(args, mutant)?;
    let mut work = Work {
        args,
        subject: &subject,
        summary: Summary {
            mutant: args.mutant.clone(),
            ..Summary::default()
        },
        progress: Progress::new(),
        printed: false,
    };
    if let Some(tape) = &args.replay {
        return work.replay(tape);
    }
    match &subject {
        Subject::Stress(stress) => work.explore(stress, mutant.is_some()),
        Subject::Scope(scope) => work.every_order(*scope),
    }
}

/// Options without a log and a tape, which make a run faster.
fn quick_options(seed: u64) -> SimOptions {
    SimOptions::new(seed).log_limit(0).recording(false)
}

struct Work<'a> {
    args: &'a Args,
    subject: &'a Subject,
    summary: Summary,
    progress: Progress,
    /// Whether a run was printed.
    printed: bool,
}

impl Work<'_> {
    /// Runs the seeds, or only until the first failure if `until_found` is set.
    fn explore(&mut self, stress: &Stress, until_found: bool) -> Result<bool, String> {
        let scheduling = self.args.scheduling.unwrap_or(Choose::Random).scheduling();
        let seeds = self.args.seeds();
        let of = seeds.end - seeds.start;
        for seed in seeds {
            let variant = self.args.variant(seed);
            let stress = variant.stress(stress.clone());
            let run = stress.run(quick_options(seed), scheduling.clone());
            self.count(variant, &run, of);
            let Some(first) = run.violations.into_iter().next() else {
                continue;
            };
            if self.summary.failed <= PRINTED {
                self.simplify(&stress, seed, scheduling.clone())?;
            }
            self.list(seed, first);
            if until_found {
                self.summary.found_at_seed = Some(seed);
                break;
            }
        }
        self.finish(!until_found)
    }

    /// Simplifies the failed run of a seed, and prints it.
    fn simplify(
        &mut self,
        stress: &Stress,
        seed: u64,
        scheduling: Scheduling,
    ) -> Result<(), String> {
        let recorded = SimOptions::new(seed).log_limit(0);
        let tape = stress.run(recorded, scheduling).report.tape;
        let shrink = || stress.simplest(tape, SHRINK_RUNS);
        let (shrunk, took) = self.progress.exclude(shrink);
        let shrunk = shrunk.ok_or_else(|| format!("seed {seed} does not fail again"))?;
        let ms = took.as_millis();
        let heading = format!("seed {seed}, simplified in {} runs, {ms} ms", shrunk.runs);
        self.print_run(&heading, self.args.variant(seed), &shrunk.tape)?;
        Ok(())
    }

    /// Runs all orders of a small scope.
    fn every_order(&mut self, scope: SmallScope) -> Result<bool, String> {
        let of = self.args.scope.map_or(0, |scope| scope.orders());
        let mut failed = None;
        let runs = scope.run_all(|run| {
            self.count(self.args.variant(0), &run, of);
            if run.violations.is_empty() {
                return ControlFlow::Continue(());
            }
            failed = Some(run);
            ControlFlow::Break(())
        });
        if let Some(run) = failed {
            let heading = format!("order {runs} of {of}");
            self.print_run(&heading, self.args.variant(0), &run.report.tape)?;
            for violation in run.violations.into_iter().take(1) {
                self.list(0, violation);
            }
        }
        println!("{runs} of {of} orders");
        Ok(self.finish(false)? && runs == of)
    }

    /// Repeats the run of a tape.
    fn replay(&mut self, tape: &Tape) -> Result<bool, String> {
        let variant = self.args.variant(tape.seed);
        let run = self.print_run("replayed", variant, tape)?;
        if let Ending::Diverged(divergence) = &run.report.ending {
            return Err(divergence.to_string());
        }
        self.count(variant, &run, 1);
        let seed = tape.seed;
        for violation in run.violations.into_iter().take(1) {
            self.list(seed, violation);
        }
        self.finish(false)
    }

    fn count(&mut self, variant: Variant, run: &StressRun, of: u64) {
        self.summary.runs += 1;
        let reached = self.summary.reached.entry(variant).or_default();
        reached.runs += 1;
        reached.coverage.add(&run.coverage);
        self.summary.failed += u64::from(!run.violations.is_empty());
        self.progress.update(self.summary.runs, of);
    }

    fn list(&mut self, seed: u64, first: leasehold_verifier::Violation) {
        if self.summary.violations.len() < LISTED {
            self.summary.violations.push((seed, first));
        }
    }

    /// Prints and writes the summary. Returns whether all promises were kept.
    fn finish(&mut self, with_coverage: bool) -> Result<bool, String> {
        self.progress.clear();
        self.summary.took = self.progress.elapsed();
        println!("{}", self.summary.text(with_coverage));
        if let Some(path) = self.args.html.as_ref().filter(|_| !self.printed) {
            println!("no run failed, so {} was not written", path.display());
        }
        if let Some(path) = &self.args.json {
            write(path, self.summary.json())?;
        }
        let mut passed = self.summary.failed == 0;
        for missing in self.summary.missing().filter(|_| with_coverage) {
            println!("{missing}");
            passed = false;
        }
        Ok(passed)
    }

    /// Repeats the run of a tape with a log, and prints its timeline, its violations, and the command
    /// that repeats it. The first printed run is also written as a page, if the options say so.
    fn print_run(
        &mut self,
        heading: &str,
        variant: Variant,
        tape: &Tape,
    ) -> Result<StressRun, String> {
        self.progress.clear();
        let options = SimOptions::new(tape.seed);
        let run = self
            .subject
            .run(variant, options, Scheduling::Replay(tape.clone()));
        let command = replay_command(self.args, variant, tape);
        let broken = verdict(&run.violations);
        let mut history = run
            .report
            .history()
            .with_title(heading)
            .with_replay(&command);
        if !run.violations.is_empty() {
            history = history.with_verdict(&broken);
        }
        println!(
            "{}\n{heading}\n{broken}to repeat it: {command}\n",
            history.text()
        );
        if self.summary.violations.is_empty()
            && let Some(path) = &self.args.html
        {
            write(path, history.html())?;
        }
        self.printed = true;
        Ok(run)
    }
}

fn write(path: &std::path::Path, text: String) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Finds each mutant `trials` times, from different seeds, and prints a table. Returns whether each
/// trial stayed within the budget.
fn all_mutants(trials: u32) -> Result<bool, String> {
    let count = mutants().count();
    if count == IN_EVERY_BUILD.len() {
        return Err(format!("this build contains few mutants; use {BUILD}"));
    }
    let mut all_found = true;
    let mut progress = Progress::new();
    for (n, mutant) in (0_u64..).zip(mutants()) {
        activate(mutant.name)?;
        if n == 0 {
            println!("| mutant | mode | budget | mean | max |\n|---|---|---|---|---|");
        }
        let mut needed = Vec::new();
        for trial in 0..trials {
            let done = n * u64::from(trials) + u64::from(trial);
            progress.update(done, count as u64 * u64::from(trials));
            needed.push(seeds_needed(mutant, trial));
        }
        progress.clear();
        println!("{}", row(mutant, &needed));
        all_found &= needed.iter().all(Option::is_some);
    }
    Ok(all_found)
}

/// The number of seeds that a trial took; `None` if it exceeded the budget.
fn seeds_needed(mutant: MutantInfo, trial: u32) -> Option<u64> {
    let stress = stress(Some(mutant)).until_broken();
    let from = u64::from(trial) * 1_000_000;
    let seeds: Range<u64> = from..from + u64::from(mutant.budget);
    let mut tried = seeds.map(|seed| stress.run(quick_options(seed), Scheduling::Random));
    let found = tried.position(|run| !run.violations.is_empty());
    found.map(|n| n as u64 + 1)
}

/// A row of the table of mutants.
fn row(mutant: MutantInfo, needed: &[Option<u64>]) -> String {
    let found: Vec<u64> = needed.iter().flatten().copied().collect();
    let mean = found.iter().sum::<u64>() as f64 / found.len().max(1) as f64;
    let most = found.iter().max().copied().unwrap_or(0);
    let mode = if mutant.out_of_model { "out" } else { "in" };
    let missed = match needed.len() - found.len() {
        0 => String::new(),
        missed => format!(" (missed {missed} of {})", needed.len()),
    };
    let (name, budget) = (mutant.name, mutant.budget);
    format!("| {name} | {mode} | {budget} | {mean:.1} | {most}{missed} |")
}
