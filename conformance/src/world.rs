//! The environment that a case runs in.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{Capabilities, Key, LockBackend, ServerTime, Stamp, bounds};

pub(crate) use crate::attempt::{Ask, Attempt, DELIVERABLE, next_epoch, one};
use crate::failure::{Checked, Failure, Verdict, ensure};
use crate::harness::{Abilities, Environment, Harness, NAMESPACE_BYTES, Timing};
use crate::session::Slowest;
pub(crate) use crate::session::{Lock, Session};

/// The environment that one case runs in.
#[derive(Debug)]
pub(crate) struct World {
    environment: Arc<dyn Environment>,
    timing: Timing,
    capabilities: Capabilities,
    abilities: Abilities,
    slowest: Slowest,
}

/// The name of a case's environment: as much of the case's name as fits, and 64 random bits.
fn namespace((family, case): (&str, &str)) -> String {
    let mut namespace = format!("{family}-{case}");
    let random = format!("-{:016x}", RandomState::new().build_hasher().finish());
    namespace.truncate(NAMESPACE_BYTES - random.len());
    namespace + &random
}

impl World {
    /// The world of a case, by the names of its family and of itself.
    pub(crate) async fn new(harness: &dyn Harness, case: (&str, &str)) -> Result<Self, Failure> {
        Ok(Self {
            environment: harness.environment(&namespace(case)).await?,
            timing: harness.timing(),
            capabilities: harness.capabilities(),
            abilities: harness.abilities(),
            slowest: Slowest::default(),
        })
    }

    pub(crate) async fn close(&self) {
        self.environment.close().await;
    }

    /// Cuts all connections of the clients.
    pub(crate) async fn cut(&self) -> Result<(), Failure> {
        Ok(self.environment.cut().await?)
    }

    /// Stops all messages between the clients and the server, or lets them pass again.
    pub(crate) async fn freeze(&self, frozen: bool) -> Result<(), Failure> {
        Ok(self.environment.freeze(frozen).await?)
    }

    /// Stores a foreign value under the key. Connects a client first, so that the backend's tables exist.
    pub(crate) async fn plant_foreign(&self, key: &Key) -> Verdict {
        self.backend().await?.hello().await?;
        Ok(self.environment.plant_foreign(key).await?)
    }

    /// Fails the case if the foreign value under the key has changed.
    pub(crate) async fn foreign_is_untouched(&self, key: &Key) -> Verdict {
        let intact = self.environment.foreign_is_untouched(key).await?;
        ensure!(intact, "the value was changed")
            .promised("rule 14: a foreign value stays unchanged")
    }

    /// The capabilities that the harness declares.
    pub(crate) const fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Whether tokens increase over the epochs of a key.
    pub(crate) const fn has_tokens(&self) -> bool {
        self.abilities.fencing_tokens
    }

    /// Whether several servers vote on each attempt.
    pub(crate) const fn several_servers(&self) -> bool {
        self.abilities.several_servers
    }

    /// How many clients may write at once, of `many`. Those without a clock compare and set, and a server may let the ones that
    /// lose wait for each other until the call of one is over: SeaweedFS does, a second each.
    pub(crate) const fn at_once(&self, many: usize, without_clock: usize) -> usize {
        if self.abilities.clock {
            many
        } else {
            without_clock
        }
    }

    /// How far the stamps of different clients may be apart.
    pub(crate) fn skew(&self) -> Duration {
        match self.several_servers() {
            true => self.tolerance(),
            false => Duration::ZERO,
        }
    }

    /// How long after its end, by the stamps, a lease may still count.
    pub(crate) fn late_ends(&self) -> Duration {
        let tolerance = self.tolerance();
        match self.abilities.clock {
            true if !self.several_servers() => Duration::ZERO,
            // It counts from another client's first look. After the holder's stamp come at most its call, and two of the
            // other client: it asks for the time first.
            false if !tolerance.is_zero() => tolerance + self.slowest.get() * 3,
            _ => tolerance,
        }
    }

    /// Connects a new client.
    pub(crate) async fn backend(&self) -> Result<Arc<dyn LockBackend>, Failure> {
        Ok(self.environment.backend().await?)
    }

    /// Creates a session on a new client.
    pub(crate) async fn session(&self) -> Result<Session, Failure> {
        let mut session = Session::on(self.backend().await?);
        session.slowest = self.slowest.clone();
        Ok(session)
    }

    /// Creates several sessions, each on a new client.
    pub(crate) async fn sessions<const N: usize>(&self) -> Result<[Session; N], Failure> {
        several(|| self.session()).await
    }

    /// Creates two sessions, and lets the first one hold the lock, with a lease of 30 s.
    pub(crate) async fn held(&self, lock: Lock) -> Held {
        self.held_by(lock, |ask| ask).await
    }

