//! A server with clients in this process and in many others.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{Inspection, Label, LockBackend, LockClient, ServerTime};
use leasehold_processes::{Library, RecordingBackend, Ticket};
use leasehold_test_servers::{RedisServer, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// The maximum time for a step, even on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// The number of waiters in a test: `few`, or the value of `LEASEHOLD_WAITERS`.
pub(crate) fn waiters(few: usize) -> usize {
    let Ok(text) = std::env::var("LEASEHOLD_WAITERS") else {
        return few;
    };
    let count = text.parse().expect("LEASEHOLD_WAITERS is a number");
    // An inspection lists no more.
    let allowed = few..=1_000;
    assert!(allowed.contains(&count), "{count} is not in {allowed:?}");
    count
}

/// Runs a test on a multi-threaded runtime.
pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(test);
}

pub(crate) async fn connect(library: Library, server: &RedisServer) -> Arc<dyn LockBackend> {
    library.connect(&server.url()).await.expect("connected")
}

/// Clients in this process that record what they do. `change` changes their backends.
pub(crate) async fn recording_clients(
    library: Library,
    server: &RedisServer,
    count: usize,
    change: impl Fn(RecordingBackend) -> RecordingBackend,
) -> Vec<(Arc<RecordingBackend>, LockClient)> {
    let mut clients = Vec::new();
    for number in 0..count {
        let backend = RecordingBackend::new(connect(library, server).await);
        let backend = Arc::new(change(backend));
        let locks = client(Arc::clone(&backend) as _, &format!("client-{number}"));
        clients.push((backend, locks));
    }
    clients
}

/// Creates a client in this process, with the same call timeout as the others.
pub(crate) fn client(backend: Arc<dyn LockBackend>, label: &str) -> LockClient {
    LockClient::builder(backend)
        .label(Label::new(label).expect("a good label"))
        .call_timeout(Duration::from_secs(5))
        .build()
        .expect("good settings")
}

/// Inspects a key until `condition` holds.
pub(crate) async fn until(
    locks: &LockClient,
    key: &str,
    description: &str,
    condition: impl Fn(&Inspection) -> bool,
) -> Inspection {
    let mut last = None;
    eventually(description, async || {
        let seen = locks.inspect(key).await.expect("an answer");
        let holds = condition(&seen);
        last = Some(seen);
        holds
    })
    .await;
    last.expect("waited for it")
}

/// The labels of the waiters, in the order of the queue.
fn queue(seen: &Inspection) -> Vec<String> {
    let labels = seen.waiters().iter().map(|waiter| waiter.label.to_string());
    labels.collect()
}

/// Fails unless both orders of labels are the same. Shows where they begin to differ.
pub(crate) fn assert_order<L: AsRef<str>>(
    actual: impl IntoIterator<Item = L>,
    expected: impl IntoIterator<Item = L>,
    promise: &str,
) {
    let list = |labels: Vec<L>| labels.iter().map(|it| it.as_ref().to_owned()).collect();
    let actual: Vec<String> = list(actual.into_iter().collect());
    let expected: Vec<String> = list(expected.into_iter().collect());
    let same = actual.iter().zip(&expected).take_while(|(a, b)| a == b);
    let same = same.count();
    let shown = |all: &[String]| all[same..].iter().take(8).cloned().collect::<Vec<_>>();
    assert!(
        actual == expected,
        "{promise}: {} labels instead of {}; from position {same} on: {:?} instead of {:?}",
        actual.len(),
        expected.len(),
        shown(&actual),
        shown(&expected)
    );
}

/// A grant that a process printed.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) label: String,
    pub(crate) ticket: Ticket,
    pub(crate) token: u64,
}

/// A line that a process printed, or the end of its output.
#[derive(Debug)]
enum Event {
    Ready,
    Granted(Grant),
    Ended,
}

/// The behavior of the processes.
pub(crate) struct Behavior {
    /// The number of waiters in all processes together.
    pub(crate) waiters: usize,
    /// The number of acquisitions of each waiter.
    pub(crate) rounds: u32,
    pub(crate) waiter_lease: Duration,
}

/// The number of processes. Their waiters are as many in each as possible.
pub(crate) const PROCESSES: usize = 32;

struct Process {
    label: String,
    waiters: usize,
    child: Child,
    input: ChildStdin,
}

