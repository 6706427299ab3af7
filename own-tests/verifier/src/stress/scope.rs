//! Small scopes: a few clients with a few atomic calls each, in every order.

use std::ops::ControlFlow;

use leasehold_api::machine::Settings;
use leasehold_sim::{Scheduling, SimOptions, Simulation, Site, Tape};

use crate::checker::Model;
use crate::stress::monitor::Monitor;
use crate::stress::outcome::StressRun;
use crate::stress::try_only::try_only;

/// A few clients that try one lock and release it, without waiting ([`try_only`]). Each order of
/// their calls is checked like a stress run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallScope {
    clients: usize,
    calls: usize,
}

impl SmallScope {
    /// A scope of `clients` clients with `calls` calls each.
    pub const fn new(clients: usize, calls: usize) -> Self {
        Self { clients, calls }
    }

    /// Runs one order.
    pub fn run(self, options: SimOptions, scheduling: Scheduling) -> StressRun {
        let mut monitor = None;
        let slot = &mut monitor;
        let report = Simulation::new(options.atomic_calls(true))
            .scheduling(scheduling)
            .run(|sim| {
                *slot = Some(Monitor::new(
                    &sim,
                    (Model::Within, Settings::default()),
                    None,
                    false,
                ));
                try_only(sim, self.clients, self.calls)
            });
        StressRun::new(report, monitor.as_ref())
    }

    /// Runs every order once, depth first, until `each` breaks. Returns the number of runs.
    pub fn run_all(self, mut each: impl FnMut(StressRun) -> ControlFlow<()>) -> u64 {
        let options = SimOptions::new(0).log_limit(0);
        let mut tape = Tape::new(0);
        let mut runs = 0;
        loop {
            let mut run = self.run(options, Scheduling::Replay(tape));
            runs += 1;
            tape = std::mem::take(&mut run.report.tape);
            let found = !run.violations.is_empty();
            if found {
                run.report.tape = tape.clone();
            }
            if each(run).is_break() || !tape.advance(&[Site::Order]) {
                return runs;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_keeps_its_promises() {
        let mut steps = 0;
        let runs = SmallScope::new(3, 2).run_all(|run| {
            assert_eq!(run.violations, []);
            steps += run.report.steps;
            ControlFlow::Continue(())
        });
        assert_eq!(runs, 90);
        assert!(steps >= 90 * 6);
    }
}
