//! The server, as [`Memory`](crate::remembered::Memory) needs it.

use leasehold_api::{BackendError, ClockId, Moment, ServerTime};

use super::waiters::Keyed;
use super::{Backend, Servers};
use crate::connection::{CompareAndSet, Failure, Found, Lane};
use crate::remembered::{Answer, Few, Predictable, Scripts, Server, Step, StepOutcome};
use crate::script::{Call, Pieces, Protocol};

type Encode<E> = fn(&Protocol, &[E]) -> Call;
type Decode<T> = fn(&[u8], usize, ClockId) -> Vec<Answer<T>>;

/// How requests of one type are executed by a script.
pub(super) struct Scripted<'a, E: Predictable>(
    pub(super) &'a Backend,
    pub(super) Lane,
    pub(super) Encode<E>,
    pub(super) Decode<E::Reply>,
);

impl<E: Predictable + Keyed> Scripts<E> for Scripted<'_, E> {
    async fn run(&self, batch: &[E]) -> Vec<Answer<E::Reply>> {
        let Self(backend, lane, encode, decode) = self;
        backend.run_batch(*lane, batch, encode, decode).await
    }
}

impl Server for Backend {
    fn now(&self) -> Moment {
        self.shared.now()
    }

    /// A cluster has scripts alone: a key may move to another clock.
    fn can_compare(&self) -> bool {
        match &self.servers {
            Servers::One(node) => node.commands.can_compare(),
            Servers::Cluster(_) => false,
        }
    }

    async fn compare_and_set(
        &self,
        steps: &[Step],
    ) -> Result<(Few<StepOutcome>, ServerTime), BackendError> {
        let (Servers::One(node), Some(first)) = (&self.servers, steps.first()) else {
            return Err(BackendError::unavailable("a cluster only runs scripts"));
        };
        let keys = self.protocol.keys(steps.iter().map(|step| &step.key));
        let commands = Pieces(&keys).zip(steps).map(|(key, step)| CompareAndSet {
            key,
            old: step.expected(),
            new: &step.replacement,
            expires: step.expires,
            get: step.learns(),
        });
        let commands: Few<_> = commands.collect();
        let comparing = node.commands.compare_and_set(&commands, first.stamp.clock);
        let (found, at) = comparing.await?;
        let outcomes = found.into_iter().map(|found| self.outcome(found));
        Ok((outcomes.collect(), at))
    }
}

impl Backend {
    /// What has become of a step. After an error that the server has answered with, the script tells what is wrong.
    fn outcome(&self, found: Result<Found, Failure>) -> StepOutcome {
        match found {
            Ok(Found::Same) => StepOutcome::Same,
            Ok(Found::Other(string)) => StepOutcome::Other(string),
            Err(failure) if failure.is_refusal() => StepOutcome::NotExecuted,
            Err(failure) => StepOutcome::Unknown(failure.in_call(self.shared.prefix())),
        }
    }
}
