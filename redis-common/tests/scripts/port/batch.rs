//! Polls of several waiters in one call.

use std::time::Duration;

use leasehold_api::machine::{Command, Reply};
use leasehold_api::{Acquire, LockSpec, Poll, ServerTime};
use leasehold_redis_common::script::reply;
use proptest::prelude::*;
use redis::Value;

use super::{CLOCK, DELIVERY_WINDOW, RETENTION, Server, World, unstamp};

const WAITER_LEASE: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_millis(1_500);

#[test]
fn polls_keep_a_long_queue_beyond_the_lease_of_the_holder() {
    let mut server = Server::start_with(DELIVERY_WINDOW, RETENTION);
    server.play("a long queue", |world| world.keep_a_long_queue());
}

impl World<'_> {
    /// Polls these attempts in one call, and one after the other on the state machine.
    pub(super) fn poll_all(
        &mut self,
        requests: &[Acquire],
        listening: bool,
    ) -> Result<(), TestCaseError> {
        if requests.is_empty() {
            return Ok(());
        }
        let polls: Vec<Poll> = requests
            .iter()
            // Not all say the same, so that an answer or a write for another element shows.
            .zip([listening, listening, !listening].into_iter().cycle())
            .map(|(request, listens)| Poll::new(request.key.clone(), request.operation, listens))
            .collect();
        let bytes = self.run_call(&self.protocol.poll(&polls))?;
        let mut expected = Vec::new();
        for (poll, answer) in polls.iter().zip(reply::polls(&bytes, polls.len(), CLOCK)) {
            let (at, from_server) = unstamp(answer, Reply::Poll)?;
            self.now = at;
            let command = Command::Poll(poll.clone());
            expected.extend(self.expect(&poll.key, &command, &from_server)?);
        }
        self.compare_messages(expected, || format!("{polls:?}"))
    }

    /// Keeps 40 waiters by polls until their holder, and what the state needed to cover it, are gone.
    fn keep_a_long_queue(&mut self) -> Result<(), TestCaseError> {
        let spec = LockSpec::mutex();
        let spec = spec.with_waiter_lease(WAITER_LEASE).expect("a good lease");
        self.inspect()?;
        let begun = self.now;
        for number in 0..=40 {
            let mut request = self.waiter(spec, number, true, DELIVERY_WINDOW / 2);
            request.lease = LEASE;
            self.enter(request)?;
        }
        let waiters: Vec<Acquire> = self.queue.iter().skip(1).cloned().collect();
        for part in [2, 1] {
            self.wait_until(begun.saturating_add(LEASE - LEASE / 4 * part))?;
            self.poll_all(&waiters, false)?;
        }
        let needed = self
            .now
            .saturating_add(WAITER_LEASE + RETENTION + Duration::from_secs(1));
        let name = self.protocol.key(&self.keys[0]);
        let deleted_at = self.commands.command(&[b"PEXPIRETIME".to_vec(), name]);
        let Value::Int(ms) = deleted_at else {
            return Err(TestCaseError::fail(format!("{deleted_at:?}")));
        };
        let kept = ServerTime::from_micros(1_000 * ms.unsigned_abs());
        prop_assert!(kept >= needed, "Redis deletes the key at {ms} ms");
        self.wait_until(begun.saturating_add(LEASE + 3 * RETENTION))?;
        self.poll_all(&waiters, false)
    }
}
