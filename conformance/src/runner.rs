//! Runs the cases, each on its own thread and in its own environment, under a watchdog.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use leasehold_api::BoxFuture;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::case::Case;
use crate::failure::Failure;
use crate::families;
use crate::harness::Harness;
use crate::world::{Lock, World};

/// The default of `--test-threads`. It exceeds the number of cores because most cases only wait.
const THREADS: usize = 10;

/// The command line. The library takes one filter, cargo's own tests take several.
#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    arguments: Arguments,
    /// Further filters. A case runs if its name contains one of the filters.
    #[arg(value_name = "FILTER")]
    more_filters: Vec<String>,
}

impl CommandLine {
    /// Leaves only the trials that match a filter, if there are several.
    fn select(&mut self, trials: &mut Vec<Trial>) {
        if self.more_filters.is_empty() {
            return;
        }
        let filters = self.arguments.filter.take().into_iter();
        let filters: Vec<_> = filters.chain(self.more_filters.drain(..)).collect();
        let matches = |name: &str, filter: &String| match self.arguments.exact {
            true => name == filter,
            false => name.contains(filter),
        };
        trials.retain(|trial| filters.iter().any(|filter| matches(trial.name(), filter)));
    }
}

/// Runs the suite. It accepts the command line arguments of every Rust test.
///
/// `cannot_run` lists the cases that this backend can't run; `family::*` stands for all cases
/// of a family. The suite fails if the list differs from the cases that were ignored.
///
/// The last line of the output is `conformance BACKEND: N passed, N failed, N ignored`.
pub fn run(harness: impl Harness, cannot_run: &[&str]) -> ExitCode {
    let mut command_line = CommandLine::parse();
    let harness: Arc<dyn Harness> = Arc::new(harness);
    let mut trials: Vec<_> = families::all()
        .map(|case| trial(Arc::clone(&harness), *case))
        .collect();
    trials.push(compare_ignored(&*harness, cannot_run));
    command_line.select(&mut trials);

    let mut arguments = command_line.arguments;
    arguments.test_threads = arguments.test_threads.or(Some(THREADS));
    let conclusion = libtest_mimic::run(&arguments, trials);
    if conclusion.has_failed()
        && let Some(note) = too_slow(&harness)
    {
        println!("note: {note}\n");
    }
    if !arguments.list {
        println!(
            "conformance {}: {} passed, {} failed, {} ignored",
            harness.name(),
            conclusion.num_passed,
            conclusion.num_failed,
            conclusion.num_ignored
        );
    }
    conclusion.exit_code()
}

/// Runs one case, even if the harness lacks what the case needs.
///
/// # Errors
/// The failure of the case. A case that runs for longer than the harness's watchdog fails, and its
/// thread keeps running.
pub fn run_case(harness: &Arc<dyn Harness>, case: &Case) -> Result<(), Failure> {
    let case = *case;
    watched(harness, move |harness| {
        Box::pin(async move {
            let world = World::new(harness, (case.family, case.name)).await?;
            let verdict = (case.run)(&world).await;
            world.close().await;
            verdict
        })
    })
}

/// Says that commands take too long for the unit, if they do. Cases may then fail on any backend.
fn too_slow(harness: &Arc<dyn Harness>) -> Option<String> {
    let unit = harness.timing().unit;
    let took = watched(harness, |harness| Box::pin(command_takes(harness))).ok()?;
    (took > unit / 10).then(|| {
        format!(
            "an acquire takes {took:?}, which is more than a tenth of the unit ({unit:?}). Cases may fail \
             for that alone. Find out why, or set a longer `Timing::unit`."
        )
    })
}

/// The median time of an acquire, while no case runs.
async fn command_takes(harness: &dyn Harness) -> Result<Duration, Failure> {
    let case = families::all().next().expect("at least one case");
    let world = World::new(harness, (case.family, case.name)).await?;
    let session = world.session().await?;
    let mut times = Vec::new();
    for key in ["a", "b", "c", "d", "e"] {
        let begun = Instant::now();
        session.ask(&Lock::mutex(key)).acquired("S1").await?;
        times.push(begun.elapsed());
    }
    world.close().await;
    times.sort();
    Ok(times[times.len() / 2])
}

fn trial(harness: Arc<dyn Harness>, case: Case) -> Trial {
    let reason = case.ignored_because(&*harness);
    Trial::ignorable_test(case.name(), move || match reason {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => run_case(&harness, &case)
            .map(|()| Completion::Completed)
            .map_err(Failed::from),
    })
}

