//! The locks that can be tormented.

use std::path::PathBuf;
use std::process::Command as Program;

use clap::ValueEnum;

use crate::Failure;
use crate::adapter::leasehold::{Backend, Broken};
use crate::checker::Promise;
use crate::topology::Topology;

/// A lock, and how to run a client of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) topologies: &'static [Topology],
    pub(crate) launch: Launch,
    /// Whether it has reader/writer locks and semaphores beside mutexes.
    pub(crate) all_modes: bool,
    /// Whether a lock ends on the server although its client sleeps.
    pub(crate) leased: bool,
    /// What its documentation promises.
    pub(crate) promises: &'static [Promise],
    /// The sentence of its documentation, and where it is.
    pub(crate) documentation: &'static str,
}

/// The program of a client process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Launch {
    /// This program.
    Leasehold(Backend, Option<Broken>),
}

const REDIS: &[Topology] = &[Topology::Standalone, Topology::Sentinel, Topology::Cluster];

const fn leasehold(
    name: &'static str,
    backend: Backend,
    topologies: &'static [Topology],
    broken: Option<Broken>,
) -> Subject {
    Subject {
        name,
        topologies,
        launch: Launch::Leasehold(backend, broken),
        all_modes: true,
        leased: true,
        promises: &Promise::ALL,
        documentation: "docs/guarantees.md: all of them; exclusion and the notice of a loss only while \
            the servers keep their data and the clocks run evenly",
    }
}

/// All subjects.
pub(crate) const ALL: &[Subject] = &[
    leasehold("leasehold-redis-rs", Backend::RedisRs, REDIS, None),
    leasehold("leasehold-fred", Backend::Fred, REDIS, None),
    leasehold(
        "leasehold-postgres",
        Backend::Postgres,
        &[Topology::Postgres],
        None,
    ),
    leasehold(
        "leasehold-quorum",
        Backend::Quorum,
        &[Topology::Quorum],
        None,
    ),
    leasehold(
        "broken-ignores-its-deadline",
        Backend::RedisRs,
        REDIS,
        Some(Broken::IgnoresItsDeadline),
    ),
    leasehold(
        "broken-releases-anyone",
        Backend::RedisRs,
        REDIS,
        Some(Broken::ReleasesAnyone),
    ),
    leasehold(
        "broken-counts-its-own-tokens",
        Backend::RedisRs,
        REDIS,
        Some(Broken::CountsItsOwnTokens),
    ),
    leasehold(
        "broken-doubles-the-remaining-time",
        Backend::RedisRs,
        REDIS,
        Some(Broken::DoublesTheRemainingTime),
    ),
];

/// The subject of this name.
pub(crate) fn find(name: &str) -> Result<&'static Subject, Failure> {
    let names = || ALL.iter().map(|it| it.name).collect::<Vec<_>>().join(", ");
    let found = ALL.iter().find(|subject| subject.name == name);
    found.ok_or_else(|| format!("no subject `{name}`; there are {}", names()).into())
}

impl Subject {
    /// The version that runs.
    pub(crate) fn version(&self) -> String {
        match self.launch {
            Launch::Leasehold(..) => {
                let commit = Program::new("git")
                    .args(["describe", "--always", "--dirty"])
                    .current_dir(env!("CARGO_MANIFEST_DIR"))
                    .output();
                let commit = commit.map(|output| output.stdout).unwrap_or_default();
                let commit = String::from_utf8_lossy(&commit).trim().to_owned();
                format!("{} {commit}", env!("CARGO_PKG_VERSION"))
            }
        }
    }

    /// The command of a client process.
    pub(crate) fn program(&self, lease_ms: u64, urls: &[String]) -> Result<Program, Failure> {
        let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value()
                .map(|it| it.get_name().to_owned())
                .unwrap_or_default()
        };
        let mut program = match self.launch {
            Launch::Leasehold(backend, broken) => {
                let this: PathBuf = std::env::current_exe()?;
                let mut program = Program::new(this);
                program.args(["client", &name(&|| backend.to_possible_value())]);
                if let Some(broken) = broken {
                    program.args(["--broken", &name(&|| broken.to_possible_value())]);
                }
                program
            }
        };
        program.arg(lease_ms.to_string()).args(urls);
        Ok(program)
    }
}
