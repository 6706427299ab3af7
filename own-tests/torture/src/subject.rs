//! The locks that can be tormented.

use std::path::Path;
use std::process::Command as Program;
use std::sync::LazyLock;
use std::time::Duration;

use leasehold_specimens::{SPECIMENS, Specimen};

use crate::adapter::by_hand::ByHand;
use crate::adapter::coordination::{self, Work};
use crate::adapter::leasehold::Backend::{
    self, Etcd, Fred, Mysql, Nats, Postgres, Quorum, RedisRs, S3, Sqlite,
};
use crate::adapter::leasehold::Broken::{
    self, BelievesTooLong, CountsItsOwnTokens, DecidesTwice, ForgetsSuspend, HasASlowClock,
    IgnoresItsDeadline, NeverGrants, ReadsPassAWriter, ReleasesAnyone,
    SubscribesAtTheFormerPrimary, TakesGrantsBack, UpgradesBesideReaders,
};
use crate::adapter::leasehold::Leasehold;
use crate::adapter::serve;
use crate::adapter::specimens::Tutorial;
use crate::checker::Promise::{
    self, Cleanup, Counter, Exclusion, Fencing, Limit, Loss, Once, Order, Progress, Tokens,
};
use crate::checker::{BESIDE, DOWNGRADE, DROPPED, NO_UPGRADE, REENTRY, SEVERAL, UPGRADE};
use crate::topology::Topology;
use crate::{Failure, install};

/// A lock, and how to run a client of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    /// The version that the adapter pins. That of leasehold is found when it runs.
    version: &'static str,
    pub(crate) topologies: &'static [Topology],
    launch: Launch,
    /// What its documentation promises. Not what it should.
    pub(crate) promises: &'static [Promise],
    /// How its documentation says that, and what the adapter asks it.
    pub(crate) documentation: &'static str,
}

