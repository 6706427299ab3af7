//! A client of the simulated server that steps on the states that it remembers, as the Redis backends do on
//! servers with `SET … IFEQ`. Memory and scripts are the production code's; only the server is simulated.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use leasehold_api::bounds::DELIVERY_WINDOW;
use leasehold_api::machine::Settings;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Convert, ConvertReply, ForceRelease, ForceReply,
    LockBackend, Moment, Note, NoteReply, Release, ReleaseReply, Renew, RenewReply, ServerTime,
    Stamp, Stamped, forward_lock_backend,
};
use leasehold_redis_common::remembered::{
    Answer, Few, Memory, Scripts, Server, Step, StepOutcome, encode,
};
use leasehold_sim::SimBackend;

use crate::checker::Situation;
use crate::stress::monitor::Monitor;

/// The settings of a server that soon deletes a key that was used, so that its absence comes back within a run.
pub(crate) const FORGETFUL: Settings = Settings::new(DELIVERY_WINDOW, Duration::from_secs(30));

/// A client with a memory.
pub(crate) struct Remembering {
    backend: SimBackend,
    memory: Memory,
    monitor: Monitor,
}

impl Remembering {
    pub(crate) fn new(backend: SimBackend, settings: Settings, monitor: Monitor) -> Self {
        Self {
            backend,
            memory: Memory::new(settings),
            monitor,
        }
    }

    /// What the string says that the server has found; an empty one stands for a value that is no string.
    fn outcome(&self, step: &Step, found: Option<Vec<u8>>) -> StepOutcome {
        if found.as_deref() == step.expected() {
            self.monitor.reached(match found {
                Some(_) => Situation::Compared,
                None => Situation::Created,
            });
            return StepOutcome::Same;
        }
        self.monitor.reached(Situation::ComparedInVain);
        match found {
            // Redis: WRONGTYPE.
            Some(bytes) if bytes.is_empty() => StepOutcome::NotExecuted,
            found => StepOutcome::Other(found.filter(|_| step.learns())),
        }
    }
}

impl fmt::Debug for Remembering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}

impl Server for Remembering {
    fn now(&self) -> Moment {
        self.backend.runtime().now()
    }

    fn can_compare(&self) -> bool {
        true
    }

    async fn compare_and_set(
        &self,
        steps: &[Step],
    ) -> Result<(Few<StepOutcome>, ServerTime), BackendError> {
        let answers = steps.iter().map(|step| {
            let old = step.expected().map(<[u8]>::to_vec);
            let new = step.replacement.clone();
            let command = step.command.clone();
            (self.backend).compare_and_set(&step.key, encode, (old, new), command, step.stamp)
        });
        let (mut outcomes, mut at, mut unknown) = (Few::new(), None, None);
        for (answer, step) in join_all(answers).await.into_iter().zip(steps) {
            outcomes.push(match answer {
                Ok(answer) => {
                    at = at.max(Some(answer.stamp.at));
                    self.outcome(step, answer.reply)
                }
                Err(error @ BackendError::OutcomeUnknown { .. }) => {
                    unknown = Some(error.clone());
                    StepOutcome::Unknown(error)
                }
                Err(_) => StepOutcome::NotExecuted,
            });
        }
        let not_executed = || BackendError::unavailable("the server is another one");
        let at = at.ok_or_else(|| unknown.unwrap_or_else(not_executed))?;
        Ok((outcomes, at))
    }
}

/// The calls of the simulated server that stand for scripts.
macro_rules! scripts {
    ($name:ident, $request:ident, $reply:ident, $method:ident) => {
        struct $name<'a>(&'a SimBackend);

        impl Scripts<$request> for $name<'_> {
            async fn run(&self, batch: &[$request]) -> Vec<Answer<$reply>> {
                self.0.$method(batch).await
            }
        }
    };
}

scripts!(Acquires, Acquire, AcquireReply, acquire);
scripts!(Renewals, Renew, RenewReply, renew);
scripts!(Releases, Release, ReleaseReply, release);

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for Remembering {
    forward_lock_backend! {
        |it| it.backend;
        capabilities runtime clock read_clock listen poll inspect list close
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        let sent = Server::now(self);
        let stamp = self.backend.hello().await?;
        self.memory.note_clock(stamp, sent, Server::now(self));
        Ok(stamp)
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Answer<AcquireReply>> {
        let scripts = Acquires(&self.backend);
        self.memory.execute(self, &scripts, batch).await
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Answer<RenewReply>> {
        let scripts = Renewals(&self.backend);
        self.memory.run_and_predict(self, &scripts, batch).await
    }

    async fn release(&self, batch: &[Release]) -> Vec<Answer<ReleaseReply>> {
        let scripts = Releases(&self.backend);
        self.memory.execute(self, &scripts, batch).await
    }

    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        self.memory.forget(&request.key);
        self.backend.convert(request).await
    }

    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        self.memory.forget(&request.key);
        self.backend.force_release(request).await
    }

    async fn write_note(&self, request: &Note) -> Result<Stamped<NoteReply>, BackendError> {
        self.memory.forget(&request.key);
        self.backend.write_note(request).await
    }
}
