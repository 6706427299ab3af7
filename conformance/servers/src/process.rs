//! A child process that doesn't outlive the test process.

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A shell script that waits for the end of its input. Then it kills the process with the id in its
/// first argument and removes the folder in its second.
pub(crate) const WATCH: &str = r#"read -r _; kill -9 "$0"; rm -rf -- "$1""#;

/// A running child process, killed with `SIGKILL` when dropped.
///
/// A destructor doesn't run when the test process is killed, nor for a value in a static. So a
/// shell waits for each child on a pipe that only this process holds open. It kills the child
/// and removes the folder when the pipe closes.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    watcher: Child,
    /// Open as long as this process runs. Nothing is written to it.
    _lifeline: ChildStdin,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command, folder: &Path) -> std::io::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let watcher = Command::new("sh")
            .args(["-c", WATCH, &child.id().to_string()])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let watcher = watcher.and_then(|mut watcher| match watcher.stdin.take() {
            Some(lifeline) => Ok((watcher, lifeline)),
            None => Err(std::io::Error::other("the watching shell has no stdin")),
        });
        match watcher {
            Ok((watcher, lifeline)) => Ok(Self {
                child,
                watcher,
                _lifeline: lifeline,
            }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// The exit status, if the process has exited.
    pub(crate) fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal)
            .expect("a child that was not waited for");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Kills the watcher first, because the child's process id may be reused after the wait.
        // An error means that the process has already exited.
        for process in [&mut self.watcher, &mut self.child] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The server program: `LEASEHOLD_REDIS_SERVER`, or `redis-server` on `PATH`.
pub(crate) fn server_program() -> PathBuf {
    std::env::var_os("LEASEHOLD_REDIS_SERVER")
        .filter(|path| !path.is_empty())
        .map_or_else(|| PathBuf::from("redis-server"), PathBuf::from)
}

/// The message for a missing server program.
pub(crate) fn cannot_run(program: &Path, error: &std::io::Error) -> String {
    format!(
        "cannot run the Redis server `{}`: {error}\n\
         These tests need a real server. Run `./test`, which installs one, or \
         `apt-get install redis-server`,\nor set LEASEHOLD_REDIS_SERVER=/path/to/redis-server.",
        program.display()
    )
}
