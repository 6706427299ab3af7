//! What must hold on every lock service. Each scenario has a key of its own.

pub(crate) mod elections;
pub(crate) mod jobs;
pub(crate) mod operators;
pub(crate) mod pauses;
pub(crate) mod processes;
pub(crate) mod signals;
pub(crate) mod statuses;
pub(crate) mod support;
pub(crate) mod table;
pub(crate) mod terminal;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use support::Place;

/// They mostly wait.
const AT_ONCE: usize = 8;

pub(crate) type Scenario = (&'static str, fn(&Place));

/// Names functions.
macro_rules! scenarios {
    ($($module:ident::$name:ident),* $(,)?) => {
        [$((stringify!($name), $module::$name as fn(&Place))),*]
    };
}

/// The scenarios that leave the service alone.
pub(crate) const ALL: &[Scenario] = &scenarios![
    statuses::status_of_cmd,
    statuses::signal_of_cmd,
    statuses::environment_of_cmd,
    statuses::contended,
    statuses::odd_keys,
    statuses::nobody_reads,
    statuses::few_files,
    statuses::without_proc,
    statuses::name_of_the_keeper,
    statuses::kinds_of_locks,
    processes::ignores_sigterm,
    processes::ends_on_sigterm,
    processes::leaves_a_process_behind,
    processes::stops_itself,
    processes::wakes_up_for_a_signal,
    processes::first_process_of_a_namespace,
    signals::while_waiting,
    signals::while_running,
    signals::ignored,
    pauses::command_killed,
    pauses::command_killed_while_waiting,
    pauses::command_stopped,
    pauses::keeper_killed,
    pauses::keeper_stopped,
    pauses::revoked,
    pauses::revoked_while_the_command_is_stopped,
    pauses::command_stopped_beyond_max_hold,
    jobs::runs_once,
    jobs::many_machines_run_it_once,
    jobs::failures_are_counted,
    jobs::a_job_that_is_given_up_says_so,
    jobs::next_machine_tries_after_a_failure,
    jobs::a_job_that_is_stopped_is_not_done,
    elections::leads_and_follows,
    elections::followers_watch,
    elections::candidates_wait_for_a_while,
    elections::stands_again_after_losses,
    elections::terms_that_end_at_once_are_paused,
    elections::without_again,
    elections::asked_to_end_during_a_loss,
    elections::command_killed,
    elections::command_stopped,
    operators::finds_and_revokes,
    operators::roles,
    operators::a_healthy_service,
    table::shows_what_is_in_use,
    table::gives_the_terminal_back,
    terminal::reads_from_the_terminal,
    terminal::interrupted_from_the_terminal,
    terminal::stopped_from_the_terminal,
    terminal::stopped_for_longer_than_a_lease,
    terminal::neighbour_reads_from_the_terminal,
];

/// Without a clock that a client can read, there are no jobs, and no locks that are shared.
pub(crate) const NEED_A_CLOCK: [&str; 11] = [
    "odd_keys",
    "nobody_reads",
    "kinds_of_locks",
    "roles",
    "shows_what_is_in_use",
    "runs_once",
    "many_machines_run_it_once",
    "failures_are_counted",
    "a_job_that_is_given_up_says_so",
    "next_machine_tries_after_a_failure",
    "a_job_that_is_stopped_is_not_done",
];

/// Runs the scenarios, a few at a time. Reports all that fail.
pub(crate) fn run_all(url: &str, scenarios: &[Scenario]) {
    let (waiting, failed) = (Mutex::new(scenarios.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((name, scenario)) = next(&waiting) {
                    let place = Place::new(url, name);
                    if catch_unwind(AssertUnwindSafe(|| scenario(&place))).is_err() {
                        failed.lock().expect("no panic").push(*name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    assert!(failed.is_empty(), "failed: {failed:?}");
}

fn next<'a>(waiting: &Mutex<impl Iterator<Item = &'a Scenario>>) -> Option<&'a Scenario> {
    waiting.lock().expect("no panic").next()
}
