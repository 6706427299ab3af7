//! The keys of a lock service, page by page.

use std::fmt;

use crate::client::core::ClientHandle;
use crate::client::error::Error;
use crate::id::Key;
use crate::request::{Cursor, List};
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
    prefix: String,
    next: Next,
}

enum Next {
    First,
    After(Cursor),
    Nothing,
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = matches!(self.next, Next::Nothing);
        f.debug_struct("Listing")
            .field("prefix", &self.prefix)
            .field("ended", &ended)
            .finish_non_exhaustive()
    }
}

impl Listing {
    pub(crate) fn new(client: &Arc<ClientHandle>, prefix: String) -> Self {
        Self {
            client: Arc::clone(client),
            prefix,
            next: Next::First,
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
        loop {
            let cursor = match &self.next {
                Next::First => None,
                Next::After(cursor) => Some(cursor.clone()),
                Next::Nothing => return Ok(None),
            };
            let request = List::new(&self.prefix).with_cursor(cursor);
            let page = self.client.list(&request).await?;
            self.next = page.next.map_or(Next::Nothing, Next::After);
            if !page.keys.is_empty() {
                return Ok(Some(page.keys));
            }
        }
    }
}
