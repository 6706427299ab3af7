//! The adapters of jobs that run once, and of elections.
//!
//! The controller asks for an occurrence as the key `NAME@FIRE`. The client holds it while the body runs, and its
//! release is answered with `held` if the occurrence was recorded as done. A term of an election is a lock that the
//! leader holds.

use std::time::Duration;

use leasehold::{Error, FireTime, Job, JobOutcome, LockClient, MutexGuard, Occurrence, Term};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Adapter, serve};
use crate::Failure;
use crate::adapter::leasehold::{Backend, connect, was_held};
use crate::protocol::Acquire;

/// What a lock is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Job,
    Election,
    /// A plain lock in place of a job: a machine whose timer fires late runs the occurrence again. It must be
    /// convicted.
    LockAsJob,
}

/// How long a try, and the end of an occurrence, may take.
const TRY: Duration = Duration::from_secs(4);
/// Long enough for a second attempt.
const WINDOW: Duration = Duration::from_secs(90);

pub(crate) async fn run(
    backend: Backend,
    work: Work,
    lease: Duration,
    urls: &[String],
) -> Result<(), Failure> {
    let locks = LockClient::new(connect(backend, urls, lease).await?);
    match work {
        Work::Election => serve(Elections { locks }).await,
        Work::Job | Work::LockAsJob => {
            let as_lock = work == Work::LockAsJob;
            serve(Jobs { locks, as_lock }).await
        }
    }
}

struct Jobs {
    locks: LockClient,
    /// Whether a plain lock takes the place of each job.
    as_lock: bool,
}

type Ran = Result<JobOutcome<(), &'static str>, Error>;

enum Held {
    Job(Running),
    Lock(MutexGuard),
}

/// A body that runs.
struct Running {
    job: Job,
    end: oneshot::Sender<()>,
    task: JoinHandle<Ran>,
}

impl Jobs {
    /// Starts the occurrence if it may start within this time.
    async fn start(&self, occurrence: Occurrence, wait: Duration) -> Result<Option<Held>, Failure> {
        let (begun, mut begins) = mpsc::channel(1);
        let body = move |job: Job| {
            let begun = begun.clone();
            async move {
                let (end, ended) = oneshot::channel();
                let asked = begun.send((job, end)).await.is_ok();
                // Nobody has asked for a second attempt.
                if asked && ended.await.is_ok() {
                    Ok(())
                } else {
                    Err("nobody waits for this body")
                }
            }
        };
        let mut task = tokio::spawn(async move {
            match wait.is_zero() {
                true => occurrence.try_run(body).await,
                false => occurrence.run(body).await,
            }
        });
        let limit = if wait.is_zero() { TRY } else { wait };
        tokio::select! {
            biased;
            Some((job, end)) = begins.recv() => Ok(Some(Held::Job(Running { job, end, task }))),
            ended = &mut task => ended?.map(|_| None).map_err(Failure::from),
            () = sleep(limit) => {
                task.abort();
                Ok(None)
            }
        }
    }
}

impl Adapter for Jobs {
    type Held = Held;

    async fn acquire(&self, ask: &Acquire) -> Result<Option<Held>, Failure> {
        let occurrence = ask.key.split_once('@');
        let name = occurrence.map_or(&*ask.key, |(name, _)| name);
        let Some((_, fire)) = occurrence.filter(|_| !self.as_lock) else {
            // Without a fire time, at the end of a run: is the lock of the job free?
            let mutex = self.locks.mutex(name)?.lease(ask.lease());
            let outcome = mutex.try_lock_for(ask.wait()).await?;
            return Ok(outcome.into_guard().map(Held::Lock));
        };
        let fire = FireTime::from_millis(fire.parse()?);
        let job = self.locks.once(name)?.lease(ask.lease());
        let occurrence = job.at(fire).start_before(WINDOW);
        self.start(occurrence, ask.wait()).await
    }

    fn token(&self, held: &Held) -> Option<u64> {
        Some(match held {
            Held::Job(running) => running.job.fencing_token().get(),
            Held::Lock(guard) => guard.fencing_token().get(),
        })
    }

    async fn check(&self, held: &Held) -> Result<bool, Failure> {
        Ok(match held {
            Held::Job(running) => !running.task.is_finished() && running.job.guard().is_valid(),
            Held::Lock(guard) => guard.is_valid(),
        })
    }

    async fn release(&self, held: Held) -> Result<bool, Failure> {
        let Running { end, mut task, job } = match held {
            Held::Lock(guard) => return Ok(was_held(guard.release().await)?),
            Held::Job(running) => running,
        };
        drop(job);
        // An error means that the body was dropped because its lock was lost.
        let _ = end.send(());
        let ended = timeout(TRY, &mut task).await;
        task.abort();
        Ok(matches!(ended, Ok(Ok(Ok(JobOutcome::Done(()))))))
    }
}

struct Elections {
    locks: LockClient,
}

impl Adapter for Elections {
    type Held = Term;

    async fn acquire(&self, ask: &Acquire) -> Result<Option<Term>, Failure> {
        let election = self.locks.election(&*ask.key)?.lease(ask.lease());
        let election = election.info(std::process::id().to_string())?;
        // A candidate that gives up leaves the queue.
        let wait = ask.wait().max(Duration::from_millis(100));
        match timeout(wait, election.campaign()).await {
            Ok(term) => Ok(Some(term?)),
            Err(_) => Ok(None),
        }
    }

    fn token(&self, term: &Term) -> Option<u64> {
        Some(term.number().get())
    }

    async fn check(&self, term: &Term) -> Result<bool, Failure> {
        Ok(term.is_leader())
    }

    async fn release(&self, term: Term) -> Result<bool, Failure> {
        Ok(was_held(term.resign().await)?)
    }
}
