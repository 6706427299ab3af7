//! Contenders under random faults. Each seed is one run, in bounded virtual time.
//!
//! A contender has several tasks, so its calls are sent in batches. A batch outlives its callers if the
//! runtime is blocked. That is how a call can take back what another call for the same attempt was granted.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join, join_all, poll_immediate, select};
use leasehold_api::{Error, FencingToken, LockClient, MutexGuard, Outcome};
use leasehold_quorum::Quorum;
use leasehold_sim::{Call, Data, Fault, Latency, SimBackend, SimOptions, SimServer};

use crate::support::{ms, secs};

/// How long there are faults.
const FAULTS: Duration = secs(15);
/// No run takes longer.
const LIMIT: Duration = secs(120);

#[tokio::test(start_paused = true)]
async fn contenders_for_three_servers_under_faults() {
    explore(3, seeds(8)).await;
}

#[tokio::test(start_paused = true)]
async fn contenders_for_five_servers_under_faults() {
    explore(5, seeds(4)).await;
}

/// `LEASEHOLD_QUORUM_SEEDS=1000..2000` asks for other runs.
pub(crate) fn seeds(usual: u64) -> Range<u64> {
    let Ok(range) = std::env::var("LEASEHOLD_QUORUM_SEEDS") else {
        return 0..usual;
    };
    let (from, to) = range.split_once("..").expect("a range, such as 0..100");
    from.parse().expect("a number")..to.parse().expect("a number")
}

async fn explore(servers: u64, seeds: Range<u64>) {
    let (mut acquired, mut runs) = (0, 0);
    for seed in seeds {
        let run = Run::new(seed, servers);
        let ended = run.within(LIMIT, run.play()).await;
        assert!(ended.is_some(), "seed {seed}: no end after {LIMIT:?}");
        acquired += run.acquired.get();
        runs += 1;
    }
    let enough = acquired > 8 * runs;
    assert!(enough, "{acquired} acquisitions in {runs} runs");
}

/// Numbers that depend only on the seed (SplitMix64).
#[derive(Debug)]
pub(crate) struct Random(Cell<u64>);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut n = self.0.get();
        n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (n ^ (n >> 31)) % bound
    }

    pub(crate) fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn ms_below(&self, bound: u64) -> Duration {
        ms(self.below(bound))
    }
}

#[derive(Debug)]
struct Contender {
    links: Vec<SimBackend>,
    locks: LockClient,
}

impl Contender {
    /// Runs code of the process, unless it is paused.
    async fn run<T>(&self, code: impl Future<Output = T>) -> T {
        self.links[0].run(code).await
    }
}

/// A lock that all tasks want.
#[derive(Debug)]
struct Contended {
    /// The guard of each task.
    guards: RefCell<Vec<Option<Arc<MutexGuard>>>>,
    last: Cell<FencingToken>,
}

#[derive(Debug)]
struct Run {
    seed: u64,
    random: Random,
    servers: Vec<SimServer>,
    contenders: Vec<Contender>,
    /// How many tasks each contender has.
    tasks: usize,
    keys: Vec<Contended>,
    lease: Duration,
    /// Whether restarts of any server keep the data, and the clients are told so.
    restarts_keep_data: bool,
    /// Whether the clock of a server jumps. Exclusion isn't promised then.
    clock_jumps: bool,
    acquired: Cell<usize>,
    is_over: Cell<bool>,
}

impl Run {
    fn new(seed: u64, servers: u64) -> Self {
        let random = Random::new(seed);
        // With the short lease, holds expire. With the long one, a grant that is left behind is seen.
        let lease = if random.one_in(2) { secs(2) } else { secs(10) };
        let start = |n| {
            let options = SimOptions::new(16 * seed + n).recording(false).log_limit(0);
            let latency = Latency::between(ms(1), ms(1 + random.below(5)));
            let server = SimServer::with_options(options.latency(latency));
            server.step_clock_forward(random.ms_below(3_000));
            server
        };
        let servers: Vec<_> = (0..servers).map(start).collect();
        let restarts_keep_data = random.one_in(2);
        let contender = |n| {
            let name = format!("c{n}");
            let links: Vec<_> = servers.iter().map(|server| server.client(&name)).collect();
            let quorum = Quorum::new(links.clone()).expect("an odd number");
            let quorum = quorum.restarts_keep_data(restarts_keep_data);
            let locks = LockClient::new(quorum.max_lease(lease).expect("a valid lease"));
            Contender { links, locks }
        };
        let contenders: Vec<_> = (0..3 + random.below(3)).map(contender).collect();
        let tasks = 1 + random.below(4) as usize;
        let key = |_| Contended {
            guards: RefCell::new(vec![None; contenders.len() * tasks]),
            last: Cell::new(FencingToken::default()),
        };
        Self {
            seed,
            keys: (0..1 + random.below(3)).map(key).collect(),
            contenders,
            tasks,
            clock_jumps: random.one_in(4),
            random,
            servers,
            lease,
            restarts_keep_data,
            acquired: Cell::new(0),
            is_over: Cell::new(false),
        }
    }

