//! A loop that runs an occurrence each period.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use crate::client::error::Error;
use crate::client::once::{Job, JobOutcome, Once};
use crate::time::{FireTime, ServerTime, micros};

/// The pause after a call that failed because of an outage.
const PAUSE: Duration = Duration::from_secs(1);

/// A job that runs each period. [`Once::every`] returns it.
///
/// The fire times are the multiples of the period since 1970, by the server's clock. So all machines agree on
/// them, however wrong their own clocks are.
///
/// # Examples
/// See [`Once::every`].
#[derive(Clone, Debug)]
#[must_use = "it does nothing until you run it"]
pub struct Every {
    once: Once,
    period: Duration,
    /// The last occurrence that this loop has dealt with.
    last: Option<FireTime>,
}

impl Every {
    pub(super) const fn new(once: Once, period: Duration) -> Self {
        Self {
            once,
            period,
            last: None,
        }
    }

    /// Waits for the next occurrence, and runs it as [`Occurrence::run`](crate::Occurrence::run) does. The
    /// first call runs the current occurrence, if it isn't done. An occurrence can start until the next one
    /// is due.
    ///
    /// # Errors
    /// The same as [`Occurrence::run`](crate::Occurrence::run). An outage of more than a minute is one, and so is
    /// [`Error::FireTimeAhead`]: don't let `?` end your loop on each machine. [`run`](Self::run) goes on through both.
    ///
    /// # Cancel safety
    /// The same as [`Occurrence::run`](crate::Occurrence::run). The next call waits for the same occurrence.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let mut each_minute = locks.once("clean-up")?.every(Duration::from_secs(60));
    /// loop {
    ///     match each_minute.run_next(async |_job| Ok::<_, Error>(())).await {
    ///         Err(error) if error.is_transient() || matches!(error, Error::FireTimeAhead { .. }) => {
    ///             locks.runtime().sleep(Duration::from_secs(1)).await;
    ///         }
    ///         outcome => println!("{:?}", outcome?),
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn run_next<T, E, F: Future<Output = Result<T, E>>>(
        &mut self,
        body: impl FnMut(Job) -> F,
    ) -> Result<JobOutcome<T, E>, Error> {
        // Refuses a period outside its limits before it divides by it.
        let any = self.once.at(FireTime::default()).start_before(self.period);
        any.check()?;
        let period = micros(self.period);
        let fire = loop {
            // Through short outages: one lost connection is no error.
            let now = any.server_time().await?.as_micros();
            let current = FireTime::of(ServerTime::from_micros(now - now % period));
            // Also if the clock was stepped back: the record of the job tells what follows.
            if self.last != Some(current) {
                break current;
            }
            let next = ServerTime::from_micros(now - now % period + period);
            self.once
                .sleep_until(next, ServerTime::from_micros(now))
                .await?;
        };
        let mut occurrence = self.once.at(fire).start_before(self.period);
        // It was due a moment ago. If it isn't any more, the clock was set back, and waiting for it would silence
        // the loop.
        occurrence.wish.max_ahead = self.period;
        let outcome = occurrence.run(body).await?;
        self.last = Some(fire);
        Ok(outcome)
    }

    /// Runs each occurrence, until an error that waiting can't fix. Ignores what the occurrences return: to see
    /// that, call [`run_next`](Self::run_next). While the record of the job is ahead of the server's clock, it
    /// asks once in a period whether it still is: watch [`Once::status`], and [reset](Once::reset) the job if
    /// that time is far ahead.
    ///
    /// # Errors
    /// The permanent errors of [`Occurrence::run`](crate::Occurrence::run). [`Error::Closed`] after a shutdown.
    ///
    /// # Cancel safety
    /// The same as [`Occurrence::run`](crate::Occurrence::run).
    ///
    /// # Examples
    /// See [`Once::every`].
    pub async fn run<T, E, F: Future<Output = Result<T, E>>>(
        mut self,
        mut body: impl FnMut(Job) -> F,
    ) -> Result<Infallible, Error> {
        loop {
            match self.run_next(&mut body).await {
                Ok(_) => {}
                Err(error) if error.is_transient() => self.once.sleep(PAUSE).await?,
                // Until the clock has come to the record, or an operator has reset the job.
                Err(Error::FireTimeAhead { ahead, .. }) => {
                    self.once.sleep(ahead.min(self.period).max(PAUSE)).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
