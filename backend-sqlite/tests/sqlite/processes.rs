//! Several processes, of which some are killed.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use leasehold_api::{FencingToken, bounds};
use leasehold_sqlite::{Options, SqliteBackend};
use leasehold_test_servers::eventually;

use crate::{Folder, SLACK, patient};

/// What a child does: `ROLE KEY ROUNDS`, on the file in [`FILE`].
const ROLE: &str = "LEASEHOLD_SQLITE_ROLE";
const FILE: &str = "LEASEHOLD_SQLITE_FOLDER";

/// A process of its own.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(folder: &Folder, role: &str) -> Self {
        let tests = std::env::current_exe().expect("a path");
        Self::start_as(Command::new(tests), folder, role)
    }

    fn start_as(mut command: Command, folder: &Folder, role: &str) -> Self {
        let mut child = command
            .args(["--ignored", "--exact", "--nocapture", "processes::child"])
            .env(ROLE, role)
            .env(FILE, folder.file())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    /// The next fencing token that the process got. `None` at its end.
    fn token(&mut self) -> Option<u64> {
        let mut lines = self.lines.by_ref().map(|line| line.expect("text"));
        lines.find_map(|line| Some(line.strip_prefix("token ")?.parse().expect("a number")))
    }

    /// The tokens until the end of the process.
    fn tokens(mut self) -> Vec<u64> {
        let tokens = std::iter::from_fn(|| self.token()).collect();
        assert!(self.child.wait().expect("ended").success());
        tokens
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes a lock some times. In the role `hold`, keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other tests run it in processes of their own"]
async fn child() {
    let role = std::env::var(ROLE).expect("set");
    let [role, key, rounds] = role.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{role}");
    };
    let path = std::env::var_os(FILE).expect("set");
    let options = Options::new().call_timeout(bounds::MAX_CALL_TIMEOUT);
    let backend = SqliteBackend::open_with(path, options).await;
    let locks = patient(backend.expect("opened"));
    let mutex = locks
        .mutex(key)
        .expect("a key")
        .lease(Duration::from_secs(6));
    for _ in 0..rounds.parse().expect("a number") {
        let guard = mutex.lock().await.expect("the file works");
        println!("\ntoken {}", guard.fencing_token());
        if role == "hold" {
            std::future::pending::<()>().await;
        }
        guard.release().await.expect("released");
    }
    locks.shutdown().await.expect("shut down");
}

#[tokio::test]
async fn lock_of_a_killed_process_is_free_after_its_lease() {
    let folder = Folder::new();
    let mut holder = Process::start(&folder, "hold k 1");
    let first = holder.token().expect("free");
    let locks = folder.locks().await;
    let mutex = locks.mutex("k").expect("a key");
    // Its lease is 6 s. Long after that, it is still held, because it is renewed.
    let waited = mutex.try_lock_for(Duration::from_secs(10)).await;
    assert!(!waited.expect("an answer").is_acquired());
    holder.child.kill().expect("killed");
    let next = mutex.try_lock_for(SLACK).await.expect("an answer");
    let next = next.into_guard().expect("free after the lease");
    assert!(next.fencing_token() > FencingToken::new(first));
}

/// The processes create the file.
#[test]
fn processes_open_a_new_file_at_once() {
    let folder = Folder::new();
    let starting = (0..8).map(|n| Process::start(&folder, &format!("pairs {n} 3")));
    for process in starting.collect::<Vec<_>>() {
        assert_eq!(process.tokens().len(), 3);
    }
}

/// First come, first served: each gets the lock as often as the others, while all of them want it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_take_turns() {
    const ROUNDS: usize = 20;
    let folder = Folder::new();
    let locks = folder.locks().await;
    let guard = locks.mutex("k").expect("a key").lock().await.expect("free");
    let starting = (0..4).map(|_| Process::start(&folder, &format!("pairs k {ROUNDS}")));
    let processes: Vec<_> = starting.collect();
    eventually("all wait", async || {
        locks.inspect("k").await.expect("an answer").waiter_count() == 4
    })
    .await;
    guard.release().await.expect("released");
    let counts = counts_together(processes);
    println!("while all of them wanted it: {counts:?}");
    // A process that a busy machine stalls comes late, and misses a turn.
    assert!(
        counts.iter().all(|count| count * 3 > ROUNDS * 2),
        "{counts:?}"
    );
}

/// The processes use different keys, and write as fast as they can. SQLite has one write lock for all.
#[test]
fn no_process_starves_another_one() {
    const ROUNDS: usize = 150;
    let folder = Folder::new();
    let starting = (0..4).map(|n| Process::start(&folder, &format!("pairs {n} {ROUNDS}")));
    let counts = counts_together(starting.collect());
    println!("while all of them ran: {counts:?}");
    let (fewest, most) = (counts.iter().min(), counts.iter().max());
    assert!(
        fewest.expect("four") * 2 > *most.expect("four"),
        "{counts:?}"
    );
}

/// How often each process had a lock, from when the last one has begun until the first one has ended. Tokens are times.
fn counts_together(processes: Vec<Process>) -> Vec<usize> {
    let tokens: Vec<_> = processes.into_iter().map(Process::tokens).collect();
    let begun = tokens
        .iter()
        .filter_map(|it| it.first())
        .max()
        .expect("some");
    let ended = tokens
        .iter()
        .filter_map(|it| it.last())
        .min()
        .expect("some");
    let within = |it: &Vec<u64>| it.iter().filter(|it| (begun..=ended).contains(it)).count();
    tokens.iter().map(within).collect()
}

/// Otherwise a loss of power loses locks.
#[test]
fn each_commit_is_on_the_disk() {
    const ROUNDS: usize = 20;
    let folder = Folder::new();
    let trace = folder.0.path().join("trace");
    let program = std::env::var_os("LEASEHOLD_STRACE");
    let mut strace = Command::new(program.unwrap_or_else(|| "strace".into()));
    strace.args(["-f", "-e", "trace=fsync,fdatasync", "-o"]);
    strace
        .arg(&trace)
        .arg(std::env::current_exe().expect("a path"));
    let process = Process::start_as(strace, &folder, &format!("pairs k {ROUNDS}"));
    assert_eq!(process.tokens().len(), ROUNDS);
    let text = std::fs::read_to_string(trace).expect("written");
    let syncs = text
        .lines()
        .filter(|line| line.contains("sync") && line.ends_with("= 0"));
    assert!(syncs.count() >= 2 * ROUNDS, "{text}");
}
