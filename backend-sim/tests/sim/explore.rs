//! Explorations, written as in users' tests.

use std::cell::Cell;
use std::future::Future;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_api::{LockBackend as _, LockClient};
use leasehold_sim::{Exploration, FaultMix, SimServer};

use crate::drivers::options;
use crate::support::{ms, secs};

/// Three workers count twice each under a lock. If `locked` is false, they release it too early.
async fn count(sim: SimServer, locked: bool) -> Result<(), String> {
    let counter = Arc::new(AtomicU32::new(0));
    let workers = ["a", "b", "c"].map(|name| {
        let (sim_then, machine, counter) = (sim.clone(), sim.client(name), Arc::clone(&counter));
        sim.spawn(async move {
            let locks = LockClient::new(machine.clone());
            for _ in 0..2 {
                let mutex = locks.mutex("counter").expect("a valid key").lease(secs(3));
                let guard = mutex.lock().await.expect("it survives the faults");
                if !locked {
                    // The bug: the lock is released before the work.
                    drop(guard);
                    sim_then.sleep(ms(1)).await;
                    let seen = counter.load(Ordering::Relaxed);
                    sim_then.sleep(ms(u64::from(sim_then.draw(3)))).await;
                    counter.store(seen + 1, Ordering::Relaxed);
                    continue;
                }
                counter.fetch_add(1, Ordering::Relaxed);
                drop(guard);
            }
        })
    });
    for worker in workers {
        worker.await;
    }
    match counter.load(Ordering::Relaxed) {
        6 => Ok(()),
        other => Err(format!("{other} of 6 were counted")),
    }
}

fn exploration() -> Exploration {
    Exploration::new().seeds(0..300).fault_mix(FaultMix::all())
}

#[test]
fn right_code_passes() {
    exploration().check(|sim| count(sim, true));
}

#[test]
fn failure_is_found_and_simplified() {
    let failure = exploration().find(|sim| count(sim, false)).expect("found");
    assert!(failure.reason.contains("of 6 were counted"), "{failure}");
    let set = failure.tape.draws.iter().filter(|draw| draw.value != 0);
    assert!(set.count() <= 8, "{failure}");
    // The bug needs no fault, so no fault is left.
    let text = failure.history.text();
    assert!(!text.contains(['!', '~']), "{text}");
}

#[test]
fn outages_fail_only_code_that_does_not_expect_them() {
    let outages = || exploration().fault_mix(FaultMix::none().outages(true));
    outages().check(|sim| count(sim, true));
    let found = outages().find(|sim| async move {
        let locks = LockClient::new(sim.client("a"));
        sim.sleep(ms(500)).await;
        let mutex = locks.mutex("job").expect("a valid key");
        mutex.try_lock().await.map(drop)
    });
    let failure = found.expect("found");
    let text = failure.history.text();
    assert!(text.contains("~ stopped"), "{text}");
}

/// Runs one test of this file in a new process, with an environment variable. Returns whether it
/// passed, and its output.
fn rerun(test: &str, variable: &str, value: &str) -> (bool, String) {
    let program = std::env::current_exe().expect("this test's program");
    let name = format!("explore::{test}");
    let output = std::process::Command::new(program)
        .args(["--exact", "--include-ignored", "--nocapture", &name])
        .env(variable, value)
        .env_remove("RUST_BACKTRACE")
        .output()
        .expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let text = text(&output.stdout) + &text(&output.stderr);
    (output.status.success(), text)
}

/// As [`rerun`]. Asserts that the test fails, and returns its output, which contains `says`.
#[track_caller]
fn fails(test: &str, variable: &str, value: &str, says: &str) -> String {
    let (passed, text) = rerun(test, variable, value);
    assert!(!passed && text.contains(says), "{text}");
    text
}

#[test]
fn environment_sets_the_number_of_seeds() {
    let (passed, text) = rerun("right_code_passes", "LEASEHOLD_SEEDS", "7");
    assert!(passed && text.contains("7 runs: "), "{text}");
    let says = "LEASEHOLD_SEEDS: \"0\" is no number of seeds";
    fails("right_code_passes", "LEASEHOLD_SEEDS", "0", says);
}

#[test]
#[ignore = "fails on purpose; other tests run it"]
fn wrong_code_fails() {
    exploration().check(|sim| count(sim, false));
}