    /// Like [`held`](Self::held), a mutex with a lease of `units` units.
    pub(crate) async fn held_for(&self, units: u32) -> Held {
        self.held_by(Lock::mutex("k"), |ask| ask.lease(self.units(units)))
            .await
    }

    /// Like [`held`](Self::held), by a reader.
    pub(crate) async fn held_shared(&self, lock: Lock) -> Held {
        self.held_by(lock, Ask::shared).await
    }

    async fn held_by(&self, lock: Lock, how: impl FnOnce(Ask) -> Ask) -> Held {
        let [a, b] = self.sessions().await?;
        let held = how(a.ask(&lock)).acquired("S1").await?;
        Ok((a, b, lock, held))
    }

    /// Acquires `n` read holds, each in a new session.
    pub(crate) async fn readers(&self, lock: &Lock, n: u32) -> Result<Vec<Attempt>, Failure> {
        let mut all = Vec::new();
        for _ in 0..n {
            let session = self.session().await?;
            all.push(session.ask(lock).shared().acquired("S1").await?);
        }
        Ok(all)
    }

    /// Queues waiters, each in a new session: `r` reads, `w` writes.
    pub(crate) async fn queue(&self, lock: &Lock, modes: &str) -> Result<Vec<Attempt>, Failure> {
        let mut all = Vec::new();
        for mode in modes.chars() {
            let ask = self.session().await?.ask(lock).wait();
            let ask = if mode == 'r' { ask.shared() } else { ask };
            all.push(ask.queued("rule 7").await?.0);
        }
        Ok(all)
    }

    /// Returns `n` units of the harness's time.
    pub(crate) fn units(&self, n: u32) -> Duration {
        self.timing.unit * n
    }

    /// `units` units and a poll interval: the time limit of a waiter that may learn of a change only by
    /// its next poll.
    pub(crate) fn units_and_a_poll(&self, units: u32) -> Duration {
        self.units(units) + bounds::MAX_POLL_INTERVAL
    }

    /// The time limit of one call: the default call timeout, and more for a slow backend.
    pub(crate) fn call_limit(&self) -> Duration {
        self.units(5).max(bounds::CALL_TIMEOUT)
    }

    pub(crate) async fn pass(&self, units: u32) {
        self.environment.let_time_pass(self.units(units)).await;
    }

    pub(crate) async fn pass_for(&self, time: Duration) {
        self.environment.let_time_pass(time).await;
    }

    /// How far a time that a reply reports may be wrong.
    ///
    /// If several servers vote, the stamp of a reply is the moment of the call, and its times are those of the
    /// servers, which execute the call later. So an end looks early by up to the time of the call. The difference
    /// of two ends is at most the time of the slower of the two calls, and what one server may be wrong.
    fn tolerance(&self) -> Duration {
        let tolerance = self.timing.tolerance;
        if !self.several_servers() || tolerance.is_zero() {
            return tolerance;
        }
        tolerance.max(self.slowest.get() + Timing::real().tolerance)
    }

    /// Checks that the lease expires at `expiry`, within the tolerance, or as late as a lease may still count.
    pub(crate) fn ends_at(
        &self,
        (stamp, remaining): (Stamp, Duration),
        expiry: ServerTime,
    ) -> Checked<()> {
        let actual = stamp.at.saturating_add(remaining);
        let early = self.tolerance();
        let late = early.max(self.late_ends());
        if expiry.saturating_since(actual) <= early && actual.saturating_since(expiry) <= late {
            return Checked::passed(());
        }
        let left = expiry.saturating_since(stamp.at);
        let expected = format!("{left:?} left, at most {early:?} less and {late:?} more");
        Checked::failed(expected, remaining)
    }
}

/// Makes several of a kind, one after the other.
pub(crate) async fn several<T, F, const N: usize>(make: impl Fn() -> F) -> Result<[T; N], Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut all = Vec::with_capacity(N);
    for _ in 0..N {
        all.push(make().await?);
    }
    let array = <[T; N]>::try_from(all);
    Ok(array.unwrap_or_else(|_| unreachable!("there are {N}")))
}

/// Two sessions, a lock, and the attempt by which the first session holds it.
pub(crate) type Held = Result<(Session, Session, Lock, Attempt), Failure>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families;

    #[test]
    fn every_namespace_fits_and_differs() {
        for case in families::all() {
            let own = (case.family, case.name);
            let (name, other) = (namespace(own), namespace(own));
            assert!(name.len() <= NAMESPACE_BYTES, "{name}");
            assert!(name.starts_with(case.family) && name != other, "{name}");
            let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
            assert!(name.bytes().all(fits), "{name}");
        }
    }
}
