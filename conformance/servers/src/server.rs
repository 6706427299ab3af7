//! A Redis server for one test.
//!
//! `redis-test` has a server type too. It is not used, because it asks the `redis-server` on
//! `PATH` for its version whatever program it is told to start, and passes options by that
//! answer: a 6.2 server then dies of an option of 7.0, and a machine without one on `PATH`
//! panics without saying what is missing.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Process, cannot_run, server_program};

/// The maximum start time of a server on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(30);
const PORT_TRIES: u32 = 50;

/// Options for starting a server.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    program: Option<PathBuf>,
    arguments: Vec<OsString>,
    append_only: bool,
}

impl ServerOptions {
    /// Starts this program instead of `LEASEHOLD_REDIS_SERVER` or `redis-server` on `PATH`.
    #[must_use]
    pub fn with_program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Adds a line of configuration, as on the server's command line without the two dashes:
    /// `with_config("maxmemory", ["2mb"])`.
    #[must_use]
    pub fn with_config<I>(mut self, name: &str, values: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        self.arguments.push(format!("--{name}").into());
        self.arguments.extend(values.into_iter().map(Into::into));
        self
    }

    /// Writes every command to the append-only file before it is answered, so that a restart
    /// with [`Data::Kept`] keeps all that was answered.
    #[must_use]
    pub fn with_append_only(mut self) -> Self {
        self.append_only = true;
        self.with_config("appendonly", ["yes"])
            .with_config("appendfsync", ["always"])
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    /// If the program is missing (the message says how to get one), refuses its configuration
    /// or does not answer within 30 s.
    #[must_use]
    pub fn start(self) -> RedisServer {
        RedisServer::start_with(self)
    }
}

/// The data after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Everything: from the append-only file if it has one, else from a snapshot taken just
    /// before the kill.
    Kept,
    /// An empty folder.
    Lost,
}

/// A server's version, as it reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 7 in 7.0.15.
    pub major: u32,
    /// 0 in 7.0.15.
    pub minor: u32,
    /// 15 in 7.0.15.
    pub patch: u32,
}

/// A running Redis server on a TCP port of 127.0.0.1 and on a Unix socket, with a folder of its
/// own. Dropping it kills the server and removes the folder.
#[derive(Debug)]
pub struct RedisServer {
    // Dropped in this order: the process before its folder.
    process: Option<Process>,
    folder: TempDir,
    program: PathBuf,
    options: ServerOptions,
    port: u16,
}

impl RedisServer {
    /// Starts a server without persistence; see [`ServerOptions::start`] for what can fail.
    #[must_use]
    pub fn start() -> Self {
        ServerOptions::default().start()
    }

    fn start_with(options: ServerOptions) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("leasehold-server-")
            .tempdir()
            .expect("a temporary folder can be made");
        let program = options.program.clone().unwrap_or_else(server_program);
        let mut server = Self {
            process: None,
            folder,
            program,
            options,
            port: 0,
        };
        for _ in 0..PORT_TRIES {
            server.port = free_port();
            match server.launch() {
                Ok(()) => return server,
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("the Redis server did not start:\n{log}"),
            }
        }
        panic!("no free port was found in {PORT_TRIES} tries");
    }

    /// Starts the process and waits until it answers; the error is the server's log.
    fn launch(&mut self) -> Result<(), String> {
        let _ = std::fs::remove_file(self.log_path());
        let mut command = Command::new(&self.program);
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .arg("--unixsocket")
            .arg(self.socket_path())
            .arg("--dir")
            .arg(self.folder.path())
            .arg("--logfile")
            .arg(self.log_path())
            .args(["--save", ""])
            .args(&self.options.arguments)
            .current_dir(self.folder.path());
        let mut process = Process::spawn(&mut command, self.folder.path())
            .unwrap_or_else(|error| panic!("{}", cannot_run(&self.program, &error)));
        let begun = Instant::now();
        while !self.answers() {
            let ended = process.ended().expect("a child can be asked for its state");
            if ended.is_some() || begun.elapsed() > START_WITHIN {
                return Err(format!("{ended:?}\n{}", self.log()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.process = Some(process);
        Ok(())
    }

    /// Whether it serves commands; a server that asks for a password does.
    fn answers(&self) -> bool {
        self.call("PING")
            .is_ok_and(|reply| reply.starts_with("+PONG") || reply.starts_with("-NOAUTH"))
    }

    /// Sends one inline command and returns the first line of the reply.
    fn call(&self, command: &str) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(self.socket_path())?;
        stream.set_read_timeout(Some(START_WITHIN))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") && stream.read(&mut byte)? == 1 {
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// The TCP port on 127.0.0.1; a restart keeps it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The TCP address; a restart keeps it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// The Unix socket; a restart keeps it.
    #[must_use]
    pub fn socket_path(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// `redis+unix:///…/redis.sock`, as both clients take it.
    #[must_use]
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket_path().display())
    }

    /// The server's log since its last start.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("redis.log")
    }

    /// The version that the program reports.
    ///
    /// # Panics
    /// If the program does not report one.
    #[must_use]
    pub fn version(&self) -> Version {
        version_of(&self.program)
    }

    /// `SIGKILL`: connections break, new ones are refused until [`start_again`](Self::start_again).
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts a killed server on the same address.
    ///
    /// # Panics
    /// If it is still running, or does not start.
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "the server is still running");
        // The socket file of a killed server would look like that of a running one.
        let _ = std::fs::remove_file(self.socket_path());
        if let Err(log) = self.launch() {
            panic!("the Redis server did not start again:\n{log}");
        }
    }

    /// `SIGKILL`, then a new start on the same address.
    ///
    /// # Panics
    /// If data is to be kept but cannot be (a server that asks for a password needs
    /// [`ServerOptions::with_append_only`]), or if the server does not start.
    pub fn restart(&mut self, data: Data) {
        if data == Data::Kept && !self.options.append_only {
            let reply = self.call("SAVE").expect("a running server answers");
            assert!(reply.starts_with("+OK"), "the server cannot save: {reply}");
        }
        self.kill();
        if data == Data::Lost {
            self.remove_data();
        }
        self.start_again();
    }

    fn remove_data(&self) {
        for entry in std::fs::read_dir(self.folder.path()).expect("its folder can be read") {
            let path = entry.expect("its folder can be read").path();
            let removed = if path.is_dir() {
                std::fs::remove_dir_all(&path)
            } else {
                std::fs::remove_file(&path)
            };
            removed.expect("its own files can be removed");
        }
    }

    /// `SIGSTOP`: connections stay open, nothing is answered until [`resume`](Self::resume).
    ///
    /// # Panics
    /// If the server was killed.
    pub fn pause(&self) {
        self.running().signal(Signal::STOP);
    }

    /// `SIGCONT`, after [`pause`](Self::pause).
    ///
    /// # Panics
    /// If the server was killed.
    pub fn resume(&self) {
        self.running().signal(Signal::CONT);
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("the server was not killed")
    }
}

/// A port below the range from which systems take the ports of outgoing connections, so that
/// nobody gets it by chance while its server is being restarted.
fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Processes that start at the same time begin with distant ports.
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let offset = std::process::id().wrapping_mul(7_919).wrapping_add(turn) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("30,000 fits");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

fn version_of(program: &Path) -> Version {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .unwrap_or_else(|error| panic!("{}", cannot_run(program, &error)));
    let text = String::from_utf8_lossy(&output.stdout);
    parse_version(&text).unwrap_or_else(|| panic!("no version in {text:?}"))
}

/// Finds `v=7.0.15` in what `redis-server --version` prints.
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
