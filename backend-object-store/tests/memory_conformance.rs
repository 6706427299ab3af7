//! The conformance suite on objects in memory.

mod support;

use std::process::ExitCode;
use std::sync::Arc;

use object_store::memory::InMemory;
use support::{CANNOT_RUN, Objects};

fn main() -> ExitCode {
    let objects = Objects {
        name: "object-store",
        store: Arc::new(InMemory::new()),
    };
    leasehold_conformance::run(objects, CANNOT_RUN)
}