    /// How long a server that lost its data must stay down.
    fn restart_delay(&self) -> Duration {
        self.lease + self.lease / 100 + secs(10)
    }

    async fn play(&self) {
        let everybody = 0..self.contenders.len() * self.tasks;
        let contend = everybody.map(|me| self.contend(me));
        let disturb = (0..self.servers.len()).map(|server| self.disturb(server));
        let ending = async {
            self.sleep(FAULTS).await;
            self.is_over.set(true);
        };
        let faults = join(join_all(disturb), self.disturb_processes());
        join(ending, join(join_all(contend), faults)).await;
        self.sleep(secs(5)).await;
        self.nothing_is_left();
        self.everybody_acquires().await;
        self.sleep(secs(1)).await;
        self.nothing_is_left();
    }

    fn nothing_is_left(&self) {
        for (n, server) in self.servers.iter().enumerate() {
            let left = server.left_behind();
            assert_eq!(left, "", "seed {}: server {n}", self.seed);
        }
    }

    /// With healthy servers, each contender acquires in bounded time. Servers that restarted count
    /// again after the delay.
    async fn everybody_acquires(&self) {
        let began = self.now();
        let acquire = (0..self.contenders.len()).map(async |contender| {
            let locks = &self.contenders[contender].locks;
            let mutex = locks.mutex("k0").expect("a valid key");
            let before = self.keys[0].last.get();
            let guard = mutex.lease(self.lease).lock().await;
            let guard = guard.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
            let me = contender * self.tasks;
            self.check(me, 0, before, Arc::new(guard));
            self.keys[0].guards.borrow_mut()[me] = None;
        });
        join_all(acquire).await;
        let took = self.now() - began;
        let bound = self.restart_delay() + self.lease + secs(5);
        assert!(took < bound, "seed {}: {took:?}", self.seed);
    }

    /// Acquires, holds and releases, until the faults are over.
    async fn contend(&self, me: usize) {
        let contender = &self.contenders[me / self.tasks];
        while !self.is_over.get() {
            self.sleep(self.random.ms_below(100)).await;
            let key = self.random.below(self.keys.len() as u64) as usize;
            let mutex = contender.locks.mutex(format!("k{key}"));
            let mutex = mutex.expect("a valid key").lease(self.lease);
            let before = self.keys[key].last.get();
            let is_lost = self.random.one_in(6);
            if is_lost {
                self.lose_an_attempt(contender);
            }
            let limit = self.random.ms_below(5_000);
            let dropped_after = if !is_lost && self.random.one_in(3) {
                self.random.ms_below(1_500)
            } else {
                secs(20)
            };
            let mut attempt = pin!(contender.run(mutex.try_lock_for(limit)));
            let mut outcome = None;
            if self.random.one_in(6) {
                outcome = poll_immediate(&mut attempt).await;
                if outcome.is_none() {
                    self.block(contender).await;
                }
            }
            if outcome.is_none() {
                outcome = self.within(dropped_after, attempt).await;
            }
            match outcome {
                Some(Ok(Outcome::Acquired(guard))) => {
                    let time = if is_lost || self.random.one_in(4) {
                        secs(3)
                    } else {
                        self.random.ms_below(300)
                    };
                    self.hold(me, key, before, guard, time).await;
                }
                Some(Err(
                    Error::Unavailable { .. }
                    | Error::OutcomeUnknown { .. }
                    | Error::Rejected { .. },
                ))
                | Some(Ok(Outcome::Contended(_)))
                | None => {}
                Some(Err(error)) => panic!("seed {}: {error:?}", self.seed),
            }
        }
    }

    /// The next attempt gets to few servers or none, and some of its releases get lost too.
    fn lose_an_attempt(&self, contender: &Contender) {
        for link in &contender.links {
            if !self.random.one_in(4) {
                link.inject_into(Call::Acquire, Fault::LoseRequest);
            }
            if self.random.one_in(2) {
                link.inject_into(Call::Release, Fault::LoseRequest);
            }
        }
    }

    /// Something blocks the runtime of a process, so its tasks and timers wait.
    async fn block(&self, contender: &Contender) {
        contender.links[0].pause();
        self.sleep(self.random.ms_below(1_000)).await;
        contender.links[0].resume();
    }

    async fn hold(
        &self,
        me: usize,
        key: usize,
        before: FencingToken,
        guard: MutexGuard,
        time: Duration,
    ) {
        let contender = &self.contenders[me / self.tasks];
        let guard = Arc::new(guard);
        self.check(me, key, before, Arc::clone(&guard));
        self.within(time, contender.run(guard.lost())).await;
        if self.random.one_in(2) {
            // The future of the release is dropped, too.
            let release = contender.run(guard.release());
            let _ = self.within(self.random.ms_below(1_500), release).await;
        }
        self.keys[key].guards.borrow_mut()[me] = None;
    }

