//! The handle to a simulation.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{InspectReply, Key, ServerTime, SessionId};

use crate::driver;
use crate::driver::sleep::Sleep;
use crate::driver::world::World;
use crate::engine::choices::Scheduling;
use crate::handle::SimBackend;
use crate::handle::environment::{self, RequestedRun, command_with_seed};
use crate::history::{History, words};
use crate::network::Network;
use crate::network::observer::Observer;
use crate::network::options::SimOptions;
use crate::record::{Data, Entry, Message, ServerEvent};

/// A simulated lock server in virtual time, with any number of clients. Clones are the same server.
///
/// # Determinism
/// The same version of this crate, the same seed and the same test give the same log, byte for
/// byte. Only the test itself can break this: `tokio::select!` without `biased;`, which polls in a
/// random order; the iteration order of a `HashMap`; real clocks; other threads.
/// [`assert_deterministic`](crate::assert_deterministic) detects it.
///
/// # Time
/// Virtual time advances only while every task waits, as in any tokio runtime with a paused clock.
/// Timers have a resolution of 1 ms: latencies and sleeps are rounded up.
///
/// # Examples
/// ```
/// use leasehold_api::LockClient;
/// use leasehold_sim::SimServer;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), leasehold_api::Error> {
/// let server = SimServer::new(1);
/// let (a, b) = (LockClient::new(server.client("a")), LockClient::new(server.client("b")));
///
/// let guard = a.mutex("job")?.lock().await?;
/// assert!(b.mutex("job")?.try_lock().await?.into_guard().is_none());
/// guard.release().await?;
/// server.assert_idle();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SimServer {
    world: Arc<World>,
    /// Set for handles of a tokio test.
    _test: Option<Arc<Test>>,
}

/// Dropped with the last handle of a tokio test.
#[derive(Debug)]
struct Test(Arc<World>);

impl Drop for Test {
    /// Fails a replay that ended before its tape, and a test whose task panicked last.
    ///
    /// # Panics
    /// Panics if the tape was not used up or a task panicked, unless the thread panics already.
    fn drop(&mut self) {
        self.0.assert_sound();
        self.0.assert_replayed();
    }
}

impl SimServer {
    /// Starts a server without clients, with the default [`SimOptions`].
    ///
    /// A test that panics prints its timeline and the command that repeats it.
    ///
    /// # Environment
    /// - `LEASEHOLD_SIM_SEED`: a number that replaces the seed.
    /// - `LEASEHOLD_SIM_REPLAY`: a [`Tape`](crate::tools::Tape) to replay.
    ///
    /// # Panics
    /// Panics outside a tokio runtime, and in one whose clock is not paused: write the test as
    /// `#[tokio::test(start_paused = true)]`. Panics if one of the variables is invalid.
    #[track_caller]
    pub fn new(seed: u64) -> Self {
        Self::with_options(SimOptions::new(seed))
    }

    /// Starts a server with these options. Like [`new`](Self::new), it obeys the environment
    /// variables.
    ///
    /// # Panics
    /// Panics as [`new`](Self::new) does.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_sim::{Latency, SimOptions, SimServer};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let latency = Latency::between(Duration::ZERO, Duration::from_millis(3));
    /// let server = SimServer::with_options(SimOptions::new(7).latency(latency));
    /// # drop(server);
    /// # }
    /// ```
    #[track_caller]
    pub fn with_options(options: SimOptions) -> Self {
        let (seed, scheduling) = match environment::requested() {
            RequestedRun::Nothing => (options.seed, Scheduling::Random),
            RequestedRun::Seed(seed) => (seed, Scheduling::Random),
            RequestedRun::Replay(tape) => (options.seed, Scheduling::Replay(tape)),
        };
        Self::with_scheduling(SimOptions { seed, ..options }, scheduling)
    }

    /// Starts a server whose choices follow `scheduling`, for example to replay a run. It ignores
    /// the environment variables.
    ///
    /// A replay that diverges from its tape panics in the next call or sleep of the test. A replay
    /// that ends before its tape panics when the last handle to the server is dropped. So keep a
    /// handle until the end of the test, and none in a task that outlives it, because tokio catches
    /// panics of tasks that it drops.
    ///
    /// # Panics
    /// Panics outside a tokio runtime, and in one whose clock is not paused.
    #[track_caller]
    pub fn with_scheduling(options: SimOptions, scheduling: Scheduling) -> Self {
        let world = driver::tokio::start(Network::new(options, scheduling), print);
        let _test = Some(Arc::new(Test(Arc::clone(&world))));
        Self { world, _test }
    }

