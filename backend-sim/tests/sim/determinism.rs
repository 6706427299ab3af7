//! The determinism check finds runs that depend on more than their seed.
#![expect(
    clippy::disallowed_types,
    reason = "the determinism check must find the order of a hash map"
)]

use std::collections::HashMap;

use leasehold_sim::{Ending, SimOptions, SimServer, Simulation, assert_deterministic};

use crate::drivers::{options, scenario};
use crate::support::{assert_is, ms, paused, secs};

fn simulation() -> Simulation {
    Simulation::new(options(7))
}

#[test]
fn deterministic_run_passes() {
    let report = simulation().assert_deterministic(scenario);
    assert_is!(report.ending => Ending::Completed(_));
}

/// Adds eight clients, in the order of a hash map.
#[expect(
    clippy::disallowed_types,
    reason = "the determinism check must find it"
)]
async fn in_map_order(sim: SimServer) {
    let map: HashMap<u32, &str> = (0..8).map(|n| (n, "a")).collect();
    for (n, name) in map {
        sim.client(name).note(format!("client {n}"));
    }
}

#[test]
#[should_panic(expected = "the same seed gave two different runs; the first difference is")]
fn map_order_is_found() {
    simulation().assert_deterministic(in_map_order);
}

/// Polls three branches in a random order, 30 times.
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
#[should_panic(expected = "the same seed gave two different results")]
fn unbiased_select_is_found() {
    simulation().assert_deterministic(unbiased);
}

#[test]
fn biased_select_passes() {
    simulation().assert_deterministic(|sim| async move {
        tokio::select! {
            biased;
            () = sim.sleep(ms(5)) => 1,
            () = sim.sleep(secs(5)) => 2,
        }
    });
}

fn on_tokio<T>(test: impl AsyncFn(SimServer) -> T) -> (SimServer, T) {
    paused().block_on(async {
        let server = SimServer::with_options(options(7));
        (server.clone(), test(server).await)
    })
}

#[test]
fn deterministic_tokio_test_passes() {
    assert_deterministic(|| on_tokio(scenario));
}

#[test]
#[should_panic(expected = "the same seed gave two different runs")]
fn map_order_is_found_in_a_tokio_test() {
    assert_deterministic(|| on_tokio(in_map_order));
}

#[test]
#[should_panic(expected = "the same seed gave two different results")]
fn unbiased_select_is_found_in_a_tokio_test() {
    assert_deterministic(|| on_tokio(unbiased));
}

/// The draws differ between the runs, but the logs don't show it.
#[test]
#[should_panic(expected = "equal logs but different choices")]
fn different_choices_are_found() {
    let calls = std::cell::Cell::new(0);
    Simulation::new(SimOptions::new(1)).assert_deterministic(|sim| {
        calls.set(calls.get() + 1);
        let bound = 10 + calls.get();
        async move {
            sim.draw(bound);
        }
    });
}
