//! An S3 server for one test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Process, path_in};
use crate::server::free_port;

/// The variable with the path of `weed`.
const VARIABLE: &str = "LEASEHOLD_WEED";
/// The maximum start time of a server on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(120);
const PORT_TRIES: u32 = 20;
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

const ACCESS_KEY: &str = "locks";
const SECRET_KEY: &str = "s3cret";

/// The options that name its ports. It has no others.
const PORTS: [&str; 8] = [
    "s3.port",
    "filer.port",
    "master.port",
    "volume.port",
    "s3.port.grpc",
    "filer.port.grpc",
    "master.port.grpc",
    "volume.port.grpc",
];

/// A running SeaweedFS server on ports of 127.0.0.1, with its data in a temporary folder. It has a bucket, and a user who may do
/// everything with it; others may do nothing.
///
/// Dropping this value ends the server and removes the folder.
#[derive(Debug)]
#[must_use]
pub struct SeaweedFs {
    // Dropped in this order: the process before its folder.
    process: Option<Process>,
    folder: TempDir,
    /// In the order of `PORTS`.
    ports: [u16; PORTS.len()],
}

impl SeaweedFs {
    /// The name of the bucket.
    pub const BUCKET: &str = "locks";

    /// Starts a server, and creates the bucket.
    pub fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("leasehold-weed-").tempdir();
        let mut server = Self {
            process: None,
            folder: folder.expect("a temporary folder"),
            ports: [0; PORTS.len()],
        };
        let users = format!(
            r#"{{"identities": [{{"name": "locks", "actions": ["Admin"],
                "credentials": [{{"accessKey": "{ACCESS_KEY}", "secretKey": "{SECRET_KEY}"}}]}}]}}"#
        );
        std::fs::write(server.users(), users).expect("a file");
        for _ in 0..PORT_TRIES {
            server.ports = PORTS.map(|_| free_port());
            server.launch();
            if server.is_ready() {
                return server;
            }
        }
        panic!("the SeaweedFS server did not start");
    }

    fn users(&self) -> PathBuf {
        self.folder.path().join("users.json")
    }

    fn launch(&mut self) {
        let program = path_in(VARIABLE).unwrap_or_else(|| "weed".into());
        let mut command = Command::new(&program);
        let folder = self.folder.path().display();
        command.current_dir(self.folder.path());
        command.arg(format!("-logdir={folder}"));
        command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]);
        // It has the ports that are named below, and no others. It creates no bucket for a wrong name.
        command.args([
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
        ]);
        // One that was killed is there again after seconds.
        command.arg("-master.electionTimeout=1s");
        // Many small files, and no statistics for its makers.
        command.args(["-master.telemetry=false", "-master.volumeSizeLimitMB=64"]);
        command.args(["-volume.max=100", &format!("-dir={folder}")]);
        command.arg(format!("-s3.config={}", self.users().display()));
        let ports = PORTS.iter().zip(self.ports);
        command.args(ports.map(|(option, port)| format!("-{option}={port}")));
        let process = Process::spawn(&mut command, &[self.folder.path()]);
        self.process =
            Some(process.unwrap_or_else(|error| panic!("{}", cannot_run(&program, &error))));
    }

    /// Waits until it answers. Returns whether it does: a port may be taken.
    fn is_ready(&mut self) -> bool {
        let Some(mut process) = self.process.take() else {
            return false;
        };
        let is_ready = || self.creates_bucket() && self.refuses_strangers() && self.writes();
        let ready = process.wait_until(is_ready, START_WITHIN).is_ok();
        self.process = Some(process);
        ready
    }

    /// A bucket is a folder of the file system. It may be there already.
    fn creates_bucket(&self) -> bool {
        matches!(self.ask("POST", "", b"").0, 201 | 409)
    }

    fn refuses_strangers(&self) -> bool {
        ask(self.port(), "GET", &format!("/{}/", Self::BUCKET), b"").0 == 403
    }

    /// After a start, the part that stores bytes joins later than the others. With the first write to the bucket and the first one
    /// outside, which would be its own after a minute, it creates large files. On a busy disk, everybody waits for them.
    fn writes(&self) -> bool {
        let outside = ask(self.ports[1], "PUT", "/is-ready", b"yes");
        outside.0 == 201 && self.ask("PUT", "is-ready", b"yes").0 == 201
    }

    /// Kills the server, as in a crash.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Starts a server that was killed, on the same data.
    pub fn restart(&mut self) {
        self.launch();
        self.wait();
    }

    /// Waits until it answers.
    pub fn wait(&mut self) {
        assert!(self.is_ready(), "SeaweedFS does not answer");
    }

    /// Stops the process with `SIGSTOP`. It stays connected, and is silent.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a paused process go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref();
        process.expect("the server runs").signal(signal);
    }

    /// Writes an object of the bucket without S3, as another program.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let (status, answer) = self.ask("PUT", path, bytes);
        assert_eq!(status, 201, "{path}: {answer}");
    }

    /// The text of an object of the bucket, or the listing of a folder.
    pub fn get(&self, path: &str) -> Option<String> {
        let (status, answer) = self.ask("GET", path, b"");
        let (_, body) = answer.split_once("\r\n\r\n")?;
        (status == 200).then(|| body.to_owned())
    }

    /// Its name and version.
    pub fn version(&self) -> String {
        let (_, answer) = self.ask("GET", "", b"");
        let server = answer
            .lines()
            .find_map(|line| line.strip_prefix("Server: "));
        server.unwrap_or("no answer").to_owned()
    }

    /// Asks the file system of the server. A folder's path ends in `/`.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        let path = format!("/buckets/{}/{path}", Self::BUCKET);
        ask(self.ports[1], method, &path, body)
    }

    /// The port of S3.
    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    /// The URL of a folder in the bucket, with everything that a client needs.
    pub fn url(&self, folder: &str) -> String {
        self.url_at(([127, 0, 0, 1], self.port()).into(), folder)
    }

    /// The same, for a client that reaches the server at this address.
    pub fn url_at(&self, address: SocketAddr, folder: &str) -> String {
        let endpoint = format!("endpoint=http://{address}&allow_http=true&region=us-east-1");
        let login = format!("access_key_id={ACCESS_KEY}&secret_access_key={SECRET_KEY}");
        format!("s3://{}/{folder}?{endpoint}&{login}", Self::BUCKET)
    }
}

/// Sends a request, and returns the status and the whole answer, which is empty if there is none.
fn ask(port: u16, method: &str, path: &str, body: &[u8]) -> (u16, String) {
    let answer = try_ask(port, method, path, body).unwrap_or_default();
    let status = answer.split(' ').nth(1).and_then(|it| it.parse().ok());
    (status.unwrap_or_default(), answer)
}

fn try_ask(port: u16, method: &str, path: &str, body: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    let headers = format!("Accept: application/json\r\nContent-Length: {}", body.len());
    write!(stream, "{method} {path} HTTP/1.0\r\n{headers}\r\n\r\n")?;
    stream.write_all(body)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn cannot_run(program: &std::path::Path, error: &std::io::Error) -> String {
    format!(
        "cannot run `{}` of SeaweedFS: {error}\n\
         These tests need a real server. Run `./test full`, which downloads one, or `.ci/fetch-servers s3`,\n\
         and set {VARIABLE}=/path/of/weed.",
        program.display()
    )
}
