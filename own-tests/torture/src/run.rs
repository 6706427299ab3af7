//! One run: servers, clients, their nemesis, and the history of it all.

use std::fs::File;
use std::path::Path;
use std::process::{Command as Program, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use leasehold_test_servers::SteppedClock;

use crate::checker;
use crate::client::{Client, Target};
use crate::history::{About, Answer, History};
use crate::link::Link;
use crate::nemesis::{self, Clients, Nemesis, kinds_of_clients, note_failovers};
use crate::protocol::{Acquire, Command, Mode, Reply};
use crate::random::Random;
use crate::record::Record;
use crate::subject::Subject;
use crate::topology::balancer::Balancer;
use crate::topology::cluster::{Cluster, LATENCY};
use crate::topology::etcd::Etcd;
use crate::topology::mysql::Mysql;
use crate::topology::nats::Nats;
use crate::topology::postgres::{Pooled, Postgres};
use crate::topology::quorum::Quorum;
use crate::topology::s3::S3;
use crate::topology::sentinel::Sentinel;
use crate::topology::sqlite::Sqlite;
use crate::topology::standalone::Standalone;
use crate::topology::{Servers, Topology};
use crate::verdict::Ending;
use crate::workload::{MUTEXES, Worker};
use crate::{Args, Failure};

/// How often a run that has seen too little looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long the clients go on after the last fault.
const AFTERWARDS: Duration = Duration::from_secs(3);
/// How often a run prints where it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// The clock of a client that breaks A3 on purpose: half as fast.
const SLOW_PPM: i64 = -500_000;
/// How long after the last client something of it may still be there.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// What a run is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) args: &'a Args,
    pub(crate) subject: &'static Subject,
    /// The kinds of faults that it deals.
    pub(crate) deck: &'a [&'static str],
    /// Where the clients write what they have to say beside the protocol.
    pub(crate) log: &'a Path,
}

/// The kinds of faults that a run deals: all that the servers and the clients can have, or those that were named.
pub(crate) fn deck(
    subject: &Subject,
    on: Topology,
    only: &[String],
) -> Result<Vec<&'static str>, Failure> {
    let mut kinds = on.kinds();
    kinds.extend(kinds_of_clients(subject, on));
    if let Some(unknown) = only.iter().find(|name| !kinds.contains(&name.as_str())) {
        let (subject, on, kinds) = (subject.name, on.name(), kinds.join("\n  "));
        return Err(format!("{subject} on {on} has no fault `{unknown}`, but:\n  {kinds}").into());
    }
    kinds.retain(|kind| only.is_empty() || only.iter().any(|name| name == kind));
    Ok(kinds)
}

/// The history even if the run failed in the middle, with the reason.
type Ran = Result<(History, Result<(), Failure>), Failure>;

pub(crate) fn run(plan: &Plan<'_>) -> Ran {
    // Installs what the subject needs before the clock starts.
    plan.subject.program(plan.args.lease_ms, &[])?;
    let lease = plan.lease();
    match plan.args.on {
        Topology::Standalone => run_on(plan, Standalone::start(lease)),
        Topology::Balancer => run_on(plan, Balancer::start(lease)),
        Topology::Sentinel => run_on(plan, Sentinel::start()),
        Topology::Cluster => run_on(plan, Cluster::start(Duration::ZERO)),
        Topology::DistantCluster => run_on(plan, Cluster::start(LATENCY)),
        Topology::Postgres => run_on(plan, Postgres::start(lease)),
        Topology::PostgresPooled => run_on(plan, Pooled::start(lease)),
        Topology::Mysql => run_on(plan, Mysql::start(lease)),
        Topology::Etcd => run_on(plan, Etcd::start(lease)),
        Topology::Nats => run_on(plan, Nats::start(lease)),
        Topology::Sqlite => run_on(plan, Sqlite::start(lease)),
        Topology::S3 => run_on(plan, S3::start(lease)),
        Topology::Quorum => run_on(plan, Quorum::start(lease)),
    }
}

