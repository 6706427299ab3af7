//! Runs that do not come from their seed alone are noticed.
#![expect(
    clippy::disallowed_types,
    reason = "the order of a hash map is what must be noticed"
)]

use std::collections::HashMap;

use leasehold_sim::{Ending, SimOptions, SimServer, Simulation, assert_deterministic};

use crate::drivers::{options, scenario};
use crate::support::{ms, secs};

fn simulation() -> Simulation {
    Simulation::new(options(7))
}

#[test]
fn what_comes_from_the_seed_passes() {
    let report = simulation().assert_deterministic(scenario);
    assert!(matches!(report.ending, Ending::Completed(_)));
}

/// Eight tasks, started in an order that differs from one map to the next.
#[expect(
    clippy::disallowed_types,
    reason = "the determinism_check must notice it"
)]
async fn in_the_order_of_a_map(sim: SimServer) {
    let map: HashMap<u32, &str> = (0..8).map(|n| (n, "a")).collect();
    for (n, name) in map {
        sim.client(name).note(format!("client {n}"));
    }
}

#[test]
#[should_panic(expected = "the same seed gave two different runs; they part at")]
fn the_order_of_a_map_is_noticed() {
    simulation().assert_deterministic(in_the_order_of_a_map);
}

/// Which of two that are ready is taken, 30 times.
async fn unbiased(sim: SimServer) -> String {
    let mut taken = String::new();
    for _ in 0..30 {
        tokio::select! {
            () = sim.yield_now() => taken.push('l'),
            () = std::future::ready(()) => taken.push('r'),
            () = async {} => taken.push('x'),
        }
    }
    taken
}

#[test]
#[should_panic(expected = "the same seed gave two different verdicts")]
fn an_unbiased_select_is_noticed() {
    simulation().assert_deterministic(unbiased);
}

#[test]
fn a_biased_select_passes() {
    simulation().assert_deterministic(|sim| async move {
        tokio::select! {
            biased;
            () = sim.sleep(ms(5)) => 1,
            () = sim.sleep(secs(5)) => 2,
        }
    });
}

fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
}

fn on_tokio<T>(test: impl AsyncFn(SimServer) -> T) -> (SimServer, T) {
    paused().block_on(async {
        let server = SimServer::with_options(options(7));
        (server.clone(), test(server).await)
    })
}

#[test]
fn a_tokio_test_that_comes_from_its_seed_passes() {
    assert_deterministic(|| on_tokio(scenario));
}

#[test]
#[should_panic(expected = "the same seed gave two different runs")]
fn the_order_of_a_map_is_noticed_in_a_tokio_test() {
    assert_deterministic(|| on_tokio(in_the_order_of_a_map));
}

#[test]
#[should_panic(expected = "the same seed gave two different verdicts")]
fn an_unbiased_select_is_noticed_in_a_tokio_test() {
    assert_deterministic(|| on_tokio(unbiased));
}

/// Draws from something else than the tape, and nothing to see of it in the log.
#[test]
#[should_panic(expected = "equal logs but different choices")]
fn other_choices_are_noticed() {
    let calls = std::cell::Cell::new(0);
    Simulation::new(SimOptions::new(1)).assert_deterministic(|sim| {
        calls.set(calls.get() + 1);
        let bound = 10 + calls.get();
        async move {
            sim.draw(bound);
        }
    });
}
