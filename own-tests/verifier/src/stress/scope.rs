//! Small scopes: a few clients with a few atomic calls each, in every order.

use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;

use leasehold_sim::tools::{Scheduling, Site, Tape};
use leasehold_sim::{SimOptions, Simulation};

use crate::checker::Model;
use crate::stress::monitor::Monitor;
use crate::stress::outcome::StressRun;
use crate::stress::try_only::try_only;

/// A few clients that try one lock and release it, without waiting ([`try_only`]). Each order of
/// their calls is checked like a stress run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallScope {
    clients: u32,
    calls: u32,
}

/// In the form `CLIENTSxCALLS`.
impl FromStr for SmallScope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (clients, calls) = text
            .split_once('x')
            .ok_or("expected CLIENTSxCALLS, for example 3x4")?;
        let number = |text: &str| match text.parse() {
            Ok(n @ 1..=6) => Ok(n),
            _ => Err(format!("{text:?} is not a number from 1 to 6")),
        };
        Ok(Self {
            clients: number(clients)?,
            calls: number(calls)?,
        })
    }
}

impl fmt::Display for SmallScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.clients, self.calls)
    }
}

impl SmallScope {
    /// The number of orders: (clients × calls)! / calls! ^ clients.
    pub fn orders(self) -> u64 {
        // For each further client: the number of ways to insert its calls among the earlier ones.
        let choose = |n: u64, k: u64| (1..=k).fold(1, |product, i| product * (n - k + i) / i);
        let calls = u64::from(self.calls);
        (1..=u64::from(self.clients)).fold(1, |product: u64, n| {
            product.saturating_mul(choose(n * calls, calls))
        })
    }

    /// Runs one order.
    pub fn run(self, options: SimOptions, scheduling: Scheduling) -> StressRun {
        let mut monitor = None;
        let slot = &mut monitor;
        let report = Simulation::new(options.atomic_calls(true))
            .scheduling(scheduling)
            .run(|sim| {
                *slot = Some(Monitor::new(&sim, Model::Within, None, false));
                try_only(sim, self.clients as usize, self.calls as usize)
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
        let scope: SmallScope = "3x2".parse().expect("a scope");
        let runs = scope.run_all(|run| {
            assert_eq!(run.violations, []);
            steps += run.report.steps;
            ControlFlow::Continue(())
        });
        assert_eq!((runs, scope.orders()), (90, 90));
        assert!(steps >= 90 * 6);
    }
}