/// Processes that contend for one lock. Dropping this value kills them.
pub(crate) struct Processes {
    processes: Vec<Process>,
    events: UnboundedReceiver<Event>,
}

impl Processes {
    /// Starts processes and waits until all are connected.
    pub(crate) async fn start(library: Library, url: &str, key: &str, behavior: &Behavior) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let mut processes = Vec::new();
        for number in 0..PROCESSES {
            let label = format!("process-{number}");
            let waiters = (behavior.waiters + number) / PROCESSES;
            let mut child = Command::new(env!("CARGO_BIN_EXE_contender"))
                .args(["--client", library.name(), "--url", url, "--key", key])
                .args(["--label", &label])
                .args(["--waiters", &waiters.to_string()])
                .args(["--rounds", &behavior.rounds.to_string()])
                .arg("--waiter-lease-ms")
                .arg(behavior.waiter_lease.as_millis().to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .expect("a process starts");
            let (input, output) = (child.stdin.take(), child.stdout.take());
            let output = output.expect("a piped output");
            tokio::spawn(read(label.clone(), output, sender.clone()));
            processes.push(Process {
                label,
                waiters,
                child,
                input: input.expect("a piped input"),
            });
        }
        let mut group = Self { processes, events };
        for _ in 0..PROCESSES {
            match group.next().await {
                Event::Ready => {}
                other => panic!("expected `ready` first, received {other:?}"),
            }
        }
        group
    }

    async fn next(&mut self) -> Event {
        let event = tokio::time::timeout(SOON, self.events.recv()).await;
        event.expect("an event in time").expect("the readers run")
    }

    /// Starts all waiters of a key that is held, and waits until they are in the queue. Returns the
    /// labels of the queue. It begins with one waiter of each process, then comes the second one of
    /// each, and so on.
    pub(crate) async fn queue_up(&mut self, locks: &LockClient, key: &str) -> Vec<String> {
        let most = self.processes.iter().map(|it| it.waiters).max();
        let (mut started, mut labels) = (0, Vec::new());
        for nth in 1..=most.expect("at least one process") {
            for process in self.processes.iter_mut().filter(|it| it.waiters >= nth) {
                let written = process.input.write_all(b"\n").await;
                written.expect("the process reads");
                started += 1;
            }
            let seen = until(locks, key, "all waiters are queued", |seen| {
                seen.waiter_count() as usize == started
            });
            labels = queue(&seen.await);
        }
        labels
    }

    pub(crate) fn signal(&self, label: &str, signal: Signal) {
        let mut processes = self.processes.iter();
        let process = processes.find(|it| it.label == label);
        let id = process.expect("a known label").child.id();
        let id = i32::try_from(id.expect("a process that was not waited for"));
        let id = id.ok().and_then(Pid::from_raw);
        kill_process(id.expect("a valid process id"), signal).expect("a signal to a child");
    }

    /// Returns the next grants in the order in which the server made them. Processes may exit in the
    /// meantime.
    pub(crate) async fn grants(&mut self, count: usize) -> Vec<Grant> {
        let mut grants = Vec::new();
        while grants.len() < count {
            match self.next().await {
                Event::Granted(grant) => grants.push(grant),
                Event::Ended => {}
                Event::Ready => panic!("a process printed `ready` twice"),
            }
        }
        // Tokens increase in that order.
        grants.sort_by_key(|grant| grant.token);
        grants
    }

    /// Waits until all processes exit. Returns how many succeeded.
    pub(crate) async fn end(mut self) -> usize {
        let mut succeeded = 0;
        for process in &mut self.processes {
            let status = tokio::time::timeout(SOON, process.child.wait()).await;
            let status = status.unwrap_or_else(|_| panic!("{} did not exit", process.label));
            succeeded += usize::from(status.expect("an exit status").success());
        }
        succeeded
    }
}

async fn read(label: String, output: ChildStdout, events: UnboundedSender<Event>) {
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await.expect("lines of text") {
        let words: Vec<_> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().expect("a number");
        let event = match words[..] {
            ["ready"] => Event::Ready,
            ["granted", at, position, token] => Event::Granted(Grant {
                label: label.clone(),
                ticket: Ticket {
                    at: ServerTime::from_micros(number(at)),
                    position: position.parse().expect("a number"),
                },
                token: number(token),
            }),
            _ => panic!("{label}: {line}"),
        };
        // Fails when the test has ended.
        let _ = events.send(event);
    }
    let _ = events.send(Event::Ended);
}
