//! A Redis server for one test.
//!
//! `redis-test` has a server type too, but it always asks the `redis-server` on `PATH` for its
//! version and chooses options by that version. If you start another program, such as a 6.2 server,
//! it may refuse an option of 7.0. Without a `redis-server` on `PATH`, it panics and doesn't say
//! what is missing.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Process, cannot_run, server_program};
use crate::resp;
use crate::thread_proxy::ThreadProxy;
use crate::tls::{Authority, Identity, ServerTls};
use crate::tls_proxy;

/// The maximum start time of a server on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(30);
/// How long a paused server may leave a command unanswered.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
const PORT_TRIES: u32 = 50;
/// The replies of a server that has started. A request for a password is one too.
const READY: &[&str] = &["+PONG", "-NOAUTH"];
const LOADING: &str = "-LOADING";
/// The distance of the port for other nodes before 7.0.
const OLD_BUS_OFFSET: u16 = 10_000;

/// Options for starting a server.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ServerOptions {
    program: Option<PathBuf>,
    arguments: Vec<OsString>,
    append_only: bool,
    tls: Option<ServerTls>,
    tls_proxy: Option<Identity>,
    cluster: bool,
    sentinel: Option<String>,
}

impl ServerOptions {
    /// Starts this program instead of `LEASEHOLD_REDIS_SERVER` or `redis-server` on `PATH`.
    pub fn with_program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Adds a line of configuration, as on the server's command line without the two dashes:
    /// `with_config("maxmemory", ["2mb"])`.
    pub fn with_config<I>(mut self, name: &str, values: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        self.arguments.push(format!("--{name}").into());
        self.arguments.extend(values.into_iter().map(Into::into));
        self
    }

    /// Writes every command to the append-only file before the reply is sent. A restart with
    /// [`Data::Kept`] keeps every command that had a reply.
    pub fn with_append_only(mut self) -> Self {
        self.append_only = true;
        self.with_config("appendonly", ["yes"])
            .with_config("appendfsync", ["always"])
    }

    /// Makes the server read its data slowly when it starts again: each key takes this many microseconds. It answers
    /// meanwhile.
    pub fn with_slow_load(self, micros: u32) -> Self {
        self.with_config("key-load-delay", [micros.to_string()])
            .with_config("loading-process-events-interval-bytes", ["1024"])
    }

    /// Also listens on a port with TLS. If there is an authority for clients, only clients with a
    /// certificate from it are accepted there.
    pub fn with_tls(mut self, identity: Identity, clients: Option<&Authority>) -> Self {
        let clients = clients.map(Authority::certificate);
        self.tls = Some(ServerTls { identity, clients });
        self
    }

    /// Adds a port with TLS in front of the server, for programs that are built without TLS.
    pub fn with_tls_proxy(mut self, identity: Identity) -> Self {
        self.tls_proxy = Some(identity);
        self
    }

    /// Makes the server a node of a cluster that has no other nodes and no slots.
    pub(crate) fn with_cluster(mut self) -> Self {
        self.cluster = true;
        self
    }

    /// Starts the program as a sentinel with these lines of configuration, which it rewrites.
    pub(crate) fn with_sentinel(mut self, config: String) -> Self {
        self.sentinel = Some(config);
        self
    }

    /// With TLS, servers and sentinels use it among each other too, so they name ports with TLS.
    pub(crate) fn with_tls_between_servers(self) -> Self {
        if self.has_tls() {
            self.with_config("tls-replication", ["yes"])
        } else {
            self
        }
    }

    /// Whether the server has TLS itself, not through a proxy.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Starts the server and waits until it answers.
    pub fn start(self) -> RedisServer {
        let folder = tempfile::Builder::new()
            .prefix("leasehold-server-")
            .tempdir()
            .expect("a temporary folder");
        let program = self.program.clone().unwrap_or_else(server_program);
        let mut server = RedisServer {
            process: None,
            folder,
            memory: self.sentinel.as_ref().map(|_| folder_in_memory()),
            program,
            options: self,
            port: 0,
            tls_port: 0,
            bus_port: 0,
            tls_proxy: None,
        };
        for _ in 0..PORT_TRIES {
            server.port = free_port();
            server.tls_port = free_port();
            server.bus_port = server.find_bus_port();
            if let Some(config) = &server.options.sentinel {
                std::fs::write(server.sentinel_path(), config).expect("a writable folder");
            }
            match server.launch(READY) {
                Ok(()) => {
                    let proxy = server.options.tls_proxy.as_ref();
                    server.tls_proxy = proxy.map(|it| tls_proxy::start(it, server.address()));
                    return server;
                }
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("the Redis server did not start:\n{log}"),
            }
        }
        panic!("found no free port in {PORT_TRIES} tries");
    }
}

