//! The command under test, and what can be seen of its processes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use leasehold::inspect::Inspection;
use leasehold::{
    ConnectOptions, ForceMode, ForceReply, LockClient, MutexGuard, Outcome, RedisLibrary,
};
use leasehold_test_servers::{Stopwatch, block_until};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag::register_conditional_shutdown;
use tempfile::TempDir;

/// Longer than anything takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(90);
/// The lease of most scenarios.
pub(crate) const LEASE: Duration = Duration::from_secs(6);
/// Short times for `LEASE`.
pub(crate) const TIMES: [&str; 4] = ["--lease", "6s", "--kill-after", "1s"];

/// Ignores everything that can be ignored.
pub(crate) const STUBBORN: &str = "trap '' HUP INT QUIT TERM; while :; do sleep 0.1; done";

/// A lock service, and a key that no other scenario uses.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) key: String,
    folder: TempDir,
}

impl Place {
    pub(crate) fn new(url: &str, key: &str) -> Self {
        Self {
            url: url.to_owned(),
            key: key.to_owned(),
            folder: TempDir::new().expect("a temporary folder"),
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `leasehold run OPTIONS KEY -- sh -c SCRIPT`, in the folder of the scenario.
    pub(crate) fn run(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.leasehold();
        command.arg("run").args(options).arg(&self.key);
        command.args(["--", "sh", "-c", script]);
        command
    }

    pub(crate) fn leasehold(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.env("LEASEHOLD_URL", &self.url);
        command.current_dir(self.folder.path());
        command.stdin(Stdio::null());
        command
    }

    /// Runs the command to its end. Returns the exit status.
    pub(crate) fn status(&self, options: &[&str], script: &str) -> i32 {
        status_of(self.run(options, script))
    }

    /// The command `run` as another one starts it.
    pub(crate) fn through(&self, mut outer: Command, run: &Command) -> Started {
        outer.arg(run.get_program()).args(run.get_args());
        outer.env("LEASEHOLD_URL", &self.url);
        outer.current_dir(self.folder.path());
        Started::new(outer)
    }

    /// Starts the command, and waits until CMD runs. The script begins with [`HELLO`].
    pub(crate) fn start(&self, options: &[&str], script: &str) -> Started {
        self.start_with(&[options, &TIMES].concat(), script)
    }

    /// The same with other times.
    pub(crate) fn start_with(&self, options: &[&str], script: &str) -> Started {
        let command = self.run(options, &format!("{HELLO} {script}"));
        let mut started = Started::new(command);
        self.until_cmd_runs(&mut started);
        started
    }

    /// Waits until CMD runs, another one than before.
    pub(crate) fn until_cmd_runs(&self, started: &mut Started) {
        let before = started.group;
        block_until("CMD runs", || {
            let ended = started.has_ended();
            assert!(!ended, "{:?}", started.end());
            started.group = self.group_in_file();
            started.group.is_some() && started.group != before
        });
    }

    /// The process group that the script wrote down.
    pub(crate) fn group_in_file(&self) -> Option<i32> {
        let text = std::fs::read_to_string(self.file("group")).unwrap_or_default();
        text.strip_suffix('\n')?.parse().ok()
    }

    /// Another client of the lock service.
    pub(crate) fn client(&self) -> Client {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        // A busy disk may need longer than the default.
        let options = ConnectOptions::new().call_timeout(Duration::from_secs(5));
        let options = options.redis_library(RedisLibrary::RedisRs);
        let locks = runtime.block_on(options.connect(&self.url));
        Client {
            locks: locks.expect("the service is there"),
            runtime,
            key: self.key.clone(),
        }
    }
}

/// The start of a script: it writes down its process id, which is that of the group.
pub(crate) const HELLO: &str = "echo $$ > group;";

pub(crate) struct Client {
    pub(crate) locks: LockClient,
    pub(crate) runtime: tokio::runtime::Runtime,
    key: String,
}

impl Client {
    /// Acquires the lock, which is free.
    pub(crate) fn lock(&self) -> MutexGuard {
        let mutex = self.locks.mutex(&self.key).expect("a key");
        self.runtime.block_on(mutex.lock()).expect("free")
    }

    /// Waits until the lock is free. Checks that no process of the group is alive then.
    pub(crate) fn expect_free(&self, group: i32) {
        let began = Instant::now();
        let mutex = self.locks.mutex(&self.key).expect("a key");
        let outcome = self.runtime.block_on(mutex.try_lock_for(LONG));
        let alive = alive_in(group);
        let waited = began.elapsed();
        let guard = match outcome.expect("the service works") {
            Outcome::Acquired(guard) => guard,
            contended => panic!("not free after {waited:?}: {contended:?}"),
        };
        assert_eq!(alive, [0; 0], "processes of CMD when the lock was free");
        self.runtime.block_on(guard.release()).expect("released");
    }

    /// Takes the lock away from its holder, as an operator.
    pub(crate) fn force_release(&self, mode: ForceMode) {
        let tokens = self.inspect().held_tokens();
        let forced = self.locks.force_release(&self.key, tokens, mode);
        let forced = self.runtime.block_on(forced).expect("a reply");
        assert!(matches!(forced, ForceReply::Forced { .. }), "{forced:?}");
    }

    fn inspect(&self) -> Inspection {
        let inspection = self.runtime.block_on(self.locks.inspect(&self.key));
        inspection.expect("the service works")
    }

    /// Whether somebody has the lock.
    pub(crate) fn is_held(&self) -> bool {
        self.inspect().is_held()
    }

    pub(crate) fn waiters(&self) -> u32 {
        self.inspect().waiter_count()
    }
}

/// A running command. Dropping it kills it, and its keeper then kills CMD.
pub(crate) struct Started {
    child: Child,
    /// What was printed to standard error. It is a file, because a process that is left behind would keep a
    /// pipe open.
    text: File,
    /// The process group of CMD.
    pub(crate) group: Option<i32>,
}

impl Started {
    pub(crate) fn new(mut command: Command) -> Self {
        handle_signals();
        let text = tempfile::tempfile().expect("a temporary file");
        command.stderr(text.try_clone().expect("a copy"));
        let child = command.spawn().expect("the command starts");
        Self {
            child,
            text,
            group: None,
        }
    }

    pub(crate) fn group(&self) -> i32 {
        self.group.expect("CMD runs")
    }

    pub(crate) fn id(&self) -> i32 {
        Pid::from_child(&self.child).as_raw_pid()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.id(), signal);
    }

    /// The process id of the keeper.
    pub(crate) fn keeper(&self) -> i32 {
        self.child_with("__keep")
    }

    /// The process id of a child with this in its command line.
    pub(crate) fn child_with(&self, text: &str) -> i32 {
        child_of(self.id(), text)
    }

    /// Waits until all processes of CMD are stopped, or all run.
    pub(crate) fn until_stopped(&self, stopped: bool) {
        block_until("CMD is stopped, or continued", || {
            let all = processes();
            let mut group = all.iter().filter(|it| it.group == self.group());
            group.all(|it| (it.state == b'T') == stopped)
        });
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// Waits for the end. Returns the status, and what was printed.
    pub(crate) fn end(&mut self) -> (ExitStatus, String) {
        block_until("the command ends", || self.has_ended());
        let status = self.child.wait().expect("a child");
        (status, self.printed())
    }

    /// What it has printed to standard error so far.
    pub(crate) fn printed(&self) -> String {
        // The command shares the position of the file.
        let mut bytes = vec![0; 64 * 1_024];
        let read = self.text.read_at(&mut bytes, 0).expect("a file");
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }

    /// Waits for the end with this exit status.
    pub(crate) fn expect_status(&mut self, expected: i32) -> String {
        let (status, text) = self.end();
        assert_eq!(status.code(), Some(expected), "{status}: {text}");
        text
    }

    /// Waits until no process of CMD is alive: before the lease ends, of which the last renewal was before now.
    /// Returns how long it took.
    pub(crate) fn expect_dead_before_the_lease_ends(&self) -> Duration {
        let began = Stopwatch::start();
        block_until("CMD is killed", || alive_in(self.group()).is_empty());
        let waited = began.elapsed();
        assert!(waited < LEASE, "{waited:?}");
        waited
    }

    /// Waits for the end by this signal.
    pub(crate) fn expect_signal(&mut self, expected: Signal) {
        // `sh -c` catches SIGINT. It misses one that arrives just before it starts a program.
        let mut sent = Instant::now();
        block_until("the command ends", || {
            if expected == Signal::INT && sent.elapsed() > Duration::from_secs(1) {
                self.signal(Signal::INT);
                sent = Instant::now();
            }
            self.has_ended()
        });
        let (status, text) = self.end();
        assert_eq!(status.signal(), Some(expected.as_raw()), "{status}: {text}");
    }
}

/// Runs a command to its end. Returns the exit status.
pub(crate) fn status_of(command: Command) -> i32 {
    let (status, text) = Started::new(command).end();
    status.code().unwrap_or_else(|| panic!("{status}: {text}"))
}

/// The tests may run under `nohup`, or in the background of a script, which ignore signals. What a process ignores, its
/// children ignore too; what it handles, they don't.
fn handle_signals() {
    static HANDLED: std::sync::Once = std::sync::Once::new();
    HANDLED.call_once(|| {
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            let always = Arc::new(AtomicBool::new(true));
            register_conditional_shutdown(signal, 128 + signal, always).expect("a handler");
        }
    });
}

impl Drop for Started {
    fn drop(&mut self) {
        // A stopped keeper or a stopped CMD would stay.
        if !self.has_ended() {
            for process in processes() {
                if process.parent == self.id() {
                    kill(process.id, Signal::KILL);
                }
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(group) = self.group {
            for id in alive_in(group) {
                kill(id, Signal::KILL);
            }
        }
    }
}

/// The process id of a child with this in its command line.
pub(crate) fn child_of(parent: i32, text: &str) -> i32 {
    let mut found = None;
    block_until("a child runs", || {
        found = processes().into_iter().find(|it| {
            let path = format!("/proc/{}/cmdline", it.id);
            let line = std::fs::read(path).unwrap_or_default();
            it.parent == parent && String::from_utf8_lossy(&line).contains(text)
        });
        found.is_some()
    });
    found.expect("waited for it").id
}

pub(crate) fn kill(id: i32, signal: Signal) {
    if let Some(id) = Pid::from_raw(id) {
        let _ = kill_process(id, signal);
    }
}

pub(crate) struct Process {
    pub(crate) id: i32,
    parent: i32,
    group: i32,
    state: u8,
}

/// All processes of the machine.
fn processes() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").expect("Linux").flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    ids.filter_map(|id| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        Some(Process {
            id,
            state: fields.next()?.bytes().next()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
        })
    })
    .collect()
}

/// The processes of a group that are not zombies.
pub(crate) fn alive_in(group: i32) -> Vec<i32> {
    let alive = |it: &Process| it.group == group && !matches!(it.state, b'Z' | b'X');
    let of_group = processes().into_iter().filter(alive);
    of_group.map(|it| it.id).collect()
}