#[test]
fn printed_command_repeats_a_failure() {
    let pages = env!("CARGO_TARGET_TMPDIR");
    let repeat = "to repeat it: ";
    let first = fails("wrong_code_fails", "LEASEHOLD_SIM_PAGES", pages, repeat);
    let mut lines = first.lines();
    let line = lines.find_map(|line| line.strip_prefix(repeat));
    let line = line.expect("a line");
    let command = " cargo test -- --exact explore::wrong_code_fails";
    assert!(line.ends_with(command), "{line}");
    let tape = line.split(['=', ' ']).nth(1).expect("a tape");
    let says = "run 1, with seed";
    let second = fails("wrong_code_fails", "LEASEHOLD_SIM_REPLAY", tape, says);
    // Both print the same timeline.
    let timeline = |text: &str| -> Vec<String> {
        let lines = text.lines().skip_while(|line| !line.contains("  server"));
        lines
            .take_while(|line| !line.is_empty())
            .map(str::to_owned)
            .collect()
    };
    assert!(timeline(&first).len() > 5, "{first}");
    assert_eq!(timeline(&first), timeline(&second));
    let page = std::path::Path::new(pages).join("explore--wrong_code_fails.html");
    let page = std::fs::read_to_string(page).expect("a page was written");
    assert!(page.contains("of 6 were counted") && page.contains(tape));
}

#[test]
fn environment_variables_choose_the_run() {
    let (test, tape) = ("right_code_passes", "2.u9:3.A");
    let (passed, text) = rerun(test, "LEASEHOLD_SIM_SEED", "7");
    assert!(passed, "{text}");
    let no_seed = "LEASEHOLD_SIM_SEED: \"seven\" is no seed";
    fails(test, "LEASEHOLD_SIM_SEED", "seven", no_seed);
    let diverges = "the replay diverges at draw 0: the tape has User 3 of 9";
    let text = fails(test, "LEASEHOLD_SIM_REPLAY", tape, diverges);
    // The printed tape diverges again. A tape that ended before the divergence would not.
    let repeat = "to repeat it: LEASEHOLD_SIM_REPLAY=2.u9:3.A ";
    assert!(text.contains(repeat), "{text}");
}

#[tokio::test(start_paused = true)]
#[ignore = "fails on purpose; other tests run it"]
async fn a_tokio_test_that_fails() {
    let server = SimServer::with_options(options(1));
    let client = server.client("a");
    for _ in 0..2 {
        client.hello().await.expect("an answer");
    }
    panic!("on purpose");
}

#[test]
fn failing_tokio_test_prints_its_timeline_and_its_seed() {
    let test = "a_tokio_test_that_fails";
    let seed = "the simulation with seed 9:";
    let text = fails(test, "LEASEHOLD_SIM_SEED", "9", seed);
    assert!(text.contains("  .*          hello"), "{text}");
    let line =
        "to repeat it: LEASEHOLD_SIM_SEED=9 cargo test -- --exact explore::a_tokio_test_that_fails";
    assert!(text.contains(line), "{text}");
    let diverges = "the replay diverges at draw 0";
    fails(test, "LEASEHOLD_SIM_REPLAY", "2.u9:3.A", diverges);
}

#[tokio::test(start_paused = true)]
#[ignore = "other tests run it with a tape"]
async fn a_tokio_test_that_draws_twice() {
    let server = SimServer::new(1);
    // A task in the background doesn't hide the divergence.
    let client = server.client("a");
    tokio::spawn(async move { client.runtime().sleep(secs(3_600)).await });
    server.advance(secs(1)).await;
    for _ in 0..2 {
        assert!(server.draw(9) < 9);
    }
}

#[test]
fn tokio_test_that_ends_before_its_tape_fails() {
    let test = "a_tokio_test_that_draws_twice";
    let (passed, text) = rerun(test, "LEASEHOLD_SIM_REPLAY", "2.u9:3.A2");
    assert!(passed, "{text}");
    let says = "the run ended after 2 of 3 draws, the tape goes on with User 3 of 9";
    fails(test, "LEASEHOLD_SIM_REPLAY", "2.u9:3.A3", says);
}

#[test]
fn exploration_finds_the_same_failure_again() {
    let find = || exploration().find(|sim| count(sim, false)).expect("found");
    assert_eq!(find().to_string(), find().to_string());
}

/// Returns why a scenario fails.
fn reason<F: Future<Output = ()>>(limits: Exploration, scenario: fn(SimServer) -> F) -> String {
    limits.seeds(0..3).find(scenario).expect("it fails").reason
}

