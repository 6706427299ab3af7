//! The methods by which a test pauses, kills, cuts off and disturbs a client.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::local_clock::LocalClock;
use crate::handle::SimBackend;
use crate::network::options::Latency;
use crate::record::{Call, ClientEvent, Event, Fault};

impl SimBackend {
    /// The name that the client was made with.
    pub fn name(&self) -> String {
        let client = self.runtime.client;
        self.world()
            .act(|network, _| network.clients[client].name.to_string())
    }

    /// Stops the client as SIGSTOP, a long garbage collection or a suspended laptop does: its
    /// timers run out and messages reach it, but none of its code runs.
    ///
    /// That code is: the calls of this backend, its streams of notifications, whatever is spawned or
    /// slept through its runtime, which is all that a lock client does in the background, and the
    /// futures given to [`run`](Self::run). The clock counts on, so that a guard which is asked
    /// meanwhile knows that it has run out.
    ///
    /// Who awaits a call of a paused client waits until [`resume`](Self::resume).
    pub fn pause(&self) {
        if !self.gate().is_shut() {
            self.gate().shut();
            self.record(Event::Client(ClientEvent::Paused));
        }
    }

    /// Lets a paused client go on: it finds at once all that has happened meanwhile.
    ///
    /// # Panics
    /// If it was killed.
    #[track_caller]
    pub fn resume(&self) {
        let client = self.runtime.client;
        assert!(!self.is_killed(), "client {:?} was killed", self.name());
        if self.gate().is_shut() {
            self.record(Event::Client(ClientEvent::Resumed));
            self.gate().open();
            self.world()
                .act(|network, now| network.try_subscribe(now, client));
        }
    }

    /// Whether the client is paused or killed.
    pub fn is_paused(&self) -> bool {
        self.gate().is_shut()
    }

    pub(crate) fn is_killed(&self) -> bool {
        let client = self.runtime.client;
        self.world()
            .act(|network, _| network.clients[client].killed)
    }

    /// Ends the client as SIGKILL does: its connection is lost, and none of its code ever runs
    /// again. Whoever awaits its calls waits for ever. What it held ends with its lease.
    pub fn kill(&self) {
        let client = self.runtime.client;
        self.gate().shut();
        self.world().act(|network, now| {
            if !std::mem::replace(&mut network.clients[client].killed, true) {
                network.record(now, Some(client), Event::Client(ClientEvent::Killed));
                network.lose_connection(now, client);
            }
        });
    }

    /// Runs a future as code of this client: while the client is paused, it stands still.
    ///
    /// Use it for the body of a worker that is to be paused as a whole.
    ///
    /// # Cancel safety
    /// As cancel safe as the future.
    pub async fn run<F: Future>(&self, future: F) -> F::Output {
        self.gate().through(future).await
    }

    /// Writes a line of the test's or the code's own into the log: what it does, what it saw.
    pub fn note(&self, text: impl Into<String>) {
        let text = text.into();
        self.record(Event::Note { text });
    }

    /// Breaks the connection. Calls that wait for a reply end with
    /// [`OutcomeUnknown`](leasehold_api::BackendError::OutcomeUnknown) though their requests, if
    /// they have left, still arrive; streams of notifications get a
    /// [`Gap`](leasehold_api::Notification::Missed), and another when the client has subscribed again.
    pub fn drop_connection(&self) {
        let client = self.runtime.client;
        self.world().act(|network, now| {
            network.record(
                now,
                Some(client),
                Event::Client(ClientEvent::ConnectionDropped),
            );
            network.lose_connection(now, client);
            network.try_subscribe(now, client);
        });
    }

    /// Puts the client behind a black hole: from now on nothing gets through in either direction,
    /// and nothing tells it so but its time-outs. Ends with [`rejoin`](Self::rejoin).
    pub fn isolate(&self) {
        self.set_isolated(true, ClientEvent::Isolated);
    }

    /// Ends an isolation; what was sent meanwhile stays lost.
    pub fn rejoin(&self) {
        self.set_isolated(false, ClientEvent::Reachable);
    }

    fn set_isolated(&self, isolated: bool, event: ClientEvent) {
        let client = self.runtime.client;
        self.world().act(|network, now| {
            network.clients[client].isolated = isolated;
            network.record(now, Some(client), Event::Client(event));
        });
    }

    /// Makes a fault befall the next call or push that it fits.
    ///
    /// Faults wait in the order in which they were injected, and a call meets at most one. A lock
    /// client also calls in the background: to lose the reply to a certain command, use
    /// [`inject_into`](Self::inject_into).
    pub fn inject(&self, fault: Fault) {
        self.add_fault(None, fault);
    }

    /// Makes a fault befall the next call of this sort.
    ///
    /// # Panics
    /// If it is a fault of a push.
    #[track_caller]
    pub fn inject_into(&self, call: Call, fault: Fault) {
        assert!(!fault.is_for_push(), "{fault:?} is no fault of a call");
        self.add_fault(Some(call), fault);
    }

    fn add_fault(&self, call: Option<Call>, fault: Fault) {
        let client = self.runtime.client;
        self.world()
            .act(|network, _| network.clients[client].faults.inject(call, fault));
    }

    /// How many injected faults have not befallen anything yet; a test asserts 0 to be sure that
    /// what it prepared has happened.
    pub fn pending_faults(&self) -> usize {
        let client = self.runtime.client;
        self.world()
            .act(|network, _| network.clients[client].faults.pending())
    }

    /// Takes back the injected faults that have not befallen anything yet.
    pub fn clear_faults(&self) {
        let client = self.runtime.client;
        self.world()
            .act(|network, _| network.clients[client].faults.clear());
    }

    /// Changes the latency of this client's messages.
    pub fn set_latency(&self, latency: Latency) {
        let client = self.runtime.client;
        self.world()
            .act(|network, _| network.clients[client].latency = latency);
    }

    /// Lets the client's clock run faster than true time by so many millionths, or slower if it is
    /// negative; 0 is right. The clock goes on from what it shows.
    ///
    /// Promises hold while clocks agree within the drift allowance, 1 % of a lease and 10 ms. What
    /// already sleeps is not changed.
    ///
    /// # Panics
    /// If `ppm` is -1,000,000 or less: the clock would not run forward.
    #[track_caller]
    pub fn set_clock_rate(&self, ppm: i32) {
        assert!(ppm > -1_000_000, "a clock cannot run at {ppm} ppm");
        let event = ClientEvent::ClockRate { ppm };
        self.change_clock(event, |clock, now| clock.set_rate(now, ppm));
    }

    /// Sets the client's clock forward against all others, which a lock client takes for a step of
    /// the server's clock. For a suspend [`pause`](Self::pause) it: the clock counts on.
    pub fn jump_clock(&self, by: Duration) {
        let event = ClientEvent::ClockJumped { by };
        self.change_clock(event, |clock, now| clock.jump(now, by));
    }

    fn change_clock(&self, event: ClientEvent, change: impl FnOnce(&mut LocalClock, Duration)) {
        let client = self.runtime.client;
        self.world().act(|network, now| {
            change(&mut network.clients[client].clock, now);
            network.record(now, Some(client), Event::Client(event));
        });
        self.runtime.drifts.store(true, Ordering::Relaxed);
    }

    /// Whether pushes to this client arrive in any order, before or after the replies that were
    /// sent with them, as over a connection of their own. By default everything that the server
    /// sends to a client arrives in the order in which it was sent.
    pub fn set_unordered_pushes(&self, unordered: bool) {
        let client = self.runtime.client;
        self.world()
            .act(|network, _| network.clients[client].unordered_pushes = unordered);
    }
}