    /// Checks that nobody else has a valid guard, and that the token is greater than all that were seen
    /// before the attempt began.
    fn check(&self, me: usize, key: usize, before: FencingToken, guard: Arc<MutexGuard>) {
        if !guard.is_valid() {
            return;
        }
        let (seed, now, token) = (self.seed, self.now(), guard.fencing_token());
        let Contended { guards, last } = &self.keys[key];
        for (other, held) in guards.borrow().iter().enumerate() {
            let is_valid = held.as_ref().is_some_and(|guard| guard.is_valid());
            let excluded = !is_valid || self.clock_jumps;
            let holders = format!("{other} and {me} hold k{key}");
            assert!(excluded, "seed {seed}: {holders} at {now:?}");
        }
        let before = if self.clock_jumps { before } else { last.get() };
        let tokens = format!("{token:?} after {before:?}");
        assert!(token > before, "seed {seed}: {tokens} at {now:?}");
        last.set(last.get().max(token));
        guards.borrow_mut()[me] = Some(guard);
        self.acquired.set(self.acquired.get() + 1);
    }

    /// Faults of one server and of the connections to it.
    async fn disturb(&self, n: usize) {
        let server = &self.servers[n];
        let links: Vec<_> = self.contenders.iter().map(|c| &c.links[n]).collect();
        // Clients that aren't told that the data is kept don't count a restarted server for a while, so
        // only a minority restarts then. Only a minority ever loses its data.
        let is_minority = n < self.servers.len() / 2;
        let restarts = is_minority || self.restarts_keep_data;
        while !self.is_over.get() {
            self.sleep(self.random.ms_below(2_000)).await;
            let some = links[self.random.below(links.len() as u64) as usize];
            match self.random.below(12) {
                0 if restarts => server.restart(Data::Kept),
                1 if restarts => {
                    server.stop();
                    self.sleep(self.random.ms_below(2_000)).await;
                    server.start(Data::Kept);
                }
                2 if is_minority => {
                    server.stop();
                    self.sleep(self.restart_delay()).await;
                    server.start(Data::Lost);
                }
                3 => {
                    let slow = Latency::fixed(self.random.ms_below(3_000));
                    links.iter().for_each(|link| link.set_latency(slow));
                    self.sleep(self.random.ms_below(2_000)).await;
                    let usual = Latency::between(ms(1), ms(4));
                    links.iter().for_each(|link| link.set_latency(usual));
                }
                4 => {
                    some.isolate();
                    self.sleep(self.random.ms_below(3_000)).await;
                    some.rejoin();
                }
                5 => some.drop_connection(),
                6 if n == 0 && self.clock_jumps => {
                    server.step_clock_forward(self.random.ms_below(60_000));
                }
                7 => {
                    some.deny();
                    self.sleep(self.random.ms_below(3_000)).await;
                    some.admit();
                }
                _ => self.inject(some),
            }
        }
        links.iter().for_each(|link| link.clear_faults());
    }

    fn inject(&self, link: &SimBackend) {
        let late = self.random.ms_below(3_000);
        let call = [Call::Acquire, Call::Acquire, Call::Release, Call::Renew];
        let faults = [
            Fault::LoseRequest,
            Fault::LoseReply,
            Fault::DelayRequest(late),
            Fault::DelayReply(late),
            Fault::DuplicateRequest(late),
        ];
        let call = call[self.random.below(4) as usize];
        link.inject_into(call, faults[self.random.below(5) as usize]);
    }

    /// Processes pause, are cut off or refused, and their clocks drift by up to 1 %.
    async fn disturb_processes(&self) {
        while !self.is_over.get() {
            self.sleep(self.random.ms_below(2_000)).await;
            let some = self.random.below(self.contenders.len() as u64) as usize;
            let links = &self.contenders[some].links;
            let ppm = self.random.below(20_001) as i32 - 10_000;
            links[0].set_clock_rate(ppm);
            match self.random.below(4) {
                0 => {
                    links[0].pause();
                    self.sleep(self.random.ms_below(4_000)).await;
                    links[0].resume();
                }
                1 => {
                    links.iter().for_each(SimBackend::isolate);
                    self.sleep(self.random.ms_below(1_000)).await;
                    links.iter().for_each(SimBackend::rejoin);
                }
                2 => {
                    links.iter().for_each(SimBackend::deny);
                    self.sleep(self.random.ms_below(1_000)).await;
                    links.iter().for_each(SimBackend::admit);
                }
                _ => {}
            }
        }
    }

    fn now(&self) -> Duration {
        self.servers[0].elapsed()
    }

    async fn sleep(&self, time: Duration) {
        self.servers[0].advance(time).await;
    }

    async fn within<T>(&self, time: Duration, future: impl Future<Output = T>) -> Option<T> {
        match select(pin!(future), pin!(self.sleep(time))).await {
            Either::Left((output, _)) => Some(output),
            Either::Right(_) => None,
        }
    }
}
