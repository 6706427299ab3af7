//! A child process that doesn't outlive the test process.

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Waits for the end of its input, then kills the process whose number is its first argument and
/// removes the folder that is its second.
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
    /// Open as long as this process lives; never written to.
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

    /// The exit status, if the process has ended by itself.
    pub(crate) fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal)
            .expect("a child that was not waited for can be signalled");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The watcher ends first: once the child is waited for, its process id may be reused.
        // An error means that the process has already ended.
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
