//! How often a step scans a hash for expired watermarks.

use std::time::Duration;

use leasehold_api::machine::Command;
use leasehold_api::{LockSpec, Renew, SessionId};
use proptest::prelude::*;
use redis::Value;

use super::{Server, WINDOW, World};
use crate::support::bytes;

#[test]
fn one_of_32_steps_scans_without_a_queue() {
    Server::start().play("a hash without a queue", |world| {
        world.inspect()?;
        // More than a string has, so the key is a hash.
        for number in 0..170 {
            world.read(number)?;
        }
        let before = world.scans();
        for number in 170..202 {
            world.read(number)?;
            let request = world.queue.pop_back().expect("it has just entered");
            world.release(&request)?;
        }
        prop_assert_eq!(world.scans() - before, 2);
        Ok(())
    });
}

#[test]
fn one_of_128_waiters_scans() {
    Server::start().play("a long queue", |world| {
        world.inspect()?;
        // The fast path serves most of them, and counts no steps.
        for number in 0..400 {
            let request = world.waiter(LockSpec::mutex(), number, true, WINDOW);
            world.enter(request)?;
        }
        prop_assert_eq!(world.scans(), 3);
        Ok(())
    });
}

/// A release of what isn't held leaves a watermark too, and must work where no hash can be made. An acquire
/// makes one.
#[test]
fn releases_of_strangers_leave_a_string() {
    let mut server = Server::start();
    for (strangers, form) in [(300, "string"), (1_100, "hash")] {
        server.play(strangers, |world| {
            world.inspect()?;
            let holder = world.waiter(LockSpec::mutex(), 0, true, WINDOW);
            world.enter(holder.clone())?;
            for stranger in 1..=strangers {
                let mut gone = holder.clone();
                gone.operation.session = SessionId::from_bytes(u128::to_le_bytes(stranger));
                world.release(&gone)?;
            }
            prop_assert_eq!(world.form(), form);
            world.release(&holder)?;
            prop_assert_eq!(world.form(), form);
            let next = world.waiter(LockSpec::mutex(), 1, true, WINDOW);
            world.enter(next)?;
            prop_assert_eq!(world.form(), "hash");
            Ok(())
        });
    }
}

/// Tries in vain arrive in the other order.
#[test]
pub(super) fn earlier_try_is_refused_after_a_later_one() {
    Server::start().play("two tries", |world| {
        world.inspect()?;
        let holder = world.waiter(LockSpec::mutex(), 0, true, WINDOW);
        world.enter(holder.clone())?;
        let mut tries = [(); 2].map(|()| world.waiter(LockSpec::mutex(), 1, true, WINDOW));
        for request in tries.iter_mut().rev() {
            request.wait = None;
            world.both(&request.key.clone(), &Command::Acquire(request.clone()))?;
        }
        world.release(&holder)?;
        let [earlier, _] = tries;
        world.both(&earlier.key.clone(), &Command::Acquire(earlier))
    });
}

/// Nothing else moves the end of the whole state.
#[test]
pub(super) fn renewed_hold_lasts_longer_than_a_token_is_kept() {
    Server::start().play("a long hold", |world| {
        world.inspect()?;
        let holder = world.waiter(LockSpec::mutex(), 0, true, WINDOW);
        let (key, minute) = (holder.key.clone(), Duration::from_secs(60));
        world.enter(holder.clone())?;
        for _ in 0..20 {
            *world.clock += minute - Duration::from_secs(1);
            let renew = Renew::new(key.clone(), holder.operation, minute);
            world.both(&key, &Command::Renew(renew.expect("a good lease")))?;
        }
        world.release(&holder)
    });
}

impl World<'_> {
    /// The type of the first key.
    pub(super) fn form(&mut self) -> String {
        let name = self.protocol.key(&self.keys[0]);
        match self.commands.command(&[b"TYPE".to_vec(), name]) {
            Value::SimpleString(form) => form,
            other => panic!("TYPE answered {other:?}"),
        }
    }

    /// One more reader acquires the lock.
    fn read(&mut self, number: u64) -> Result<(), TestCaseError> {
        let request = self.waiter(LockSpec::rw_lock(), number, false, WINDOW);
        self.enter(request)
    }

    /// The calls of `HSCAN` on this server.
    fn scans(&mut self) -> u64 {
        let all = self.commands.command(&["INFO", "commandstats"]);
        let all = String::from_utf8_lossy(bytes(&all)).into_owned();
        let line = all
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_hscan:calls="));
        line.map_or(0, |line| {
            let calls = line.split(',').next().expect("a part");
            calls.parse().expect("a number")
        })
    }
}
