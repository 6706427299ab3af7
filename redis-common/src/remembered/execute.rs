//! Executes batches: by compare-and-set where the state is remembered and still the same, by a script otherwise.

use std::future::Future;
use std::pin::pin;

use futures_util::future::join;
use leasehold_api::machine::{Command, Reply};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Key, Moment, Release, ReleaseReply, Renew, RenewReply,
    ServerTime, Stamp, Stamped,
};
use smallvec::SmallVec;

use super::{Exchange, Memory, Step};

/// A request whose answer says what a script has stored.
pub trait Predictable: Clone + Send + Sync {
    /// Its reply.
    type Reply: Clone + Send;

    /// The key.
    fn key(&self) -> &Key;

    /// The command of the state machine.
    fn command(&self) -> Command;

    /// The reply of the state machine.
    fn wrap(reply: Self::Reply) -> Reply;

    /// The reply in a reply of the state machine; `None` if that answers another command.
    fn unwrap(reply: Reply) -> Option<Self::Reply>;
}

macro_rules! predictable {
    ($($request:ident: $reply:ident),*) => {$(
        impl Predictable for $request {
            type Reply = $reply;

            fn key(&self) -> &Key {
                &self.key
            }

            fn command(&self) -> Command {
                Command::$request(self.clone())
            }

            fn wrap(reply: $reply) -> Reply {
                Reply::$request(reply)
            }

            fn unwrap(reply: Reply) -> Option<$reply> {
                match reply {
                    Reply::$request(reply) => Some(reply),
                    _ => None,
                }
            }
        }
    )*};
}

predictable!(Acquire: AcquireReply, Renew: RenewReply, Release: ReleaseReply);

/// What belongs to a batch. Most batches have one request, and allocate nothing for it.
pub type Few<T> = SmallVec<[T; 1]>;

/// The answer to one request.
pub use crate::script::reply::Answer;

/// What has become of a step.
pub enum StepOutcome {
    /// The key had the [expected](Step::expected) string, or none as expected. The step was executed.
    Same,
    /// The key had something else. The step was not executed. Contains the string if the step
    /// [learns](Step::learns) it.
    Other(Option<Vec<u8>>),
    /// The step was not executed.
    NotExecuted,
    /// The step may have been executed, or may still be.
    Unknown(BackendError),
}

/// The lock server.
pub trait Server: Sync {
    /// Reads the local clock.
    fn now(&self) -> Moment;

    /// Whether it can compare now.
    fn can_compare(&self) -> bool;

    /// Compares and sets. All steps are for the clock of the first. Returns the outcome of each, and the server's
    /// clock, read after they were sent. After [`BackendError::Unavailable`], none was executed.
    fn compare_and_set(
        &self,
        steps: &[Step],
    ) -> impl Future<Output = Result<(Few<StepOutcome>, ServerTime), BackendError>> + Send;
}

/// Runs the scripts of one type of requests.
pub trait Scripts<E: Predictable>: Sync {
    /// Executes a batch. Returns an answer to each request.
    fn run(&self, batch: &[E]) -> impl Future<Output = Vec<Answer<E::Reply>>> + Send;
}

impl Memory {
    /// Executes a batch of acquires or releases.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the calls. The server may still execute them.
    pub async fn execute<E: Predictable>(
        &self,
        server: &impl Server,
        scripts: &impl Scripts<E>,
        batch: &[E],
    ) -> Vec<Answer<E::Reply>> {
        let steps = match server.can_compare() {
            true => self.steps(batch, server.now()),
            false => Few::new(),
        };
        if steps.is_empty() {
            return self.run_and_predict(server, scripts, batch).await;
        }
        let others = others(&steps, batch.len());
        let mut answers: Few<_> = batch.iter().map(|_| None).collect();
        let (missed, scripted) = {
            let compared = pin!(self.compare_and_set::<E>(server, steps, &mut answers));
            // Most batches need no script, so the future of one is boxed: the others need not carry it.
            match others.is_empty() {
                true => (compared.await, Vec::new()),
                false => {
                    let scripted = Box::pin(self.run_some(server, scripts, batch, others));
                    join(compared, scripted).await
                }
            }
        };
        let missed = match missed.is_empty() {
            true => Vec::new(),
            false => Box::pin(self.run_some(server, scripts, batch, missed)).await,
        };
        for (index, answer) in scripted.into_iter().chain(missed) {
            answers[index] = Some(answer);
        }
        let answers = answers.into_iter();
        answers
            .map(|it| it.unwrap_or_else(|| Err(no_answer())))
            .collect()
    }

    async fn run_some<E: Predictable>(
        &self,
        server: &impl Server,
        scripts: &impl Scripts<E>,
        batch: &[E],
        indices: Vec<usize>,
    ) -> Vec<(usize, Answer<E::Reply>)> {
        let requests: Vec<E> = indices.iter().map(|index| batch[*index].clone()).collect();
        let answers = self.run_and_predict(server, scripts, &requests).await;
        indices.into_iter().zip(answers).collect()
    }

    /// Executes a batch by a script, and predicts what it has stored.
    ///
    /// # Cancel safety
    /// As for [`execute`](Self::execute).
    pub async fn run_and_predict<E: Predictable>(
        &self,
        server: &impl Server,
        scripts: &impl Scripts<E>,
        batch: &[E],
    ) -> Vec<Answer<E::Reply>> {
        let sent = server.now();
        let answers = scripts.run(batch).await;
        if server.can_compare() {
            let exchange = Exchange {
                sent,
                received: server.now(),
            };
            self.predict_all(batch, &answers, exchange);
        }
        answers
    }

    /// Sends the steps, and notes their answers. Returns the places of those that were not executed.
    async fn compare_and_set<E: Predictable>(
        &self,
        server: &impl Server,
        steps: Few<Step>,
        answers: &mut [Option<Answer<E::Reply>>],
    ) -> Vec<usize> {
        let sent = server.now();
        let Some(clock) = steps.first().map(|step| step.stamp.clock) else {
            return Vec::new();
        };
        let (outcomes, at) = match server.compare_and_set(&steps).await {
            Ok(compared) => compared,
            Err(BackendError::Unavailable { .. }) => {
                return steps.into_iter().map(|step| step.index).collect();
            }
            Err(error) => {
                for step in steps {
                    answers[step.index] = Some(Err(error.clone()));
                }
                return Vec::new();
            }
        };
        let (stamp, received) = (Stamp { clock, at }, server.now());
        let (mut inner, mut missed) = (self.inner(), Vec::new());
        inner.note_clock(stamp, Exchange { sent, received });
        for (step, outcome) in steps.into_iter().zip(outcomes) {
            let index = step.index;
            match inner.finish(step, outcome, stamp, received) {
                Some(answer) => {
                    let unwrap = |reply| E::unwrap(reply).map(|reply| Stamped { stamp, reply });
                    let answer = answer.and_then(|reply| unwrap(reply).ok_or_else(no_answer));
                    answers[index] = Some(answer);
                }
                None => missed.push(index),
            }
        }
        missed
    }
}

/// The places of the requests for which there is no step.
fn others(steps: &[Step], requests: usize) -> Vec<usize> {
    if steps.len() == requests {
        return Vec::new();
    }
    let is_step = |place: &usize| steps.iter().any(|step| step.index == *place);
    (0..requests).filter(|place| !is_step(place)).collect()
}

fn no_answer() -> BackendError {
    BackendError::outcome_unknown("no answer in the batch")
}
