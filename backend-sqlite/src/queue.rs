//! The queue of a process for a file: a thread executes the commands in the order in which they came. So a process asks
//! for SQLite's write lock once at a time, however many tasks it has.

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
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
pub(crate) struct Queue {
    /// `None` once the queue is closed.
    commands: Mutex<Option<SyncSender<Command>>>,
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
                    command(&mut file);
                }
            });
        let no_thread = |error| BackendError::unavailable("no thread").with_source(error);
        started.map_err(no_thread)?;
        let ended = |error| BackendError::unavailable("the thread ended").with_source(error);
        let clock = opening.await.map_err(ended)??;
        let commands = Mutex::new(Some(sender));
        Ok((Self { commands, closed }, clock))
    }

    /// Executes a command after those before it, unless its caller has given up by then.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut LockFile) -> Result<T, BackendError> + Send + 'static,
    ) -> Result<T, BackendError> {
        let (sender, answer) = oneshot::channel();
        let command = Box::new(move |file: &mut LockFile| {
            if !sender.is_closed() {
                drop(sender.send(work(file)));
            }
        });
        let sent = match &*self.lock() {
            Some(commands) => commands.try_send(command),
            None => return Err(BackendError::Closed),
        };
        sent.map_err(|_| BackendError::unavailable("too many commands wait for the disk"))?;
        let ended = |error| BackendError::outcome_unknown("the thread ended").with_source(error);
        answer.await.map_err(ended)?
    }

    /// Closes the file, after the commands that wait.
    pub(crate) async fn close(&self) {
        drop(self.lock().take());
        // An error: the sender was dropped.
        drop(self.closed.clone().changed().await);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<SyncSender<Command>>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
