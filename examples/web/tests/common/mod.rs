//! Instances of the service as processes, and their callers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use leasehold_test_servers::{block_until, free_port};

pub struct Instance {
    pub process: Child,
    pub address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

impl Instance {
    /// Starts an instance that may not listen yet.
    pub fn spawn(address: SocketAddr, locks: &str, database: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_web"))
            .env("LISTEN", address.to_string())
            .env("LOCKS", locks)
            .env("DATABASE", database)
            .env("RUST_LOG", "info,leasehold=error")
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let read = Arc::clone(&log);
        // Reads on, so that the instance never waits for us.
        thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| read.lock().expect("no panic").push(line));
        });
        Self {
            process,
            address,
            log,
        }
    }

    pub fn start(address: SocketAddr, locks: &str, database: &str) -> Self {
        let instance = Self::spawn(address, locks, database);
        block_until("the instance listens", || instance.has_logged("listening"));
        instance
    }

    pub fn has_logged(&self, text: &str) -> bool {
        let log = self.log.lock().expect("no panic");
        log.iter().any(|line| line.contains(text))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

pub fn get(address: SocketAddr, path: &str) -> u16 {
    send(address, "GET", path, "").expect("an answer")
}

/// Asks for a deposit once, and returns the status.
pub fn deposit(
    address: SocketAddr,
    account: i64,
    request: i64,
    amount: i64,
) -> std::io::Result<u16> {
    let path = format!("/accounts/{account}/deposits");
    let body = format!(r#"{{"request": {request}, "amount": {amount}}}"#);
    send(address, "POST", &path, &body)
}

fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> std::io::Result<u16> {
    let limit = Duration::from_secs(20);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: web\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    status.ok_or_else(|| std::io::Error::other("cut off"))
}
