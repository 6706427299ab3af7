//! Simplifies a run that breaks a promise.

use std::mem::{Discriminant, discriminant};

use leasehold_sim::tools::{Scheduling, Shrunk, StepsAllowed, Tape, shrink};
use leasehold_sim::{Ending, SimOptions};

use crate::stress::outcome::StressRun;
use crate::stress::run::{STEP_LIMIT, Stress};

impl Stress {
    /// Simplifies the run of a tape, in at most `max_runs` runs.
    ///
    /// The result breaks the same promise first, and its tape ends there. Returns `None` if the run
    /// of `tape` breaks no promise.
    pub fn simplest(&self, tape: Tape, max_runs: u32) -> Option<Shrunk> {
        let stress = self.clone().until_broken();
        let options = SimOptions::new(tape.seed).log_limit(0);
        let found = stress.run(options, Scheduling::Guided(tape));
        let (promise, end) = (found.violations.first()?.promise, failed_end(&found));
        let mut allowed = StepsAllowed::of(&found.report, STEP_LIMIT);
        Some(shrink(found.report.tape, max_runs, |tape| {
            let run = stress.run_within(allowed.steps(), options, Scheduling::Guided(tape));
            let same = run.violations.first()?.promise == promise && failed_end(&run) == end;
            (same && allowed.suffice(&run.report)).then_some(run.report.tape)
        }))
    }
}

/// Returns how a run ended if its ending is its only violation. A run that hangs is not a simpler
/// form of a run that panics.
fn failed_end(run: &StressRun) -> Option<Discriminant<Ending<()>>> {
    let checked = matches!(run.report.ending, Ending::Completed(()) | Ending::Stopped);
    let alone = run.violations.len() == 1 && !checked;
    alone.then(|| discriminant(&run.report.ending))
}
