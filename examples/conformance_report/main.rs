//! Runs the conformance suite on a Redis, Valkey or Postgres server, and prints a table of what it found.
//!
//! ```sh
//! cargo run --example conformance_report -- redis://127.0.0.1:6379
//! cargo run --example conformance_report -- postgres://locks@127.0.0.1/shop --json
//! ```
//!
//! The server may be in use. All keys begin with `leasehold:` and a random name for each case, and end by
//! themselves within half an hour.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use clap::{Parser, ValueEnum};
use leasehold::backend::{Capabilities, LockBackend};
use leasehold::{ConnectError, ConnectOptions, RedisLibrary};
use leasehold_conformance::{
    Case, Environment, Harness, SetupError, Timing, cases as all_cases, run_case,
};
use serde_json::{Value, json};

/// Runs leasehold's conformance suite on a server. Cases that need virtual time, a cut network or a foreign
/// value are ignored.
///
/// The exit status is 0 if no case failed, 1 if a case failed, and 2 if the suite could not run.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// URL of the server, as leasehold takes it
    url: String,
    /// Client library for Redis
    #[arg(long, value_enum, default_value = "redis-rs")]
    client: Client,
    /// Prints each case as JSON, with what failed or is missing, in place of the table
    #[arg(long)]
    json: bool,
    /// Runs only the cases whose name contains this text, such as a family
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// The unit of time in cases, in ms: at least ten times as long as a command takes
    #[arg(long, value_name = "MS", default_value_t = 300)]
    unit: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Client {
    RedisRs,
    Fred,
}

/// The server, and the prefix of a case's keys.
#[derive(Clone, Debug)]
struct Server {
    arguments: Arguments,
    capabilities: Capabilities,
    prefix: String,
}

impl Server {
    async fn find(arguments: Arguments) -> Result<Self, ConnectError> {
        let mut server = Self {
            arguments,
            capabilities: Capabilities::minimal(),
            prefix: "leasehold:".to_string(),
        };
        let backend = server.connect().await?;
        server.capabilities = backend.capabilities();
        Ok(server)
    }

    async fn connect(&self) -> Result<Arc<dyn LockBackend>, ConnectError> {
        let library = match self.arguments.client {
            Client::RedisRs => RedisLibrary::RedisRs,
            Client::Fred => RedisLibrary::Fred,
        };
        ConnectOptions::new()
            .redis_library(library)
            .key_prefix(&self.prefix)
            .backend(&self.arguments.url)
            .await
    }
}

#[async_trait]
impl Harness for Server {
    fn name(&self) -> &str {
        "the server"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn timing(&self) -> Timing {
        Timing::real().unit(Duration::from_millis(self.arguments.unit))
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        let prefix = format!("{}{namespace}:", self.prefix);
        Ok(Arc::new(Self {
            prefix,
            ..self.clone()
        }))
    }
}

#[async_trait]
impl Environment for Server {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        Ok(self.connect().await?)
    }

