//! A server with a replica. The server relays all messages to the replica, and counts none of the
//! replica's subscribers.

use std::collections::BTreeMap;

use leasehold_api::{ForceRelease, InspectReply, Notification};
use leasehold_redis_common::script::decode_notification;
use leasehold_test_servers::block_until;

use super::*;

/// The session of the holder.
const HOLDER: u8 = 1;
/// The first waiter's session. It listens at the replica only, as a client does that was connected to
/// it before a failover.
const FIRST: u8 = 2;

/// A server, its replica, and a subscriber of the replica.
struct Pair {
    primary: Fixture,
    subscriber: Connection,
    /// The channel of each session, for the keys that the test uses.
    sessions: BTreeMap<Vec<u8>, u8>,
    shard_channels: bool,
    _replica: RedisServer,
}

impl Pair {
    fn new(shard_channels: bool) -> Self {
        let mut primary = Fixture::new();
        let settings = ScriptSettings::default().with_shard_channels(shard_channels);
        primary.protocol = Protocol::new("t:", settings).expect("a good prefix");
        let of_primary = ["127.0.0.1".into(), primary._server.port().to_string()];
        let options = ServerOptions::default().with_config("replicaof", of_primary);
        let replica = options.start();
        let mut pair = Self {
            primary,
            subscriber: Connection::open(&replica),
            sessions: BTreeMap::new(),
            shard_channels,
            _replica: replica,
        };
        pair.sync();
        pair
    }

    /// Waits until the replica has everything up to now.
    fn sync(&mut self) {
        let connection = &mut self.primary.connection;
        connection.command(&["SET", "written", "1"]);
        block_until("the replica has everything", || {
            connection.command(&["WAIT", "1", "1000"]) == Value::Int(1)
        });
    }

    fn channel(&self, name: &str, number: u8) -> String {
        let session = SessionId::from_bytes([number; 16]);
        match self.shard_channels {
            true => self.primary.protocol.shard_channel(&key(name), &session),
            false => self.primary.channel(number),
        }
    }

    /// Subscribes a session, at the replica or at the primary.
    fn subscribe(&mut self, name: &str, number: u8, at: Option<&mut Connection>) {
        let channel = self.channel(name, number);
        let command = if self.shard_channels {
            "SSUBSCRIBE"
        } else {
            "SUBSCRIBE"
        };
        self.sessions.insert(channel.clone().into_bytes(), number);
        at.unwrap_or(&mut self.subscriber)
            .command(&[command, &channel]);
    }

    /// What the subscriber of the replica got since the last call.
    fn relayed(&mut self) -> Vec<(u8, Notification)> {
        self.sync();
        let mut relayed = Vec::new();
        self.subscriber.send(&["PING"]);
        loop {
            let Value::Array(parts) = self.subscriber.receive() else {
                return relayed;
            };
            let [_, channel, message] = &parts[..] else {
                return relayed;
            };
            let number = self.sessions[bytes(channel)];
            let notifications = decode_notification(bytes(message)).expect("a message of ours");
            relayed.extend(notifications.into_iter().map(|it| (number, it)));
        }
    }

    fn inspect(&mut self, name: &str) -> InspectReply {
        let call = self.primary.protocol.inspect(&key(name));
        self.primary.run(&call, reply::inspect).expect("a reply")
    }

    /// A holder, then waiters that say that they listen. The holder releases.
    fn hand_over(&mut self, case: &Case, waiters: u8) {
        for number in HOLDER..=HOLDER + waiters {
            let request = self
                .primary
                .request(case.name, attempt(number, 1), case.spec, case.mode)
                .with_wait(Wait::new(true));
            let reply = self.primary.acquire(&request);
            let is_holder = matches!(reply, AcquireReply::Acquired(_));
            assert_eq!(is_holder, number == HOLDER, "{}: {reply:?}", case.name);
        }
        self.primary.released(case.name, attempt(HOLDER, 1));
    }
}

/// A lock, and its number of waiters.
struct Case {
    name: &'static str,
    spec: LockSpec,
    mode: Mode,
    waiters: u8,
}

/// Locks for each part of the scripts that publishes: the fast path, and the general part.
fn cases() -> [Case; 4] {
    let semaphore = LockSpec::semaphore(1).expect("a good number");
    let case = |name, spec, mode, waiters| Case {
        name,
        spec,
        mode,
        waiters,
    };
    let (mutex, rw_lock) = (LockSpec::mutex(), LockSpec::rw_lock());
    [
        case("mutex", mutex, Mode::Exclusive, 20),
        case("one permit", semaphore, Mode::Permits(1), 3),
        case("many permits", semaphore, Mode::Permits(1), 20),
        case("writers", rw_lock, Mode::Exclusive, 3),
    ]
}

