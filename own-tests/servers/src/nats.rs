//! NATS servers with JetStream, for one test.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Process, path_in};
use crate::server::free_port;
use crate::tls::Identity;

/// The variable with the path of `nats-server`.
const VARIABLE: &str = "LEASEHOLD_NATS_SERVER";
/// The maximum start time of a server on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(60);
const PORT_TRIES: u32 = 20;

/// One NATS server, or a cluster of three, with JetStream in temporary folders.
///
/// Dropping this value ends the servers and removes the folders.
#[derive(Debug)]
#[must_use]
pub struct NatsServers {
    // Dropped in this order: the processes before their folder.
    processes: Vec<Option<Process>>,
    folder: TempDir,
    /// Of each server, for clients and for the others.
    ports: Vec<(u16, u16)>,
    /// Further lines of the configuration.
    settings: String,
}

impl NatsServers {
    /// Starts one server, with further lines of its configuration.
    pub fn start(settings: &str) -> Self {
        Self::start_all(1, settings, None)
    }

    /// Starts one server that refuses clients without TLS.
    pub fn start_with_tls(identity: &Identity) -> Self {
        Self::start_all(1, "", Some(identity))
    }

    /// Starts a cluster of three. It may take some seconds until it has a leader.
    pub fn start_cluster() -> Self {
        Self::start_all(3, "", None)
    }

    fn start_all(count: usize, settings: &str, tls: Option<&Identity>) -> Self {
        for _ in 0..PORT_TRIES {
            let mut servers = Self {
                processes: (0..count).map(|_| None).collect(),
                folder: tempfile::Builder::new()
                    .prefix("leasehold-nats-")
                    .tempdir()
                    .expect("a temporary folder"),
                ports: (0..count).map(|_| (free_port(), free_port())).collect(),
                settings: settings.to_owned(),
            };
            if let Some(identity) = tls {
                servers.use_tls(identity);
            }
            if (0..count).all(|server| servers.launch(server)) {
                return servers;
            }
        }
        panic!("the NATS servers did not start");
    }

    fn use_tls(&mut self, identity: &Identity) {
        let [certificate, key] = identity.write(self.folder.path(), "server");
        writeln!(
            self.settings,
            "tls {{ cert_file: \"{certificate}\", key_file: \"{key}\" }}"
        )
        .expect("a string grows");
    }

    /// Starts a process and waits until it answers. Returns whether it does: the port may be taken.
    fn launch(&mut self, server: usize) -> bool {
        let folder = self.folder.path().join(server.to_string());
        std::fs::create_dir_all(&folder).expect("a folder");
        let (port, between) = self.ports[server];
        let mut settings = format!(
            "server_name: n{server}\nlisten: 127.0.0.1:{port}\nlog_file: \"{0}/log\"\n\
             jetstream {{ store_dir: \"{0}\" }}\n{1}\n",
            folder.display(),
            self.settings
        );
        if self.ports.len() > 1 {
            let routes = self
                .ports
                .iter()
                .map(|(_, port)| format!("nats://127.0.0.1:{port}"));
            let routes: Vec<String> = routes.collect();
            writeln!(
                settings,
                "cluster {{ name: test, listen: 127.0.0.1:{between}, routes: [{}] }}",
                routes.join(", ")
            )
            .expect("a string grows");
        }
        let file = folder.join("settings");
        std::fs::write(&file, settings).expect("a file");
        let mut command = Command::new(program());
        command.arg("-c").arg(&file);
        let mut process = Process::spawn(&mut command, &[self.folder.path()])
            .unwrap_or_else(|error| panic!("{}", cannot_run(&error)));
        let is_ready = || answers(port);
        let is_ready = process.wait_until(is_ready, START_WITHIN).is_ok();
        self.processes[server] = Some(process);
        is_ready
    }

    /// Kills a server, as in a crash.
    pub fn kill(&mut self, server: usize) {
        self.processes[server] = None;
    }

    /// Starts a server that was killed, on the same data.
    pub fn restart(&mut self, server: usize) {
        assert!(self.launch(server), "the NATS server did not start");
    }

    /// Stops a server, or lets it go on.
    pub fn pause(&self, server: usize, paused: bool) {
        let process = self.processes[server].as_ref().expect("a running server");
        process.signal(if paused { Signal::STOP } else { Signal::CONT });
    }

    /// What a server says of itself, as JSON. `None` if it is silent.
    pub fn info(&self, server: usize) -> Option<String> {
        let (info, _) = greeting(self.port(server))?;
        Some(info)
    }

    /// Sends an empty request to a server, and returns the line that answers. `None` if nobody does.
    pub fn ask(&self, server: usize, subject: &str) -> Option<String> {
        let (_, mut stream) = greeting(self.port(server))?;
        let request = format!(
            "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB {subject} answer 0\r\n\r\n"
        );
        stream.get_mut().write_all(request.as_bytes()).ok()?;
        let mut lines = stream.lines().map_while(Result::ok);
        lines.find(|line| line.starts_with("MSG "))?;
        lines.next()
    }

    /// The port of a server.
    pub fn port(&self, server: usize) -> u16 {
        self.ports[server].0
    }

    /// The URL of all servers, without a user.
    pub fn url(&self) -> String {
        let hosts = self
            .ports
            .iter()
            .map(|(port, _)| format!("127.0.0.1:{port}"));
        format!("nats://{}", hosts.collect::<Vec<_>>().join(","))
    }
}

/// Whether a server is there and greets.
fn answers(port: u16) -> bool {
    greeting(port).is_some_and(|(info, _)| info.contains("\"jetstream\":true"))
}

/// A new connection, and what the server greets with.
fn greeting(port: u16) -> Option<(String, BufReader<TcpStream>)> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let (mut stream, mut line) = (BufReader::new(stream), String::new());
    stream.read_line(&mut line).ok()?;
    let info = line.strip_prefix("INFO ")?.trim();
    Some((info.to_owned(), stream))
}

fn program() -> PathBuf {
    path_in(VARIABLE).unwrap_or_else(|| "nats-server".into())
}

fn cannot_run(error: &std::io::Error) -> String {
    format!(
        "cannot run `{}`: {error}\nThese tests need NATS 2.10 or later. Run `./test deep`, which fetches one, or set {VARIABLE} \
         to the path that `.ci/fetch-servers nats` prints.",
        program().display()
    )
}
