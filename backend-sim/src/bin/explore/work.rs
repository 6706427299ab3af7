//! The explorations themselves.

use std::ops::{ControlFlow, Range};

use leasehold_sim::swarm::{CARELESS_RESOURCE, PLANTED, Planted, Swarm, SwarmRun};
use leasehold_sim::{
    Ending, Policy, SHRINK_RUNS, Shrunk, SimOptions, Simulation, Site, Tape, shrink, try_only,
};

use crate::args::{Args, Choose, Scope};
use crate::report::{Progress, Summary, verdict};

/// After so many seeds each rare situation must have been reached.
const ENOUGH: u64 = 20_000;
/// Failed runs that are told in full.
const TOLD: u64 = 3;
/// And those that are listed at all.
const LISTED: usize = 1_000;

/// Does what was asked; whether all promises were kept.
pub(crate) fn run(args: &Args) -> Result<bool, String> {
    if args.list_mutants {
        for fault in PLANTED {
            println!("{} {}", fault.name, fault.budget);
        }
        return Ok(true);
    }
    if let Some(trials) = args.all_mutants {
        return all_mutants(trials);
    }
    let planted = args.mutant.as_deref().map(plant).transpose()?;
    let swarm = swarm(args, planted);
    if let Some(tape) = &args.replay {
        let run = tell(args, &swarm, "replayed", tape)?;
        return Ok(run.violations.is_empty());
    }
    if let Some(scope) = args.scope {
        return small_scope(args, scope);
    }
    if args.policy == Choose::DepthFirst {
        return Err("dfs needs a --scope: the swarm has no end".into());
    }
    explore(args, &swarm, planted.is_some())
}

fn swarm(args: &Args, planted: Option<Planted>) -> Swarm {
    let mut swarm = Swarm::new();
    if args.out_of_model || planted.is_some_and(|fault| fault.out_of_model) {
        swarm = swarm.out_of_model();
    }
    if planted.is_some_and(|fault| fault.name == CARELESS_RESOURCE) {
        swarm = swarm.with_careless_resource();
    }
    swarm
}

/// Plants a fault for the rest of the process.
fn plant(name: &str) -> Result<Planted, String> {
    let fault = Planted::named(name)
        .ok_or_else(|| format!("there is no fault {name:?}; --list-mutants lists them"))?;
    #[cfg(leasehold_mutants)]
    {
        use leasehold_api::mutants::Mutant;
        if name == CARELESS_RESOURCE {
            Mutant::clear();
            return Ok(fault);
        }
        let mutant = Mutant::from_name(name).ok_or_else(|| format!("{name:?} is not compiled"))?;
        mutant.plant();
        Ok(fault)
    }
    #[cfg(not(leasehold_mutants))]
    if name == CARELESS_RESOURCE {
        Ok(fault)
    } else {
        Err(format!(
            "this build holds no planted faults; build with RUSTFLAGS=\"--cfg leasehold_mutants\" \
             to plant {name:?}"
        ))
    }
}

fn quick(seed: u64) -> SimOptions {
    SimOptions::new(seed)
        .with_log_limit(0)
        .with_recording(false)
}

/// Runs seeds; with a planted fault until the first that finds it.
fn explore(args: &Args, swarm: &Swarm, until_found: bool) -> Result<bool, String> {
    let mut summary = Summary {
        mutant: args.mutant.clone(),
        ..Summary::default()
    };
    let mut progress = Progress::new();
    let of = args.seeds.end.saturating_sub(args.seeds.start);
    for seed in args.seeds.clone() {
        let run = swarm.run(quick(seed), args.policy.policy());
        summary.runs += 1;
        summary.coverage.add(&run.coverage);
        progress.at(summary.runs, of);
        let Some(first) = run.violations.into_iter().next() else {
            continue;
        };
        if summary.failed < TOLD {
            progress.end();
            let recorded = SimOptions::new(seed).with_log_limit(0);
            let tape = swarm.run(recorded, args.policy.policy()).report.tape;
            let shrunk = simplest(swarm, tape, first.promise);
            let heading = format!("seed {seed}, shrunk in {} runs", shrunk.runs);
            tell(args, swarm, &heading, &shrunk.tape)?;
        }
        summary.failed += 1;
        if summary.violations.len() < LISTED {
            summary.violations.push((seed, first));
        }
        if until_found {
            summary.found_at_seed = Some(seed);
            break;
        }
    }
    progress.end();
    summary.took = progress.elapsed();
    finish(args, &summary, until_found)
}

