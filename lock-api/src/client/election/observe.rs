//! Who leads, from the inspections of the key.

use std::pin::pin;

use futures_core::Stream;
use futures_util::future::select;
use futures_util::stream;

use crate::client::core::Core;
use crate::client::election::Election;
use crate::client::error::Error;
use crate::client::handle::inspection::Inspection;
use crate::client::hold::Tag;
use crate::client::state::observers::Observers;
use crate::id::{FencingToken, Key, Label};
use crate::reply::{HolderView, InspectReply, NoteView};
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
    let info = info_of(holder, reply.note.as_ref()).unwrap_or_default();
    Some(leader(holder, info))
}

fn leader(holder: &HolderView, info: &[u8]) -> Leader {
    Leader {
        label: holder.label.clone(),
        info: info.to_vec(),
        term: holder.token,
    }
}

/// Returns what a leader tells about itself. The note of an earlier term says nothing about this one.
fn info_of<'a>(holder: &HolderView, note: Option<&'a NoteView>) -> Option<&'a [u8]> {
    let note = note.filter(|it| it.token == holder.token)?;
    note.bytes.strip_prefix(&[Tag::Election as u8])
}

impl Inspection {
    /// Returns the leader, if the key is an election and its leader has told about itself. One that was elected a moment ago may
    /// not have done so yet.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("scheduler").await?;
    /// println!("led by {:?}", inspection.leader());
    /// # Ok(())
    /// # }
    /// ```
    pub fn leader(&self) -> Option<Leader> {
        let holder = self.holders().first()?;
        Some(leader(holder, info_of(holder, self.note())?))
    }
}

/// What a stream has yielded, and what it waits for.
#[derive(Debug, Default)]
struct Followed {
    last: Option<Option<Leader>>,
    /// An inspection in which a leader has no note yet: it has just been elected.
    without_note: Option<Arc<InspectReply>>,
}

impl Followed {
    /// Returns the leader, if it is another one than before. A leader without a note counts once a second inspection shows
    /// none either: it may just have been elected, or a failover has lost the note.
    fn news(&mut self, seen: &Arc<InspectReply>) -> Option<Option<Leader>> {
        let leader = leader_of(seen);
        let holder = seen.holders.first();
        if holder.is_some_and(|it| info_of(it, seen.note.as_ref()).is_none()) {
            let is_earlier =
                |it: &Arc<InspectReply>| !Arc::ptr_eq(it, seen) && leader_of(it) == leader;
            if !self.without_note.as_ref().is_some_and(is_earlier) {
                self.without_note = Some(Arc::clone(seen));
                return None;
            }
        }
        if self.last.as_ref() == Some(&leader) {
            return None;
        }
        self.last = Some(leader.clone());
        Some(leader)
    }
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
    /// nobody. A new leader comes with its info.
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
        let begin = (client, key, observers, Followed::default());
        stream::unfold(begin, async |(client, key, observers, mut followed)| {
            while !client.is_closed() {
                let version = observers.answered.version();
                let seen = seen(&observers, &client, &key).await;
                if let Some(leader) = seen.and_then(|seen| followed.news(&seen)) {
                    return Some((leader, (client, key, observers, followed)));
                }
                let due = client.sleep_until(Some(observers.due()));
                select(observers.answered.changed(version), pin!(due)).await;
            }
            None
        })
    }
}
