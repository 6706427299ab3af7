//! What threads do to each other in what they share, in every order: run by loom, under
//! `--cfg leasehold_loom`. One model a process, for a lost wake-up ends it.

mod batches;
mod cells;
mod clients;
mod fixture;
#[cfg(leasehold_mutants)]
mod planted;

use std::time::Duration;

use loom::thread::{Builder, JoinHandle};

use crate::backend::Notification;
use crate::id::FencingToken;
use crate::time::{ClockId, ServerTime, Stamp};

const STAMP: Stamp = Stamp {
    clock: ClockId::new(1),
    at: ServerTime::from_micros(1_000_000),
};

/// Stack of a model's thread in words: loom's own are too small for a client's futures.
const STACK: usize = 1 << 16;

/// Runs a model in every order of its threads, within loom's bound.
fn explore(model: fn()) {
    #[cfg(leasehold_mutants)]
    planted::plant();
    loom::model(move || spawn(model).join().expect("it ends"));
}

/// Starts a thread of a model.
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let thread = Builder::new().stack_size(STACK);
    thread.spawn(body).expect("loom starts it")
}

/// What is pushed when an attempt is granted.
const fn granted(sequence: u64) -> Notification {
    Notification::Granted {
        sequence,
        token: FencingToken::new(7),
        remaining: Duration::from_secs(5),
        stamp: STAMP,
    }
}