#[test]
fn deadlocks_and_endless_runs_are_failures() {
    let deadlock = reason(Exploration::new(), |_| std::future::pending());
    assert!(deadlock.contains("nothing can go on"), "{deadlock}");
    let limits = Exploration::new().time_limit(secs(9)).step_limit(100);
    let sleeps = |sim: SimServer| async move { sim.sleep(secs(10)).await };
    let long = reason(limits.clone(), sleeps);
    assert!(long.contains("not done after 9s"), "{long}");
    let endless = reason(limits, |sim| async move {
        loop {
            sim.yield_now().await;
        }
    });
    assert!(endless.contains("not done after 100 steps"), "{endless}");
}

/// A passing run of this scenario is long. Shrinking, which happens on this thread, cuts such runs off.
#[test]
fn shrinking_cuts_off_long_runs() {
    thread_local! {
        static FOUND: Cell<u32> = const { Cell::new(0) };
        static MORE: Cell<u32> = const { Cell::new(0) };
    }
    let failure = Exploration::new().find(|sim| async move {
        if sim.draw(1_000) >= 990 {
            FOUND.set(1);
            panic!("a large number");
        }
        for _ in 0..2_000 {
            MORE.set(MORE.get() + FOUND.get());
            sim.yield_now().await;
        }
    });
    let tape = failure.expect("it is found").tape;
    assert_eq!(tape.draws.iter().map(|draw| draw.value).sum::<u32>(), 990);
    let more = MORE.get();
    assert!((1..1_000).contains(&more), "{more} steps");
}

/// Both runs make the same calls at the same times, with different keys. The hash of the run does
/// not include the keys.
#[test]
fn different_keys_in_the_second_run_are_found() {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let failure = Exploration::new().seeds(0..3).find(|sim| async move {
        let key = RUNS.fetch_add(1, Ordering::Relaxed).to_string();
        let locks = LockClient::new(sim.client("a"));
        let mutex = locks.mutex(key).expect("a valid key");
        mutex.lock().await.map(drop)
    });
    let reason = failure.expect("found").reason;
    assert!(reason.contains("two runs of one seed differ"), "{reason}");
    assert!(reason.contains("acquire \"0\""), "{reason}");
    assert!(reason.contains("acquire \"1\""), "{reason}");
}

#[test]
#[should_panic(expected = "nothing would run")]
fn empty_range_of_seeds_is_refused() {
    let _ = Exploration::new().seeds(5..5);
}

#[test]
fn panic_is_reported_with_its_location_and_advice() {
    let panicked = reason(Exploration::new(), |_| async { panic!("of mine") });
    let here = format!("of mine\npanicked at {}:", file!());
    assert!(panicked.contains(&here), "{panicked}");
    let advised = reason(Exploration::new(), |_| tokio::time::sleep(ms(1)));
    assert!(advised.contains("sleep with `sim.sleep`"), "{advised}");
}

struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("mine");
    }
}

/// Leaves a value in a task that does not end.
async fn leave(sim: SimServer, value: Option<PanicsOnDrop>) {
    drop(sim.spawn(async move {
        let _value = value;
        std::future::pending::<()>().await;
    }));
    sim.sleep(ms(1)).await;
}

/// Panics of runs are not printed, so the test would fail without a message.
#[test]
#[should_panic(expected = "panicked when it was dropped:\nmine")]
fn panic_in_a_destructor_is_reported() {
    Exploration::new().check(|sim| leave(sim, Some(PanicsOnDrop)));
}

/// Each core finds another one. By the first that fails, all cores are at work.
#[test]
fn panic_in_a_destructor_is_that_of_the_first_seed() {
    for _ in 0..8 {
        let explored = catch_unwind(|| {
            Exploration::new().seeds(0..2_000).check(|sim| {
                let value = (sim.tape().seed >= 500).then(|| PanicsOnDrop);
                leave(sim, value)
            })
        });
        let panic = explored.expect_err("a destructor panics");
        let text = panic.downcast_ref::<String>().expect("a text");
        assert!(
            text.contains("with seed 500, a value that was left"),
            "{text}"
        );
    }
}

#[test]
#[should_panic(expected = "panicked when it was dropped:\nmine")]
fn panic_in_a_destructor_is_reported_by_check_all() {
    Exploration::new().check_all(|sim| {
        let value = match sim.draw(100) {
            99 => Some(PanicsOnDrop),
            _ => None,
        };
        leave(sim, value)
    });
}

