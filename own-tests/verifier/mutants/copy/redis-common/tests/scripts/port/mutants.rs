//! The comparison with the state machine finds every mutant of the scripts.

use std::panic::catch_unwind;

use leasehold_api::mutants;

use super::{CONTENDED, actions, contention, difference, long_queue, several_holders, watermarks};

/// What random commands do rarely.
const DIRECTED: [fn(); 6] = [
    watermarks::earlier_try_is_refused_after_a_later_one,
    watermarks::renewed_hold_lasts_longer_than_a_token_is_kept,
    several_holders::an_expired_offer_of_a_permit_goes_to_the_next_waiter,
    long_queue::expired_waiters_of_a_long_queue_are_dropped,
    long_queue::queue_survives_changes_between_string_and_hash,
    long_queue::ordinary_commands_to_a_long_queue_take_the_fast_path,
];

#[test]
fn every_mutant_of_the_scripts_differs() {
    let mut missed = Vec::new();
    for mutant in mutants::of_scripts() {
        assert!(mutants::plant(mutant));
        let difference = difference(0..32_u8, actions())
            .or_else(|| difference(CONTENDED..CONTENDED + 3, contention()))
            .or_else(|| {
                let mut directed = DIRECTED.iter();
                let found = directed.any(|test| catch_unwind(test).is_err());
                found.then(|| "a directed test".into())
            });
        let first = difference.as_deref().and_then(|it| it.lines().next());
        println!("{mutant:<45} {}", first.unwrap_or("MISSED"));
        if difference.is_none() {
            missed.push(mutant);
        }
    }
    assert!(mutants::of_scripts().count() > 20);
    assert!(missed.is_empty(), "{missed:?}");
}
