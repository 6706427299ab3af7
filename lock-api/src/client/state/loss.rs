//! The description of a lost guard, and the user's hook that receives it.
//!
//! The renewal task calls the hook. It renews all guards of the client, so a panic of the hook is
//! caught.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::client::error::Loss;
use crate::id::{FencingToken, Key, Label};
use crate::request::Mode;
use crate::sync::Arc;

/// A lost guard, as the hook [`on_loss`](crate::LockClientBuilder::on_loss) receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LossEvent {
    /// The key of the lock.
    pub key: Key,
    /// The mode of the guard.
    pub mode: Mode,
    /// The fencing token of the guard.
    pub token: FencingToken,
    /// Why the guard was lost.
    pub reason: Loss,
    /// The time from when you got the guard until the client noticed the loss.
    pub held: Duration,
    /// The label of the client.
    pub label: Label,
}

#[derive(Clone)]
pub(crate) struct Hook(pub(crate) Arc<dyn Fn(&LossEvent) + Send + Sync>);

impl Hook {
    /// Calls the hook. Returns `false` if it panicked.
    pub(crate) fn call(&self, event: &LossEvent) -> bool {
        // A panic must not stop the task that renews all guards.
        catch_unwind(AssertUnwindSafe(|| (self.0)(event))).is_ok()
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}
