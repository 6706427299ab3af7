//! The answer to a health check.

use std::fmt;
use std::time::Duration;

use crate::time::Rounded;

/// The answer to [`LockClient::ping`](crate::LockClient::ping).
///
/// `Display` prints it on one line, for a health page.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let ping = locks.ping().await?;
/// println!("{ping}"); // 2 ms to 10.0.0.7:6379, push works
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ping {
    /// The time from the call to its answer.
    pub round_trip: Duration,
    /// The address of the server that answered, without user and password. `None` if the backend doesn't know it.
    pub server: Option<String>,
    /// Whether pushes arrive now, which tell waiters of their turn. The subscription begins with the first call that waits;
    /// before that, and after a failure, it is `false`, and waiters poll.
    pub push: bool,
}

impl fmt::Display for Ping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Rounded(self.round_trip))?;
        if let Some(server) = &self.server {
            write!(f, " to {server}")?;
        }
        if self.push {
            write!(f, ", push works")?;
        }
        Ok(())
    }
}
