//! Tasks of a simulation: spawning and joining them, sleeping, drawing numbers.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::FutureExt;

use crate::driver::sleep::Sleep;
use crate::engine::tape::{Site, Tape};
use crate::handle::SimServer;

/// A handle to a task that [`SimServer::spawn`] started. Await it for the task's result.
///
/// Dropping the handle detaches the task, which runs on.
///
/// # Panics
/// Awaiting the handle panics if the task panicked. A panic in a detached task fails the run too:
/// in a tokio test, the next call or sleep panics, or else dropping the last handle to the server.
///
/// # Cancel safety
/// This future is cancel safe: if you poll `&mut handle` and drop that future, the task runs on,
/// and you can await the handle again.
#[derive(Debug)]
pub struct JoinHandle<T>(oneshot::Receiver<T>);

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|result| result.unwrap_or_else(|_| panic!("the task panicked")))
    }
}

/// Replacements for tokio's functions, which work under both drivers. The tape decides the order.
impl SimServer {
    /// Spawns a task. If several tasks are ready, the tape decides which runs.
    ///
    /// A task on the simulator's own executor is dropped when the scenario's future completes.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_sim::{Ending, SimOptions, Simulation};
    ///
    /// let report = Simulation::new(SimOptions::new(1)).run(|sim| async move {
    ///     let task = sim.spawn({
    ///         let sim = sim.clone();
    ///         async move {
    ///             sim.sleep(Duration::from_secs(60)).await;
    ///             42
    ///         }
    ///     });
    ///     task.await
    /// });
    /// assert_eq!(report.ending, Ending::Completed(42));
    /// assert_eq!(report.elapsed, Duration::from_secs(60));
    /// ```
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        let (sender, receiver) = oneshot::channel();
        // The send fails if the handle was dropped.
        let task = future.map(|output| drop(sender.send(output)));
        self.world().ready.spawn(Box::pin(task));
        JoinHandle(receiver)
    }

    /// Sleeps for `duration` of virtual time. If several sleeps end at the same instant, the tape
    /// decides their order. The duration is rounded up to whole milliseconds.
    ///
    /// # Panics
    /// In a tokio test, panics if the runtime's clock is no longer paused, if a task of the
    /// simulation panicked, or if a replay diverged from its tape.
    ///
    /// # Cancel safety
    /// This method is cancel safe: dropping the future cancels the sleep.
    pub async fn sleep(&self, duration: Duration) {
        Sleep::new(self.world(), duration).await;
    }

    /// Awaits a future for at most `duration` of virtual time. Returns `None` if it doesn't
    /// complete in time, and drops it.
    ///
    /// # Cancel safety
    /// This method is cancel safe if `future` is.
    ///
    /// # Examples
    /// ```
    /// use std::future::pending;
    /// use std::time::Duration;
    ///
    /// use leasehold_sim::{Ending, SimOptions, Simulation};
    ///
    /// let report = Simulation::new(SimOptions::new(1))
    ///     .run(|sim| async move { sim.timeout(Duration::from_secs(5), pending::<()>()).await });
    /// assert_eq!(report.ending, Ending::Completed(None));
    /// ```
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut sleep = Sleep::new(self.world(), duration);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => Pin::new(&mut sleep).poll(cx).map(|()| None),
        })
        .await
    }

    /// Yields once. The tape decides whether other tasks and events that are due run first.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Draws a number below `bound` from the tape, for a choice of the scenario's own.
    ///
    /// Let 0 be the simplest choice, because shrinking sets choices to 0. With a bound of 0 or 1,
    /// the result is 0 and nothing is drawn.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_sim::Exploration;
    ///
    /// Exploration::new().seeds(0..20).check(|sim| async move {
    ///     let work = Duration::from_millis(sim.draw(1_000).into());
    ///     sim.sleep(work).await;
    ///     assert!(sim.elapsed() < Duration::from_secs(1));
    /// });
    /// ```
    pub fn draw(&self, bound: u32) -> u32 {
        self.world()
            .act(|network| network.choices.draw(Site::User, bound))
    }

    /// Returns the choices so far. The tape has no draws if they are not
    /// [recorded](crate::SimOptions::recording).
    pub fn tape(&self) -> Tape {
        self.world().act(|network| network.choices.tape())
    }

    /// Returns a hash of the run so far, as in [`RunReport::trace`](crate::RunReport::trace).
    pub fn trace(&self) -> u64 {
        self.world().act(|network| network.choices.trace.value())
    }
}