/// The data after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Everything is kept: in the append-only file if the server has one, else in a snapshot taken
    /// just before the kill.
    Kept,
    /// The server starts empty.
    Lost,
}

/// The version that a server reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 7 in 7.0.15.
    pub major: u32,
    /// 0 in 7.0.15.
    pub minor: u32,
    /// 15 in 7.0.15.
    pub patch: u32,
}

/// A running Redis server on a TCP port of 127.0.0.1 and on a Unix socket, in a temporary folder.
///
/// Dropping this value kills the server and removes the folder.
#[derive(Debug)]
#[must_use]
pub struct RedisServer {
    // Dropped in this order: the process before its folder.
    process: Option<Process>,
    folder: TempDir,
    /// For the configuration of a sentinel, which it writes to disk at each step of a failover. On
    /// a slow disk, sentinels would be late and take each other for dead.
    memory: Option<TempDir>,
    program: PathBuf,
    options: ServerOptions,
    port: u16,
    tls_port: u16,
    /// The port for the other nodes of a cluster.
    bus_port: u16,
    tls_proxy: Option<ThreadProxy>,
}

impl RedisServer {
    /// Starts a server without persistence.
    pub fn start() -> Self {
        ServerOptions::default().start()
    }

    /// Starts the process and waits until it sends one of these replies. Returns the server's log if it fails.
    fn launch(&mut self, replies: &[&str]) -> Result<(), String> {
        let _ = std::fs::remove_file(self.log_path());
        let mut command = Command::new(&self.program);
        if self.options.sentinel.is_some() {
            command.arg(self.sentinel_path()).arg("--sentinel");
        }
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .arg("--unixsocket")
            .arg(self.socket_path())
            .arg("--dir")
            .arg(self.folder.path())
            .arg("--logfile")
            .arg(self.log_path())
            .args(["--save", ""])
            // By default, a replica's first synchronization waits 5 s for other replicas.
            .args(["--repl-diskless-sync-delay", "0"])
            .current_dir(self.folder.path());
        if let Some(tls) = &self.options.tls {
            command.args(tls.prepare(self.folder.path(), self.tls_port));
        }
        if self.options.cluster {
            command.args(["--cluster-enabled", "yes"]);
            command.args(["--cluster-node-timeout", "1000"]);
            if self.bus_port != self.peer_port() + OLD_BUS_OFFSET {
                command.args(["--cluster-port", &self.bus_port.to_string()]);
            }
        }
        // Last, because of two lines with one name the server takes the later one.
        command.args(&self.options.arguments);
        let folders = [Some(&self.folder), self.memory.as_ref()];
        let folders: Vec<&Path> = folders.into_iter().flatten().map(TempDir::path).collect();
        let mut process = Process::spawn(&mut command, &folders)
            .unwrap_or_else(|error| panic!("{}", cannot_run(&self.program, &error)));
        process
            .wait_until(|| self.replies_with(replies), START_WITHIN)
            .map_err(|ended| format!("{ended:?}\n{}", self.log()))?;
        self.process = Some(process);
        Ok(())
    }

    fn replies_with(&self, expected: &[&str]) -> bool {
        let reply = self.exchange(&["PING"], START_WITHIN);
        reply.is_ok_and(|reply| expected.iter().any(|it| reply.starts_with(it)))
    }

    /// Whether the server serves all commands. It doesn't while it loads its data.
    pub fn is_ready(&self) -> bool {
        self.replies_with(READY)
    }

    /// Versions before 7.0 can't choose this port.
    fn find_bus_port(&self) -> u16 {
        if self.options.cluster && self.version().major >= 7 {
            free_port()
        } else {
            self.peer_port() + OLD_BUS_OFFSET
        }
    }

    /// The port for the other nodes of a cluster.
    pub(crate) fn bus_port(&self) -> u16 {
        self.bus_port
    }