/// The program of a client process.
#[derive(Clone, Copy, Debug)]
enum Launch {
    /// This program.
    Leasehold(Backend, Option<Broken>),
    /// The same, for jobs and elections.
    Coordination(Backend, Work),
    /// This program, with another library, if it was built with the feature `peers`. `adapter/peers.rs` finds the
    /// library by the subject's name.
    Rust,
    Python(&'static str),
    Node(&'static str),
    /// This program, with a lock by hand whose renewal is wrong.
    ByHand,
    /// This program, with a lock as tutorials write it.
    Specimen(&'static Specimen),
    /// A program that was named on the command line.
    Named(&'static Path),
}

const REDIS: &[Topology] = &[
    Topology::Standalone,
    Topology::Balancer,
    Topology::Sentinel,
    Topology::Cluster,
    Topology::DistantCluster,
];
const ONE: &[Topology] = &[Topology::Standalone];
const ALL_TOPOLOGIES: &[Topology] = &[
    Topology::Standalone,
    Topology::Balancer,
    Topology::Sentinel,
    Topology::Cluster,
    Topology::DistantCluster,
    Topology::Postgres,
    Topology::Quorum,
];
const REDLOCK: &[Topology] = &[Topology::Standalone, Topology::Quorum];

const fn leasehold(name: &'static str, backend: Backend) -> Subject {
    Subject {
        name,
        version: "",
        topologies: match backend {
            RedisRs | Fred => REDIS,
            Postgres => &[Topology::Postgres, Topology::PostgresPooled],
            Mysql => &[Topology::Mysql],
            Etcd => &[Topology::Etcd],
            Nats => &[Topology::Nats],
            Sqlite => &[Topology::Sqlite],
            S3 => &[Topology::S3],
            Quorum => &[Topology::Quorum],
        },
        launch: Launch::Leasehold(backend, None),
        promises: match backend {
            Quorum => WITHOUT_QUEUE,
            _ => OF_A_LOCK,
        },
        documentation: "docs/guarantees.md. Exclusion and the notice of a loss are promised only while \
            the servers keep their data and the clocks run evenly. Asked: `Guard::is_valid`.",
    }
}

const fn broken(name: &'static str, backend: Backend, broken: Broken) -> Subject {
    let whole = leasehold(name, backend);
    Subject {
        topologies: match broken {
            TakesGrantsBack => &[Topology::Balancer, Topology::Cluster],
            SubscribesAtTheFormerPrimary => &[Topology::Cluster, Topology::DistantCluster],
            _ => whole.topologies,
        },
        launch: Launch::Leasehold(backend, Some(broken)),
        promises: match broken {
            // It would break the others.
            NeverGrants => EXCLUSION,
            _ => whole.promises,
        },
        ..whole
    }
}

const fn coordination(name: &'static str, backend: Backend, work: Work) -> Subject {
    Subject {
        launch: Launch::Coordination(backend, work),
        promises: match work {
            Work::Election => OF_A_LOCK,
            Work::Job | Work::LockAsJob => OF_A_JOB,
        },
        documentation: "docs/jobs.md. One at a time, and retried until it is done, given up or late. Only while the \
            servers keep their data and their clocks run evenly. Asked: `Guard::is_valid` within the body, \
            `Term::is_leader`.",
        ..leasehold(name, backend)
    }
}

const fn peer(
    name: &'static str,
    version: &'static str,
    topologies: &'static [Topology],
    launch: Launch,
    promises: &'static [Promise],
    documentation: &'static str,
) -> Subject {
    Subject {
        name,
        version,
        topologies,
        launch,
        promises,
        documentation,
    }
}

/// A lock that was granted from the queue, and not renewed yet: two poll intervals (rule 10).
const OFFER: Duration = Duration::from_secs(2);
const OF_A_LOCK: &[Promise] = &[
    Exclusion, Tokens, Fencing, Counter, Loss, Order, Limit, Progress, Cleanup,
];
/// A quorum has no queue: docs/guide.md, "Several independent servers".
const WITHOUT_QUEUE: &[Promise] = &[
    Exclusion, Tokens, Fencing, Counter, Loss, Limit, Progress, Cleanup,
];
/// Whether locks are granted soon is not judged: a killed attempt may be the last one for 30 s. That another
/// one follows belongs to `Once`. Nor is their order judged.
const OF_A_JOB: &[Promise] = &[
    Once, Exclusion, Tokens, Fencing, Counter, Loss, Limit, Cleanup,
];
const EXCLUSION: &[Promise] = &[Exclusion];
const EXCLUSION_AND_LOSS: &[Promise] = &[Exclusion, Loss];

pub(crate) static ALL: LazyLock<Vec<Subject>> = LazyLock::new(|| {
    let faulty = SPECIMENS.iter().filter(|it| !it.faults.is_empty());
    WITH_NAMES
        .iter()
        .copied()
        .chain(faulty.map(tutorial))
        .collect()
});

/// A lock as tutorials write it, which the conformance suite rejects. Its documentation is what every tutorial
/// says: that only one client has the lock.
fn tutorial(specimen: &'static Specimen) -> Subject {
    // There are few, and they last as long as the program.
    let leak = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    peer(
        leak(format!("tutorial-{}", specimen.name)),
        "docs/specimens.md",
        ONE,
        Launch::Specimen(specimen),
        EXCLUSION,
        leak(format!(
            "{}. Tried every 100 ms, and not renewed. Asked: whether the lease is over.",
            specimen.how
        )),
    )
}

const WITH_NAMES: &[Subject] = &[
    leasehold("leasehold-redis-rs", RedisRs),
    leasehold("leasehold-fred", Fred),
    leasehold("leasehold-postgres", Postgres),
    leasehold("leasehold-mysql", Mysql),
    leasehold("leasehold-etcd", Etcd),
    leasehold("leasehold-nats", Nats),
    leasehold("leasehold-sqlite", Sqlite),
    leasehold("leasehold-s3", S3),
    leasehold("leasehold-quorum", Quorum),
    coordination("job-redis-rs", RedisRs, Work::Job),
    coordination("job-fred", Fred, Work::Job),
    coordination("job-postgres", Postgres, Work::Job),
    coordination("job-nats", Nats, Work::Job),
    coordination("election-redis-rs", RedisRs, Work::Election),
    coordination("election-fred", Fred, Work::Election),
    coordination("election-postgres", Postgres, Work::Election),
    coordination("election-etcd", Etcd, Work::Election),
    coordination("election-nats", Nats, Work::Election),
    coordination("election-s3", S3, Work::Election),
    coordination("broken-lock-as-job", RedisRs, Work::LockAsJob),
    broken("broken-ignores-its-deadline", RedisRs, IgnoresItsDeadline),
    broken("broken-releases-anyone", RedisRs, ReleasesAnyone),
    broken("broken-counts-its-own-tokens", RedisRs, CountsItsOwnTokens),
    broken("unmended-failover", RedisRs, TakesGrantsBack),
    broken("unmended-failover-fred", Fred, TakesGrantsBack),
    broken("unmended-cluster", RedisRs, SubscribesAtTheFormerPrimary),
    broken("unmended-cluster-fred", Fred, SubscribesAtTheFormerPrimary),
    broken("unmended-quorum", Quorum, DecidesTwice),
    broken("broken-forgets-suspend", RedisRs, ForgetsSuspend),
    broken("broken-has-a-slow-clock", RedisRs, HasASlowClock),
    broken("broken-believes-too-long", RedisRs, BelievesTooLong),
    broken("broken-reads-pass-a-writer", RedisRs, ReadsPassAWriter),
    broken("broken-never-grants", RedisRs, NeverGrants),
    broken(
        "broken-upgrades-beside-readers",
        RedisRs,
        UpgradesBesideReaders,
    ),
    peer(
        "broken-renews-by-set",
        "by hand",
        ONE,
        Launch::ByHand,
        EXCLUSION,
        "Only one client has the lock. Renewed. Asked: whether the time since the last renewal was answered is less than the lease.",
    ),
    peer(
        "rslock",
        "rslock 0.10.0 (crates.io)",
        REDLOCK,
        Launch::Rust,
        EXCLUSION,
        "README: \"an implementation of Redlock, the distributed locking mechanism\". Not renewed. Asked: \
         whether `Lock::validity_time` has passed since the lock was returned.",
    ),
    peer(
        "redlock-rs",
        "redlock 2.0.0 (crates.io)",
        REDLOCK,
        Launch::Rust,
        EXCLUSION,
        "Crate page: \"an implementation of the distributed locking mechanism built on top of Redis\". Documentation of \
         `Lock::validity_time`: \"Time the lock is still valid. Should only be slightly smaller than the requested TTL\". Not \
         renewed. Asked: whether `Lock::validity_time` has passed since the lock was returned.",
    ),
    peer(
        "distributed-lock-redis",
        "distributed-lock-redis 0.2.0 (crates.io)",
        REDLOCK,
        Launch::Rust,
        EXCLUSION_AND_LOSS,
        "README: \"Exclusive Locks: Mutual exclusion across processes\" and \"Handle Loss Detection: Detect \
         when locks are lost due to connection issues\". Documentation of `LockHandle::lost_token`: \"The receiver yields \
         `true` when the lock is lost\". Renewed. Asked: `lost_token`.",
    ),
    peer(
        "distkit",
        "distkit 0.7.1 (crates.io)",
        ONE,
        Launch::Rust,
        EXCLUSION_AND_LOSS,
        "Documentation of `Mutex`: \"While the guard is alive a background task renews the lease every `ttl / 3` so \
         it never quietly expires under you\", and \"if correctness depends on the lock, don't lean on the guard's \
         existence alone: call `MutexGuard::get_state`\". It also says that a guard is \"a strong signal that you own the \
         lock rather than an ironclad guarantee\", and which case to watch: \"If we can't reach Redis for longer than the TTL\". \
         Then the lock \"stays `Lost`\". It names no process that was stopped. Renewed. Asked: `get_state`.",
    ),
    peer(
        "sqlx",
        "sqlx 0.8.6 (crates.io)",
        &[Topology::Postgres],
        Launch::Rust,
        EXCLUSION,
        "Documentation of `PgAdvisoryLock`: \"A mutex-like type utilizing Postgres advisory locks\". It lasts as \
         long as its connection. Asked: `ping` on the guard's connection.",
    ),
    peer(
        "redis-py",
        "redis 8.1.0 (PyPI)",
        ONE,
        Launch::Python("redis_py.py"),
        EXCLUSION,
        "Docstring of `Lock`: \"A shared, distributed Lock\". Not renewed. Asked: `Lock.owned`, which asks the \
         server.",
    ),
    peer(
        "python-redis-lock",
        "python-redis-lock 4.0.1 (PyPI)",
        ONE,
        Launch::Python("python_redis_lock.py"),
        EXCLUSION,
        "Docstring of `auto_renewal`: \"Lock will automatically renew the lock so that it doesn't expire for \
         as long as the lock is held\". Asked: whether `get_owner_id`, which asks the server, is the lock's id.",
    ),
    peer(
        "pottery",
        "pottery 3.0.1 (PyPI)",
        REDLOCK,
        Launch::Python("pottery_redlock.py"),
        EXCLUSION,
        "README: \"a safe and reliable lock to coordinate access to a resource shared across threads, \
         processes, and even machines\". Not renewed. Asked: `Redlock.locked`, which asks the servers.",
    ),
    peer(
        "redlock-js",
        "redlock 4.2.0 (npm)",
        REDLOCK,
        Launch::Node("redlock.js"),
        EXCLUSION,
        "README: \"you can continue to extend the lock as long as you never let it expire\". Not renewed. \
         Asked: whether `lock.expiration` has passed.",
    ),
    peer(
        "redis-semaphore",
        "redis-semaphore 5.8.0 (npm)",
        ONE,
        Launch::Node("redis_semaphore.js"),
        EXCLUSION_AND_LOSS,
        "README, \"Example with lost lock handling\": `while (mutex.isAcquired) { // critical cycle \
         iteration }`, and `onLockLost` is \"called when lock loss is detected due refresh cycle\". Renewed. Asked: `isAcquired`.",
    ),
];

pub(crate) fn find(name: &str) -> Result<&'static Subject, Failure> {
    let names = || ALL.iter().map(|it| it.name).collect::<Vec<_>>().join(", ");
    let found = ALL.iter().find(|subject| subject.name == name);
    found.ok_or_else(|| format!("no subject `{name}`; there are {}", names()).into())
}

/// The lock of somebody else, behind a program that speaks the protocol.
pub(crate) fn named(program: &Path, promises: &[Promise]) -> Result<&'static Subject, Failure> {
    let absolute = program.canonicalize();
    let absolute = absolute.map_err(|error| format!("{}: {error}", program.display()))?;
    // A run has one subject.
    let absolute: &Path = Box::leak(absolute.into_boxed_path());
    let name = absolute.file_stem().and_then(|name| name.to_str());
    let name = name.ok_or("the program has no name in UTF-8")?;
    Ok(Box::leak(Box::new(peer(
        name,
        "not pinned",
        ALL_TOPOLOGIES,
        Launch::Named(absolute),
        promises.to_vec().leak(),
        "As named on the command line. Asked: what the program asks.",
    ))))
}

impl Subject {
    /// Whether its clients run jobs or stand for elections. Their clocks are hours apart.
    pub(crate) const fn coordinates(&self) -> bool {
        matches!(self.launch, Launch::Coordination(..))
    }

    pub(crate) const fn runs_jobs(&self) -> bool {
        matches!(
            self.launch,
            Launch::Coordination(_, Work::Job | Work::LockAsJob)
        )
    }

    /// Whether it has reader/writer locks and semaphores beside mutexes.
    pub(crate) fn has_all_modes(&self) -> bool {
        matches!(self.launch, Launch::Leasehold(backend, _) if !matches!(backend, Quorum | Etcd | S3))
    }

    /// What its clients do beside plain locks.
    pub(crate) fn more(&self) -> Vec<&'static str> {
        let Launch::Leasehold(backend, _) = self.launch else {
            return Vec::new();
        };
        let mut more = vec![SEVERAL, BESIDE, DROPPED];
        if backend != Quorum {
            more.push(REENTRY);
        }
        if self.has_all_modes() {
            more.extend([DOWNGRADE, UPGRADE, NO_UPGRADE]);
        }
        more
    }

    /// Whether it is leasehold, whose documentation says that the wall clocks of its clients don't matter, and that
    /// its deadlines count suspend.
    pub(crate) const fn is_leasehold(&self) -> bool {
        matches!(
            self.launch,
            Launch::Leasehold(..) | Launch::Coordination(..)
        )
    }

    /// A lock lasts this long without a renewal, even if its lease is shorter.
    pub(crate) const fn shortest_hold(&self) -> Duration {
        if self.is_leasehold() {
            OFFER
        } else {
            Duration::ZERO
        }
    }

    pub(crate) const fn has_slow_clocks(&self) -> bool {
        matches!(self.launch, Launch::Leasehold(_, Some(HasASlowClock)))
    }

    pub(crate) fn version(&self) -> String {
        match self.is_leasehold() {
            true => format!("{} {}", env!("CARGO_PKG_VERSION"), commit()),
            false => self.version.to_owned(),
        }
    }

    pub(crate) fn program(&self, lease_ms: u64, urls: &[String]) -> Result<Program, Failure> {
        let mut program = match self.launch {
            Launch::Rust if !cfg!(feature = "peers") => {
                return Err(format!("{}: build with `--features peers`", self.name).into());
            }
            Launch::Python(file) => {
                let mut program = Program::new(install::python()?);
                program.arg(install::adapter(file));
                program
            }
            Launch::Node(file) => {
                let mut program = Program::new("node");
                program.arg(install::adapter(file));
                program.env("NODE_PATH", install::node()?);
                program
            }
            Launch::Named(path) => Program::new(path),
            Launch::Leasehold(..)
            | Launch::Coordination(..)
            | Launch::Rust
            | Launch::ByHand
            | Launch::Specimen(_) => {
                let mut program = Program::new(std::env::current_exe()?);
                program.args(["client", self.name]);
                program
            }
        };
        program.arg(lease_ms.to_string()).args(urls);
        Ok(program)
    }

    /// Runs a client in this process.
    pub(crate) async fn serve(&self, lease: Duration, urls: Vec<String>) -> Result<(), Failure> {
        match self.launch {
            Launch::Leasehold(backend, broken) => {
                serve(Leasehold::connect(backend, &urls, lease, broken).await?).await
            }
            Launch::Coordination(backend, work) => {
                coordination::run(backend, work, lease, &urls).await
            }
            #[cfg(feature = "peers")]
            Launch::Rust => crate::adapter::peers::run(self.name, lease, urls).await,
            Launch::ByHand => serve(ByHand::connect(&urls[0]).await?).await,
            Launch::Specimen(specimen) => serve(Tutorial::connect(specimen, &urls[0]).await?).await,
            #[cfg(not(feature = "peers"))]
            Launch::Rust => Err(format!("{}: not in this program", self.name).into()),
            Launch::Python(_) | Launch::Node(_) | Launch::Named(_) => {
                Err(format!("{}: not in this program", self.name).into())
            }
        }
    }
}

fn commit() -> String {
    let output = Program::new("git")
        .args(["describe", "--always", "--dirty"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text).trim().to_owned()
}
