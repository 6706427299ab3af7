//! Measures everything, and writes a report.
//!
//! It starts its own servers. On two cores that do nothing else it takes some minutes; only ratios
//! within one run mean anything.

use std::alloc::System;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use leasehold_benches::Result;
use leasehold_benches::figures::Effort;
use leasehold_benches::library::Library;
use leasehold_benches::report::Plan;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Allocations are figures too.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Measures leasehold beside its floors and writes report.json, summary.md and plots.
#[derive(Debug, Parser)]
struct Arguments {
    /// One short round: shows that all measurements work, the figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Only figures whose ids begin so; may be given several times.
    #[arg(long, value_name = "ID-PREFIX")]
    only: Vec<String>,
    /// Rounds, in which the measurements take turns.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Client libraries to measure.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "redis-rs,fred"
    )]
    library: Vec<Library>,
    /// Where the report goes.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench-report"))]
    out: PathBuf,
    /// Puts the summary and the plots into docs/ as well.
    #[arg(long, conflicts_with_all = ["quick", "only"])]
    docs: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if cfg!(debug_assertions) && !arguments.quick {
        return Err("measure with --release, or say --quick".into());
    }
    let plan = Plan {
        rounds: if arguments.quick {
            1
        } else {
            arguments.rounds.into()
        },
        effort: if arguments.quick {
            Effort::Quick
        } else {
            Effort::Full
        },
        libraries: arguments.library,
        only: arguments.only,
    };
    let report = plan.run()?;
    report.write(&arguments.out)?;
    if arguments.docs {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        report.write_docs(&docs.join("performance.md"), &docs.join("performance"))?;
    }
    println!("{}", report.summary());
    for fault in &report.faults {
        eprintln!("failed: {fault}");
    }
    Ok(if report.faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
