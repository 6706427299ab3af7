//! A user that tries to lock a key with another program's value. Its failed calls must not affect
//! the other calls of their batches.

use std::sync::Arc;

use leasehold_api::Error;

use crate::checker::Model;
use crate::stress::machine::Machine;

/// The key that holds another program's value.
pub(crate) const FOREIGN: &str = "foreign";

/// Tries the key once in each round. Each try must fail with [`Error::ForeignValue`], unless the
/// server does not answer, or refuses its client.
pub(crate) async fn try_foreign(machine: Arc<Machine>) {
    let (plan, monitor) = (machine.plan, &machine.monitor);
    for _ in 0..plan.rounds {
        let mutex = machine.newest().client.mutex(FOREIGN);
        let mutex = mutex.expect("a scenario's key is valid");
        // If the server lost the value, this takes a lock, which must be gone as soon as the others.
        let mutex = mutex.lease(plan.terms.lease);
        let text = match mutex.try_lock().await.map(drop) {
            Err(
                Error::ForeignValue { .. }
                | Error::Unavailable { .. }
                | Error::OutcomeUnknown { .. },
            ) => continue,
            Err(Error::Rejected { .. }) if plan.fault_mix.refusals => continue,
            Err(Error::Closed) if plan.fault_mix.shutdowns => continue,
            Err(error) => error.to_string(),
            // A server that loses its data loses this value too.
            Ok(()) if monitor.model() == Model::Outside => continue,
            Ok(()) => "no error".to_owned(),
        };
        monitor.broken("L4", format!("locking a foreign value: {text}"));
    }
}
