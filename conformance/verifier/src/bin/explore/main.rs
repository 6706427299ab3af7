//! Explores thousands of runs of lock clients under everything that can go wrong, and judges each.
//!
//! `cargo run --release -p leasehold-verifier --bin explore -- --help`

mod args;
mod report;
mod subject;
mod work;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Args;

fn main() -> ExitCode {
    match work::run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("explore: {problem}");
            ExitCode::from(2)
        }
    }
}
