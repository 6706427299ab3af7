//! Polls of several waiters in one call.

use leasehold_api::machine::{Command, Reply};
use leasehold_api::{Acquire, Poll};
use leasehold_redis_common::script::reply;
use proptest::prelude::*;

use super::{CLOCK, World, unstamp};

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
        let bytes = self.run_call(&self.protocol.poll(&polls), false)?;
        let published = self.published()?;
        let mut expected = Vec::new();
        for (poll, answer) in polls.iter().zip(reply::polls(&bytes, polls.len(), CLOCK)) {
            let (at, from_server) = unstamp(answer, Reply::Poll)?;
            self.now = at;
            let command = Command::Poll(poll.clone());
            expected.extend(self.expect(&poll.key, &command, &from_server)?);
        }
        self.compare_messages(&published, &expected, || format!("{polls:?}"))
    }
}
