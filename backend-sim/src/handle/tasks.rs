//! Tasks of a simulation: starting and awaiting them, sleeping, drawing numbers.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::FutureExt;

use crate::driver::sleep::Sleep;
use crate::engine::tape::{Site, Tape};
use crate::handle::SimServer;

/// A task that was started with [`SimServer::spawn`]; awaits its result.
///
/// Dropping it lets the task go on.
///
/// # Panics
/// Awaiting it panics if the task did. A task that nobody awaits fails its run all the same: in a tokio
/// test the next call or sleep panics, or the last handle on the server when it is dropped.
#[derive(Debug)]
pub struct JoinHandle<T>(oneshot::Receiver<T>);

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|result| result.unwrap_or_else(|_| panic!("the task that is awaited panicked")))
    }
}

/// What code uses in slot of tokio's functions, so that the tape decides about it. It works under
/// both drivers.
impl SimServer {
    /// Starts a task. Which of the tasks that can run does is a choice of the tape.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        let (sender, receiver) = oneshot::channel();
        // Whoever dropped the handle does not want to know.
        let told = future.map(|output| drop(sender.send(output)));
        self.world().ready.spawn(Box::pin(told));
        JoinHandle(receiver)
    }

    /// Sleeps. Among what is due at the same time, it ends in an order chosen by the tape.
    ///
    /// # Cancel safety
    /// Dropping it ends the sleep.
    pub async fn sleep(&self, duration: Duration) {
        Sleep::of(&**self.world(), duration).await;
    }

    /// Awaits a future for a time; `None` if it was not done by then.
    ///
    /// # Cancel safety
    /// As cancel safe as the future, which is dropped when the time is over.
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut sleep = Sleep::of(&**self.world(), duration);
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            Pin::new(&mut sleep).poll(cx).map(|()| None)
        })
        .await
    }

    /// Lets other tasks run, and what is due happen, if the tape says so.
    ///
    /// # Cancel safety
    /// Dropping it changes nothing.
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

    /// A number below `bound`, from the tape: for what the scenario itself leaves open. 0 should
    /// be the simplest; with a bound of 0 or 1 nothing is drawn.
    pub fn draw(&self, bound: u32) -> u32 {
        self.world()
            .act(|network, _| network.choices.draw(Site::User, bound))
    }

    /// The choices so far.
    pub fn tape(&self) -> Tape {
        self.world().act(|network, _| network.choices.tape())
    }

    /// A hash of the run so far, as in [`RunReport::trace`](crate::RunReport::trace).
    pub fn trace(&self) -> u64 {
        self.world().act(|network, _| network.choices.trace.value())
    }
}
