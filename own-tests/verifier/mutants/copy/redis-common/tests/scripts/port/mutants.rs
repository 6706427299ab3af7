//! The comparison with the state machine finds every mutant that sends wrong messages.

use leasehold_redis_common::script::mutants::MESSAGES;

use super::{CONTENDED, actions, contention, difference};

#[test]
fn every_mutant_that_sends_wrong_messages_differs() {
    for mutant in MESSAGES {
        mutant.plant();
        let difference = difference(0..32_u8, actions())
            .or_else(|| difference(CONTENDED..CONTENDED + 3, contention()));
        assert!(difference.is_some(), "{}", mutant.name);
    }
}
