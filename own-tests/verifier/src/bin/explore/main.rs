//! Runs thousands of stress runs, and checks each of them.
//!
//! `cargo run --release -p leasehold-verifier --bin explore -- --help`

mod args;
mod planted;
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
