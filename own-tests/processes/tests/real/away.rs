//! A server is away while the calls of many processes wait. `LEASEHOLD_PROCESSES` says how many.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use leasehold_processes::Library;
use leasehold_test_servers::{
    PostgresOptions, PostgresServer, RedisServer, ServerAway, Stopwatch, throughout,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

const FEW: u32 = 3;
/// The calls of each process.
const CALLS: &str = "50";
const AWAY: Duration = Duration::from_secs(20);
/// The connections that a process may try to open meanwhile: three a second.
const MOST: u64 = 3 * AWAY.as_secs();
/// The time limit for a step, even on a busy machine.
const SOON: Duration = Duration::from_secs(60);

through_both_libraries!(redis_server);

async fn redis_server(library: Library) {
    let mut server = RedisServer::start();
    let mut processes = Processes::start(Some(library), &server.url()).await;
    server.kill();
    processes.wait_for(server.address()).await;
    server.start_again();
    processes.are_served(library.name()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_server() {
    let options = PostgresOptions::default().with_access("trust");
    let mut server: PostgresServer = options.with_setting("max_connections=500").start();
    server.execute("postgres", leasehold_postgres::SCHEMA);
    let url = server.tcp_url("owner", "postgres");
    let mut processes = Processes::start(None, &url).await;
    server.stop();
    let address = (Ipv4Addr::LOCALHOST, server.port()).into();
    processes.wait_for(address).await;
    server.restart();
    processes.are_served("Postgres").await;
}

/// Processes with waiting calls. Dropping this value kills them.
struct Processes(Vec<Process>);

struct Process {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Processes {
    /// Starts them, and waits until all are connected.
    async fn start(client: Option<Library>, url: &str) -> Self {
        let count = std::env::var("LEASEHOLD_PROCESSES");
        let count = count.map_or(FEW, |count| count.parse().expect("a number"));
        let client = client.map(|library| format!("--client={}", library.name()));
        let start = |_| {
            let mut child = Command::new(env!("CARGO_BIN_EXE_caller"))
                .args(&client)
                .args(["--url", url, "--calls", CALLS])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .expect("a process starts");
            Process {
                input: child.stdin.take().expect("piped"),
                output: BufReader::new(child.stdout.take().expect("piped")).lines(),
                _child: child,
            }
        };
        let mut processes = Self((0..count).map(start).collect());
        processes.say("ready").await;
        processes
    }

    async fn say(&mut self, expected: &str) {
        for process in &mut self.0 {
            let line = timeout(SOON, process.output.next_line()).await;
            let line = line.expect("in time").expect("text");
            assert_eq!(line.as_deref(), Some(expected));
        }
    }

    /// They all call while nobody serves them.
    async fn wait_for(&mut self, server: SocketAddr) {
        let away = ServerAway::listen(server);
        for process in &mut self.0 {
            process.input.write_all(b"\n").await.expect("it reads");
        }
        let count = self.0.len() as u64;
        let are_few = async || away.connections() <= count * MOST;
        throughout(AWAY, "attempts are few", are_few).await;
        let connections = away.connections();
        assert!(connections >= count, "{connections}");
        println!("{count} processes tried {connections} connections in {AWAY:?}");
    }

    /// The server is back.
    async fn are_served(&mut self, what: &str) {
        let back = Stopwatch::start();
        self.say("served").await;
        println!("{what}: all served after {:?}", back.elapsed());
    }
}
