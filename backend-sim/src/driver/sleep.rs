//! Timers of a simulation, as futures.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::driver::world::World;
use crate::engine::event_queue::EventId;
use crate::network::event::SimEvent;

/// A timer. The first poll adds it to the queue, and dropping it removes it.
#[derive(Debug)]
pub(crate) struct Sleep {
    world: Arc<World>,
    at: Duration,
    /// Whether it ends after all other events of the same instant.
    last: bool,
    timer: Option<EventId>,
    done: bool,
}

impl Sleep {
    /// Creates a sleep. The tape decides its order among the events of the same instant.
    pub(crate) fn new(world: &Arc<World>, duration: Duration) -> Self {
        Self::with_order(world, duration, false)
    }

    /// Creates a sleep that ends after all other events of the same instant.
    pub(crate) fn last(world: &Arc<World>, duration: Duration) -> Self {
        Self::with_order(world, duration, true)
    }

    fn with_order(world: &Arc<World>, duration: Duration, last: bool) -> Self {
        world.clock.assert_paused();
        world.assert_sound();
        Self {
            at: world.clock.elapsed().saturating_add(duration),
            world: Arc::clone(world),
            last,
            timer: None,
            done: false,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.done {
            return Poll::Ready(());
        }
        let waker = cx.waker();
        let Some(timer) = self.timer else {
            let (at, last) = (self.at, self.last);
            let timer = self.world.act(|network| {
                let timer = SimEvent::Timer(Some(network.wakers.waiter(waker)));
                if last {
                    network.queue.insert_last(at, timer)
                } else {
                    network.queue.insert(at, timer)
                }
            });
            self.timer = Some(timer);
            return Poll::Pending;
        };
        let (done, before) = self
            .world
            .act(|network| match network.queue.get_mut(timer) {
                Some(SimEvent::Timer(waiter)) => (false, network.wakers.replace(waiter, waker)),
                _ => (true, None),
            });
        // Dropping the waker may drop the task that is being polled, so it must happen outside the
        // lock.
        drop(before);
        if done {
            (self.timer, self.done) = (None, true);
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            let timer = self.world.act(|network| network.queue.cancel(timer));
            drop(timer);
        }
    }
}