/// Runs `body` on a thread of its own, in the harness's runtime and under its watchdog.
fn watched<T, F>(harness: &Arc<dyn Harness>, body: F) -> Result<T, Failure>
where
    T: Send + 'static,
    F: for<'a> FnOnce(&'a dyn Harness) -> BoxFuture<'a, Result<T, Failure>> + Send + 'static,
{
    let (outcome, ended) = mpsc::channel();
    let limit = harness.timing().watchdog;
    let harness = Arc::clone(harness);
    thread::spawn(move || {
        let (output, returned) = mpsc::channel();
        let inner = Arc::clone(&harness);
        let body: BoxFuture<'static, ()> = Box::pin(async move {
            let _ = output.send(body(&*inner).await);
        });
        let unwound = catch_unwind(AssertUnwindSafe(|| harness.block_on(body)));
        // Fails if the watchdog was faster.
        let _ = outcome.send(match unwound {
            Err(panic) => Err(Failure::panicked(&message(&*panic))),
            Ok(()) => returned.try_recv().unwrap_or_else(|_| {
                Err(Failure::panicked("block_on returned before the case ended"))
            }),
        });
    });
    ended
        .recv_timeout(limit)
        .unwrap_or_else(|_| Err(Failure::hung(limit)))
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}

/// The case that compares the ignored cases with the list of the backend's author.
fn compare_ignored(harness: &dyn Harness, expected: &[&str]) -> Trial {
    let verdict = ignored_as_listed(harness, expected);
    Trial::test("suite::ignored_cases_are_as_listed", move || {
        verdict.map_err(Failed::from)
    })
}

fn ignored_by(harness: &dyn Harness) -> BTreeSet<String> {
    let ignored = families::all().filter(|case| case.ignored_because(harness).is_some());
    ignored.map(Case::name).collect()
}

fn ignored_as_listed(harness: &dyn Harness, expected: &[&str]) -> Result<(), String> {
    let mut listed = BTreeSet::new();
    let mut twice = Vec::new();
    for name in expected.iter().flat_map(|entry| named_by(entry)) {
        if !listed.insert(name.clone()) {
            twice.push(name);
        }
    }
    let ignored = ignored_by(harness);
    if ignored == listed && twice.is_empty() {
        return Ok(());
    }
    let not_listed = shortened(ignored.difference(&listed).cloned().collect());
    let complete = match listed.is_empty() {
        true => Vec::new(),
        false => shortened(ignored.clone()),
    };
    let not_ignored: Vec<_> = listed.difference(&ignored).cloned().collect();
    let mut message = "the ignored cases differ from the list that was passed to `run`".to_string();
    for (title, names) in [
        ("ignored, but not listed", not_listed),
        ("listed, but not ignored", not_ignored),
        ("listed twice", twice),
        ("the complete list", complete),
    ] {
        if !names.is_empty() {
            message += &format!("\n{title}:{}", as_source(&names));
        }
    }
    Err(message)
}

/// Renders names as the lines of a list in Rust.
fn as_source(names: &[String]) -> String {
    names
        .iter()
        .map(|name| format!("\n    {name:?},"))
        .collect()
}

fn names_in(family: &str) -> Vec<String> {
    let cases = families::all().filter(|case| case.family == family);
    cases.map(Case::name).collect()
}

/// Expands an entry: one case, or all cases of `family::*`.
fn named_by(entry: &str) -> Vec<String> {
    let family = entry.strip_suffix("::*").map(names_in);
    let family = family.filter(|names| !names.is_empty());
    family.unwrap_or_else(|| vec![entry.to_string()])
}

