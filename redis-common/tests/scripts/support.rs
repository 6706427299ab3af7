//! A minimal Redis client for script calls.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use leasehold_api::ClockId;
use leasehold_redis_common::script::Call;
use leasehold_test_servers::RedisServer;

/// The clock that the tests call the server's.
pub(crate) const CLOCK: ClockId = ClockId::new(0x1122_3344_5566_7788);

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Int(i64),
    Status(String),
    Error(String),
    Bulk(Vec<u8>),
    Array(Vec<Value>),
}

impl Value {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bulk(bytes) => bytes,
            other => panic!("not a bulk string: {other:?}"),
        }
    }
}

/// One blocking connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<UnixStream>,
    /// The hashes of changed scripts that the server has loaded.
    changed: BTreeMap<String, String>,
}

impl Connection {
    pub(crate) fn open(server: &RedisServer) -> Self {
        let stream = UnixStream::connect(server.socket_path()).expect("the server listens");
        let limit = Some(Duration::from_secs(10));
        stream
            .set_read_timeout(limit)
            .expect("a timeout can be set");
        Self {
            stream: BufReader::new(stream),
            changed: BTreeMap::new(),
        }
    }

    pub(crate) fn send<T: AsRef<[u8]>>(&mut self, words: &[T]) {
        let mut out = format!("*{}\r\n", words.len()).into_bytes();
        for word in words.iter().map(AsRef::as_ref) {
            out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            out.extend_from_slice(word);
            out.extend_from_slice(b"\r\n");
        }
        self.stream
            .get_mut()
            .write_all(&out)
            .expect("the server reads");
    }

    pub(crate) fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.stream
            .read_line(&mut line)
            .expect("the server answers");
        let (kind, rest) = line.trim_end().split_at(1);
        let number = || rest.parse::<i64>().expect("a number");
        match kind {
            "+" => Value::Status(rest.into()),
            "-" => Value::Error(rest.into()),
            ":" => Value::Int(number()),
            "$" if number() < 0 => Value::Nil,
            "$" => {
                let mut bytes = vec![0; usize::try_from(number()).expect("a length") + 2];
                self.stream
                    .read_exact(&mut bytes)
                    .expect("the rest of the string");
                bytes.truncate(bytes.len() - 2);
                Value::Bulk(bytes)
            }
            "*" => Value::Array((0..number()).map(|_| self.receive()).collect()),
            other => panic!("unexpected reply type {other:?}"),
        }
    }

    pub(crate) fn command<T: AsRef<[u8]>>(&mut self, words: &[T]) -> Value {
        self.send(words);
        self.receive()
    }

    /// Runs a script call like a backend.
    pub(crate) fn run(&mut self, call: &Call) -> Value {
        match self.evaluate("EVALSHA", call.script.sha1(), call) {
            Value::Error(error) if error.starts_with("NOSCRIPT") => {
                self.evaluate("EVAL", call.script.source(), call)
            }
            answer => answer,
        }
    }

    /// Runs a call with a changed script. Each change replaces the first text by the second.
    pub(crate) fn run_changed(&mut self, call: &Call, changes: &[(&str, &str)]) -> Value {
        let name = format!("{} {changes:?}", call.script.sha1());
        let hash = match self.changed.get(&name) {
            Some(hash) => hash.clone(),
            None => self.load_changed(name, call, changes),
        };
        self.evaluate("EVALSHA", &hash, call)
    }

    fn load_changed(&mut self, name: String, call: &Call, changes: &[(&str, &str)]) -> String {
        let mut source = call.script.source().to_owned();
        for (from, to) in changes {
            assert!(
                source.contains(from),
                "the script does not contain {from:?}"
            );
            source = source.replacen(from, to, 1);
        }
        let Value::Bulk(hash) = self.command(&["SCRIPT", "LOAD", &source]) else {
            panic!("the changed script has an error");
        };
        let hash = String::from_utf8(hash).expect("a hash");
        self.changed.insert(name, hash.clone());
        hash
    }

    fn evaluate(&mut self, command: &str, script: &str, call: &Call) -> Value {
        let call = call.to_server(CLOCK);
        let mut words = vec![
            command.as_bytes().to_vec(),
            script.as_bytes().to_vec(),
            call.key_count().to_string().into_bytes(),
        ];
        words.extend(call.words().map(<[u8]>::to_vec));
        self.command(&words)
    }
}