    /// Whether the server was not killed.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Runs a command. Returns the content of a string or number, and any other reply as the
    /// protocol writes it.
    pub fn run(&self, command: &[&str]) -> String {
        let text = self.exchange(command, START_WITHIN);
        let text = text.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(!text.starts_with('-'), "{command:?}: {text}");
        let content = match text.split_once("\r\n") {
            Some((head, content)) if head.starts_with('$') => content,
            _ => text.trim_start_matches(['+', ':']),
        };
        content.strip_suffix("\r\n").unwrap_or(content).into()
    }

    /// The number of connections that the server has accepted since its start. Each call of
    /// this method and of [`run`](Self::run) is one of them.
    pub fn accepted_connections(&self) -> u64 {
        let stats = self.run(&["INFO", "stats"]);
        let mut lines = stats.lines();
        let count = lines.find_map(|line| line.strip_prefix("total_connections_received:"));
        count.and_then(|count| count.parse().ok()).expect("a count")
    }

    /// Whether the clients have closed all connections that this server has ended.
    pub fn ended_connections_are_closed(&self) -> bool {
        let connections = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
        // The remote port, and the state CLOSE_WAIT.
        !connections.contains(&format!(":{:04X} 08 ", self.port()))
    }

    /// Whether it has replicas, and they have everything that it has written.
    pub fn is_replicated(&self) -> bool {
        let info = self.run(&["INFO", "replication"]);
        let after = |line: &str, name: &str| -> Option<u64> {
            let (_, rest) = line.split_once(name)?;
            rest.split([',', '\r']).next()?.parse().ok()
        };
        let written = info.lines().find_map(|it| after(it, "master_repl_offset:"));
        let mut replicas = info
            .lines()
            .filter_map(|it| after(it, ",offset="))
            .peekable();
        replicas.peek().is_some() && replicas.all(|it| Some(it) >= written)
    }

    /// Runs a command and returns the values of the reply: strings, numbers, or the elements of an
    /// array.
    pub(crate) fn values(&self, command: &str) -> std::io::Result<Vec<String>> {
        let command: Vec<&str> = command.split(' ').collect();
        let text = self.exchange(&command, ANSWER_WITHIN)?;
        let values = text.lines().filter(|line| !line.starts_with(['*', '$']));
        Ok(values
            .map(|line| line.trim_start_matches([':', '+']).into())
            .collect())
    }

