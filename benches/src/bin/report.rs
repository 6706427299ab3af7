//! Measures everything and writes a report.
//!
//! It starts its own servers and takes a quarter of an hour on two idle cores. Only ratios within one run
//! are meaningful.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use leasehold_benches::figures::Effort;
use leasehold_benches::library::Library;
use leasehold_benches::report::Plan;
use leasehold_benches::{Result, open_files};

/// Measures leasehold next to its floors and writes report.json, summary.md and charts.
///
/// The features `postgres` and `peers` add Postgres and other lock libraries.
#[derive(Debug, Parser)]
struct Arguments {
    /// Runs one short round. It only shows that the measurements work; the figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Measures only figures whose ids start with this prefix. Repeatable.
    #[arg(long, value_name = "ID-PREFIX")]
    only: Vec<String>,
    /// The number of rounds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// The client libraries to measure.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "redis-rs,fred"
    )]
    library: Vec<Library>,
    /// The folder for the report.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench-report"))]
    out: PathBuf,
    /// Also writes the figures and the charts to docs/. Needs the feature `peers`.
    #[arg(long, conflicts_with_all = ["quick", "only"])]
    docs: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    open_files::raise_limit()?;
    if cfg!(debug_assertions) && !arguments.quick {
        return Err("measure with --release, or pass --quick".into());
    }
    if arguments.docs && !cfg!(feature = "peers") {
        let error = "the page compares leasehold with other libraries: pass --features peers";
        return Err(error.into());
    }
    let (rounds, effort) = match arguments.quick {
        true => (1, Effort::Quick),
        false => (arguments.rounds.into(), Effort::Full),
    };
    let plan = Plan {
        rounds,
        effort,
        libraries: arguments.library,
        only: arguments.only,
    };
    let report = plan.run()?;
    report.write(&arguments.out)?;
    if arguments.docs {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        report.write_docs(&docs)?;
    }
    println!("{}", report.summary());
    for fault in &report.faults {
        eprintln!("failed: {fault}");
    }
    Ok(match report.faults.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
