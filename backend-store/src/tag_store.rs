//! What a store without a clock does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use leasehold_api::{BackendError, Runtime, SessionId, bounds};

use crate::store::Tag;

/// An object of a [`TagStore`].
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Object {
    /// The contents. They contain secrets.
    pub bytes: Vec<u8>,
    /// The store's own version of the object.
    pub tag: Tag,
}

impl Object {
    /// Creates an object, as read from the store.
    pub const fn new(bytes: Vec<u8>, tag: Tag) -> Self {
        Self { bytes, tag }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("bytes", &self.bytes.len())
            .field("tag", &self.tag)
            .finish()
    }
}

/// A conditional write of one object.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Put<'a> {
    /// The name of the object.
    pub name: &'a str,
    /// The tag that the object must have. `None` if there must be no object.
    pub expected: Option<&'a Tag>,
    /// The new contents. They contain secrets, and differ from those of any other write.
    pub bytes: &'a [u8],
    /// Another object that must have this tag, or not exist. Only a store that [removes](TagStore::can_remove) objects is asked
    /// for it, in the write that creates one.
    pub unchanged: Option<(&'a str, Option<&'a Tag>)>,
    /// The texts to deliver to sessions if the write is applied. A store without [`can_listen`](TagStore::can_listen)
    /// ignores them.
    pub texts: &'a [(SessionId, String)],
}

impl<'a> Put<'a> {
    /// Creates a write without texts, which compares no other object.
    pub const fn new(name: &'a str, expected: Option<&'a Tag>, bytes: &'a [u8]) -> Self {
        Self {
            name,
            expected,
            bytes,
            unchanged: None,
            texts: &[],
        }
    }
}

impl fmt::Debug for Put<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Put")
            .field("name", &self.name)
            .field("expected", &self.expected)
            .field("bytes", &self.bytes.len())
            .field("unchanged", &self.unchanged)
            .field("texts", &self.texts.len())
            .finish()
    }
}

/// What a session that listens gets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pushed {
    /// A text from a [`Put`].
    Text(String),
    /// Texts may have been missed. `listening` is `false` if the subscription is lost, and `true` if it works again.
    Missed {
        /// Whether the subscription works.
        listening: bool,
    },
}

/// A store without a clock, which keeps objects by name and replaces one if it still has the tag that was read: etcd, S3.
///
/// [`StoreBackend::observing`](crate::StoreBackend::observing) makes a backend of it.
///
/// # Contract
/// - **A read is current.** It sees every write that was applied before the read was sent.
/// - **A write is one step.** It compares the tag, and that of the [other object](Put::unchanged), and replaces the object,
///   atomically. It may be late. It is sent once: if a library sends it again by itself, the copy finds the tag of the first.
/// - **A write lasts.** It is answered as applied only when no crash and no failover of the store can lose it.
/// - **A tag never comes back** for other contents.
/// - **Nothing else removes an object.** If one is removed, fencing tokens fall. See [`remove`](Self::remove).
/// - **Errors are typed.** [`write`](Self::write) returns [`BackendError::Unavailable`] or
///   [`BackendError::Rejected`] only if the write was not applied and never will be. If in doubt, it
///   returns [`BackendError::OutcomeUnknown`].
/// - **Cancel safety.** A future may be dropped at any time. A write may then be applied or not.
///
/// [`StoreBackend`](crate::StoreBackend) limits the time of each call, so a store needs no timeouts, but
/// it must reconnect.
///
/// # Names
/// A name is any text of 1 to 300 bytes. Store it as data, never as a part of a pattern or a statement.
#[async_trait]
pub trait TagStore: fmt::Debug + Send + Sync + 'static {
    /// Returns the source of time, randomness and tasks for the client.
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// Reads an object.
    async fn read(&self, name: &str) -> Result<Option<Object>, BackendError>;

    /// Replaces an object if it has the expected tag, and delivers the texts. Returns the new tag, or `None` if nothing was
    /// written.
    async fn write(&self, put: Put<'_>) -> Result<Option<Tag>, BackendError>;

    /// Returns the first `limit` names after `after` that begin with `beginning`, in the order of their bytes. Fewer than
    /// `limit` names are the last ones.
    async fn names(
        &self,
        beginning: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<String>, BackendError>;

    /// Whether [`remove`](Self::remove) works. The default is `false`: objects stay forever.
    fn can_remove(&self) -> bool {
        false
    }

    /// Removes an object if it has this tag, in one step.
    async fn remove(&self, name: &str, tag: &Tag) -> Result<(), BackendError> {
        let _ = (name, tag);
        Err(BackendError::unsupported("remove"))
    }

    /// Whether [`listen`](Self::listen) works. The default is `false`: waiters of other processes poll.
    fn can_listen(&self) -> bool {
        false
    }

    /// Subscribes to the texts to a session. The requirements are those of [`Store::listen`](crate::Store::listen).
    async fn listen(&self, session: SessionId) -> Result<BoxStream<'static, Pushed>, BackendError> {
        let _ = session;
        Err(BackendError::unsupported("listen"))
    }

    /// How often the first waiters of a key poll at least: see [`Store::first_waiters_poll`](crate::Store::first_waiters_poll).
    fn first_waiters_poll(&self) -> Duration {
        bounds::MAX_POLL_INTERVAL
    }

    /// Closes the store's connections.
    async fn close(&self) -> Result<(), BackendError> {
        Ok(())
    }
}