fn run_on(plan: &Plan<'_>, mut servers: impl Servers) -> Ran {
    let (args, lease) = (plan.args, plan.lease());
    // The last one is the probe's.
    let links: Vec<Vec<Link>> = (0..=args.clients)
        .map(|_| servers.linked().into_iter().map(Link::start).collect())
        .collect();
    let mut about = About {
        subject: plan.subject.name.into(),
        version: plan.subject.version(),
        topology: args.on.name(),
        server: servers.version(),
        seed: args.seed,
        lasted_us: 0,
        lease_ms: args.lease_ms,
        lasts_asleep_ms: millis(plan.lasts_asleep()),
        progress_within_ms: millis(args.on.progress_within(lease)),
        skew_ppm: plan.skews().into_iter().map(i64::abs).max().unwrap_or(0),
        promises: plan.subject.promises.to_vec(),
        deck: plan.deck.iter().map(|kind| (*kind).into()).collect(),
        more: plan.subject.more().into_iter().map(Into::into).collect(),
    };
    let record = Record::new();
    let ended = plan
        .torment(&record, &about, &mut servers, &links)
        .and_then(|lasted| {
            about.lasted_us = lasted;
            plan.look_for_what_is_left(&record, &servers, &links[0])
        });
    let entries = record.so_far();
    Ok((History { about, entries }, ended))
}

