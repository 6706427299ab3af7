//! Torments locks on real servers: several client processes, a nemesis, and a checker that looks at
//! what the clients saw.
//!
//! ```sh
//! cargo run --release -p leasehold-torture -- leasehold-redis-rs --on standalone --minutes 10 --seed 7
//! cargo run --release -p leasehold-torture -- --check target/torture/….jsonl
//! ```
//!
//! A run doesn't repeat from its seed, because real servers and processes don't. So its history is
//! saved, and can be checked again.

mod adapter;
mod chart;
mod checker;
mod client;
mod history;
mod install;
mod link;
mod nemesis;
mod protocol;
mod random;
mod record;
mod report;
mod run;
mod subject;
mod topology;
mod verdict;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use checker::Promise;
use history::History;
use run::Plan;
use topology::Topology;
use verdict::Ending;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Torments a lock on real servers.
///
/// The exit status is 1 if it broke a promise that its documentation gives, 3 if too little was seen to say that it kept
/// them, and 2 if it could not be run.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Side>,

    /// The lock, one of `--list`
    #[arg(required_unless_present_any = ["subject", "check", "list"])]
    lock: Option<String>,

    /// A program that takes your lock, as docs/torture.md tells, in place of one of `--list`
    #[arg(
        long,
        value_name = "PROGRAM",
        conflicts_with = "lock",
        requires = "promises"
    )]
    subject: Option<PathBuf>,

    /// What its documentation promises, and is therefore judged
    #[arg(
        long,
        value_delimiter = ',',
        requires = "subject",
        value_name = "PROMISE,…"
    )]
    promises: Vec<Promise>,

    /// The servers
    #[arg(long, value_enum, default_value = "standalone")]
    on: Topology,

    /// How long the nemesis works. Up to three times as long if it has seen too little by then
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,

    /// Where its choices come from
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// The number of client processes
    #[arg(long, default_value_t = 5)]
    clients: usize,

    #[arg(long, default_value_t = 1_000)]
    lease_ms: u64,

    /// Only this kind of fault, and others that are named
    #[arg(long, value_name = "FAULT")]
    only: Vec<String>,

    /// Where histories are saved
    #[arg(long, default_value = "target/torture")]
    out: PathBuf,

    /// Checks a saved history instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lock", "subject"])]
    check: Option<PathBuf>,

    /// Lists the subjects instead
    #[arg(long, conflicts_with_all = ["lock", "subject", "check"])]
    list: bool,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// Writes the table of `docs/torture.md` and the chart of the README from `docs/torture.json`.
    Report {
        /// A folder with results of runs, which take the place of those of the same locks on the same servers
        #[arg(long, value_name = "FOLDER")]
        add: Option<PathBuf>,
    },
    /// A client process of a subject that is written in Rust, which talks to the controller.
    #[command(hide = true)]
    Client {
        subject: String,
        lease_ms: u64,
        #[arg(required = true)]
        urls: Vec<String>,
    },
}

fn main() -> ExitCode {
    let mut args = Args::parse();
    let ended = match args.command.take() {
        Some(Side::Report { add }) => report::report(add.as_deref()).map(|()| Ending::Kept),
        Some(Side::Client {
            subject,
            lease_ms,
            urls,
        }) => serve(&subject, Duration::from_millis(lease_ms), urls).map(|()| Ending::Kept),
        None if args.list => {
            subject::ALL.iter().for_each(|it| println!("{}", it.name));
            Ok(Ending::Kept)
        }
        None => match &args.check {
            Some(path) => check(path),
            None => torment(&args),
        },
    };
    match ended {
        Ok(ending) => ExitCode::from(ending.status()),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Runs a client process.
fn serve(subject: &str, lease: Duration, urls: Vec<String>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(subject::find(subject)?.serve(lease, urls))
}

/// Checks a saved history.
fn check(path: &Path) -> Result<Ending, Failure> {
    Ok(verdict::print(&History::load(path)?).ending())
}

/// Runs, checks and saves.
fn torment(args: &Args) -> Result<Ending, Failure> {
    let subject = match &args.subject {
        Some(program) => subject::named(program, &args.promises)?,
        None => subject::find(args.lock.as_deref().unwrap_or_default())?,
    };
    if !subject.topologies.contains(&args.on) {
        return Err(format!("{} doesn't run on {}", subject.name, args.on.name()).into());
    }
    let deck = &run::deck(subject, args.on, &args.only)?;
    std::fs::create_dir_all(&args.out)?;
    let name = format!("{}-{}-{}", subject.name, args.on.name(), args.seed);
    let log = &args.out.join(format!("{name}.log"));
    let (history, ended) = run::run(&Plan {
        args,
        subject,
        deck,
        log,
    })?;
    history.save(&args.out.join(format!("{name}.jsonl")))?;
    ended?;
    let verdict = verdict::print(&history);
    verdict.save(&args.out, &name)?;
    Ok(verdict.ending())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn each_saved_history_convicts() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("convictions");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).expect("histories") {
            let path = entry.expect("a file").path();
            let history = History::load(&path).expect("a history");
            assert!(subject::find(&history.about.subject).is_ok(), "{path:?}");
            let ending = checker::check(&history).ending();
            assert_eq!(ending, Ending::Convicted, "{path:?}");
            count += 1;
        }
        assert!(count >= 20, "{count}");
    }

    #[test]
    fn each_subject_has_its_own_name() {
        let mut names = BTreeSet::new();
        for subject in subject::ALL.iter() {
            assert!(names.insert(subject.name), "twice: {}", subject.name);
        }
    }
}
