//! A minimal Redis client for script calls.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use leasehold_api::ClockId;
use leasehold_redis_common::script::Call;
use leasehold_test_servers::RedisServer;
use redis::{Parser, ServerError, ToRedisArgs, Value};

/// The clock that the tests call the server's.
pub(crate) const CLOCK: ClockId = ClockId::new(0x1122_3344_5566_7788);

/// The bytes of a bulk string.
pub(crate) fn bytes(value: &Value) -> &[u8] {
    match value {
        Value::BulkString(bytes) => bytes,
        other => panic!("not a bulk string: {other:?}"),
    }
}

/// The text that the server has sent.
pub(crate) fn text(error: &ServerError) -> String {
    format!("{} {}", error.code(), error.details().unwrap_or_default())
}

/// One blocking connection.
pub(crate) struct Connection {
    stream: UnixStream,
    parser: Parser,
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
            stream,
            parser: Parser::new(),
            changed: BTreeMap::new(),
        }
    }

    pub(crate) fn send<T: ToRedisArgs>(&mut self, words: &[T]) {
        let packed = redis::Cmd::new().arg(words).get_packed_command();
        self.stream.write_all(&packed).expect("the server reads");
    }

    pub(crate) fn receive(&mut self) -> Value {
        let answer = self.parser.parse_value(&mut self.stream);
        answer.expect("the server answers")
    }

    pub(crate) fn command<T: ToRedisArgs>(&mut self, words: &[T]) -> Value {
        self.send(words);
        self.receive()
    }

    /// Runs a script call like a backend.
    pub(crate) fn run(&mut self, call: &Call) -> Value {
        match self.evaluate("EVALSHA", call.script.sha1(), call) {
            Value::ServerError(error) if error.code() == "NOSCRIPT" => {
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
        let Value::BulkString(hash) = self.command(&["SCRIPT", "LOAD", &source]) else {
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
