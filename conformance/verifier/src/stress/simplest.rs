//! The simplest run that breaks a promise.

use std::mem::{Discriminant, discriminant};

use leasehold_sim::{Ending, Scheduling, Shrunk, SimOptions, StepsAllowed, Tape, shrink};

use crate::stress::{STEP_LIMIT, Stress, StressRun};

impl Stress {
    /// Looks for a simpler run that breaks the same promise first as the run of this tape does, with
    /// at most `max_runs` runs; `None` if that breaks none.
    ///
    /// The tape that comes of it ends where the promise is broken.
    pub fn simplest(&self, tape: Tape, max_runs: u32) -> Option<Shrunk> {
        let stress = self.clone().until_broken();
        let options = SimOptions::new(tape.seed).with_log_limit(0);
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

/// How a run ended in which nothing else is wrong: one that hangs is no simpler form of one that
/// panics.
fn failed_end(run: &StressRun) -> Option<Discriminant<Ending<()>>> {
    let checked = matches!(run.report.ending, Ending::Completed(()) | Ending::Stopped);
    let alone = run.violations.len() == 1 && !checked;
    alone.then(|| discriminant(&run.report.ending))
}