    pub(crate) fn in_world(world: &Arc<World>) -> Self {
        let world = Arc::clone(world);
        Self { world, _test: None }
    }

    pub(crate) const fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// Sets the observer, which replaces the previous one.
    pub fn observe(&self, observer: impl Observer + 'static) {
        let observer: Box<dyn Observer> = Box::new(observer);
        let before = self.world.act(|network| network.observer.replace(observer));
        // It is user code, so it is dropped outside the lock.
        drop(before);
    }

    /// Adds a client: a process with one connection to the server.
    ///
    /// The name heads the client's column in the timeline and is the default
    /// [label](leasehold_api::Runtime::default_label) of its lock client. Give each client its own
    /// name, because clients with the same name share a column.
    pub fn client(&self, name: &str) -> SimBackend {
        let index = self.world.act(|network| network.add_client(name));
        SimBackend::new(&self.world, index)
    }

    pub(crate) fn clients(&self) -> Vec<SimBackend> {
        let count = self.world.act(|network| network.clients.len());
        let clients = 0..count;
        clients
            .map(|client| SimBackend::new(&self.world, client))
            .collect()
    }

    /// Returns the virtual time since the start of the simulation.
    pub fn elapsed(&self) -> Duration {
        self.world.clock.elapsed()
    }

    /// Lets `by` of virtual time pass. Everything that is due until then happens, at its own time
    /// and in its order. In contrast, `tokio::time::advance` jumps.
    ///
    /// The duration is rounded up to whole milliseconds.
    ///
    /// # Panics
    /// In a tokio test, panics if the runtime's clock is no longer paused, if a task of the
    /// simulation panicked, or if a replay diverged from its tape.
    ///
    /// # Cancel safety
    /// This method is cancel safe. If you drop the future, the time that has passed stays passed.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_api::LockClient;
    /// use leasehold_sim::SimServer;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), leasehold_api::Error> {
    /// let server = SimServer::new(1);
    /// let locks = LockClient::new(server.client("a"));
    /// drop(locks.mutex("job")?.lock().await?); // released in the background
    /// server.advance(Duration::from_secs(1)).await;
    /// server.assert_idle();
    /// # Ok(())
    /// # }
    /// ```
    pub async fn advance(&self, by: Duration) {
        Sleep::last(&self.world, by).await;
    }

    /// Stops the server. Its connections break, and until [`start`](Self::start) calls return
    /// [`Unavailable`](leasehold_api::BackendError::Unavailable). Does nothing if it is stopped
    /// already.
    pub fn stop(&self) {
        self.world.act(Network::stop_server);
    }

    /// Starts a stopped server. Does nothing if it runs.
    ///
    /// The server has a new [`ClockId`](leasehold_api::ClockId), and no subscriptions until its
    /// clients subscribe again.
    ///
    /// # Panics
    /// Panics for [`Data::AllBut`] if the options have no [journal](SimOptions::journal).
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_api::{Error, LockClient};
    /// use leasehold_sim::{Data, SimServer};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Error> {
    /// let server = SimServer::new(1);
    /// let mutex = LockClient::new(server.client("a")).mutex("job")?;
    /// let guard = mutex.lock().await?;
    ///
    /// server.stop();
    /// assert!(matches!(mutex.try_lock().await, Err(Error::Unavailable { .. })));
    /// server.start(Data::Kept);
    /// server.advance(Duration::from_secs(60)).await;
    /// assert!(guard.is_valid()); // renewed as soon as the server was back
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn start(&self, data: Data) {
        if matches!(data, Data::AllBut(_)) {
            self.assert_journal();
        }
        self.world.act(|network| network.start_server(data));
    }

    /// Returns whether the server runs.
    pub fn is_up(&self) -> bool {
        self.world.act(|network| network.servers.primary.up)
    }

    /// Makes the server refuse every call with [`Unavailable`](leasehold_api::BackendError::Unavailable) until
    /// [`end_loading`](Self::end_loading), like one that loads its data after a restart. Subscriptions succeed.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_api::{Error, LockClient};
    /// use leasehold_sim::{Data, SimServer};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Error> {
    /// let server = SimServer::new(1);
    /// let mutex = LockClient::new(server.client("a")).mutex("job")?;
    /// let guard = mutex.lock().await?;
    ///
    /// server.restart(Data::Kept);
    /// server.begin_loading();
    /// drop(guard);
    /// assert!(matches!(mutex.try_lock().await, Err(Error::Unavailable { .. })));
    /// server.end_loading();
    /// server.advance(Duration::from_secs(3)).await;
    /// server.assert_idle(); // released as soon as the server answered
    /// # Ok(())
    /// # }
    /// ```
    pub fn begin_loading(&self) {
        self.set_loading(true, ServerEvent::LoadingBegan);
    }

