//! A child process that doesn't outlive the test process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::waiting::{block_until, within};

/// The maximum time of a change of several servers, such as a failover or their start, on a busy machine.
pub(crate) const CHANGE_WITHIN: Duration = Duration::from_secs(60);

/// A shell script that waits for the end of its input. Then it kills the process with the id in its
/// first argument and removes the folders in the others.
const WATCH: &str = r#"read -r _; kill -9 "$0"; rm -rf -- "$@""#;
/// The same without a process.
const REMOVE: &str = r#"read -r _; rm -rf -- "$@""#;

/// A shell that runs a script when this process ends, even if it is killed.
///
/// The shell waits on a pipe that only this process holds open: its input, to which nothing is written.
/// Dropping this value kills the shell, and the script doesn't run.
#[derive(Debug)]
struct Watcher(Child);

impl Watcher {
    fn spawn(script: &str, first: &str, folders: &[&Path]) -> std::io::Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", script, first])
            .args(folders)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self(shell))
    }

    fn end(&mut self) {
        // To wait closes its input, so it is killed before. An error means that it has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.end();
    }
}

/// A temporary folder that is removed when this process ends, or when the value is dropped. So it may be
/// kept in a static, whose destructor doesn't run.
#[derive(Debug)]
pub(crate) struct StaticFolder {
    // Dropped in this order: the shell finds nothing to remove.
    folder: TempDir,
    _watcher: Watcher,
}

impl StaticFolder {
    pub(crate) fn new(folder: TempDir) -> std::io::Result<Self> {
        let watcher = Watcher::spawn(REMOVE, "sh", &[folder.path()])?;
        Ok(Self {
            folder,
            _watcher: watcher,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A running child process, killed with `SIGKILL` when dropped.
///
/// A destructor doesn't run when the test process is killed, nor for a value in a static. Then a shell
/// kills the child and removes its folders.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    watcher: Watcher,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command, folders: &[&Path]) -> std::io::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        match Watcher::spawn(WATCH, &child.id().to_string(), folders) {
            Ok(watcher) => Ok(Self { child, watcher }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Waits until it is ready. If it ends before, or takes longer than this, returns its state.
    pub(crate) fn wait_until(
        &mut self,
        is_ready: impl Fn() -> bool,
        limit: Duration,
    ) -> Result<(), Option<ExitStatus>> {
        let mut ended = None;
        let mut ready = false;
        within(limit, || {
            ready = is_ready();
            ended = self.ended().expect("the state of a child");
            ready || ended.is_some()
        });
        if ready { Ok(()) } else { Err(ended) }
    }

    /// The exit status, if the process has exited.
    pub(crate) fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal)
            .expect("a child that was not waited for");
        if signal == Signal::STOP {
            // Threads go on until one of them takes the signal, which takes a busy machine a while.
            block_until("it has stopped", || self.has_stopped());
        }
    }

    /// Whether none of its threads runs. The state of each follows its name, which is in brackets.
    fn has_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        threads.into_iter().flatten().flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat"));
            stat.map_or(true, |it| {
                it.rsplit(") ")
                    .next()
                    .is_some_and(|it| it.starts_with(['T', 'Z', 'X']))
            })
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // If another thread than the main one drops this value, the program may exit between any two of
        // these lines. So kill the child first, while the watcher would still do it. Wait for the child last:
        // after that, its process id may belong to another process. An error means that the process has
        // already exited.
        let _ = self.child.kill();
        self.watcher.end();
        let _ = self.child.wait();
    }
}

/// The path in a variable of the environment, unless that is empty.
pub(crate) fn path_in(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty());
    path.map(PathBuf::from)
}

/// The first folder of `PATH` that has this program.
pub(crate) fn folder_on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).find(|folder| folder.join(program).exists())
}

/// The server program: `LEASEHOLD_REDIS_SERVER`, or `redis-server` on `PATH`.
pub(crate) fn server_program() -> PathBuf {
    path_in("LEASEHOLD_REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watcher_kills_the_server_after_its_test_process() {
        let folder = tempfile::tempdir().expect("a folder").keep();
        let mut process =
            Process::spawn(Command::new("sleep").arg("60"), &[&folder]).expect("sleep runs");
        // Closes only the pipe, because this process can't be killed.
        drop(process.watcher.0.stdin.take());
        assert!(!process.child.wait().expect("an exit status").success());
        process.watcher.0.wait().expect("an exit status");
        assert!(!folder.exists(), "the folder is removed");
    }

    /// Makes the test program exit while a thread drops a process, after this many microseconds.
    const EXIT_AFTER: &str = "LEASEHOLD_TEST_EXIT_AFTER_US";

    #[expect(clippy::disallowed_methods, reason = "it exits at any moment")]
    fn exit_while_a_thread_drops(micros: u64) -> ! {
        let folder = tempfile::tempdir().expect("a folder").keep();
        let process =
            Process::spawn(Command::new("sleep").arg("60"), &[&folder]).expect("sleep runs");
        println!("sleep={}", process.child.id());
        let (begins, begun) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            begins.send(()).expect("the main thread waits");
            drop(process);
        });
        begun.recv().expect("the thread has begun");
        std::thread::sleep(Duration::from_micros(micros));
        std::process::exit(0)
    }

    fn is_running(id: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.contains("(sleep)") && !stat.contains(") Z ")
    }

    #[test]
    fn nothing_outlives_a_program_that_exits_during_a_drop() {
        if let Ok(micros) = std::env::var(EXIT_AFTER) {
            exit_while_a_thread_drops(micros.parse().expect("a number"));
        }
        let name = "process::tests::nothing_outlives_a_program_that_exits_during_a_drop";
        let folder = tempfile::tempdir().expect("a folder");
        let mut left = Vec::new();
        for micros in (0..40).map(|step| step * 50) {
            let output = Command::new(std::env::current_exe().expect("a path"))
                .args(["--exact", name, "--nocapture"])
                .env(EXIT_AFTER, micros.to_string())
                .env("TMPDIR", folder.path())
                .output()
                .expect("the test program runs");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let (_, id) = text.split_once("sleep=").expect("an id");
            let id: String = id.chars().take_while(char::is_ascii_digit).collect();
            // The watcher may need a moment to notice the exit.
            if !within(Duration::from_secs(30), || !is_running(&id)) {
                left.push(micros);
                let _ = Command::new("kill").args(["-9", &id]).status();
                break;
            }
        }
        assert!(left.is_empty(), "left behind after {left:?} µs");
    }
}
