//! The handle on a simulation.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{Key, ServerTime, SessionId};

use crate::driver;
use crate::driver::sleep::Sleep;
use crate::driver::world::World;
use crate::engine::choices::Scheduling;
use crate::handle::SimBackend;
use crate::handle::environment::{self, Wish, command_with_seed};
use crate::history::{History, words};
use crate::network::Network;
use crate::network::observer::Observer;
use crate::network::options::SimOptions;
use crate::record::{Data, Entry, Message, ServerEvent, Tail};

/// A lock server in memory and in virtual time, with any number of clients.
///
/// Clones are the same server.
///
/// # Determinism
/// The same version of this crate, the same seed and the same test give the same log, byte for
/// byte. What can break that is in the test itself: `tokio::select!` without `biased;` (it
/// polls in a random order of tokio's own), the iteration order of std's `HashMap`, real clocks,
/// other threads.
///
/// # Time
/// Time passes only while every task waits, as in any tokio runtime with a paused clock. Timers
/// of that clock have a grain of 1 ms: a shorter latency or sleep is rounded up to it.
#[derive(Clone, Debug)]
pub struct SimServer {
    world: Arc<World>,
    /// Of those that a test on tokio has made.
    _test: Option<Arc<Test>>,
}

/// Ends with the last handle that a test has on its server.
#[derive(Debug)]
struct Test(Arc<World>);

impl Drop for Test {
    /// A replay that passes because it ended early must not pass, nor a test whose last act is that
    /// a task of it panics.
    ///
    /// # Panics
    /// If not all of the tape was used, or a task panicked, unless the thread panics already.
    fn drop(&mut self) {
        self.0.assert_sound();
        self.0.assert_replayed();
    }
}

impl SimServer {
    /// A running server, with no clients, and the default [`SimOptions`].
    ///
    /// Two environment variables change which run it is: `LEASEHOLD_SIM_SEED`, a number, replaces
    /// the seed; `LEASEHOLD_SIM_REPLAY`, a [`Tape`](crate::Tape), makes the choices. A test that
    /// panics prints its timeline and the line that repeats it.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one whose clock is not paused: write the test as
    /// `#[tokio::test(start_paused = true)]`.
    #[track_caller]
    pub fn new(seed: u64) -> Self {
        Self::with_options(SimOptions::new(seed))
    }

