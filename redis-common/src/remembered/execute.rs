//! Executes batches: by compare-and-set where the state is remembered and still the same, by a script otherwise.

use std::future::Future;

use futures_util::future::join;
use leasehold_api::machine::{Command, Reply};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Key, Moment, Release, ReleaseReply, Renew, RenewReply,
    Stamp, Stamped,
};

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

/// The answer to one request.
pub type Answer<T> = Result<Stamped<T>, BackendError>;

/// What has become of a step.
pub enum Outcome {
    /// The key had this string. The step was executed if it is the remembered one.
    Found(Option<Vec<u8>>),
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
    /// clock, read after they were sent.
    fn compare_and_set(
        &self,
        steps: &[Step],
    ) -> impl Future<Output = Result<(Vec<Outcome>, Stamp), Outcome>> + Send;
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
            false => Vec::new(),
        };
        if steps.iter().all(Option::is_none) {
            return self.run_and_predict(server, scripts, batch).await;
        }
        let (mut direct, mut others) = (Vec::with_capacity(steps.len()), Vec::new());
        for (index, step) in steps.into_iter().enumerate() {
            match step {
                Some(step) => direct.push((index, step)),
                None => others.push(index),
            }
        }
        let direct = self.compare_and_set::<E>(server, direct);
        let (direct, others) = join(direct, self.run_some(server, scripts, batch, others)).await;
        let mut answers: Vec<_> = batch.iter().map(|_| None).collect();
        let mut missed = Vec::new();
        for (index, answer) in direct {
            match answer {
                Some(answer) => answers[index] = Some(answer),
                None => missed.push(index),
            }
        }
        let missed = self.run_some(server, scripts, batch, missed).await;
        for (index, answer) in others.into_iter().chain(missed) {
            answers[index] = Some(answer);
        }
        let unanswered = || Err(BackendError::outcome_unknown("no answer in the batch"));
        let answered = answers.into_iter().map(|it| it.unwrap_or_else(unanswered));
        answered.collect()
    }

    /// Executes some requests of a batch by a script.
    async fn run_some<E: Predictable>(
        &self,
        server: &impl Server,
        scripts: &impl Scripts<E>,
        batch: &[E],
        indices: Vec<usize>,
    ) -> Vec<(usize, Answer<E::Reply>)> {
        if indices.is_empty() {
            return Vec::new();
        }
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

    /// Sends the steps. A request without an answer was not executed.
    async fn compare_and_set<E: Predictable>(
        &self,
        server: &impl Server,
        steps: Vec<(usize, Step)>,
    ) -> Vec<(usize, Option<Answer<E::Reply>>)> {
        let sent = server.now();
        let (indices, steps): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        let (outcomes, stamp) = match server.compare_and_set(&steps).await {
            Ok(compared) => compared,
            Err(outcome) => {
                let answer = || match &outcome {
                    Outcome::Unknown(error) => Some(Err(error.clone())),
                    Outcome::NotExecuted | Outcome::Found(_) => None,
                };
                return indices.into_iter().map(|index| (index, answer())).collect();
            }
        };
        let exchange = Exchange {
            sent,
            received: server.now(),
        };
        let answers = steps
            .into_iter()
            .zip(outcomes)
            .map(|(step, outcome)| match outcome {
                Outcome::Unknown(error) => Some(Err(error)),
                Outcome::NotExecuted => {
                    self.refused(step, exchange.received);
                    None
                }
                Outcome::Found(found) => {
                    let Stamped { stamp, reply } = self.finish(step, found, stamp, exchange)?;
                    E::unwrap(reply).map(|reply| Ok(Stamped { stamp, reply }))
                }
            });
        indices.into_iter().zip(answers).collect()
    }
}
