//! Long queues behind several holders.

use std::time::Duration;

use leasehold_api::{LockSpec, Wait};
use proptest::prelude::*;

use super::{Server, WINDOW, World, patient};

#[test]
pub(super) fn an_expired_offer_of_a_permit_goes_to_the_next_waiter() {
    Server::start().play("an expired offer", |world| {
        let spec = LockSpec::semaphore(3).expect("a good number");
        world.inspect()?;
        let end = world.now.saturating_add(Duration::from_secs(3));
        for place in 0..30 {
            // Even numbers take one permit.
            let mut request = world.waiter(spec, 2 * place, true, WINDOW);
            world.listen(request.operation.session, true);
            if place == 3 {
                request = request.with_wait(Wait::new(true).with_wait_until(end));
            }
            world.enter(request)?;
        }
        world.release(&world.queue[0].clone())?;
        world.wait_until(end)?;
        world.leave_after_polling(10)
    });
}

#[test]
fn a_step_continues_the_grants_to_many_readers() {
    Server::start().play("many readers", |world| {
        let spec = patient(LockSpec::rw_lock());
        world.inspect()?;
        for place in 0..320 {
            let request = world.waiter(spec, place, place == 0, WINDOW);
            world.listen(request.operation.session, true);
            world.enter(request)?;
        }
        world.release(&world.queue[0].clone())?;
        world.leave_after_polling(319)
    });
}

const READERS: usize = 6;

#[test]
fn readers_leave_on_the_fast_path_in_any_order() {
    Server::start().play("readers that leave", |world| {
        let spec = patient(LockSpec::rw_lock());
        world.inspect()?;
        (1..=READERS).try_for_each(|step| world.release_readers(spec, step))
    });
}

impl World<'_> {
    /// Releases readers in an order that depends on `step`, down to the grant to the writer behind
    /// them. Each time a waiter leaves, one enters, and some poll, without the general part.
    fn release_readers(&mut self, spec: LockSpec, step: usize) -> Result<(), TestCaseError> {
        for (number, place) in (0..).zip(0..READERS + 4) {
            let request = self.waiter(spec, number, place == READERS, WINDOW);
            self.listen(request.operation.session, true);
            self.enter(request)?;
        }
        let readers: Vec<_> = self.queue.drain(..READERS).collect();
        for n in 1..=READERS {
            // READERS + 1 is a prime number.
            let reader = &readers[n * step % (READERS + 1) - 1];
            self.general = false;
            self.release(reader)?;
            let leaves = self.queue.remove(2).expect("it waits");
            self.release(&leaves)?;
            let enters = self.waiter(spec, 0, false, WINDOW);
            self.enter(enters)?;
            let waiters: Vec<_> = self.queue.iter().skip(1).cloned().collect();
            self.poll_all(&waiters, true)?;
            waiters.iter().try_for_each(|it| self.poll(it))?;
            self.general = true;
            self.release(reader)?;
            self.inspect()?;
        }
        let queue = std::mem::take(&mut self.queue);
        self.release_all(queue)
    }

    /// Polls one waiter, then releases all, the last one first.
    fn leave_after_polling(&mut self, index: usize) -> Result<(), TestCaseError> {
        self.poll(&self.queue[index].clone())?;
        let queue = std::mem::take(&mut self.queue);
        self.release_all(queue.into_iter().rev())
    }
}
