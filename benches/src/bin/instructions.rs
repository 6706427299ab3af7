//! Counts the instructions of what runs in every operation, and compares them with the kept ones.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use leasehold_benches::Result;
use leasehold_benches::instructions::{Baseline, Callgrind, TOLERANCE, cases};

/// Counts instructions with valgrind's callgrind, beside the baseline.
///
/// Fails if a count has moved by more than its tolerance, up or down.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where the kept counts are.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.json"))]
    baseline: PathBuf,
    /// Keeps what is counted now.
    #[arg(long)]
    write: bool,
    /// Takes turns of one case, to be counted from outside.
    #[arg(
        long,
        value_name = "CASE",
        requires = "times",
        conflicts_with = "write"
    )]
    play: Option<String>,
    /// How many turns.
    #[arg(long, requires = "play")]
    times: Option<u32>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some((name, times)) = arguments.play.zip(arguments.times) {
        let case = cases().into_iter().find(|case| case.name == name);
        case.ok_or_else(|| format!("no case is called {name}"))?
            .play(times)?;
        return Ok(ExitCode::SUCCESS);
    }
    if cfg!(debug_assertions) {
        return Err("count with --release".into());
    }
    let counted = count()?;
    if arguments.write {
        counted.write(&arguments.baseline)?;
    }
    compare(&Baseline::read(&arguments.baseline)?, &counted)
}

fn count() -> Result<Baseline> {
    let callgrind = Callgrind::new(&env::current_exe()?);
    let mut counts = BTreeMap::new();
    for case in cases() {
        counts.insert(case.name.to_owned(), callgrind.count(&case)?);
    }
    Ok(Baseline {
        compiler: compiler()?,
        counts,
    })
}

/// The compiler of this folder, which is the one that has compiled this.
fn compiler() -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(rustc)
        .arg("--version")
        .current_dir(folder)
        .output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn compare(kept: &Baseline, counted: &Baseline) -> Result<ExitCode> {
    let compared = kept.compare(counted);
    println!("instructions a turn:");
    for comparison in &compared {
        println!("{comparison}");
    }
    if compared.iter().all(|comparison| comparison.holds()) {
        println!("all {} are where they were", compared.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "a count moved by more than {:.0} %, or is on one side only. Mend what made it grow, or keep \
         the new counts with `--write` and say in the commit what moved them.",
        100.0 * TOLERANCE
    );
    if kept.compiler != counted.compiler {
        println!(
            "the kept counts are of {}, these of {}",
            kept.compiler, counted.compiler
        );
    }
    Ok(ExitCode::FAILURE)
}
