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

fn play(plays: impl FnOnce(&mut World<'_>) -> Result<(), TestCaseError>) {
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

impl World<'_> {
    fn enter(&mut self, request: Acquire) -> Result<(), TestCaseError> {
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