impl Plan<'_> {
    /// Runs the clients and the nemeses. Returns when the clients had to end, in µs.
    fn torment(
        &self,
        record: &Record,
        about: &About,
        servers: &mut impl Servers,
        links: &[Vec<Link>],
    ) -> Result<u64, Failure> {
        let urls: Vec<_> = links.iter().map(|it| self.urls(servers, it)).collect();
        let all_targets: Vec<Target> = links.iter().map(|_| Target::default()).collect();
        // The nemesis spares the probe.
        let clients = self.args.clients;
        let (targets, links) = (&all_targets[..clients], &links[..clients]);
        let clocks = &self.clocks();
        let (calm, mut random) = (&AtomicBool::new(false), Random::with_seed(self.args.seed));
        let plan = *self;
        let nemesis = &Nemesis { plan, record, calm };
        let log = File::create(self.log)?;
        let tormented = &mut *servers;
        // Fails early if a client can't be started at all.
        let mut first = self.program(&urls[0], &log)?;
        drop(Client::start(&mut first, &all_targets[0])?);
        let lasted = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..=clients)
                .map(|number| {
                    let worker = Worker {
                        plan,
                        number,
                        record,
                        target: &all_targets[number],
                        random: random.fork(),
                    };
                    let (urls, log) = (&urls[number], &log);
                    let program = move || {
                        let mut program = self.program(urls, log).expect("as for the first one");
                        let clock = clocks.get(number);
                        program.envs(clock.map(SteppedClock::environment).into_iter().flatten());
                        program
                    };
                    scope.spawn(move || worker.run(program))
                })
                .collect();
            let (mut of_clients, mut of_servers) = (random.fork(), random.fork());
            let nemeses = [
                scope.spawn(move || {
                    nemesis.torment_clients(Clients::new(targets, links, clocks), &mut of_clients);
                }),
                scope.spawn(move || nemesis.torment_servers(tormented, &mut of_servers)),
            ];
            scope.spawn(|| nemesis.watch_for_stalls());
            self.wait(record, about, &nemeses);
            calm.store(true, Ordering::Relaxed);
            let ended: Vec<_> = nemeses.into_iter().map(ScopedJoinHandle::join).collect();
            record.sleep(AFTERWARDS);
            let lasted = record.now();
            record.end();
            let failures = workers.into_iter().map(ScopedJoinHandle::join);
            let failures: Vec<_> = failures.filter_map(|it| it.ok().flatten()).collect();
            if ended.iter().any(Result::is_err) {
                return Err("the nemesis failed; its message is above".into());
            }
            if record.holds() == 0 {
                return Err(format!("no client started: {failures:?}").into());
            }
            Ok::<_, Failure>(lasted)
        })?;
        note_failovers(record, servers, lasted - micros(AFTERWARDS));
        Ok(lasted)
    }

    /// Waits until the time is over, and up to twice that time longer until enough was seen for a verdict.
    fn wait(&self, record: &Record, about: &About, nemeses: &[ScopedJoinHandle<'_, ()>]) {
        let time = micros(Duration::from_secs_f64(self.args.minutes * 60.0));
        let is_enough = || {
            let entries = record.so_far();
            let mut about = about.clone();
            about.lasted_us = record.now();
            checker::check(&History { about, entries }).ending() != Ending::NotShown
        };
        let mut next = micros(PROGRESS);
        while !nemeses.iter().any(|it| it.is_finished()) {
            record.sleep(Duration::from_millis(50));
            let now = record.now();
            if now >= next {
                eprintln!("{:>4} s: {} attempts", next / 1_000_000, record.holds());
                next += micros(PROGRESS);
            }
            if now >= time {
                if now >= 3 * time || is_enough() {
                    return;
                }
                record.sleep(LOOK_AGAIN);
            }
        }
    }

    /// Whether faults of this kind are dealt.
    pub(crate) fn deals(&self, kind: &str) -> bool {
        self.deck.contains(&kind)
    }

    /// The longest that a lock lasts although its client sleeps.
    pub(crate) fn lasts_asleep(&self) -> Duration {
        self.lease().max(self.subject.shortest_hold())
    }

    /// The clocks of the clients. Those of jobs and elections are some hours apart.
    fn clocks(&self) -> Vec<SteppedClock> {
        // An hour, where that is allowed.
        let step = nemesis::micros(self.args.on.longest_step()) / 6;
        let apart = i64::from(self.subject.coordinates()) * step;
        let clock = |(skew, steps): (i64, i64)| {
            let clock = SteppedClock::with_rate(skew);
            let ahead = if steps % 2 == 0 { steps } else { -steps };
            clock.set(ahead * apart);
            clock
        };
        self.skews().into_iter().zip(0..).map(clock).collect()
    }

    /// How much too fast the clock of each client is, in millionths: from too slow to too fast, evenly. None,
    /// if the documentation of the subject doesn't say what another rate, a stepped clock or a suspended
    /// machine does to it. The report shows the largest. All run evenly where the preloaded library can't
    /// change rates.
    fn skews(&self) -> Vec<i64> {
        if !self.subject.is_leasehold() {
            return Vec::new();
        }
        let most = match cfg!(target_arch = "x86_64") {
            true => self.args.on.most_skew_ppm(),
            false => 0,
        };
        let last = self.args.clients as i64 - 1;
        let skew = |client| match self.subject.has_slow_clocks() {
            true => SLOW_PPM,
            false => most * (2 * client - last) / last.max(1),
        };
        (0..=last).map(skew).collect()
    }

    fn urls(&self, servers: &impl Servers, links: &[Link]) -> Vec<String> {
        let addresses: Vec<_> = links.iter().map(Link::address).collect();
        servers.urls(&addresses)
    }

    fn program(&self, urls: &[String], log: &File) -> Result<Program, Failure> {
        let mut program = self.subject.program(self.args.lease_ms, urls)?;
        program.stderr(Stdio::from(log.try_clone()?));
        Ok(program)
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.args.lease_ms)
    }

    /// A new client must get each mutex, once the leases of the others are over.
    fn look_for_what_is_left(
        &self,
        record: &Record,
        servers: &impl Servers,
        links: &[Link],
    ) -> Result<(), Failure> {
        let target = Target::default();
        let urls = self.urls(servers, links);
        let log = File::options().append(true).open(self.log)?;
        let mut client = Client::start(&mut self.program(&urls, &log)?, &target)?;
        for key in MUTEXES {
            let acquire = Command::Acquire(Acquire {
                key: key.into(),
                mode: Mode::Mutex,
                lease_ms: self.args.lease_ms,
                wait_ms: millis(self.args.on.progress_within(self.lease())),
                hold: None,
                also: Vec::new(),
                reentrant: false,
                drop_ms: None,
            });
            match client.ask(&acquire) {
                Ok(Reply::Held { .. }) => {}
                other => {
                    let answer = Answer::from(other);
                    record.left(format!("a new client doesn't get `{key}`: {answer}"));
                }
            }
            // An error means that the process has ended, which the next key shows.
            let _ = client.ask(&Command::Release { hold: None });
        }
        if !client.end() {
            record.left("the last client: the process stays".into());
        }
        for what in left_in_the_end(servers) {
            record.left(what);
        }
        Ok(())
    }
}

/// What is still left on the servers after a while: they may notice late that a client has ended.
fn left_in_the_end(servers: &impl Servers) -> Vec<String> {
    let began = Instant::now();
    loop {
        let left = servers.left();
        if left.is_empty() || began.elapsed() > GONE_WITHIN {
            return left;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).expect("a short time")
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("a short time")
}
