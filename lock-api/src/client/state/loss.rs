//! A lost guard, as the hook for losses is told of it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::client::error::Loss;
use crate::id::{FencingToken, Key, Label};
use crate::request::Mode;
use crate::sync::Arc;

/// A guard that was lost: what [`on_loss`](crate::LockClientBuilder::on_loss) is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LossEvent {
    /// The key that was held.
    pub key: Key,
    /// How it was held.
    pub mode: Mode,
    /// The token of the guard; `None` if the backend has no fencing tokens.
    pub token: Option<FencingToken>,
    /// Why it was lost.
    pub reason: Loss,
    /// From the moment when the guard was handed out until its loss was noticed.
    pub held: Duration,
    /// What the client calls itself to others.
    pub label: Label,
}

/// What a user wants to be called on a loss.
#[derive(Clone)]
pub(crate) struct Hook(Arc<dyn Fn(&LossEvent) + Send + Sync>);

impl Hook {
    pub(crate) fn new(hook: impl Fn(&LossEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    /// Calls it; whether it came back without a panic.
    pub(crate) fn call(&self, event: &LossEvent) -> bool {
        // The renewals of all guards run in the same task: they outlive the hook's mistakes.
        catch_unwind(AssertUnwindSafe(|| (self.0)(event))).is_ok()
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}