    /// A running server with other options.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn with_options(options: SimOptions) -> Self {
        match environment::wish() {
            Wish::Nothing => Self::with_scheduling(options, Scheduling::Random),
            Wish::Seed(seed) => {
                Self::with_scheduling(SimOptions { seed, ..options }, Scheduling::Random)
            }
            Wish::Replay(tape) => Self::with_scheduling(options, Scheduling::Replay(tape)),
        }
    }

    /// A running server whose choices are made in another way: to replay a run, for example.
    ///
    /// A replay that diverges from its tape panics in the next call or sleep of the test; one that
    /// ends before its tape does panics when the last handle on the server is dropped, so keep one
    /// until the end of the test, and none in a task that goes on after it: tokio swallows what a
    /// task panics with while it is dropped.
    ///
    /// # Panics
    /// As [`new`](Self::new).
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

    /// Lets somebody watch from now on, instead of who did before.
    pub fn observe(&self, observer: impl Observer + 'static) {
        let observer: Box<dyn Observer> = Box::new(observer);
        let before = self
            .world
            .act(|network, _| network.observer.replace(observer));
        drop(before);
    }

    /// A new client. The name is for the timeline and what lock clients call themselves to others:
    /// clients of the same name share a column, which then says little, so give each its own.
    pub fn client(&self, name: &str) -> SimBackend {
        let (index, gate) = self.world.act(|network, _| {
            let index = network.add_client(name);
            (index, network.clients[index].gate.clone())
        });
        SimBackend::new(&self.world, index, gate)
    }

    /// The clients that were made so far.
    pub(crate) fn clients(&self) -> Vec<SimBackend> {
        let gates = |network: &mut Network, _| -> Vec<_> {
            let clients = network.clients.iter();
            clients.map(|client| client.gate.clone()).collect()
        };
        let gates = self.world.act(gates).into_iter().enumerate();
        gates
            .map(|(client, gate)| SimBackend::new(&self.world, client, gate))
            .collect()
    }

    /// Virtual time since the simulation began.
    pub fn elapsed(&self) -> Duration {
        self.world.clock.elapsed()
    }

    /// Lets time pass, and everything happen that it brings.
    ///
    /// Unlike `tokio::time::advance` it does not jump: what is due on the way happens at its time
    /// and in its order.
    ///
    /// # Cancel safety
    /// Dropping it stops waiting; time that has passed has passed.
    pub async fn advance(&self, by: Duration) {
        Sleep::last(&*self.world, by).await;
    }

    /// Stops the server: its connections break, and calls are refused until
    /// [`start`](Self::start).
    pub fn stop(&self) {
        self.world.act(Network::stop_server);
    }

    /// Starts a stopped server, with another clock id, and without any subscription until its
    /// clients subscribe again.
    ///
    /// # Panics
    /// With [`Data::AllBut`] if the options keep no [journal](SimOptions::with_journal).
    #[track_caller]
    pub fn start(&self, data: Data) {
        if matches!(data, Data::AllBut(_)) {
            self.assert_journal();
        }
        self.world
            .act(|network, now| network.start_server(now, data));
    }

    /// Whether the server runs.
    pub fn is_up(&self) -> bool {
        self.world.act(|network, _| network.servers.primary.up)
    }

    /// Stops the server and starts it at once.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[track_caller]
    pub fn restart(&self, data: Data) {
        if matches!(data, Data::AllBut(_)) {
            self.assert_journal();
        }
        self.world.act(|network, now| {
            network.stop_server(now);
            network.start_server(now, data);
        });
    }

    /// The server is gone, and a replica that does not have all its writes takes over at once,
    /// with another clock id.
    ///
    /// # Panics
    /// If the options keep no [journal](SimOptions::with_journal).
    #[track_caller]
    pub fn fail_over(&self, lost: Tail) {
        self.assert_journal();
        self.world.act(|network, now| network.fail_over(now, lost));
    }

    /// A replica that does not have all writes becomes primary, and the old primary does not
    /// notification: it goes on serving the clients that stay. All others, and those made from now on,
    /// lose their connection and use the new one. Ends with [`heal`](Self::heal). What this handle
    /// does and tells concerns the new primary.
    ///
    /// # Panics
    /// If there are two primaries already, the server is stopped, the options keep no
    /// [journal](SimOptions::with_journal), or a client is one of another simulation.
    #[track_caller]
    pub fn split(&self, lost: Tail, staying: &[SimBackend]) {
        self.assert_journal();
        let mine = |client: &SimBackend| Arc::ptr_eq(client.world(), &self.world);
        assert!(
            staying.iter().all(mine),
            "a client that is to stay belongs to another simulation"
        );
        let staying: Vec<_> = staying.iter().map(SimBackend::index).collect();
        let possible = self.world.act(|network, now| {
            let possible = network.servers.old.is_none() && network.servers.primary.up;
            if possible {
                network.split(now, lost, &staying);
            }
            possible
        });
        assert!(possible, "a split needs one primary, which runs");
    }

    /// The old of two primaries gives up, with all that was written there since the split; its
    /// clients lose their connection, and use the new one.
    pub fn heal(&self) {
        self.world.act(Network::heal);
    }

    #[track_caller]
    fn assert_journal(&self) {
        let journal = self.world.act(|network, _| network.options.journal);
        assert!(
            journal > 0,
            "nothing can be lost of what is not remembered: SimOptions::with_journal"
        );
    }

    /// Steps the server's clock forward, as an administrator or a bad NTP source does.
    ///
    /// # Panics
    /// If it is by more than 36,500 days: times would leave their range.
    #[track_caller]
    pub fn step_clock_forward(&self, by: Duration) {
        assert_step(by);
        self.change(ServerEvent::ClockStepped { forward: true, by });
    }

    /// Steps the server's clock back.
    ///
    /// # Panics
    /// If it is by more than 36,500 days.
    #[track_caller]
    pub fn step_clock_back(&self, by: Duration) {
        assert_step(by);
        self.change(ServerEvent::ClockStepped { forward: false, by });
    }

    /// Puts a value of another program under a key. `found` is what it is called in
    /// [`ForeignValue`](leasehold_api::BackendError::ForeignValue).
    pub fn plant_foreign(&self, key: &Key, found: &str) {
        self.change(ServerEvent::ForeignPlanted {
            key: key.clone(),
            found: found.to_owned(),
        });
    }

    /// The foreign value under a key, if there is one.
    pub fn foreign(&self, key: &Key) -> Option<String> {
        self.world
            .act(|network, _| network.servers.primary.store.foreign(key))
    }

    /// The server publishes nothing from now on, as one does that gives its clients no right to:
    /// no push is sent, and it cannot tell who listens
    /// ([`Reach::Unknown`](leasehold_api::machine::Reach::Unknown)). Ends with
    /// [`allow_publish`](Self::allow_publish).
    pub fn refuse_publish(&self) {
        self.change(ServerEvent::PublishRefused);
    }

    /// The server publishes again.
    pub fn allow_publish(&self) {
        self.change(ServerEvent::PublishAllowed);
    }

    /// Deletes a key with all that is known of it, as an eviction does.
    pub fn remove_key(&self, key: &Key) {
        self.change(ServerEvent::KeyRemoved { key: key.clone() });
    }

    fn change(&self, event: ServerEvent) {
        self.world
            .act(|network, now| network.change_server(now, event));
    }

    /// Returns what the server's clock shows.
    pub fn server_time(&self) -> ServerTime {
        self.world
            .act(|network, now| network.servers.primary.store.stamp(now).at)
    }

    /// How many subscriptions to the channel of a session the server counts.
    pub fn listeners(&self, session: SessionId) -> u32 {
        self.world
            .act(|network, _| network.servers.primary.store.listeners(session))
    }

    /// What happened so far, oldest first. It can be executed again with
    /// [`replay`](crate::replay), as long as [`SimOptions::with_log_limit`] dropped nothing.
    pub fn log(&self) -> Vec<Entry> {
        self.world
            .act(|network, _| network.log.entries().cloned().collect())
    }

    /// The messages so far, in the order in which they were sent; as many of the latest as the log
    /// keeps entries.
    pub fn messages(&self) -> Vec<Message> {
        self.world
            .act(|network, _| network.log.messages().cloned().collect())
    }

    /// What happened so far, to be looked at.
    pub fn history(&self) -> History {
        self.world
            .act(|network, _| History::of(&network.log, network.client_names()))
    }

    /// What happened so far as text, as [`History::text`] writes it. For people, and for snapshot
    /// tests.
    pub fn timeline(&self) -> String {
        self.history().text()
    }

    /// What is held or waited for, as text, a line for each holder and waiter; empty if nothing
    /// is.
    pub fn left_behind(&self) -> String {
        let busy = self
            .world
            .act(|network, now| network.servers.primary.store.busy(now));
        let mut text = String::new();
        for (key, state) in &busy {
            // Writing to a string cannot fail.
            let _ = words::write_state(&mut text, key, state);
        }
        text
    }

    /// Asserts that nobody holds or waits for anything.
    ///
    /// A guard that was dropped is released by its client's own task: let time pass
    /// ([`advance`](Self::advance)), or shut the client down, before asking.
    ///
    /// # Panics
    /// If something is left; the message lists it.
    #[track_caller]
    pub fn assert_idle(&self) {
        let left = self.left_behind();
        let mut message = String::new();
        if !left.is_empty() {
            let _ = write!(
                message,
                "something is left behind at {}:\n{left}",
                words::seconds(self.elapsed())
            );
        }
        assert!(left.is_empty(), "{message}");
    }
}

/// A hundred years.
const LONGEST_STEP: Duration = Duration::from_secs(36_500 * 24 * 60 * 60);

#[track_caller]
fn assert_step(by: Duration) {
    assert!(
        by <= LONGEST_STEP,
        "a clock is stepped by at most 36,500 days, not by {by:?}"
    );
}

/// How many lines of its timeline a test prints that panics.
const PRINTED: usize = 300;

/// Prints what helps to find out why a test failed.
fn print(network: &Network) {
    let seed = network.choices.tape().seed;
    let text = History::of(&network.log, network.client_names()).text();
    let lines: Vec<&str> = text.lines().collect();
    let hidden = lines.len().saturating_sub(PRINTED);
    eprintln!("\nwhat happened in the simulation with seed {seed}:");
    if hidden > 0 {
        eprintln!("({hidden} lines before these)");
    }
    for line in &lines[hidden..] {
        eprintln!("{line}");
    }
    eprintln!("\nto repeat it: {}", command_with_seed(seed));
}