    async fn let_time_pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// How a case ended, and what failed or is missing.
struct Ending {
    case: &'static Case,
    outcome: &'static str,
    detail: Option<String>,
}

/// Runs four cases at a time. A case opens up to 30 connections.
fn run_cases(harness: &Arc<dyn Harness>, cases: &[&'static Case]) -> Vec<Ending> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut endings = Vec::new();
        while let Some(&case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (outcome, detail) = match case.ignored_because(&**harness) {
                Some(missing) => ("ignored", Some(missing)),
                None => match run_case(harness, case) {
                    Ok(()) => ("passed", None),
                    Err(failure) => ("failed", Some(failure.to_string())),
                },
            };
            endings.push(Ending {
                case,
                outcome,
                detail,
            });
        }
        endings
    };
    thread::scope(|scope| {
        let workers = [(); 4].map(|()| scope.spawn(work));
        let endings = workers.map(|it| it.join().expect("a worker doesn't panic"));
        endings.into_iter().flatten().collect()
    })
}

fn as_json(endings: &[Ending]) -> Value {
    let cases = endings.iter().map(|it| {
        json!({
            "case": it.case.name(), "rules": it.case.rules(), "outcome": it.outcome, "detail": it.detail,
        })
    });
    cases.collect()
}

/// A line for each family, then what failed.
fn as_table(endings: &[Ending]) -> String {
    let mut families: BTreeMap<String, [usize; 3]> = BTreeMap::new();
    let mut failures = String::new();
    for Ending {
        case,
        outcome,
        detail,
    } in endings
    {
        let name = case.name();
        let family = name.split("::").next().unwrap_or(&name);
        let column = ["passed", "failed", "ignored"]
            .iter()
            .position(|it| it == outcome);
        for row in [family, "total"] {
            families.entry(row.to_string()).or_default()[column.expect("an outcome")] += 1;
        }
        if *outcome == "failed" {
            let detail = detail.as_deref().unwrap_or_default();
            failures += &format!("\n{name}\n{detail}\n");
        }
    }
    let total = families.remove_entry("total");
    let mut table = format!(
        "{:20}{:>8}{:>8}{:>8}\n",
        "family", "passed", "failed", "ignored"
    );
    for (family, [passed, failed, ignored]) in families.into_iter().chain(total) {
        table += &format!("{family:20}{passed:8}{failed:8}{ignored:8}\n");
    }
    table + &failures
}

/// Prints the report. Returns whether no case failed.
fn report(arguments: Arguments) -> Result<bool, SetupError> {
    let cases: Vec<_> = all_cases()
        .filter(|case| case.name().contains(&arguments.only))
        .collect();
    if cases.is_empty() {
        return Err(format!("no case has {:?} in its name", arguments.only).into());
    }
    let json = arguments.json;
    let runtime = tokio::runtime::Runtime::new()?;
    let server: Arc<dyn Harness> = Arc::new(runtime.block_on(Server::find(arguments))?);
    let mut endings = run_cases(&server, &cases);
    endings.sort_by_key(|it| it.case.name());
    match json {
        true => println!("{:#}", as_json(&endings)),
        false => print!("{}", as_table(&endings)),
    }
    Ok(endings.iter().all(|it| it.outcome != "failed"))
}

fn main() -> ExitCode {
    match report(Arguments::parse()) {
        Ok(passed) => ExitCode::from(u8::from(!passed)),
        Err(problem) => {
            eprintln!("conformance_report: {problem}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_test_servers::RedisServer;

    use super::*;

    fn arguments(url: &str, more: &[&str]) -> Arguments {
        let arguments = ["conformance_report", url, "--only", "ownership"];
        Arguments::parse_from(arguments.iter().chain(more))
    }

    #[test]
    fn redis_passes_through_both_libraries() {
        let server = RedisServer::start();
        for client in ["redis-rs", "fred"] {
            let passed = report(arguments(&server.url(), &["--client", client]));
            assert!(passed.expect("the suite ran"), "{client}");
        }
    }

    #[test]
    fn server_that_is_not_there_is_an_error_without_the_password() {
        let problem =
            report(arguments("redis://me:sesame@127.0.0.1:1", &[])).expect_err("no server");
        assert!(!problem.to_string().contains("sesame"), "{problem}");
    }

    #[test]
    fn each_outcome_is_counted_and_a_failure_is_shown() {
        let mut cases = all_cases();
        let mut ending = |outcome, detail: Option<&str>| Ending {
            case: cases.next().expect("a case"),
            outcome,
            detail: detail.map(ToString::to_string),
        };
        let endings = [
            ending("passed", None),
            ending("failed", Some("S1: one holder")),
            ending("ignored", Some("without push")),
        ];
        let table = as_table(&endings);
        let total: Vec<_> = table.lines().filter(|it| it.starts_with("total")).collect();
        assert_eq!(
            total,
            ["total                      1       1       1"],
            "{table}"
        );
        assert!(table.ends_with("\nS1: one holder\n"), "{table}");
        assert_eq!(as_json(&endings)[1]["detail"], "S1: one holder");
    }
}
