//! An etcd server for one test.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Process, path_in};
use crate::server::free_port;
use crate::tls::{self, Authority, Identity};

/// The variable with the folder of `etcd` and `etcdctl`.
const VARIABLE: &str = "LEASEHOLD_ETCD_BIN";
/// The maximum start time of a server on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(60);
const PORT_TRIES: u32 = 20;

/// A running etcd server on two ports of 127.0.0.1, in a temporary folder: alone, or a member of a cluster.
///
/// Dropping this value ends the server and removes the folder.
#[derive(Debug)]
#[must_use]
pub struct EtcdServer {
    // Dropped in this order: the process before its folder.
    process: Option<Process>,
    folder: TempDir,
    port: u16,
    scheme: &'static str,
    arguments: Vec<String>,
    /// How `etcdctl` connects.
    client: Vec<String>,
}

impl EtcdServer {
    /// Starts a server of its own.
    pub fn start() -> Self {
        Self::start_with(|_| {})
    }

    /// Starts one that refuses clients without TLS, and those without a certificate of that authority. With `auth enable`, the
    /// common name of a client's certificate is its user; `etcdctl` is `root`.
    pub fn start_with_tls(identity: &Identity, clients: &Authority) -> Self {
        Self::start_with(|server| {
            let folder = server.folder.path();
            let [certificate, key] = identity.write(folder, "server");
            let authority = tls::write(folder, "clients", &clients.certificate());
            let arguments = [
                format!("--cert-file={certificate}"),
                format!("--key-file={key}"),
                format!("--trusted-ca-file={authority}"),
                "--client-cert-auth".to_owned(),
            ];
            let [certificate, key] = clients.issue("root").write(folder, "root");
            server.client = vec![
                "--insecure-skip-tls-verify".to_owned(),
                format!("--cert={certificate}"),
                format!("--key={key}"),
            ];
            for argument in &mut server.arguments {
                if argument.contains("-client-urls=") {
                    *argument = argument.replace("http://", "https://");
                }
            }
            server.arguments.extend(arguments);
            server.scheme = "etcds";
        })
    }

    fn start_with(configure: impl Fn(&mut Self)) -> Self {
        for _ in 0..PORT_TRIES {
            let [mut server] = Self::members();
            configure(&mut server);
            server.launch();
            if server.is_ready() {
                return server;
            }
        }
        panic!("no etcd server has started");
    }

    /// Starts a cluster of three servers.
    pub fn cluster() -> [Self; 3] {
        for _ in 0..PORT_TRIES {
            let mut servers: [Self; 3] = Self::members();
            servers.iter_mut().for_each(Self::launch);
            if servers.iter_mut().all(Self::is_ready) {
                return servers;
            }
        }
        panic!("no cluster of etcd has started");
    }

    /// Members of a new cluster that don't run yet.
    fn members<const N: usize>() -> [Self; N] {
        let ports = [(); N].map(|()| [free_port(), free_port()]);
        let url = |port| format!("http://127.0.0.1:{port}");
        let peers = ports.map(|[_, peer]| format!("{peer}={}", url(peer)));
        let cluster = peers.join(",");
        ports.map(|[port, peer]| {
            let folder = tempfile::Builder::new().prefix("leasehold-etcd-").tempdir();
            let folder = folder.expect("a temporary folder");
            let path = |name| folder.path().join(name).display().to_string();
            let arguments = [
                ("name", peer.to_string()),
                ("data-dir", path("data")),
                ("listen-client-urls", url(port)),
                ("advertise-client-urls", url(port)),
                ("listen-peer-urls", url(peer)),
                ("initial-advertise-peer-urls", url(peer)),
                ("initial-cluster", cluster.clone()),
                ("logger", "zap".into()),
                ("log-outputs", path("log")),
            ];
            let arguments = arguments.map(|(name, value)| format!("--{name}={value}"));
            Self {
                process: None,
                folder,
                port,
                scheme: "etcd",
                arguments: arguments.into(),
                client: Vec::new(),
            }
        })
    }

    /// Starts a server that was killed, on the same data. It is ready when others run, too.
    pub fn launch(&mut self) {
        let mut command = program("etcd");
        // Fast, where it is known. A test doesn't lose power.
        command
            .env("ETCD_UNSAFE_NO_FSYNC", "true")
            .args(&self.arguments);
        let process = Process::spawn(&mut command, &[self.folder.path()]);
        self.process = Some(process.unwrap_or_else(|error| panic!("{}", cannot_run(&error))));
    }

    /// The same. Returns whether it has one: a port may be taken.
    fn is_ready(&mut self) -> bool {
        let Some(mut process) = self.process.take() else {
            return false;
        };
        let is_ready = || match self.try_execute(&["endpoint", "health"]) {
            Ok(_) => true,
            // It wants a login.
            Err(problem) => problem.contains("user name is empty"),
        };
        let ready = process.wait_until(is_ready, START_WITHIN).is_ok();
        self.process = Some(process);
        ready
    }

    /// Kills the server, as in a crash.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Kills the server, if it runs, and starts it again on the same data.
    pub fn restart(&mut self) {
        self.stop();
        self.launch();
        self.wait();
    }

    /// Waits until it has a leader.
    pub fn wait(&mut self) {
        assert!(self.is_ready(), "etcd did not start:\n{}", self.log());
    }

    /// Stops the process with `SIGSTOP`. It stays connected, and is silent.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Whether something has arrived that the process has not read yet.
    pub fn has_unread(&self) -> bool {
        let connections = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
        let to_server = format!(":{:04X}", self.port());
        connections.lines().any(|line| {
            // The number, both ends, the state, and the sizes of both queues.
            let parts: Vec<&str> = line.split_whitespace().take(5).collect();
            let [_, local, _, "01", queues] = parts[..] else {
                return false;
            };
            local.ends_with(&to_server) && !queues.ends_with(":00000000")
        })
    }

    /// Lets a paused process go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref();
        process.expect("the server runs").signal(signal);
    }

    /// Executes a command of `etcdctl`. Returns its output.
    pub fn execute(&self, arguments: &[&str]) -> String {
        let output = self.try_execute(arguments);
        output.unwrap_or_else(|problem| panic!("etcdctl {arguments:?}: {problem}"))
    }

    fn try_execute(&self, arguments: &[&str]) -> Result<String, String> {
        let mut client = program("etcdctl");
        client.args(["--endpoints", &format!("127.0.0.1:{}", self.port)]);
        client.env("ETCDCTL_API", "3");
        client.args(&self.client).args(arguments);
        let output = client.output();
        let output = output.unwrap_or_else(|error| panic!("{}", cannot_run(&error)));
        let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

fn program(name: &str) -> Command {
    let folder = path_in(VARIABLE).unwrap_or_default();
    Command::new(match folder == PathBuf::new() {
        true => name.into(),
        false => folder.join(name),
    })
}

fn cannot_run(error: &std::io::Error) -> String {
    format!(
        "cannot run etcd: {error}\nThese tests need a real server. Run `./test deep`, which installs one, or \
         `apt-get install etcd-server etcd-client`,\nor set {VARIABLE}=/folder/of/etcd/and/etcdctl."
    )
}
