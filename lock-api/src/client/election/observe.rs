//! Who leads, from the inspections of the key.

use std::pin::pin;

use futures_core::Stream;
use futures_util::future::select;
use futures_util::stream;

use crate::client::core::Core;
use crate::client::election::Election;
use crate::client::error::Error;
use crate::client::state::observers::Observers;
use crate::id::{FencingToken, Key, Label};
use crate::reply::InspectReply;
use crate::sync::Arc;

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

fn leader_of(reply: &InspectReply) -> Option<Leader> {
    let holder = reply.holders.first()?;
    // The note of an earlier term says nothing about this leader.
    let note = reply.note.as_ref().filter(|it| it.token == holder.token);
    Some(Leader {
        label: holder.label.clone(),
        info: note.map_or_else(Vec::new, |note| note.bytes.clone()),
        term: holder.token,
    })
}

/// Returns the answer to the last inspection. Asks if that is due.
async fn seen(observers: &Observers, core: &Core, key: &Key) -> Option<Arc<InspectReply>> {
    if let Some(due) = observers.begin(core.now()) {
        let answer = core.inspect(key).await.ok();
        observers.end(due, answer.map(|answer| answer.reply));
    }
    observers.latest()
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
        let reply = lock.client.inspect(&lock.key).await?.reply;
        Ok(Observation {
            leader: leader_of(&reply),
            candidates: reply.waiters.into_iter().map(|it| it.label).collect(),
        })
    }

    /// Returns a stream of leaders: the present one, and each other one when it changes. `None` stands for
    /// nobody.
    ///
    /// The stream asks the server once a second while you poll it, without a push. All streams of one client and
    /// name share these inspections. It may miss a leader that led for less than a second. It yields nothing while
    /// the inspections fail; [`leader`](Self::leader) tells why. It ends when the client is closed.
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
        let observers = client.observed.observers(&key);
        let begin = (client, key, observers, None::<Option<Leader>>);
        stream::unfold(begin, async |(client, key, observers, last)| {
            while !client.is_closed() {
                let version = observers.answered.version();
                let leader = seen(&observers, &client, &key)
                    .await
                    .map(|it| leader_of(&it));
                if let Some(leader) = leader
                    && last.as_ref() != Some(&leader)
                {
                    return Some((leader.clone(), (client, key, observers, Some(leader))));
                }
                let due = client.sleep_until(Some(observers.due()));
                select(observers.answered.changed(version), pin!(due)).await;
            }
            None
        })
    }
}
