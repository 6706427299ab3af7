//! The methods by which a test pauses, kills, isolates and denies a client, and injects faults.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::local_clock::LocalClock;
use crate::handle::SimBackend;
use crate::network::Network;
use crate::network::options::Latency;
use crate::record::{Call, ClientEvent, Event, Fault};

impl SimBackend {
    /// Returns the name that the client was created with.
    pub fn name(&self) -> String {
        self.act(|network, client| network.clients[client].name.to_string())
    }

    /// Pauses the client, as SIGSTOP, a long garbage collection or a suspended laptop does. Does
    /// nothing if it is paused already.
    ///
    /// The client's clock runs on, its timers expire and messages reach it, but none of its code
    /// runs until [`resume`](Self::resume):
    ///
    /// - the calls of this backend and its streams of notifications;
    /// - tasks and sleeps of its [`Runtime`](leasehold_api::Runtime), which include the background
    ///   work of a lock client;
    /// - futures inside [`run`](Self::run).
    ///
    /// Code outside of `run` is not paused. A call that it makes on the paused client waits for
    /// `resume`. A guard still knows when it becomes invalid, because the clock runs on.
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
    /// let machine = server.client("a");
    /// let locks = LockClient::new(machine.clone());
    ///
    /// let guard = locks.mutex("job")?.lock().await?; // the lease is 30 s
    /// machine.pause();
    /// server.advance(Duration::from_secs(60)).await;
    /// machine.resume();
    /// assert!(!guard.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    pub fn pause(&self) {
        if !self.gate().is_shut() {
            self.gate().shut();
            self.record(Event::Client(ClientEvent::Paused));
        }
    }

    /// Resumes a paused client. It handles the messages and timers of the pause at once. Does
    /// nothing if the client isn't paused.
    ///
    /// # Panics
    /// Panics if the client was killed.
    #[track_caller]
    pub fn resume(&self) {
        assert!(!self.is_killed(), "client {:?} was killed", self.name());
        if self.gate().is_shut() {
            self.record(Event::Client(ClientEvent::Resumed));
            self.gate().open();
            self.act(Network::try_subscribe);
        }
    }

    /// Returns whether the client is paused or killed.
    pub fn is_paused(&self) -> bool {
        self.gate().is_shut()
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.act(|network, client| network.clients[client].killed)
    }

    /// Kills the client, as SIGKILL does. Its connection breaks, and none of its code runs again.
    ///
    /// Its holds expire with their leases. A future that awaits one of its calls never completes.
    ///
    /// # Examples
    /// ```
    /// use leasehold_api::LockClient;
    /// use leasehold_sim::SimServer;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), leasehold_api::Error> {
    /// let server = SimServer::new(1);
    /// let machine = server.client("a");
    /// let (a, b) = (LockClient::new(machine.clone()), LockClient::new(server.client("b")));
    ///
    /// let _dead = a.mutex("job")?.lock().await?;
    /// machine.kill();
    /// let _guard = b.mutex("job")?.lock().await?; // when the lease has expired
    /// assert!(server.elapsed().as_secs() >= 30);
    /// # Ok(())
    /// # }
    /// ```
    pub fn kill(&self) {
        self.gate().shut();
        self.act(|network, client| {
            if !std::mem::replace(&mut network.clients[client].killed, true) {
                network.record(Some(client), Event::Client(ClientEvent::Killed));
                network.lose_connection(client);
            }
        });
    }

    /// Runs a future as code of this client. It is not polled while the client is
    /// [paused](Self::pause), and never again once the client is [killed](Self::kill).
    ///
    /// # Cancel safety
    /// This method is cancel safe if `future` is.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_sim::SimServer;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let server = SimServer::new(1);
    /// let machine = server.client("a");
    /// let work = machine.run(tokio::time::sleep(Duration::from_secs(1)));
    /// let pause = async {
    ///     machine.pause();
    ///     server.advance(Duration::from_secs(60)).await;
    ///     machine.resume();
    /// };
    /// tokio::join!(work, pause);
    /// assert_eq!(server.elapsed(), Duration::from_secs(60));
    /// # }
    /// ```
    pub async fn run<F: Future>(&self, future: F) -> F::Output {
        self.gate().clone().through(pin!(future)).await
    }

    /// Adds a note to the log, in the client's column. Use it for what your code reads, writes or
    /// decides.
    pub fn note(&self, text: impl Into<String>) {
        let text = text.into();
        self.record(Event::Note { text });
    }

    /// Breaks the connection. The next call uses a new one.
    ///
    /// Calls that wait for a reply return
    /// [`OutcomeUnknown`](leasehold_api::BackendError::OutcomeUnknown). Requests that were sent
    /// still arrive. Streams of notifications yield
    /// [`Missed`](leasehold_api::Notification::Missed), and a second one when the client is
    /// subscribed again.
    pub fn drop_connection(&self) {
        self.act(|network, client| {
            let event = Event::Client(ClientEvent::ConnectionDropped);
            network.record(Some(client), event);
            network.lose_connection(client);
            network.try_subscribe(client);
        });
    }

    /// Moves the client's subscriptions to the primary, if they are at a replica since a
    /// [switchover](crate::SimServer::switch_over). Its streams of notifications yield
    /// [`Missed`](leasehold_api::Notification::Missed), and a second one when the client is
    /// subscribed at the primary.
    pub fn follow_primary(&self) {
        self.act(Network::follow_primary);
    }

    /// Sends the client's requests to the replica that was [cut off](crate::SimServer::cut_off_replica)
    /// last, until [`leave_replica`](Self::leave_replica). So an address may lead to the wrong server
    /// for a while. Requests on their way and subscriptions stay where they are.
    ///
    /// # Panics
    /// Panics if no replica was cut off.
    #[track_caller]
    pub fn visit_replica(&self) {
        let possible = self.act(|network, client| network.visit_replica(client, true));
        assert!(possible, "no replica was cut off");
    }

    /// Sends the client's requests to the primary again, after
    /// [`visit_replica`](Self::visit_replica).
    pub fn leave_replica(&self) {
        self.act(|network, client| network.visit_replica(client, false));
    }

    /// Drops all messages from and to the client until [`rejoin`](Self::rejoin). Nothing reports
    /// the loss: the client's calls time out.
    pub fn isolate(&self) {
        self.set_isolated(true, ClientEvent::Isolated);
    }

    /// Ends the isolation. Messages that were sent during it stay lost.
    pub fn rejoin(&self) {
        self.set_isolated(false, ClientEvent::Reachable);
    }

    fn set_isolated(&self, isolated: bool, event: ClientEvent) {
        self.act(|network, client| {
            network.clients[client].isolated = isolated;
            network.record(Some(client), Event::Client(event));
        });
    }

    /// Makes the server refuse every call of the client with
    /// [`Rejected`](leasehold_api::BackendError::Rejected) until [`admit`](Self::admit), as after its password was
    /// changed or its rights were revoked. Nothing is executed. Pushes still arrive.
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
    /// let machine = server.client("a");
    /// let guard = LockClient::new(machine.clone()).mutex("job")?.lock().await?;
    /// machine.deny();
    /// guard.release().await.unwrap_err();
    /// machine.admit();
    /// server.advance(Duration::from_secs(1)).await;
    /// server.assert_idle(); // released in the background
    /// # Ok(())
    /// # }
    /// ```
    pub fn deny(&self) {
        self.set_denied(true, ClientEvent::Denied);
    }

    /// Ends [`deny`](Self::deny).
    pub fn admit(&self) {
        self.set_denied(false, ClientEvent::Admitted);
    }

    fn set_denied(&self, denied: bool, event: ClientEvent) {
        self.act(|network, client| {
            if std::mem::replace(&mut network.clients[client].denied, denied) != denied {
                network.record(Some(client), Event::Client(event));
            }
        });
    }

    /// Injects a fault into the next call or push that it fits.
    ///
    /// Faults take effect in the order in which you inject them, at most one for each call. A lock
    /// client also makes calls in the background: use [`inject_into`](Self::inject_into) to choose
    /// the call.
    pub fn inject(&self, fault: Fault) {
        self.add_fault(None, fault);
    }

    /// Injects a fault into the next call of this kind.
    ///
    /// # Panics
    /// Panics if the fault [affects pushes](Fault::is_for_push).
    ///
    /// # Examples
    /// ```
    /// use leasehold_api::LockClient;
    /// use leasehold_sim::{Call, Fault, SimServer};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), leasehold_api::Error> {
    /// let server = SimServer::new(1);
    /// let machine = server.client("a");
    /// let locks = LockClient::new(machine.clone());
    ///
    /// machine.inject_into(Call::Acquire, Fault::LoseReply);
    /// let guard = locks.mutex("job")?.lock().await?; // the client repeats the request
    /// assert_eq!(machine.pending_faults(), 0);
    /// guard.release().await?;
    /// server.assert_idle(); // one hold, not two
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn inject_into(&self, call: Call, fault: Fault) {
        assert!(!fault.is_for_push(), "{fault:?} affects pushes, not calls");
        self.add_fault(Some(call), fault);
    }

    fn add_fault(&self, call: Option<Call>, fault: Fault) {
        self.act(|network, client| network.clients[client].faults.0.push_back((call, fault)));
    }

    /// Returns how many injected faults have not happened yet. Assert that it is 0, so that your
    /// test doesn't pass without its fault.
    pub fn pending_faults(&self) -> usize {
        self.act(|network, client| network.clients[client].faults.0.len())
    }

    /// Removes the injected faults that have not happened yet.
    pub fn clear_faults(&self) {
        self.act(|network, client| network.clients[client].faults.0.clear());
    }

    /// Sets the latency of this client's messages, in both directions. Messages in flight keep
    /// theirs.
    pub fn set_latency(&self, latency: Latency) {
        self.act(|network, client| network.clients[client].latency = latency);
    }

    /// Sets the rate error of the client's clock, in parts per million: positive is fast, negative
    /// is slow, 0 is correct. The clock continues from its current time. Sleeps that have begun
    /// don't change.
    ///
    /// The guarantees hold while clocks agree within the drift allowance, which is 1 % of the lease
    /// and 10 ms.
    ///
    /// # Panics
    /// Panics if `ppm` is -1,000,000 or less, because the clock would not run forward.
    #[track_caller]
    pub fn set_clock_rate(&self, ppm: i32) {
        assert!(ppm > -1_000_000, "a clock cannot run at {ppm} ppm");
        let event = ClientEvent::ClockRate { ppm };
        self.change_clock(event, |clock, now| clock.set_rate(now, ppm));
    }

    /// Moves the client's clock forward by `by`. To the lock client, this looks like a step of the
    /// server's clock. To simulate a suspend, use [`pause`](Self::pause) instead.
    pub fn jump_clock(&self, by: Duration) {
        let event = ClientEvent::ClockJumped { by };
        self.change_clock(event, |clock, now| clock.jump(now, by));
    }

    fn change_clock(&self, event: ClientEvent, change: impl FnOnce(&mut LocalClock, Duration)) {
        self.act(|network, client| {
            change(&mut network.clients[client].clock, network.now);
            network.record(Some(client), Event::Client(event));
        });
        self.runtime.drifts.store(true, Ordering::Relaxed);
    }

    /// Sets whether pushes to this client may overtake each other and the replies, as on a separate
    /// connection. By default, everything that the server sends to a client arrives in order.
    pub fn set_unordered_pushes(&self, unordered: bool) {
        self.act(|network, client| network.clients[client].unordered_pushes = unordered);
    }
}
