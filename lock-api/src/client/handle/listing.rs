//! The keys of a lock service, page by page.

use std::fmt;

use crate::client::core::ClientHandle;
use crate::client::error::Error;
use crate::id::Key;
use crate::request::List;
use crate::sync::Arc;

/// The keys that begin with a text, page by page. Made by
/// [`LockClient::list`](crate::LockClient::list).
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let mut listing = locks.list("invoice:")?;
/// while let Some(keys) = listing.next_page().await? {
///     for key in keys {
///         println!("{}", locks.inspect(&key).await?);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a listing reads nothing until you call `next_page`"]
pub struct Listing {
    client: Arc<ClientHandle>,
    next: List,
    ended: bool,
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing")
            .field("prefix", &self.next.prefix)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Listing {
    pub(crate) fn new(client: &Arc<ClientHandle>, prefix: String) -> Self {
        Self {
            client: Arc::clone(client),
            next: List::new(prefix),
            ended: false,
        }
    }

    /// Returns the next keys, at least one; `None` after the last page.
    ///
    /// Each request to the server takes at most one call timeout. There may be many of them if few of
    /// the keys on the server begin with the text.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if no answer came within one call timeout. Call this again to go on.
    /// - [`Error::Rejected`] or [`Error::Closed`].
    ///
    /// # Cancel safety
    /// This method is cancel safe. If you drop the future, the next call goes on after the last page
    /// that the server has sent.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let first = locks.list("")?.next_page().await?;
    /// println!("{first:?}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn next_page(&mut self) -> Result<Option<Vec<Key>>, Error> {
        while !self.ended {
            let page = self.client.list(&self.next).await?;
            self.ended = page.next.is_none();
            self.next.cursor = page.next;
            if !page.keys.is_empty() {
                return Ok(Some(page.keys));
            }
        }
        Ok(None)
    }
}
