//! All runs of a small scenario, depth first.

use std::future::Future;
use std::ops::ControlFlow;

use crate::engine::choices::Scheduling;
use crate::engine::tape::{Site, Tape};
use crate::handle::SimServer;
use crate::simulation::{RunReport, Simulation};

impl Simulation {
    /// Runs a scenario once for each sequence of choices at `sites`, depth first. Returns the
    /// number of runs.
    ///
    /// Choices at all other sites are 0. `each` gets the report of every run, and ends the search
    /// when it returns [`ControlFlow::Break`]. This method ignores the scheduling.
    ///
    /// The number of runs grows with the factorial of the number of simultaneous events. So keep
    /// the scenario small, and use
    /// [`SimOptions::atomic_calls`](crate::SimOptions::atomic_calls). If tasks interact
    /// only through the server, [`Site::Order`] alone covers every order of their calls. If they
    /// share memory, add [`Site::Task`].
    ///
    /// # Panics
    /// Panics if a destructor panics after the end of a run.
    ///
    /// # Examples
    /// ```
    /// use std::ops::ControlFlow;
    ///
    /// use leasehold_sim::tools::Site;
    /// use leasehold_sim::{Ending, SimOptions, Simulation};
    ///
    /// let mut sums = Vec::new();
    /// let runs = Simulation::new(SimOptions::new(1)).run_all(
    ///     &[Site::User],
    ///     |sim| async move { sim.draw(2) + 2 * sim.draw(2) },
    ///     |report| {
    ///         if let Ending::Completed(sum) = report.ending {
    ///             sums.push(sum);
    ///         }
    ///         ControlFlow::Continue(())
    ///     },
    /// );
    /// sums.sort();
    /// assert_eq!((runs, sums), (4, vec![0, 1, 2, 3]));
    /// ```
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
            let simulation = self.clone().scheduling(Scheduling::Replay(tape));
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