/// Whether the scripts publish on shard channels. Redis 6.2 has none.
fn channels() -> impl Iterator<Item = bool> {
    let has_shard_channels = RedisServer::default_version().major >= 7;
    [false, true]
        .into_iter()
        .filter(move |is_shard| !is_shard || has_shard_channels)
}

#[test]
fn waiter_that_is_marked_gets_no_message_at_a_replica() {
    for shard_channels in channels() {
        let mut pair = Pair::new(shard_channels);
        for case in cases() {
            for number in FIRST..FIRST + case.waiters {
                pair.subscribe(case.name, number, None);
            }
            pair.hand_over(&case, case.waiters);
            let name = case.name;
            assert_eq!(pair.relayed(), [], "{name}, shard: {shard_channels}");
            let state = pair.inspect(name);
            assert_eq!(state.holder_count, 0, "{name}, shard: {shard_channels}");
            assert_eq!(state.waiter_count, u32::from(case.waiters));
            assert!(state.waiters.iter().all(|waiter| waiter.unreachable));
        }
    }
}

#[test]
fn each_message_at_a_replica_is_about_a_grant_that_was_made() {
    for shard_channels in channels() {
        let mut pair = Pair::new(shard_channels);
        for case in cases() {
            // All listen at the replica, but only the second waiter at the primary too.
            let mut at_primary = Connection::open(&pair.primary._server);
            let second = FIRST + 1;
            for number in FIRST..FIRST + case.waiters {
                pair.subscribe(case.name, number, None);
            }
            pair.subscribe(case.name, second, Some(&mut at_primary));
            pair.hand_over(&case, case.waiters);
            let relayed = pair.relayed();
            let [(to, Notification::Granted { token, stamp, .. })] = relayed[..] else {
                panic!("{}, shard: {shard_channels}: {relayed:?}", case.name);
            };
            // The replica relays a message of the primary, which names the primary's clock.
            assert_eq!((to, stamp.clock), (second, CLOCK));
            let holders = pair.inspect(case.name).holders;
            let tokens: Vec<_> = holders.iter().map(|holder| holder.token).collect();
            assert_eq!(tokens, [token], "{}", case.name);
            let renewed = pair.primary.renew(case.name, attempt(to, 1));
            assert!(matches!(renewed, RenewReply::Renewed { token: it, .. } if it == token));
        }
    }
}

/// The calls whose steps write nothing: the operations are not there, the epoch is another one, the
/// hold has the wanted mode already, or nothing ever writes.
fn calls_that_write_nothing(protocol: &Protocol, held: FencingToken) -> Vec<(&'static str, Call)> {
    let (holder, gone) = (attempt(HOLDER, 1), attempt(FIRST, 1));
    let renew = |name| Renew::new(key(name), gone, LEASE).expect("a good lease");
    let poll = |name| Poll::new(key(name), gone, true);
    let other = FencingToken::new(held.get() + 1);
    let force = ForceRelease::new(key("held"), vec![other]);
    vec![
        (
            "another epoch",
            protocol.convert(&Convert::to_shared(key("held"), holder, other)),
        ),
        (
            "the same mode",
            protocol.convert(&Convert::to_exclusive(key("held"), holder, held)),
        ),
        ("lost", protocol.renew(&[renew("held")])),
        (
            "lost twice",
            protocol.renew(&[renew("held"), renew("free")]),
        ),
        ("gone", protocol.poll(&[poll("held")])),
        ("gone twice", protocol.poll(&[poll("held"), poll("free")])),
        ("gone from a hash", protocol.poll(&[poll("many")])),
        ("an inspection", protocol.inspect(&key("held"))),
        ("of a free key", protocol.inspect(&key("free"))),
        ("another holder", protocol.force_release(&force)),
    ]
}

/// A replica may be behind, so no answer of it is true, and a step that writes nothing isn't refused by
/// the server itself.
#[test]
fn step_that_writes_nothing_is_refused_at_a_replica() {
    let mut pair = Pair::new(false);
    let primary = &mut pair.primary;
    let (holder, spec) = (attempt(HOLDER, 1), LockSpec::rw_lock());
    let request = primary.request("held", holder, spec, Mode::Exclusive);
    let held = primary.acquired(&request);
    let many = LockSpec::semaphore(100).expect("a good number");
    for number in 1..=100 {
        let request = primary.request("many", attempt(HOLDER, number), many, Mode::Permits(1));
        primary.acquired(&request);
    }
    pair.sync();
    let mut replica = Connection::open(&pair._replica);
    for (name, call) in calls_that_write_nothing(&pair.primary.protocol, held.token) {
        match replica.run(&call) {
            Value::ServerError(error) => assert_eq!(error.code(), "READONLY", "{name}: {error:?}"),
            answer => panic!("{name}: the replica answered {answer:?}"),
        }
        let answer = pair.primary.connection.run(&call);
        assert!(matches!(answer, Value::BulkString(_)), "{name}: {answer:?}");
    }
}
