//! A child process that doesn't outlive the test process.

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A shell script that waits for the end of its input. Then it kills the process with the id in its
/// first argument and removes the folders in the others.
pub(crate) const WATCH: &str = r#"read -r _; kill -9 "$0"; rm -rf -- "$@""#;
/// The same without a process.
const REMOVE: &str = r#"read -r _; rm -rf -- "$@""#;

/// A shell that runs a script when this process ends, even if it is killed.
///
/// The shell waits on a pipe that only this process holds open. Dropping this value kills the shell, and
/// the script doesn't run.
#[derive(Debug)]
struct Watcher {
    shell: Child,
    /// Open as long as this process runs. Nothing is written to it.
    _lifeline: ChildStdin,
}

impl Watcher {
    fn spawn(script: &str, first: &str, folders: &[&Path]) -> std::io::Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", script, first])
            .args(folders)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        match shell.stdin.take() {
            Some(lifeline) => Ok(Self {
                shell,
                _lifeline: lifeline,
            }),
            None => Err(std::io::Error::other("the watching shell has no stdin")),
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // An error means that the shell has already exited.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
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
        // If another thread than the main one drops this value, the program may exit between any two of
        // these lines. So kill the child first, while the watcher would still do it. Wait for the child last:
        // after that, its process id may belong to another process. An error means that the process has
        // already exited.
        let _ = self.child.kill();
        let _ = self.watcher.shell.kill();
        let _ = self.watcher.shell.wait();
        let _ = self.child.wait();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the test program exit while a thread drops a process, after this many microseconds.
    const EXIT_AFTER: &str = "LEASEHOLD_TEST_EXIT_AFTER_US";

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
        std::thread::sleep(std::time::Duration::from_micros(micros));
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
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while is_running(&id) && std::time::Instant::now() < deadline {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            if is_running(&id) {
                left.push(micros);
                let _ = Command::new("kill").args(["-9", &id]).status();
                break;
            }
        }
        assert!(left.is_empty(), "left behind after {left:?} µs");
    }
}
