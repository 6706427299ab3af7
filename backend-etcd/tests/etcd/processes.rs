//! Processes that share a lock, are killed, and lose their server for a while.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use leasehold_test_servers::{EtcdServer, Stopwatch, block_until};

use super::{SLACK, connect, patient};

const LEASE: Duration = Duration::from_secs(3);
/// A lease after a survivor has seen it, and three polls.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(3 + 3);
const WORKERS: usize = 4;
/// The URL and the file of a worker.
const WORKER: &str = "LEASEHOLD_ETCD_WORKER";
const NAME: &str = "processes::one_holds_it_whoever_dies";

/// A moment at which a process held the lock: its token, the process, and the clock of this machine in µs.
type Line = (u64, u32, u128);

/// Takes the lock again and again, and writes down when it holds it.
fn work(url: &str, file: &mut File) -> ! {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = connect(url, patient()).await;
        let mutex = locks.mutex("k").expect("a key").lease(LEASE);
        loop {
            let Ok(guard) = mutex.lock().await else {
                continue;
            };
            for _ in 0..10 {
                // The clock is read before.
                let now = SystemTime::UNIX_EPOCH
                    .elapsed()
                    .expect("after 1970")
                    .as_micros();
                if guard.is_valid() {
                    let token = guard.fencing_token().get();
                    let line = format!("{token} {} {now}\n", std::process::id());
                    file.write_all(line.as_bytes()).expect("written");
                }
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            // If it isn't known whether it was, the lease ends.
            drop(guard.release().await);
        }
    })
}

struct Workers {
    file: PathBuf,
    children: BTreeMap<u32, Child>,
}

impl Workers {
    fn start(server: &EtcdServer, folder: &Path) -> Self {
        let file = folder.join("holds");
        let child = || {
            let program = std::env::current_exe().expect("a path");
            let mut command = Command::new(program);
            command.args(["--exact", NAME, "--nocapture"]);
            let place = format!("{} {}", server.url(), file.display());
            command.env(WORKER, place).stdout(Stdio::null());
            let child = command.spawn().expect("this program runs");
            (child.id(), child)
        };
        let children = (0..WORKERS).map(|_| child()).collect();
        Self { file, children }
    }

    fn lines(&self) -> Vec<Line> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        // The last line may be on its way.
        let (text, _) = text.rsplit_once('\n').unwrap_or_default();
        let number = |word: Option<&str>| word.expect("a word").parse::<u128>().expect("a number");
        let line = |line: &str| {
            let mut words = line.split(' ');
            let [token, process, at] = [(); 3].map(|()| number(words.next()));
            let token = u64::try_from(token).expect("a token");
            (token, u32::try_from(process).expect("a process"), at)
        };
        text.lines().map(line).collect()
    }

    fn last(&self) -> Option<Line> {
        self.lines().into_iter().max()
    }

    /// Waits until each living process had the lock after this token.
    fn wait_for_all(&self, after: u64) {
        block_until("each process had the lock", || {
            let lines = self.lines();
            let had = |id: &u32| {
                lines
                    .iter()
                    .any(|(token, by, _)| by == id && *token > after)
            };
            self.children.keys().all(had)
        });
    }

    /// Kills the holder. Returns how long it took until another process had the lock.
    fn kill_the_holder(&mut self) -> Duration {
        let (_, holder, _) = self.last().expect("somebody has held it");
        let mut killed = self.children.remove(&holder).expect("it lives");
        killed.kill().expect("a child");
        killed.wait().expect("a child");
        // It may have released it just before: its last line counts.
        let since = Stopwatch::start();
        let (last, ..) = self.last().expect("a line");
        block_until("another process has it", || {
            self.last()
                .is_some_and(|(token, by, _)| token > last && by != holder)
        });
        since.elapsed()
    }

    /// Each token belongs to one process, and begins after the end of the one before.
    fn check(&self) -> usize {
        let mut holds: BTreeMap<u64, (u32, u128, u128)> = BTreeMap::new();
        for (token, by, at) in self.lines() {
            let hold = holds.entry(token).or_insert((by, at, at));
            assert_eq!(hold.0, by, "two processes have the token {token}");
            (hold.1, hold.2) = (hold.1.min(at), hold.2.max(at));
        }
        let holds: Vec<_> = holds.into_iter().collect();
        for pair in holds.windows(2) {
            assert!(pair[0].1.2 < pair[1].1.1, "two processes hold it: {pair:?}");
        }
        holds.len()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in self.children.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn one_holds_it_whoever_dies() {
    if let Ok(place) = std::env::var(WORKER) {
        let (url, file) = place.split_once(' ').expect("two words");
        let file = OpenOptions::new().create(true).append(true).open(file);
        work(url, &mut file.expect("a file"));
    }
    let server = EtcdServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let mut workers = Workers::start(&server, folder.path());
    workers.wait_for_all(0);
    for _ in 0..2 {
        let took = workers.kill_the_holder();
        assert!(took < TAKEN_OVER_WITHIN + SLACK, "{took:?}");
        println!("taken over after {took:?}");
    }
    // Longer than a lease: whoever holds it then loses it.
    server.pause();
    let paused = Stopwatch::start();
    block_until("the lease is over", || paused.elapsed() > LEASE * 2);
    let (before, ..) = workers.last().expect("a line");
    server.resume();
    workers.wait_for_all(before);
    let holds = workers.check();
    println!("{holds} holds");
    // Each worker at first, two after the kills, and the two that live in the end.
    assert!(holds >= WORKERS + 4, "{holds}");
}