/// A client that takes a plain mutex twice waits for itself, and polls once a second.
#[test]
fn report_of_a_hang_is_short_and_names_the_lock() {
    let exploration = Exploration::new().time_limit(secs(1_000));
    let failure = exploration.find(|sim| async move {
        let locks = LockClient::new(sim.client("a"));
        let mutex = locks.mutex("job")?;
        let _first = mutex.lock().await?;
        mutex.lock().await.map(drop)
    });
    let failure = failure.expect("it fails");
    let text = failure.to_string();
    assert!(text.contains("a holds \"job\" (#1) since"), "{text}");
    assert!(text.contains("a waits for \"job\" (#2) since"), "{text}");
    let (all, printed) = (failure.history.text().lines().count(), text.lines().count());
    assert!(printed < 330 && 330 < all, "{printed} of {all} lines");
    assert!(text.contains("lines are left out"), "{text}");
}

/// Two clients with three commands each have 6! / (3! 3!) = 20 orders.
#[test]
fn check_all_covers_a_small_scope() {
    let mut orders = std::collections::BTreeSet::new();
    let seen = std::sync::Mutex::new(&mut orders);
    let runs = Exploration::new().check_all(|sim| {
        let seen = &seen;
        async move {
            let order = Arc::new(std::sync::Mutex::new(String::new()));
            let clients = ["a", "b"].map(|name| {
                let (machine, order) = (sim.client(name), Arc::clone(&order));
                sim.spawn(async move {
                    for _ in 0..3 {
                        machine.hello().await.expect("an answer");
                        order.lock().expect("unpoisoned").push_str(name);
                    }
                })
            });
            for client in clients {
                client.await;
            }
            let order = order.lock().expect("unpoisoned").clone();
            seen.lock().expect("unpoisoned").insert(order);
        }
    });
    assert_eq!(orders.len(), 20, "{orders:?}");
    assert!(runs < 2_000, "{runs} runs");
}

/// Two clients that wait have too many orders, unless each call is atomic.
#[test]
fn small_scope_with_atomic_calls_may_wait() {
    let runs = Exploration::new()
        .atomic_calls(true)
        .check_all(|sim| async move {
            let inside = Arc::new(AtomicU32::new(0));
            let clients = ["a", "b"].map(|name| {
                let (locks, inside) = (LockClient::new(sim.client(name)), Arc::clone(&inside));
                sim.spawn(async move {
                    let guard = locks.mutex("job")?.lock().await?;
                    assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two at once");
                    inside.fetch_sub(1, Ordering::Relaxed);
                    guard.release().await
                })
            });
            for client in clients {
                client.await?;
            }
            Ok::<_, leasehold_api::Error>(())
        });
    assert!((100..10_000).contains(&runs), "{runs} runs");
}

#[test]
#[should_panic(expected = "two runs with the same choices differ")]
fn nondeterministic_scope_is_refused() {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    Exploration::new().check_all(|sim| async move {
        // The exploration compares the first two runs. This difference shows later.
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        sim.draw(2);
        sim.draw(if run > 2 { 3 } else { 2 });
    });
}

#[test]
#[should_panic(expected = "the scope has more than 10 runs")]
fn too_large_scope_is_refused() {
    Exploration::new()
        .run_limit(10)
        .check_all(|sim| async move {
            for _ in 0..10 {
                sim.draw(2);
            }
        });
}

/// Measures how long it takes to simplify a failing run.
#[test]
#[ignore = "measures; run it in release: cargo test --release -p leasehold-sim --test sim -- --ignored --nocapture shrinking"]
#[expect(clippy::disallowed_types, reason = "this measures real time")]
fn shrinking_takes_little_time() {
    let mut times = Vec::new();
    for from in (0..3_000).step_by(100) {
        let found = exploration().seeds(from..from + 100);
        let (unshrunk, shrunk) = (found.clone().shrink_runs(0), found);
        let time = |exploration: &Exploration| -> (Duration, bool) {
            let start = std::time::Instant::now();
            let failure = exploration.find(|sim| count(sim, false));
            (start.elapsed(), failure.is_some())
        };
        let (without, _) = time(&unshrunk);
        let (with, found) = time(&shrunk);
        if found {
            times.push(with.saturating_sub(without));
        }
    }
    times.sort();
    let median = times[times.len() / 2];
    println!("shrinking: median {median:?}, {} failures", times.len());
    assert!(median < ms(500), "{times:?}");
}