    /// Ends [`begin_loading`](Self::begin_loading). Does nothing if the server answers.
    pub fn end_loading(&self) {
        self.set_loading(false, ServerEvent::LoadingEnded);
    }

    fn set_loading(&self, loading: bool, event: ServerEvent) {
        self.world.act(|network| {
            if network.servers.loading != loading {
                network.change_server(event);
            }
        });
    }

    /// Stops the server and starts it at once.
    ///
    /// # Panics
    /// Panics as [`start`](Self::start) does.
    #[track_caller]
    pub fn restart(&self, data: Data) {
        if matches!(data, Data::AllBut(_)) {
            self.assert_journal();
        }
        self.world.act(|network| {
            network.stop_server();
            network.start_server(data);
        });
    }

    /// Steps the server's clock forward, as an administrator or a bad NTP source does.
    ///
    /// # Panics
    /// Panics if `by` is more than 36,500 days, because times would leave their range.
    #[track_caller]
    pub fn step_clock_forward(&self, by: Duration) {
        assert_step(by);
        self.change(ServerEvent::ClockStepped { forward: true, by });
    }

    /// Steps the server's clock back.
    ///
    /// # Panics
    /// Panics if `by` is more than 36,500 days.
    #[track_caller]
    pub fn step_clock_back(&self, by: Duration) {
        assert_step(by);
        self.change(ServerEvent::ClockStepped { forward: false, by });
    }

    /// Replaces a key with a value of another program. Calls on the key then return
    /// [`ForeignValue`](leasehold_api::BackendError::ForeignValue), which reports `found` as its
    /// type.
    ///
    /// # Panics
    /// Panics if the key is empty or longer than 256 bytes.
    #[track_caller]
    pub fn plant_foreign(&self, key: impl AsRef<str>, found: &str) {
        self.change(ServerEvent::ForeignPlanted {
            key: valid_key(key),
            found: found.to_owned(),
        });
    }

    /// Returns the type of the foreign value under a key, if there is one.
    ///
    /// # Panics
    /// Panics if the key is empty or longer than 256 bytes.
    #[track_caller]
    pub fn foreign(&self, key: impl AsRef<str>) -> Option<String> {
        let key = valid_key(key);
        self.world
            .act(|network| network.servers.primary.store.foreign(&key))
    }

    /// Makes the server publish nothing until [`allow_publish`](Self::allow_publish), like a server
    /// that denies its clients the right to publish. It sends no pushes, and doesn't know which
    /// sessions listen ([`Reach::Unknown`](leasehold_api::machine::Reach::Unknown)).
    pub fn refuse_publish(&self) {
        self.change(ServerEvent::PublishRefused);
    }

    /// Lets the server publish again.
    pub fn allow_publish(&self) {
        self.change(ServerEvent::PublishAllowed);
    }

    /// Makes the server count no listeners until [`allow_count`](Self::allow_count), like a server
    /// that denies its clients the right to ask. It publishes, but doesn't know which sessions listen
    /// ([`Reach::Unknown`](leasehold_api::machine::Reach::Unknown)).
    pub fn refuse_count(&self) {
        self.change(ServerEvent::CountRefused);
    }

    /// Ends [`refuse_count`](Self::refuse_count).
    pub fn allow_count(&self) {
        self.change(ServerEvent::CountAllowed);
    }

    /// Deletes a key as an eviction does, with its holders, its waiters, and what it remembers of late messages.
    ///
    /// # Panics
    /// Panics if the key is empty or longer than 256 bytes.
    #[track_caller]
    pub fn remove_key(&self, key: impl AsRef<str>) {
        let key = valid_key(key);
        self.change(ServerEvent::KeyRemoved { key });
    }

    fn change(&self, event: ServerEvent) {
        self.world.act(|network| network.change_server(event));
    }

    /// Returns the time of the server's clock.
    pub fn server_time(&self) -> ServerTime {
        self.world
            .act(|network| network.servers.primary.store.stamp(network.now).at)
    }

    /// Returns how many subscriptions to a session's channel the server has.
    pub fn listeners(&self, session: SessionId) -> u32 {
        self.world
            .act(|network| network.servers.primary.store.listeners(session))
    }

