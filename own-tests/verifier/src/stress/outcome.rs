//! The result of a run.

use leasehold_sim::{Ending, RunReport};

use crate::checker::{Coverage, Violation};
use crate::stress::monitor::Monitor;

/// The result of one stress run.
#[derive(Debug)]
#[non_exhaustive]
pub struct StressRun {
    /// The broken promises. The run passes if there are none.
    pub violations: Vec<Violation>,
    /// The rare situations that the run reached.
    pub coverage: Coverage,
    /// The run itself: its tape, log and trace.
    pub report: RunReport<()>,
}

impl StressRun {
    pub(super) fn new(report: RunReport<()>, monitor: Option<&Monitor>) -> Self {
        let (mut violations, coverage) = monitor.map(Monitor::verdict).unwrap_or_default();
        let failed = match &report.ending {
            Ending::Completed(()) | Ending::Stopped => None,
            Ending::Deadlock => Some("deadlock: no task can continue".to_owned()),
            Ending::TimeLimit => Some("the run exceeds its time limit".to_owned()),
            Ending::StepLimit => Some("the run exceeds its step limit".to_owned()),
            Ending::Panicked(message) => Some(format!("panic: {message}")),
            Ending::Diverged(divergence) => Some(divergence.to_string()),
        };
        violations.extend(failed.map(|text| Violation {
            promise: "L4",
            at: report.elapsed,
            text,
        }));
        Self {
            violations,
            coverage,
            report,
        }
    }
}