/// Prints and writes the summary; whether all is well.
fn finish(args: &Args, summary: &Summary, until_found: bool) -> Result<bool, String> {
    println!("{}", summary.text(!until_found));
    if let Some(path) = &args.json {
        summary.write_json(path)?;
    }
    let mut good = summary.failed == 0;
    if summary.runs >= ENOUGH && !until_found {
        for situation in summary.coverage.missing(args.out_of_model) {
            println!("never reached: {}", situation.text());
            good = false;
        }
    }
    Ok(good)
}

/// Runs a tape with everything written down, and tells the run: what happened, what broke, how to
/// run it again; as a page too if that was asked for.
fn tell(args: &Args, swarm: &Swarm, heading: &str, tape: &Tape) -> Result<SwarmRun, String> {
    let run = swarm.run(SimOptions::new(tape.seed), Policy::Replay(tape.clone()));
    let mut flags = String::new();
    if args.out_of_model {
        flags.push_str(" --out-of-model");
    }
    if let Some(mutant) = &args.mutant {
        flags.push_str(" --mutant ");
        flags.push_str(mutant);
    }
    let command =
        format!("cargo run --release -p leasehold-sim --bin explore --{flags} --replay {tape}");
    let mut history = run
        .report
        .history()
        .with_title(heading)
        .with_replay(&command);
    if !run.violations.is_empty() {
        history = history.with_verdict(verdict(&run.violations));
    }
    println!("{}", history.text());
    println!("{heading}\n{}again: {command}", verdict(&run.violations));
    if let Some(page) = &args.html {
        let failed = |error| format!("{}: {error}", page.display());
        history.save(page).map_err(failed)?;
    }
    Ok(run)
}

/// The simplest run found that breaks the same promise.
fn simplest(swarm: &Swarm, tape: Tape, promise: &str) -> Shrunk {
    shrink(tape, SHRINK_RUNS, |tape| {
        let options = SimOptions::new(tape.seed).with_log_limit(0);
        let run = swarm.run(options, Policy::Guided(tape));
        let same = run.violations.first()?.promise == promise;
        same.then_some(run.report.tape)
    })
}

/// Runs all orders of a small scope.
fn small_scope(args: &Args, scope: Scope) -> Result<bool, String> {
    let (clients, calls) = (scope.clients as usize, scope.steps as usize);
    let mut summary = Summary::default();
    let mut progress = Progress::new();
    let of = scope.orders();
    let options = SimOptions::new(0).with_log_limit(0).with_atomic_calls(true);
    let scenario = |sim| try_only(sim, clients, calls);
    let runs = Simulation::new(options).run_all(&[Site::Order], scenario, |report| {
        summary.runs += 1;
        progress.at(summary.runs, of);
        if report.ending == Ending::Completed(()) {
            return ControlFlow::Continue(());
        }
        progress.end();
        println!("{:?}, by the tape {}", report.ending, report.tape);
        summary.failed += 1;
        ControlFlow::Break(())
    });
    progress.end();
    summary.took = progress.elapsed();
    println!("{runs} of {of} orders");
    Ok(finish(args, &summary, true)? && runs == of)
}

/// Finds each planted fault several times, each time among other seeds.
fn all_mutants(trials: u32) -> Result<bool, String> {
    let mut good = true;
    println!("| fault | mode | budget | mean | max |\n|---|---|---|---|---|");
    for fault in PLANTED {
        let needed = needed(*fault, trials)?;
        let found: Vec<u64> = needed.iter().flatten().copied().collect();
        let mean = found.iter().sum::<u64>() as f64 / found.len().max(1) as f64;
        let most = found.iter().max().copied().unwrap_or(0);
        let missed = needed.len() - found.len();
        let mode = if fault.out_of_model { "out" } else { "in" };
        let over = match missed {
            0 => String::new(),
            missed => format!(" (missed {missed} of {trials})"),
        };
        let Planted { name, budget, .. } = fault;
        println!("| {name} | {mode} | {budget} | {mean:.1} | {most}{over} |");
        good &= missed == 0;
    }
    Ok(good)
}

/// Seeds needed in each trial; `None` where the budget was not enough.
fn needed(fault: Planted, trials: u32) -> Result<Vec<Option<u64>>, String> {
    plant(fault.name)?;
    let mut swarm = Swarm::new();
    if fault.out_of_model {
        swarm = swarm.out_of_model();
    }
    if fault.name == CARELESS_RESOURCE {
        swarm = swarm.with_careless_resource();
    }
    let budget = u64::from(fault.budget);
    let trial = |n: u32| {
        let from = u64::from(n) * 1_000_000;
        let seeds: Range<u64> = from..from + budget;
        let mut tried = seeds.map(|seed| swarm.run(quick(seed), Policy::Random));
        let found = tried.position(|run| !run.violations.is_empty());
        found.map(|n| n as u64 + 1)
    };
    Ok((0..trials).map(trial).collect())
}
