//! An S3 server for one test.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

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
    /// The ports of S3 and of the file system.
    ports: [u16; 2],
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
            ports: [0; 2],
        };
        let users = format!(
            r#"{{"identities": [{{"name": "locks", "actions": ["Admin"],
                "credentials": [{{"accessKey": "{ACCESS_KEY}", "secretKey": "{SECRET_KEY}"}}]}}]}}"#
        );
        std::fs::write(server.users(), users).expect("a file");
        for _ in 0..PORT_TRIES {
            if server.launch() {
                return server;
            }
        }
        panic!("the SeaweedFS server did not start");
    }

    fn users(&self) -> PathBuf {
        self.folder.path().join("users.json")
    }

    /// Starts the process and waits until it answers. Returns whether it does: a port may be taken.
    fn launch(&mut self) -> bool {
        let program = path_in(VARIABLE).unwrap_or_else(|| "weed".into());
        self.ports = [free_port(), free_port()];
        let mut command = Command::new(&program);
        command.current_dir(self.folder.path());
        command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]);
        // It has the ports that are named below, and no others. It creates no bucket for a wrong name.
        command.args([
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
        ]);
        // Many small files, and no statistics for its makers.
        command.args(["-master.telemetry=false", "-master.volumeSizeLimitMB=64"]);
        command.arg(format!("-dir={}", self.folder.path().display()));
        command.arg(format!("-s3.config={}", self.users().display()));
        command.arg(format!("-s3.port={}", self.ports[0]));
        command.arg(format!("-filer.port={}", self.ports[1]));
        for port in ["master.port", "volume.port"] {
            command.arg(format!("-{port}={}", free_port()));
        }
        for part in ["master", "volume", "filer", "s3"] {
            command.arg(format!("-{part}.port.grpc={}", free_port()));
        }
        let mut process = Process::spawn(&mut command, &[self.folder.path()])
            .unwrap_or_else(|error| panic!("{}", cannot_run(&program, &error)));
        let is_ready = || self.creates_bucket() && self.refuses_strangers();
        let answers = process.wait_until(is_ready, START_WITHIN).is_ok();
        self.process = Some(process);
        answers
    }

    /// A bucket is a folder of the file system. It may be there already.
    fn creates_bucket(&self) -> bool {
        let answer = ask(self.ports[1], &format!("POST /buckets/{}/", Self::BUCKET));
        let is_there = ["HTTP/1.1 201", "HTTP/1.1 409"];
        answer.is_some_and(|answer| is_there.iter().any(|status| answer.starts_with(status)))
    }

    fn refuses_strangers(&self) -> bool {
        let answer = ask(self.ports[0], &format!("GET /{}/", Self::BUCKET));
        answer.is_some_and(|answer| answer.starts_with("HTTP/1.1 403"))
    }

    /// The settings of a client, as `object_store` names them.
    pub fn settings(&self) -> [(&'static str, String); 5] {
        [
            ("endpoint", format!("http://127.0.0.1:{}", self.ports[0])),
            ("allow_http", "true".into()),
            ("region", "us-east-1".into()),
            ("access_key_id", ACCESS_KEY.into()),
            ("secret_access_key", SECRET_KEY.into()),
        ]
    }

    /// The URL of a folder in the bucket, with everything that a client needs.
    pub fn url(&self, folder: &str) -> String {
        let settings = self.settings();
        let settings = settings.map(|(name, value)| format!("{name}={value}"));
        format!("s3://{}/{folder}?{}", Self::BUCKET, settings.join("&"))
    }
}

/// Sends a request without a body, and returns the answer.
fn ask(port: u16, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).ok()?;
    let headers = format!("Host: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close");
    write!(stream, "{request} HTTP/1.1\r\n{headers}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn cannot_run(program: &std::path::Path, error: &std::io::Error) -> String {
    format!(
        "cannot run `{}` of SeaweedFS: {error}\n\
         These tests need a real server. Run `./test full`, which downloads one, or `.ci/fetch-servers s3`,\n\
         and set {VARIABLE}=/path/of/weed.",
        program.display()
    )
}
