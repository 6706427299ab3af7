//! What the checker finds, and whether the assumptions hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::checker::coverage::{Coverage, Situation};

/// The maximum number of findings of one run; more would tell nothing new.
const FINDINGS: usize = 8;

/// The name of a client in findings.
pub(crate) fn client_name(client: usize) -> String {
    let letter = ('a'..='z').nth(client).unwrap_or('?');
    format!("client {letter}")
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The promise: S1 to S5, L1 to L4, a rule of docs/semantics.md, or a plain word.
    pub promise: &'static str,
    /// The time since the run began, on the true timeline.
    pub at: Duration,
    /// What happened.
    pub text: String,
}

/// The violations found so far, and the situations that the run has reached.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// When the step or the event happened that is checked now.
    pub(super) at: Duration,
    pub(super) violations: Vec<Violation>,
    pub(super) seen: Coverage,
    /// The promises to report; all, if there are none.
    pub(crate) promises: &'static [&'static str],
    /// Set by the first violation.
    pub(crate) broken: Arc<AtomicBool>,
}

impl Findings {
    pub(crate) fn reached(&mut self, situation: Situation) {
        self.seen.reached(situation);
    }

    pub(crate) fn add(&mut self, promise: &'static str, text: String) {
        let wanted = self.promises.is_empty() || self.promises.contains(&promise);
        if wanted && self.violations.len() < FINDINGS {
            let at = self.at;
            self.broken.store(true, Ordering::Relaxed);
            self.violations.push(Violation { promise, at, text });
        }
    }
}

/// Whether the assumptions A1 to A4 hold, which decides what is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Model {
    /// They hold. Everything is checked.
    #[default]
    Within,
    /// One of them fails. Checks S3, S4 under its condition, S5, and after recovery L1 to L4.
    Outside,
}