    /// Returns the events so far, oldest first. [`replay`](crate::tools::replay) can execute them again if
    /// the log is complete ([`SimOptions::log_limit`]).
    pub fn log(&self) -> Vec<Entry> {
        self.world
            .act(|network| network.log.entries.iter().cloned().collect())
    }

    /// Returns the messages so far, in the order in which they were sent. The
    /// [log limit](SimOptions::log_limit) applies to them too.
    pub fn messages(&self) -> Vec<Message> {
        self.world
            .act(|network| network.log.messages.iter().cloned().collect())
    }

    /// Returns the history of the run so far.
    pub fn history(&self) -> History {
        self.world
            .act(|network| History::of(network.log.clone(), network.client_names()))
    }

    /// Returns the run so far as text, as [`History::text`] does. Print it when a test fails, or
    /// use it as a snapshot.
    ///
    /// # Examples
    /// ```
    /// use leasehold_api::LockClient;
    /// use leasehold_sim::SimServer;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), leasehold_api::Error> {
    /// let server = SimServer::new(1);
    /// let locks = LockClient::new(server.client("a"));
    /// locks.mutex("job")?.try_lock().await?;
    /// assert_eq!(
    ///     server.timeline().lines().next(),
    ///     Some("         s  a   server"),
    /// );
    /// assert!(server.timeline().contains("acquire \"job\" #1 exclusive, lease 30s -> acquired"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn timeline(&self) -> String {
        self.history().text()
    }

    /// Returns a line of text for each holder and each waiter, or an empty string if there are
    /// none.
    pub fn left_behind(&self) -> String {
        let mut text = String::new();
        for (key, state) in &self.busy() {
            // Writing to a string cannot fail.
            let _ = words::write_state(&mut text, key, state);
        }
        text
    }

    /// How long the lease of each holder lasts from now on.
    /// Returns the clients that hold a lock, and how long their leases last.
    pub(crate) fn holders(&self) -> Vec<(SimBackend, Duration)> {
        let holders = self.world.act(|network| network.tally.holders(network.now));
        let holders = holders.into_iter();
        holders
            .map(|(client, left)| (SimBackend::new(&self.world, client), left))
            .collect()
    }

    /// Returns how often a client got a key whose holder had overslept its lease.
    pub(crate) fn second_holders(&self) -> u64 {
        self.world
            .act(|network| network.tally.counts.second_holders)
    }

    fn busy(&self) -> Vec<(Key, InspectReply)> {
        self.world
            .act(|network| network.servers.primary.store.busy(network.now))
    }

    /// Asserts that no key has a holder or a waiter.
    ///
    /// A dropped guard is released in the background. So let some time pass first, with
    /// [`advance`](Self::advance). Don't shut the client down before: that also releases the guards that your code
    /// has forgotten.
    ///
    /// # Panics
    /// Panics if there are holders or waiters. The message lists them.
    #[track_caller]
    pub fn assert_idle(&self) {
        let (left, at) = (self.left_behind(), words::seconds(self.elapsed()));
        assert!(
            left.is_empty(),
            "something is left behind at {at}:\n{left}\
             a dropped guard is released in the background: let time pass first, with `advance`"
        );
    }
}

/// The longest step of a clock: about a hundred years.
const LONGEST_STEP: Duration = Duration::from_secs(36_500 * 24 * 60 * 60);

#[track_caller]
pub(super) fn assert_step(by: Duration) {
    assert!(
        by <= LONGEST_STEP,
        "a clock can be stepped by at most 36,500 days, not by {by:?}"
    );
}

/// The maximum number of timeline lines that a panicking test prints.
const PRINTED: usize = 300;

/// Prints the timeline of a failed test, and the command that repeats it.
fn print(network: &Network) {
    let seed = network.choices.tape().seed;
    let text = History::of(network.log.clone(), network.client_names()).text();
    let hidden = text.lines().count().saturating_sub(PRINTED);
    eprintln!("\ntimeline of the simulation with seed {seed}:");
    if hidden > 0 {
        eprintln!("({hidden} earlier lines are left out)");
    }
    text.lines()
        .skip(hidden)
        .for_each(|line| eprintln!("{line}"));
    eprintln!("\nto repeat it: {}", command_with_seed(seed));
}

#[track_caller]
fn valid_key(key: impl AsRef<str>) -> Key {
    match Key::new(key) {
        Ok(key) => key,
        Err(error) => panic!("{error}"),
    }
}
