//! Long queues behind several holders.

use std::time::Duration;

use leasehold_api::machine::Command;
use leasehold_api::{Acquire, LockSpec, Poll, Wait};
use leasehold_redis_common::script::{Protocol, ScriptSettings};
use leasehold_test_servers::RedisServer;
use proptest::prelude::*;

use super::{World, release};
use crate::support::Connection;

const WINDOW: Duration = Duration::from_secs(9);

pub(super) fn play(plays: impl FnOnce(&mut World<'_>) -> Result<(), TestCaseError>) {
    let server = RedisServer::start();
    let protocol = Protocol::new("t:", ScriptSettings::default()).expect("a good prefix");
    let mut connections = (Connection::open(&server), Connection::open(&server));
    let mut world = World::new(&mut connections, &protocol, 0);
    plays(&mut world).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn an_expired_offer_of_a_permit_goes_to_the_next_waiter() {
    play(|world| {
        let spec = LockSpec::semaphore(3).expect("a good number");
        let key = world.keys[0].clone();
        world.both(&key, &Command::Inspect)?;
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
        let holder = world.queue[0].clone();
        world.both(&key, &release(&holder))?;
        while world.now <= end {
            std::thread::sleep(Duration::from_millis(20));
            world.both(&key, &Command::Inspect)?;
        }
        world.leave_after_polling(10)
    });
}

#[test]
fn a_step_continues_the_grants_to_many_readers() {
    play(|world| {
        let spec = LockSpec::rw_lock().with_waiter_lease(Duration::from_secs(60));
        let spec = spec.expect("a good lease");
        let key = world.keys[0].clone();
        world.both(&key, &Command::Inspect)?;
        for place in 0..320 {
            let request = world.waiter(spec, place, place == 0, WINDOW);
            world.listen(request.operation.session, true);
            world.enter(request)?;
        }
        let writer = world.queue[0].clone();
        world.both(&key, &release(&writer))?;
        world.leave_after_polling(319)
    });
}

const READERS: usize = 6;

#[test]
fn readers_leave_on_the_fast_path_in_any_order() {
    play(|world| {
        let spec = LockSpec::rw_lock().with_waiter_lease(Duration::from_secs(60));
        let spec = spec.expect("a good lease");
        let key = world.keys[0].clone();
        world.both(&key, &Command::Inspect)?;
        (1..=READERS).try_for_each(|step| world.release_readers(spec, step))
    });
}

impl World<'_> {
    /// Releases readers in an order that depends on `step`, down to the grant to the writer behind
    /// them. Each time a waiter leaves, one enters, and some poll, without the general part.
    fn release_readers(&mut self, spec: LockSpec, step: usize) -> Result<(), TestCaseError> {
        let key = self.keys[0].clone();
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
            self.both(&key, &release(reader))?;
            let leaves = self.queue.remove(2).expect("it waits");
            self.both(&key, &release(&leaves))?;
            let enters = self.waiter(spec, 0, false, WINDOW);
            self.enter(enters)?;
            let waiters: Vec<_> = self.queue.iter().skip(1).cloned().collect();
            self.poll_all(&waiters, true)?;
            self.poll_one_by_one(&waiters)?;
            self.general = true;
            self.both(&key, &release(reader))?;
            self.both(&key, &Command::Inspect)?;
        }
        while let Some(request) = self.queue.pop_front() {
            self.both(&key, &release(&request))?;
        }
        self.both(&key, &Command::Inspect)
    }

    pub(super) fn enter(&mut self, request: Acquire) -> Result<(), TestCaseError> {
        self.queue.push_back(request.clone());
        self.both(&request.key.clone(), &Command::Acquire(request))
    }

    fn leave_after_polling(&mut self, index: usize) -> Result<(), TestCaseError> {
        let key = self.keys[0].clone();
        let poll = Poll::new(key.clone(), self.queue[index].operation, true);
        self.both(&key, &Command::Poll(poll))?;
        while let Some(request) = self.queue.pop_back() {
            self.both(&key, &release(&request))?;
        }
        self.both(&key, &Command::Inspect)
    }
}
