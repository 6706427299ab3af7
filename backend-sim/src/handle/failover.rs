//! Failovers: what a test does to the primary and its replicas.

use std::sync::Arc;
use std::time::Duration;

use crate::handle::server::assert_step;
use crate::handle::{SimBackend, SimServer};
use crate::network::Network;
use crate::network::event::ClientIndex;
use crate::network::options::Latency;
use crate::record::{Reads, ServerEvent, Tail};

impl SimServer {
    /// Switches over to a replica with all data, as a graceful failover does (`FAILOVER` and
    /// `CLUSTER FAILOVER` of Redis). The replica serves at once, with a new
    /// [`ClockId`](leasehold_api::ClockId). The old primary becomes a replica: it refuses the
    /// commands that are on their way to it, as
    /// [`Unavailable`](leasehold_api::BackendError::Unavailable).
    ///
    /// Most clients lose their connection and use the new primary. The clients in `staying` don't notice, as
    /// behind a load balancer or with an old map of a cluster. Their commands go to the new primary, but their
    /// subscriptions stay at the old server. It relays the messages of the new primary, so they may arrive
    /// [later](Self::set_replication_lag). The new primary doesn't count these subscriptions, so it takes the
    /// sessions for [unreachable](leasehold_api::machine::Reach::Nobody). This lasts until
    /// [`SimBackend::follow_primary`], or until the connection is lost for another reason.
    ///
    /// The new primary's clock is `ahead` of a clock that was never stepped. So each server has its
    /// own clock, as the nodes of a cluster do. While a lock is held, the guarantees cover a clock
    /// that is up to 10 ms ahead of the one before.
    ///
    /// # Panics
    /// Panics if there are two primaries, if the server is stopped, if a client belongs to another
    /// simulation, or if `ahead` is more than 36,500 days.
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
    /// let machine = server.client("b");
    /// let (a, b) = (LockClient::new(server.client("a")), LockClient::new(machine.clone()));
    /// let (held, waiting) = (a.mutex("job")?.lock().await?, b.mutex("job")?);
    ///
    /// let release = async {
    ///     server.advance(Duration::from_millis(100)).await;
    ///     server.switch_over(Duration::from_millis(5), &[machine]);
    ///     held.release().await
    /// };
    /// let (granted, released) = tokio::join!(waiting.lock(), release);
    /// released?; // the server granted the lock to nobody, because it thinks that nobody listens
    /// assert!(granted?.is_valid()); // `b` got it with its next poll
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn switch_over(&self, ahead: Duration, staying: &[SimBackend]) {
        assert_step(ahead);
        let staying = self.indices(staying);
        let possible = self
            .world()
            .act(|network| network.switch_over(ahead, &staying));
        assert!(possible, "a switchover needs a single primary that runs");
    }

    /// Sets how much later a replica has the messages that it [relays](Self::switch_over). The
    /// default is [`Latency::ZERO`]. The latency of the client adds to it.
    pub fn set_replication_lag(&self, lag: Latency) {
        self.world().act(|network| network.replication_lag = lag);
    }

    /// A replica loses its link to the primary, so it keeps the data of this moment. Clients that
    /// [visit](SimBackend::visit_replica) it send their requests there.
    ///
    /// It refuses commands that write, as
    /// [`Unavailable`](leasehold_api::BackendError::Unavailable). `reads` says what it does with the
    /// others. With [`Reads::Answered`], it answers them from its old data, under a
    /// [`ClockId`](leasehold_api::ClockId) of its own. It refuses a batch if one of its commands
    /// writes, and it accepts no subscription.
    ///
    /// A second call replaces the replica by one with the data of that moment. So does a
    /// [switchover](Self::switch_over). Requests on their way to the replica before are lost.
    ///
    /// # Examples
    /// ```
    /// use leasehold_api::LockClient;
    /// use leasehold_sim::{Reads, SimServer};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), leasehold_api::Error> {
    /// let server = SimServer::new(1);
    /// let machine = server.client("a");
    /// let (a, b) = (LockClient::new(machine.clone()), LockClient::new(server.client("b")));
    ///
    /// server.cut_off_replica(Reads::Answered);
    /// let held = b.mutex("job")?.lock().await?;
    /// machine.visit_replica();
    /// assert!(a.inspect("job").await?.holders().is_empty()); // true a moment ago
    /// machine.leave_replica();
    /// assert_eq!(a.inspect("job").await?.holders().len(), 1);
    /// held.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cut_off_replica(&self, reads: Reads) {
        self.world()
            .act(|network| network.change_server(ServerEvent::ReplicaCutOff { reads }));
    }

    /// Fails over to a replica that lacks the latest writes. The old primary is gone. The replica
    /// serves at once, with a new [`ClockId`](leasehold_api::ClockId).
    ///
    /// # Panics
    /// Panics if the options have no [journal](crate::SimOptions::journal).
    ///
    /// # Examples
    /// ```
    /// use leasehold_api::LockClient;
    /// use leasehold_sim::{SimOptions, SimServer, Tail};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), leasehold_api::Error> {
    /// let server = SimServer::with_options(SimOptions::new(1).journal(100));
    /// let locks = LockClient::new(server.client("a"));
    /// let _guard = locks.mutex("job")?.lock().await?;
    /// server.fail_over(Tail::Commands(1)); // the replica lacks the acquire
    /// server.assert_idle();
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn fail_over(&self, lost: Tail) {
        self.assert_journal();
        self.world().act(|network| network.fail_over(lost));
    }

    /// Makes a replica that lacks the latest writes a second primary, until [`heal`](Self::heal).
    ///
    /// The old primary doesn't notice, and still serves the clients in `staying`. All other clients
    /// lose their connection and use the new primary. Clients that you create later use it too. The
    /// methods of this handle refer to the new primary.
    ///
    /// # Panics
    /// Panics if there are two primaries already, if the server is stopped, if the options have no
    /// [journal](crate::SimOptions::journal), or if a client belongs to another simulation.
    #[track_caller]
    pub fn split(&self, lost: Tail, staying: &[SimBackend]) {
        self.assert_journal();
        let staying = self.indices(staying);
        let possible = self.world().act(|network| network.split(lost, &staying));
        assert!(possible, "a split needs a single primary that runs");
    }

    /// Ends a [`split`](Self::split): removes the old primary, with everything that was written to
    /// it since the split. Its clients lose their connection and use the new primary. Does nothing
    /// if there is only one primary.
    pub fn heal(&self) {
        self.world().act(Network::heal);
    }

    #[track_caller]
    pub(super) fn assert_journal(&self) {
        let journal = self.world().act(|network| network.options.journal);
        assert!(
            journal > 0,
            "to lose commands, the server needs a journal: use SimOptions::journal"
        );
    }

    #[track_caller]
    fn indices(&self, clients: &[SimBackend]) -> Vec<ClientIndex> {
        let mine = |client: &SimBackend| Arc::ptr_eq(client.world(), self.world());
        assert!(
            clients.iter().all(mine),
            "a client in `staying` belongs to another simulation"
        );
        clients.iter().map(SimBackend::index).collect()
    }
}
