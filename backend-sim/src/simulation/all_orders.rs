//! Every run of a small scenario, depth first.

use std::future::Future;
use std::ops::ControlFlow;

use crate::engine::choices::Scheduling;
use crate::engine::tape::{Site, Tape};
use crate::handle::SimServer;
use crate::simulation::{RunReport, Simulation};

impl Simulation {
    /// Runs a scenario once for each sequence of choices at these `sites`, depth first, with 0 at
    /// all others, until `each` breaks; tells how many runs there were.
    ///
    /// The number grows with the factorial of what can happen at once: keep the scenario small, and
    /// use [`SimOptions::with_atomic_calls`](crate::SimOptions::with_atomic_calls). Where tasks
    /// meet at the server only, their order between two calls does not matter, and
    /// [`Site::Order`] alone gives every order of their calls; tasks that share memory need
    /// [`Site::Task`] too. The scheduling is not used.
    pub fn run_all<F, S>(
        self,
        sites: &[Site],
        scenario: S,
        mut each: impl FnMut(&RunReport<F::Output>) -> ControlFlow<()>,
    ) -> u64
    where
        S: Fn(SimServer) -> F,
        F: Future,
    {
        let mut tape = Tape::new(self.seed());
        let mut runs = 0;
        loop {
            let simulation = self.clone().with_scheduling(Scheduling::Replay(tape));
            let report = simulation.run(&scenario);
            runs += 1;
            if each(&report).is_break() {
                return runs;
            }
            tape = report.tape;
            if !tape.advance(sites) {
                return runs;
            }
        }
    }
}
