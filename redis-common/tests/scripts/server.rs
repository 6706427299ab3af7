//! Behavior that the state machine doesn't model: foreign values, full memory, read-only servers,
//! batches, and the stored form of a key.

mod replica;

use std::slice::from_ref;
use std::time::Duration;

use leasehold_api::{
    Acquire, AcquireReply, Acquired, BackendError, ClockId, Convert, ConvertReply, EndReason,
    FencingToken, Key, LockSpec, Mode, Operation, OwnerId, Poll, PollReply, Queued, Release,
    ReleaseReply, Renew, RenewReply, ServerTime, SessionId, Wait,
};
use leasehold_redis_common::script::reply::{self, Answer};
use leasehold_redis_common::script::{Call, ErrorClass, Protocol, ScriptSettings, classify};
use leasehold_test_servers::{RedisServer, ServerOptions};
use redis::Value;

use super::support::{CLOCK, Connection, bytes, text};

const LEASE: Duration = Duration::from_secs(30);

pub(super) struct Fixture {
    _server: RedisServer,
    pub(super) connection: Connection,
    pub(super) protocol: Protocol,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::on(RedisServer::start())
    }

    fn on(server: RedisServer) -> Self {
        Self {
            connection: Connection::open(&server),
            _server: server,
            protocol: Protocol::new("t:", ScriptSettings::default()).expect("a good prefix"),
        }
    }

    fn now(&mut self) -> ServerTime {
        let Value::Array(parts) = self.connection.command(&["TIME"]) else {
            panic!("TIME answers with an array");
        };
        let number = |value: &Value| {
            let text = String::from_utf8_lossy(bytes(value)).into_owned();
            text.parse::<u64>().expect("a number")
        };
        ServerTime::from_micros(number(&parts[0]) * 1_000_000 + number(&parts[1]))
    }

    pub(super) fn request(
        &mut self,
        name: &str,
        operation: Operation,
        spec: LockSpec,
        mode: Mode,
    ) -> Acquire {
        let before = self.now().saturating_add(Duration::from_secs(9));
        Acquire::new(key(name), spec, mode, operation, LEASE, before).expect("a good request")
    }

    pub(super) fn mutex(&mut self, name: &str, operation: Operation) -> Acquire {
        self.request(name, operation, LockSpec::mutex(), Mode::Exclusive)
    }

    /// Runs a call of one element and decodes its answer. An error of the server is classified, as in a backend.
    pub(super) fn run<T>(
        &mut self,
        call: &Call,
        decode: impl Fn(&[u8], ClockId) -> Answer<T>,
    ) -> Result<T, BackendError> {
        match self.connection.run(call) {
            Value::ServerError(error) => {
                let class = classify(error.code(), error.details().unwrap_or_default());
                Err(class.into_error(text(&error)))
            }
            answer => decode(bytes(&answer), CLOCK).map(|stamped| stamped.reply),
        }
    }

    pub(super) fn try_acquire(&mut self, request: &Acquire) -> Result<AcquireReply, BackendError> {
        let call = self.protocol.acquire(from_ref(request));
        self.run(&call, only(reply::acquires))
    }

    pub(super) fn acquire(&mut self, request: &Acquire) -> AcquireReply {
        self.try_acquire(request).expect("a reply")
    }

    /// Acquires the lock, which must be free.
    #[track_caller]
    pub(super) fn acquired(&mut self, request: &Acquire) -> Acquired {
        match self.acquire(request) {
            AcquireReply::Acquired(acquired) => acquired,
            other => panic!("not acquired: {other:?}"),
        }
    }

    /// Queues for the lock, which must be held.
    #[track_caller]
    pub(super) fn queued(&mut self, request: &Acquire) -> Queued {
        match self.acquire(request) {
            AcquireReply::Queued(queued) => queued,
            other => panic!("not queued: {other:?}"),
        }
    }

    pub(super) fn hold(&mut self, name: &str, operation: Operation) {
        let request = self.mutex(name, operation);
        self.acquired(&request);
    }

    fn try_release(
        &mut self,
        name: &str,
        operation: Operation,
    ) -> Result<ReleaseReply, BackendError> {
        let call = self.protocol.release(&[Release::new(key(name), operation)]);
        self.run(&call, only(reply::releases))
    }

    pub(super) fn release(&mut self, name: &str, operation: Operation) -> ReleaseReply {
        self.try_release(name, operation).expect("a reply")
    }

    /// Releases what the operation holds.
    #[track_caller]
    pub(super) fn released(&mut self, name: &str, operation: Operation) {
        let reply = self.release(name, operation);
        assert!(matches!(reply, ReleaseReply::Released { .. }), "{reply:?}");
    }

    /// Polls, and gets the lock. Returns the token.
    #[track_caller]
    fn granted(&mut self, name: &str, operation: Operation) -> FencingToken {
        let call = self.protocol.poll(&[Poll::new(key(name), operation, true)]);
        match self.run(&call, only(reply::polls)).expect("a reply") {
            PollReply::Acquired(acquired) => acquired.token,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn renew(&mut self, name: &str, operation: Operation) -> RenewReply {
        let renew = Renew::new(key(name), operation, LEASE).expect("a good lease");
        let call = self.protocol.renew(&[renew]);
        self.run(&call, only(reply::renewals)).expect("a reply")
    }

    fn channel(&self, session: u8) -> String {
        let session = SessionId::from_bytes([session; 16]);
        self.protocol.channel(&session)
    }

    /// What is stored. The fields of a hash are sorted, because their order may change by itself.
    fn stored(&mut self, name: &str) -> Value {
        let form = self.type_of(name);
        let key = self.protocol.key(&key(name));
        if form != "hash" {
            return self.connection.command(&[&b"DUMP"[..], &key]);
        }
        let Value::Array(all) = self.connection.command(&[&b"HGETALL"[..], &key]) else {
            panic!("HGETALL answers with an array");
        };
        let mut fields: Vec<_> = all.chunks(2).map(<[Value]>::to_vec).collect();
        fields.sort_by(|a, b| bytes(&a[0]).cmp(bytes(&b[0])));
        Value::Array(fields.concat())
    }

    fn type_of(&mut self, name: &str) -> String {
        let key = self.protocol.key(&key(name));
        match self.connection.command(&[&b"TYPE"[..], &key]) {
            Value::SimpleString(name) => name,
            other => panic!("TYPE answered {other:?}"),
        }
    }

    fn configure(&mut self, name: &str, value: &str) {
        let answer = self.connection.command(&["CONFIG", "SET", name, value]);
        assert_eq!(answer, Value::Okay);
    }
}

/// Decodes the answer to a batch of one request.
pub(super) fn only<T>(
    decode: fn(&[u8], usize, ClockId) -> Vec<Answer<T>>,
) -> impl Fn(&[u8], ClockId) -> Answer<T> {
    move |bytes, clock| decode(bytes, 1, clock).remove(0)
}

pub(super) fn key(name: &str) -> Key {
    Key::new(name).expect("a good key")
}

/// The operation of a session with this sequence, by a separate owner.
pub(super) fn attempt(session: u8, sequence: u64) -> Operation {
    Operation {
        session: SessionId::from_bytes([session; 16]),
        sequence,
        owner: OwnerId::from_u64(sequence),
    }
}

#[test]
fn foreign_value_is_named_and_untouched() {
    let mut fixture = Fixture::new();
    let string = "somebody's token of twenty bytes or so, or even more of them";
    let earlier = "LH\u{2} the format before waiters stored their lease, and some bytes of content";
    let policies = "LH\u{4} the format while a lock had a policy, with some more bytes of content";
    let later = "LH\u{f} a later format of leasehold, with some more bytes of content";
    for (name, command, value, found) in [
        ("string", "SET", &[string][..], "string"),
        ("list", "RPUSH", &["x"], "list"),
        ("hash", "HSET", &["owner", "1"], "hash"),
        ("earlier", "SET", &[earlier], "leasehold format 2"),
        ("policies", "SET", &[policies], "leasehold format 4"),
        ("later", "SET", &[later], "leasehold format 15"),
    ] {
        let stored = String::from_utf8(fixture.protocol.key(&key(name))).expect("plain");
        let words = [&[command, &*stored][..], value].concat();
        fixture.connection.command(&words);
        let before = fixture.stored(name);
        let request = fixture.mutex(name, attempt(1, 1));
        let acquired = fixture.try_acquire(&request).map(drop);
        let released = fixture.try_release(name, attempt(1, 1)).map(drop);
        for (call, result) in [("acquire", acquired), ("release", released)] {
            let error = result.expect_err(name);
            let is_foreign = matches!(error, BackendError::ForeignValue { .. });
            assert!(is_foreign, "{name}, {call}: {error:?}");
            let expected = format!("the key holds a foreign value ({found})");
            assert_eq!(error.to_string(), expected, "{name}, {call}");
        }
        assert_eq!(fixture.stored(name), before, "{name} was touched");
    }
}

#[test]
fn full_memory_stops_only_acquires() {
    let mut fixture = Fixture::on(ServerOptions::default().start());
    let rw = LockSpec::rw_lock();
    for name in ["renewed", "ended", "waited", "given up"] {
        fixture.hold(name, attempt(1, 1));
    }
    let write = fixture.request("converted", attempt(1, 1), rw, Mode::Exclusive);
    let held = fixture.acquired(&write);
    for name in ["waited", "given up"] {
        let queued = fixture
            .mutex(name, attempt(2, 2))
            .with_wait(Wait::new(true));
        fixture.queued(&queued);
    }
    fixture.configure("maxmemory", "1");
    fixture.configure("maxmemory-policy", "noeviction");

    for (name, waits) in [("new", false), ("ended", false), ("renewed", true)] {
        let before = fixture.stored(name);
        let mut request = fixture.mutex(name, attempt(3, 9));
        request.wait = waits.then(|| Wait::new(true));
        let call = fixture.protocol.acquire(from_ref(&request));
        let Value::ServerError(error) = fixture.connection.run(&call) else {
            panic!("{name}: memory is full");
        };
        let class = classify(error.code(), error.details().unwrap_or_default());
        let expected = ("OOM", ErrorClass::Unavailable);
        assert_eq!((error.code(), class), expected, "{name}: {error:?}");
        assert_eq!(fixture.stored(name), before, "{name} was touched");
    }
    assert!(matches!(
        fixture.renew("renewed", attempt(1, 1)),
        RenewReply::Renewed { .. }
    ));
    fixture.released("ended", attempt(1, 1));
    let unknown = fixture.release("nothing there", attempt(1, 1));
    assert!(matches!(unknown, ReleaseReply::NotHeld(_)), "{unknown:?}");
    assert_eq!(
        fixture.release("given up", attempt(2, 2)),
        ReleaseReply::Left
    );
    // Nobody listens, so the release publishes first and marks the waiter as unreachable.
    fixture.released("waited", attempt(1, 1));
    fixture.granted("waited", attempt(2, 2));
    let down = Convert::to_shared(key("converted"), attempt(1, 1), held.token);
    let call = fixture.protocol.convert(&down);
    let converted = fixture.run(&call, reply::convert).expect("a reply");
    assert!(matches!(converted, ConvertReply::Converted { .. }));
}

#[test]
fn read_only_server_answers_readonly() {
    let mut fixture = Fixture::new();
    // One for the fast path, and one for the general part.
    let semaphore = LockSpec::semaphore(1).expect("a good number");
    let keys = [
        ("held", LockSpec::mutex(), Mode::Exclusive),
        ("taken", semaphore, Mode::Permits(1)),
    ];
    for (name, spec, mode) in keys {
        let holder = fixture.request(name, attempt(1, 1), spec, mode);
        fixture.acquired(&holder);
        let queued = fixture
            .request(name, attempt(2, 1), spec, mode)
            .with_wait(Wait::new(true));
        fixture.queued(&queued);
    }
    let mut pushes = Connection::open(&fixture._server);
    pushes.command(&["SUBSCRIBE", &fixture.channel(2)]);
    fixture.connection.command(&["REPLICAOF", "127.0.0.1", "1"]);
    fixture.configure("replica-read-only", "yes");

    for (name, ..) in keys {
        let before = fixture.stored(name);
        let release = fixture
            .protocol
            .release(&[Release::new(key(name), attempt(1, 1))]);
        let Value::ServerError(error) = fixture.connection.run(&release) else {
            panic!("a replica accepted a write");
        };
        assert_eq!(error.code(), "READONLY", "{name}: {error:?}");
        assert_eq!(fixture.stored(name), before);
        // Nothing was published: the answer to PING is the first message.
        let Value::Array(parts) = pushes.command(&["PING"]) else {
            panic!("a subscriber's PING is answered with an array");
        };
        assert_eq!(bytes(&parts[0]), b"pong", "{name}");
    }
}

#[test]
fn waiter_without_watermark_is_not_queued_twice() {
    let mut fixture = Fixture::new();
    let delivery_window = Duration::from_millis(500);
    let settings = ScriptSettings::default().with_delivery_window(delivery_window);
    fixture.protocol = Protocol::new("t:", settings).expect("a good prefix");
    let request = |fixture: &mut Fixture, session| {
        let mut request = fixture.mutex("job", attempt(session, 1));
        request.deliver_before = fixture.now().saturating_add(delivery_window / 2);
        request.wait = Some(Wait::new(false));
        request
    };
    let holder = request(&mut fixture, 1);
    fixture.acquired(&holder);
    let waiter = request(&mut fixture, 2);
    fixture.queued(&waiter);
    std::thread::sleep(3 * delivery_window);
    let again = request(&mut fixture, 2);
    fixture.queued(&again);
    let third = request(&mut fixture, 3);
    assert_eq!(fixture.queued(&third).ahead, 1);
}

#[test]
fn key_with_many_records_is_a_hash() {
    let mut fixture = Fixture::new();
    let rw = LockSpec::rw_lock();
    for session in 1..=80 {
        let request = fixture.request("shared", attempt(session, 1), rw, Mode::Shared);
        fixture.acquired(&request);
        let expected = if session <= 32 { "string" } else { "hash" };
        assert_eq!(
            fixture.type_of("shared"),
            expected,
            "with {session} readers"
        );
    }
    for session in 1..=80 {
        fixture.released("shared", attempt(session, 1));
    }
    // With a short delivery window, watermarks expire while the key is in use.
    let settings = ScriptSettings::default().with_delivery_window(Duration::from_secs(1));
    fixture.protocol = Protocol::new("t:", settings).expect("a good prefix");
    let hold_briefly = |fixture: &mut Fixture, operation| {
        let mut request = fixture.request("brief", operation, rw, Mode::Shared);
        request.deliver_before = fixture.now().saturating_add(Duration::from_millis(900));
        fixture.acquired(&request);
        fixture.released("brief", operation);
    };
    for session in 1..=170 {
        hold_briefly(&mut fixture, attempt(session, 1));
    }
    assert_eq!(fixture.type_of("brief"), "hash");
    std::thread::sleep(Duration::from_millis(2_100));
    for sequence in 2..=90 {
        hold_briefly(&mut fixture, attempt(1, sequence));
    }
    assert_eq!(fixture.type_of("brief"), "string");
}

/// A try in vain leaves its watermark behind older ones.
#[test]
fn expired_watermarks_go_though_a_newer_one_is_behind_them() {
    let mut fixture = Fixture::new();
    let delivery_window = Duration::from_millis(500);
    let settings = ScriptSettings::default().with_delivery_window(delivery_window);
    fixture.protocol = Protocol::new("t:", settings).expect("a good prefix");
    let request = |fixture: &mut Fixture, session, sequence| {
        let mut request = fixture.mutex("tried", attempt(session, sequence));
        request.deliver_before = fixture.now().saturating_add(delivery_window / 2);
        request
    };
    let size = |fixture: &mut Fixture| {
        let stored = fixture.protocol.key(&key("tried"));
        let stored = fixture.connection.command(&[&b"GET"[..], &stored]);
        bytes(&stored).len()
    };
    let holder = request(&mut fixture, 1, 1);
    fixture.acquired(&holder);
    for session in 10..60 {
        let tried = request(&mut fixture, session, 1);
        assert!(matches!(
            fixture.acquire(&tried),
            AcquireReply::Contended { .. }
        ));
    }
    std::thread::sleep(3 * delivery_window);
    let tried = request(&mut fixture, 60, 1);
    assert!(matches!(
        fixture.acquire(&tried),
        AcquireReply::Contended { .. }
    ));
    assert!(size(&mut fixture) > 51 * 33, "{}", size(&mut fixture));
    fixture.released("tried", attempt(1, 1));
    let again = request(&mut fixture, 1, 2);
    fixture.acquired(&again);
    assert!(size(&mut fixture) < 5 * 33, "{}", size(&mut fixture));
}

/// Its session's watermark has expired, so that of the session before moves to the others.
#[test]
fn renewal_of_a_full_string_keeps_it_a_string() {
    let mut fixture = Fixture::new();
    let delivery_window = Duration::from_secs(2);
    let settings = ScriptSettings::default().with_delivery_window(delivery_window);
    fixture.protocol = Protocol::new("t:", settings).expect("a good prefix");
    let request = |fixture: &mut Fixture, sequence| {
        let mut operation = attempt(1, sequence);
        operation.owner = attempt(1, 1).owner;
        let mut request = fixture.mutex("full", operation);
        request.deliver_before = fixture.now().saturating_add(delivery_window / 2);
        request
    };
    let holds = [1, 2].map(|sequence| {
        let hold = request(&mut fixture, sequence);
        fixture.acquired(&hold);
        hold.operation
    });
    std::thread::sleep(delivery_window * 5 / 2);
    for number in 1..1_000_u128 {
        let mut gone = attempt(2, 1);
        gone.session = SessionId::from_bytes((1_000 + number).to_le_bytes());
        fixture.release("full", gone);
    }
    assert_eq!(fixture.type_of("full"), "string");
    assert!(matches!(
        fixture.renew("full", holds[0]),
        RenewReply::Renewed { .. }
    ));
    assert_eq!(fixture.type_of("full"), "string");
}

#[test]
fn locks_without_fast_path_become_hashes_earlier() {
    let semaphore = LockSpec::semaphore(3).expect("a good number");
    let specs = [
        (semaphore, Mode::Permits(1)),
        (LockSpec::rw_lock(), Mode::Shared),
    ];
    for (spec, mode) in specs {
        let mut fixture = Fixture::new();
        // More records than FEW_RECORDS, and fewer than PACKED_RECORDS.
        for session in 1..=100 {
            let request = fixture.request("many", attempt(session, 1), spec, mode);
            fixture.acquired(&request);
            let request = fixture.request("many", attempt(session, 2), spec, mode);
            fixture.acquired(&request);
            fixture.released("many", attempt(session, 2));
            fixture.released("many", attempt(session, 1));
        }
        assert_eq!(fixture.type_of("many"), "hash", "{spec:?}");
    }
}

#[test]
fn key_with_waiters_is_a_hash() {
    for waiters in [1, 14, 90] {
        let mut fixture = Fixture::new();
        let mut pushes = Connection::open(&fixture._server);
        let mut sequence = [0; 100];
        let mut next = |fixture: &mut Fixture, session: u8| {
            sequence[usize::from(session)] += 1;
            let operation = attempt(session, sequence[usize::from(session)]);
            fixture.mutex("busy", operation).with_wait(Wait::new(true))
        };
        let first = next(&mut fixture, 0);
        fixture.acquired(&first);
        let mut queue = std::collections::VecDeque::from([first.operation]);
        for session in 0..=waiters {
            pushes.command(&["SUBSCRIBE", &fixture.channel(session)]);
        }
        for session in 1..=waiters {
            let request = next(&mut fixture, session);
            assert_eq!(fixture.queued(&request).ahead, u32::from(session) - 1);
            queue.push_back(request.operation);
        }
        assert_eq!(fixture.type_of("busy"), "hash");
        let mut token = None;
        // Every session holds three times.
        for turn in 0..3 * (usize::from(waiters) + 1) {
            let done = queue.pop_front().expect("a holder");
            fixture.released("busy", done);
            if turn % 5 == 0 {
                let again = fixture.release("busy", done);
                assert_eq!(again, ReleaseReply::NotHeld(EndReason::Released), "{turn}");
            }
            let again = next(&mut fixture, done.session.as_bytes()[0]);
            let ahead = fixture.queued(&again).ahead;
            assert_eq!(ahead, u32::from(waiters) - 1, "{turn}");
            queue.push_back(again.operation);
            let granted = fixture.granted("busy", queue[0]);
            assert!(token < Some(granted), "{turn}");
            token = Some(granted);
        }
        assert_eq!(fixture.type_of("busy"), "hash");
    }
}
