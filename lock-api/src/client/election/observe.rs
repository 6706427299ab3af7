//! Who leads, from the inspections of the key.

use std::time::Duration;

use futures_core::Stream;
use futures_util::stream;

use crate::client::core::Core;
use crate::client::election::Election;
use crate::client::error::Error;
use crate::id::{FencingToken, Key, Label};
use crate::reply::InspectReply;
use crate::runtime::Moment;
use crate::sync::{Arc, Mutex};

/// How often an observer asks.
const EVERY: Duration = Duration::from_secs(1);

/// The leader, as an inspection has shown it.
///
/// # Examples
/// See [`Election::leader`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Leader {
    /// The label of its client.
    pub label: Label,
    /// What it tells about itself. Empty at the very beginning of its term.
    pub info: Vec<u8>,
    /// The number of its term.
    pub term: FencingToken,
}

/// The state of an election, as an inspection has shown it.
///
/// # Examples
/// See [`Election::look`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observation {
    /// The leader, or `None` if nobody leads.
    pub leader: Option<Leader>,
    /// The labels of the candidates that wait, the next one first.
    pub candidates: Vec<Label>,
}

impl Observation {
    fn new(reply: InspectReply) -> Self {
        let note = reply.note;
        let holder = reply.holders.into_iter().next();
        let leader = holder.map(|holder| Leader {
            label: holder.label,
            // The note of an earlier term says nothing about this leader.
            info: note
                .filter(|note| note.token == holder.token)
                .map_or_else(Vec::new, |note| note.bytes),
            term: holder.token,
        });
        let waiters = reply.waiters.into_iter();
        Self {
            leader,
            candidates: waiters.map(|waiter| waiter.label).collect(),
        }
    }
}

/// What the streams of one handle and its clones share.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// When to ask again.
    due: Option<Moment>,
    latest: Option<Observation>,
}

impl Seen {
    /// Asks the server if that is due. Returns the latest answer.
    async fn look(&self, core: &Core, key: &Key) -> Option<Observation> {
        let now = core.now();
        let due = {
            let mut shared = self.0.lock();
            let due = shared.due.is_none_or(|due| due <= now);
            if due {
                shared.due = Some(now.saturating_add(EVERY));
            }
            due
        };
        if due && let Ok(reply) = core.inspect(key).await {
            self.0.lock().latest = Some(Observation::new(reply));
        }
        self.0.lock().latest.clone()
    }
}

impl Election {
    /// Returns the leader, or `None` if nobody leads. It was true when the server answered, and may have
    /// changed since.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no answer came within one call timeout, and the permanent errors of
    /// [`LockClient::inspect`](crate::LockClient::inspect).
    ///
    /// # Cancel safety
    /// You can drop the future at any time, because the call changes nothing.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// if let Some(leader) = locks.election("scheduler")?.leader().await? {
    ///     println!("{:?} leads term {}", leader.label, leader.term);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        Ok(self.look().await?.leader)
    }

    /// Returns the leader and the candidates.
    ///
    /// # Errors
    /// The same as [`leader`](Self::leader).
    ///
    /// # Cancel safety
    /// You can drop the future at any time, because the call changes nothing.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let seen = locks.election("scheduler")?.look().await?;
    /// println!("{} candidates wait", seen.candidates.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn look(&self) -> Result<Observation, Error> {
        let lock = &self.mutex.lock;
        Ok(Observation::new(lock.client.inspect(&lock.key).await?))
    }

    /// Returns a stream of leaders: the present one, and each other one when it changes. `None` stands for
    /// nobody.
    ///
    /// The stream asks the server once a second, without a push. All streams of one handle and its clones
    /// share these inspections. It may miss a leader that led for less than a second. During an outage it yields
    /// nothing. It ends when the client is closed.
    ///
    /// # Examples
    /// ```no_run
    /// # use futures_util::StreamExt;
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let mut leaders = Box::pin(locks.election("scheduler")?.observe());
    /// while let Some(leader) = leaders.next().await {
    ///     println!("{leader:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn observe(&self) -> impl Stream<Item = Option<Leader>> + Send + 'static + use<> {
        let lock = &self.mutex.lock;
        let (client, key) = (Arc::clone(&lock.client), lock.key.clone());
        let begin = (client, key, Arc::clone(&self.seen), None::<Option<Leader>>);
        stream::unfold(begin, async |(client, key, shared, last)| {
            loop {
                if client.is_closed() {
                    return None;
                }
                let seen = shared.look(&client, &key).await;
                if let Some(seen) = seen
                    && last.as_ref() != Some(&seen.leader)
                {
                    let leader = seen.leader;
                    return Some((leader.clone(), (client, key, shared, Some(leader))));
                }
                client.runtime.sleep(EVERY).await;
            }
        })
    }
}