/// Replaces the cases of each complete family by one entry.
fn shortened(mut names: BTreeSet<String>) -> Vec<String> {
    let families: BTreeSet<_> = families::all().map(|case| case.family).collect();
    for family in families {
        let whole = names_in(family);
        if whole.iter().all(|name| names.contains(name)) {
            names.retain(|name| !whole.contains(name));
            names.insert(format!("{family}::*"));
        }
    }
    names.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use leasehold_api::Capabilities;

    use super::*;
    use crate::harness::{Environment, SetupError, Timing};

    #[derive(Clone, Copy, Debug)]
    enum BrokenHarness {
        NoServer,
        Hangs,
        Panics,
    }

    #[async_trait]
    impl Harness for BrokenHarness {
        fn name(&self) -> &str {
            "broken"
        }

        fn capabilities(&self) -> Capabilities {
            let mut all = Capabilities::full();
            all.semaphores = false;
            all
        }

        fn timing(&self) -> Timing {
            let hangs = matches!(self, Self::Hangs);
            let limit = Duration::from_millis(if hangs { 200 } else { 30_000 });
            Timing::real().watchdog(limit)
        }

        async fn environment(&self, _: &str) -> Result<Arc<dyn Environment>, SetupError> {
            match self {
                Self::NoServer => Err("connection refused".into()),
                Self::Hangs => std::future::pending().await,
                Self::Panics => panic!("a broken harness"),
            }
        }
    }

    #[test]
    fn several_filters_select_what_matches_any() {
        let selected = |arguments: &[&str]| {
            let arguments = [&["suite"], arguments].concat();
            let mut command_line = CommandLine::parse_from(arguments);
            let trial = |name: &str| Trial::test(name, || Ok(()));
            let mut trials = ["a::b", "a::bc", "d::e"].map(trial).into();
            command_line.select(&mut trials);
            trials.retain(|trial| !command_line.arguments.is_filtered_out(trial));
            let names: Vec<_> = trials.iter().map(|trial| trial.name().to_owned()).collect();
            names
        };
        assert_eq!(selected(&[]), ["a::b", "a::bc", "d::e"]);
        assert_eq!(selected(&["bc"]), ["a::bc"]);
        assert_eq!(selected(&["bc", "d::", "nothing"]), ["a::bc", "d::e"]);
        assert_eq!(selected(&["--exact", "a::b", "d::e"]), ["a::b", "d::e"]);
        assert_eq!(selected(&["a", "d", "--skip", "bc"]), ["a::b", "d::e"]);
    }

    #[test]
    fn broken_harness_is_a_failure_without_a_note_about_its_speed() {
        let case = families::all().next().expect("at least one case");
        for (broken, expected) in [
            (BrokenHarness::NoServer, "connection refused"),
            (BrokenHarness::Hangs, "still running"),
            (BrokenHarness::Panics, "a broken harness"),
        ] {
            let harness: Arc<dyn Harness> = Arc::new(broken);
            let message = run_case(&harness, case).expect_err(expected).to_string();
            assert!(message.contains(expected), "{broken:?}: {message}");
            assert_eq!(too_slow(&harness), None, "{broken:?}");
        }
    }

    #[test]
    fn ignored_cases_must_match_the_list() {
        let harness = BrokenHarness::NoServer;
        let ignored = ignored_by(&harness);
        let mut list: Vec<&str> = ignored.iter().map(String::as_str).collect();
        assert_eq!(ignored_as_listed(&harness, &list), Ok(()));

        let left_out = list.pop().expect("one ignored case");
        let message = ignored_as_listed(&harness, &list).expect_err("one is missing");
        assert!(message.contains(left_out), "{message}");

        list.extend([left_out, "expiry::not_a_moment_early"]);
        let message = ignored_as_listed(&harness, &list).expect_err("the case runs");
        assert!(message.contains("not_a_moment_early"), "{message}");
    }

    #[test]
    fn one_entry_stands_for_an_ignored_family() {
        let harness = BrokenHarness::NoServer;
        let ignored = ignored_by(&harness);
        let short = shortened(ignored.clone());
        assert!(short.len() < ignored.len(), "{short:?}");
        let mut list: Vec<&str> = short.iter().map(String::as_str).collect();
        assert!(list.contains(&"semaphores::*"), "{list:?}");
        assert_eq!(ignored_as_listed(&harness, &list), Ok(()));

        list.push("semaphores::one_permit_excludes");
        let message = ignored_as_listed(&harness, &list).expect_err("listed twice");
        assert!(
            message.contains("twice:\n    \"semaphores::one_permit"),
            "{message}"
        );
        list.pop();
        for unknown in ["expiry::*", "no_such_family::*"] {
            list.push(unknown);
            let message = ignored_as_listed(&harness, &list).expect_err("not ignored");
            let family = unknown.trim_end_matches('*');
            assert!(message.contains(family), "{message}");
            list.pop();
        }
        list.retain(|entry| *entry != "semaphores::*");
        let message = ignored_as_listed(&harness, &list).expect_err("not listed");
        assert!(
            message.contains("not listed:\n    \"semaphores::*\",\n"),
            "{message}"
        );
    }

    #[test]
    fn complete_list_can_be_pasted() {
        let harness = BrokenHarness::NoServer;
        let message = ignored_as_listed(&harness, &["semaphores::*"]).expect_err("more is ignored");
        let (_, list) = message
            .split_once("the complete list:\n")
            .expect("the list is shown");
        let entries: Vec<&str> = list
            .lines()
            .map(|line| line.trim().trim_matches(['"', ',']))
            .collect();
        assert!(entries.contains(&"semaphores::*"), "{message}");
        assert_eq!(ignored_as_listed(&harness, &entries), Ok(()));
        assert!(
            list.lines()
                .all(|line| line.starts_with("    \"") && line.ends_with("\","))
        );
    }
}
