//! The queue of a process for a file: a thread executes the commands in the order in which they came. So a process asks
//! for SQLite's write lock once at a time, however many tasks it has. Renewals pass all others: a process that waits for many locks
//! would renew its own too late.

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use leasehold_api::{BackendError, TokioRuntime};
use tokio::sync::{oneshot, watch};

use crate::clock::Clock;
use crate::file::LockFile;

/// A queue that is as long belongs to a disk that stands still. Callers give up long before.
const LONGEST: usize = 10_000;

type Command = Box<dyn FnOnce(&mut LockFile) + Send>;

#[derive(Debug)]
struct Senders {
    commands: SyncSender<Command>,
    renewals: SyncSender<Command>,
}

impl Senders {
    fn send(&self, is_renewal: bool, command: Command) -> Result<(), TrySendError<Command>> {
        if !is_renewal {
            return self.commands.try_send(command);
        }
        self.renewals.try_send(command)?;
        // The thread looks for renewals when it gets a command. If the queue is full, it gets one in any case.
        let _ = self.commands.try_send(Box::new(|_| ()));
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Queue {
    /// `None` once the queue is closed.
    senders: Mutex<Option<Senders>>,
    /// Its sender is dropped when the file is closed.
    closed: watch::Receiver<()>,
}

impl Queue {
    /// Opens a file. The thread ends when the queue is closed or dropped.
    pub(crate) async fn open(
        path: PathBuf,
        runtime: TokioRuntime,
    ) -> Result<(Self, Clock), BackendError> {
        let (sender, commands) = sync_channel::<Command>(LONGEST);
        let (renewing, renewals) = sync_channel::<Command>(LONGEST);
        let (opened, opening) = oneshot::channel();
        let (open, closed) = watch::channel(());
        let started = thread::Builder::new()
            .name("leasehold-sqlite".into())
            .spawn(move || {
                let _open = open;
                let mut file = match LockFile::open(&path, &runtime) {
                    Ok(file) => file,
                    Err(error) => return drop(opened.send(Err(error))),
                };
                drop(opened.send(Ok(file.clock.clone())));
                for command in commands {
                    renewals.try_iter().for_each(|renew| renew(&mut file));
                    command(&mut file);
                }
            });
        let no_thread = |error| BackendError::unavailable("no thread").with_source(error);
        started.map_err(no_thread)?;
        let ended = |error| BackendError::unavailable("the thread ended").with_source(error);
        let clock = opening.await.map_err(ended)??;
        let senders = Mutex::new(Some(Senders {
            commands: sender,
            renewals: renewing,
        }));
        Ok((Self { senders, closed }, clock))
    }

    /// Executes a command after those before it, or a renewal before all of them, unless its caller has given up by then.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        is_renewal: bool,
        work: impl FnOnce(&mut LockFile) -> Result<T, BackendError> + Send + 'static,
    ) -> Result<T, BackendError> {
        let (sender, answer) = oneshot::channel();
        let command = Box::new(move |file: &mut LockFile| {
            if !sender.is_closed() {
                drop(sender.send(file.check_paths().and_then(|()| work(file))));
            }
        });
        let sent = match &*self.lock() {
            Some(senders) => senders.send(is_renewal, command),
            None => return Err(BackendError::Closed),
        };
        sent.map_err(|error| match error {
            TrySendError::Full(_) => {
                BackendError::unavailable("too many commands wait for the disk")
            }
            TrySendError::Disconnected(_) => BackendError::unavailable("the thread ended"),
        })?;
        let ended = |error| BackendError::outcome_unknown("the thread ended").with_source(error);
        answer.await.map_err(ended)?
    }

    /// Closes the file, after the commands that wait.
    pub(crate) async fn close(&self) {
        drop(self.lock().take());
        // An error: the sender was dropped.
        drop(self.closed.clone().changed().await);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Senders>> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_refuses_no_renewal() {
        let (commands, _waiting) = sync_channel(1);
        let (renewals, _renewing) = sync_channel(1);
        let senders = Senders { commands, renewals };
        let send = |is_renewal| senders.send(is_renewal, Box::new(|_| ()));
        send(false).expect("room for one");
        assert!(matches!(send(false), Err(TrySendError::Full(_))));
        send(true).expect("renewals have a queue of their own");
    }

    #[tokio::test]
    async fn renewals_pass_other_commands() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("locks.db");
        let opened = Queue::open(path, TokioRuntime::current()).await;
        let (queue, _) = opened.expect("a new file");
        let (go, wait) = std::sync::mpsc::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let note = async |what: &'static str, is_renewal| {
            let tell = tell.clone();
            let ran = queue.run(is_renewal, move |_| {
                tell.send(what).expect("the test listens");
                Ok(())
            });
            ran.await.expect("executed");
        };
        let slow = queue.run(false, move |_| {
            wait.recv().expect("it goes on");
            Ok(())
        });
        let let_go = async { go.send(()).expect("it waits") };
        // Polled in this order, so queued in this order.
        let (slow, ..) = tokio::join!(
            biased;
            slow,
            note("first", false),
            note("second", false),
            note("renewal", true),
            let_go
        );
        slow.expect("executed");
        let order: Vec<_> = told.try_iter().collect();
        assert_eq!(order, ["renewal", "first", "second"]);
    }
}
