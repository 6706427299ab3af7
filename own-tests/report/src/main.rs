//! Runs the conformance suite on a server that is there already, and reports what it found.
//!
//! ```sh
//! cargo run -p leasehold-conformance-report -- --redis redis://127.0.0.1:6379
//! cargo run -p leasehold-conformance-report -- --postgres postgres://locks@127.0.0.1/shop --html report.html
//! ```
//!
//! The server may be in use. All keys begin with a prefix of this run, and are removed at its end.

mod args;
mod page;
mod report;
mod run;
mod server;
mod table;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use args::Args;
use report::Report;
use server::Server;

/// Something that is not the fault of the server under test.
type Problem = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let args = match args::parse() {
        Ok(args) => args,
        Err(status) => return status,
    };
    match work(&args) {
        Ok(report) => ExitCode::from(u8::from(report.failed() > 0)),
        Err(problem) => {
            eprintln!("conformance_report: {problem}");
            ExitCode::from(2)
        }
    }
}

fn work(args: &Args) -> Result<Report, Problem> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let server = Arc::new(runtime.block_on(Server::find(args))?);
    let cases = run::select(args.only.as_deref())?;
    eprintln!(
        "{} cases on {}, with keys below {}",
        cases.len(),
        server.address(),
        server.prefix()
    );
    let report = run::run(&server, &cases, args.threads);
    print!("{}", table::render(&report));
    match runtime.block_on(server.remove_keys()) {
        Ok(count) => eprintln!("removed {count} keys"),
        Err(problem) => eprintln!(
            "could not remove the keys below {}: {problem}\nthey end by themselves within half an hour",
            server.prefix()
        ),
    }
    if let Some(path) = &args.json {
        write(path, &report.json())?;
    }
    if let Some(path) = &args.html {
        write(path, &page::render(&report))?;
    }
    Ok(report)
}

fn write(path: &Path, text: &str) -> Result<(), Problem> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}