    /// Sends a command and returns the reply as the protocol writes it. Each part of the reply
    /// arrives within `limit`.
    pub(crate) fn exchange(&self, command: &[&str], limit: Duration) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(self.socket_path())?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(resp::text_of(command).as_bytes())?;
        let (mut reply, mut part) = (Vec::new(), [0; 4_096]);
        while resp::frame(&reply).is_ok_and(|frame| frame.is_none()) {
            match stream.read(&mut part) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => reply.extend_from_slice(&part[..count]),
                // A read with a time limit is interrupted when the process goes on after it was stopped.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    /// The port that other servers and sentinels connect to.
    pub(crate) fn peer_port(&self) -> u16 {
        if self.options.has_tls() {
            self.tls_port
        } else {
            self.port
        }
    }

    /// The address that other servers and sentinels connect to.
    pub(crate) fn peer_address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.peer_port()).into()
    }

    /// The TCP port on 127.0.0.1. A restart keeps it.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The TCP address. A restart keeps it.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The URL, `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// The URL of the port with TLS, `rediss://127.0.0.1:PORT`. It needs [`ServerOptions::with_tls`] or
    /// [`ServerOptions::with_tls_proxy`].
    pub fn tls_url(&self) -> String {
        if let Some(proxy) = &self.tls_proxy {
            return format!("rediss://{}", proxy.address());
        }
        assert!(self.options.tls.is_some(), "a server with TLS");
        format!("rediss://127.0.0.1:{}", self.tls_port)
    }

    /// The path of the Unix socket. A restart keeps it.
    pub fn socket_path(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// The URL of the Unix socket, `redis+unix:///…/redis.sock`. Both client libraries accept it.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket_path().display())
    }

    /// The server's log since its last start.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn sentinel_path(&self) -> PathBuf {
        let folder = self.memory.as_ref().unwrap_or(&self.folder);
        folder.path().join("sentinel.conf")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("redis.log")
    }

    /// The version that the default program reports.
    pub fn default_version() -> Version {
        version_of(&server_program())
    }

    /// The version that the program reports.
    pub fn version(&self) -> Version {
        version_of(&self.program)
    }

    /// The name and the version that the program reports, such as `Valkey 8.1.4`.
    pub fn product(&self) -> String {
        product_in(&reported_by(&self.program)).expect("a name and a version")
    }

    /// Kills the server with `SIGKILL`. Connections break, and new ones are refused until
    /// [`start_again`](Self::start_again).
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Takes this many bytes off the end of the append-only file of a killed server, as a crash of its machine does if
    /// the last writes had not reached the disk.
    pub fn lose_last_writes(&self, bytes: u64) {
        // Redis 7 has a folder of such files, and appends to the one with the highest number.
        let parts = std::fs::read_dir(self.folder.path().join("appendonlydir"));
        let parts = parts
            .into_iter()
            .flatten()
            .flatten()
            .map(|part| part.path());
        let last = parts
            .filter(|part| part.to_string_lossy().ends_with(".incr.aof"))
            .max_by_key(|part| part.metadata().and_then(|it| it.modified()).ok());
        let path = last.unwrap_or_else(|| self.folder.path().join("appendonly.aof"));
        let file = std::fs::File::options().write(true).open(path);
        let file = file.expect("an append-only file");
        let length = file.metadata().expect("its length").len();
        file.set_len(length.saturating_sub(bytes))
            .expect("a shorter file");
    }

    /// Starts a killed server on the same address.
    pub fn start_again(&mut self) {
        self.start_again_until(READY);
    }

    /// Starts a killed server on the same address, and waits until it loads its data.
    pub fn start_loading(&mut self) {
        self.start_again_until(&[LOADING]);
    }

    fn start_again_until(&mut self, replies: &[&str]) {
        assert!(self.process.is_none(), "the server is still running");
        // The kill has left the socket file.
        let _ = std::fs::remove_file(self.socket_path());
        if let Err(log) = self.launch(replies) {
            panic!("the Redis server did not start again:\n{log}");
        }
    }

    /// Kills the server with `SIGKILL` and starts it again on the same address. A server with a password needs
    /// [`ServerOptions::with_append_only`] to keep its data.
    pub fn restart(&mut self, data: Data) {
        if data == Data::Kept && !self.options.append_only {
            let reply = self.exchange(&["SAVE"], START_WITHIN).expect("a reply");
            assert!(reply.starts_with("+OK"), "the server cannot save: {reply}");
        }
        self.kill();
        if data == Data::Lost {
            let folder = self.folder.path();
            std::fs::remove_dir_all(folder).expect("removable files");
            let private = std::fs::DirBuilder::new().mode(0o700).create(folder);
            private.expect("a writable folder");
        }
        self.start_again();
    }

    /// Stops the server with `SIGSTOP`. Connections stay open, and nothing is answered until
    /// [`resume`](Self::resume).
    pub fn pause(&self) {
        self.running().signal(Signal::STOP);
    }

    /// Continues the server with `SIGCONT`, after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.running().signal(Signal::CONT);
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("a server that was not killed")
    }
}

/// Returns a folder in memory, or another one where there is none in memory.
fn folder_in_memory() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("leasehold-sentinel-");
    let folder = builder
        .tempdir_in("/dev/shm")
        .or_else(|_| builder.tempdir());
    folder.expect("a temporary folder")
}

/// Returns a port of 127.0.0.1 below the ephemeral range, so that no outgoing connection takes it before its server starts, or
/// during a restart.
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Processes that start at the same time try different ports.
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let offset = std::process::id().wrapping_mul(7_919).wrapping_add(turn) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("30,000 fits");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

fn version_of(program: &Path) -> Version {
    let text = reported_by(program);
    parse_version(&text).unwrap_or_else(|| panic!("no version in {text:?}"))
}

/// Finds the first word and the version in the output of `valkey-server --version`.
fn product_in(text: &str) -> Option<String> {
    let name = text.split_whitespace().next()?;
    let Version {
        major,
        minor,
        patch,
    } = parse_version(text)?;
    Some(format!("{name} {major}.{minor}.{patch}"))
}

fn reported_by(program: &Path) -> String {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .unwrap_or_else(|error| panic!("{}", cannot_run(program, &error)));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Finds `v=7.0.15` in the output of `redis-server --version`.
fn parse_version(text: &str) -> Option<Version> {
    let digits = text.split_whitespace().find_map(|w| w.strip_prefix("v="))?;
    let mut parts = digits.split('.').map(str::parse);
    let mut next = || parts.next()?.ok();
    Some(Version {
        major: next()?,
        minor: next()?,
        patch: next()?,
    })
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
