//! Counts the instructions of the hot paths and compares them with the baseline.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Parser;
use leasehold_benches::Result;
use leasehold_benches::instructions::{Baseline, TOLERANCE, cases, queues};

/// Counts instructions with valgrind's callgrind and compares them with the baseline.
///
/// Fails if a count moved by more than its tolerance, up or down.
#[derive(Debug, Parser)]
struct Arguments {
    /// The file with the baseline.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.json"))]
    baseline: PathBuf,
    /// Writes the new counts to the baseline.
    #[arg(long)]
    write: bool,
    /// Counts only what has a name that starts like this.
    #[arg(
        long,
        value_name = "START",
        default_value = "",
        conflicts_with = "write"
    )]
    only: String,
    /// Runs one case, for callgrind to count.
    #[arg(
        long,
        value_name = "CASE",
        requires = "times",
        conflicts_with = "write"
    )]
    play: Option<String>,
    /// The number of iterations.
    #[arg(long, requires = "play")]
    times: Option<u32>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some((name, times)) = arguments.play.zip(arguments.times) {
        let case = cases().into_iter().find(|case| case.name == name);
        let case = case.ok_or_else(|| format!("no case is called {name}"))?;
        (case.play)(times)?;
        return Ok(ExitCode::SUCCESS);
    }
    // The counts of the server don't depend on this program.
    if cfg!(debug_assertions) && !arguments.only.starts_with("server.") {
        return Err("count with --release".into());
    }
    let counted = count(&arguments.only)?;
    if arguments.write {
        counted.write(&arguments.baseline)?;
    }
    let mut kept = Baseline::read(&arguments.baseline)?;
    kept.counts
        .retain(|name, _| name.starts_with(&arguments.only));
    compare(&kept, &counted)
}

fn count(only: &str) -> Result<Baseline> {
    let mut counts = BTreeMap::new();
    let mut add = |name: &str, count: &dyn Fn() -> Result<f64>| {
        if name.starts_with(only) {
            let count = count().map_err(|error| format!("{name}: {error}"))?;
            counts.insert(name.to_owned(), count);
        }
        Result::Ok(())
    };
    for case in cases() {
        add(case.name, &|| case.count())?;
    }
    for queue in queues() {
        add(queue.name, &|| queue.count())?;
    }
    Ok(Baseline {
        compiler: compiler()?,
        counts,
    })
}

/// The compiler of this folder, which compiled this program.
fn compiler() -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.arg("--version").output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn compare(kept: &Baseline, counted: &Baseline) -> Result<ExitCode> {
    let compared = kept.compare(counted);
    println!("instructions per iteration:");
    for (line, _) in &compared {
        println!("{line}");
    }
    if compared.iter().all(|(_, holds)| *holds) {
        println!("all {} counts are within their tolerance", compared.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "a count moved by more than {:.0} %, or exists on one side only. Fix the cause, or run with \
         `--write` and say in the commit what moved the counts.",
        100.0 * TOLERANCE
    );
    if kept.compiler != counted.compiler {
        println!(
            "the baseline was compiled by {}, this program by {}",
            kept.compiler, counted.compiler
        );
    }
    Ok(ExitCode::FAILURE)
}
