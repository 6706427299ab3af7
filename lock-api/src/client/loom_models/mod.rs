//! Loom models of the state that threads share, under `--cfg leasehold_loom`.
//!
//! Loom runs each model in every interleaving of its threads, up to a bound of preemptions. Each
//! model runs in its own process, because loom aborts the process when a model deadlocks, as after
//! a lost wake-up.

mod batches;
mod cells;
mod clients;
mod fixture;

use std::time::Duration;

use loom::thread::{Builder, JoinHandle};

use crate::backend::Notification;
use crate::id::FencingToken;
use crate::time::{ClockId, ServerTime, Stamp};

const STAMP: Stamp = Stamp {
    clock: ClockId::new(1),
    at: ServerTime::from_micros(1_000_000),
};

/// The stack of a model's thread, in words. Loom's default is too small for a client's futures.
const STACK: usize = 1 << 16;

/// Runs a model in every interleaving of its threads, within loom's bound.
fn explore(model: fn()) {
    loom::model(move || spawn(model).join().expect("the model returns"));
}

/// Starts a thread of a model.
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let thread = Builder::new().stack_size(STACK);
    thread.spawn(body).expect("loom starts the thread")
}

const fn granted(sequence: u64) -> Notification {
    Notification::Granted {
        sequence,
        token: FencingToken::new(7),
        remaining: Duration::from_secs(5),
        stamp: STAMP,
    }
}
