//! The scripts against their specification: for the same random commands, a server and the state
//! machine give the same replies and send the same messages.
//!
//! The scripts read a clock that the test sets, so a busy machine changes no result. It is far ahead
//! of the server's, which therefore deletes no key during a test.
//!
//! Every message counts, whether anybody listens or not: a replica relays it to subscribers that the
//! server does not count. So the messages are read by a pattern, which `PUBSUB NUMSUB` does not count
//! either.

mod actions;
mod batch;
mod long_queue;
mod several_holders;
mod watermarks;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::time::Duration;

use leasehold_api::machine::{self, Command, Env, Message, Payload, Reach, Reply, State};
use leasehold_api::{
    Acquire, Convert, FencingToken, ForceMode, ForceRelease, Key, LockSpec, Note, Notification,
    Poll, Release, Renew, ServerTime, SessionId, Stamp, bounds,
};
use leasehold_redis_common::script::reply::{self, Answer};
use leasehold_redis_common::script::{Call, Protocol, ScriptSettings, decode_notification};
use leasehold_test_servers::RedisServer;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::Value;

use super::support::{CLOCK, Connection, bytes};
use actions::{Action, CONTENDED, actions, contention};

/// Short, so that watermarks and tokens expire within a case.
const DELIVERY_WINDOW: Duration = Duration::from_millis(30);
const RETENTION: Duration = Duration::from_millis(80);
/// The time at the start of a test, since the Unix epoch. It is in 2096.
const START: Duration = Duration::from_secs(4_000_000_000);
/// The time from one call to the next.
const CALL: Duration = Duration::from_micros(100);
/// Within the delivery window of a server that has the usual one.
const WINDOW: Duration = Duration::from_secs(9);

fn session(number: u8) -> SessionId {
    SessionId::from_bytes([number.wrapping_mul(77).wrapping_add(1); 16])
}

fn release(request: &Acquire) -> Command {
    Command::Release(Release::new(request.key.clone(), request.operation))
}

/// A lock whose waiters stay for as long as a test.
fn patient(spec: LockSpec) -> LockSpec {
    let spec = spec.with_waiter_lease(Duration::from_secs(60));
    spec.expect("a good lease")
}

/// A server, and the worlds on it so far.
struct Server {
    _server: RedisServer,
    commands: Connection,
    pushes: Connection,
    protocol: Protocol,
    settings: machine::Settings,
    worlds: u64,
    /// The time that the scripts read, since the Unix epoch.
    clock: Duration,
}

impl Server {
    fn start() -> Self {
        Self::start_with(bounds::DELIVERY_WINDOW, bounds::TOKEN_RETENTION)
    }

    fn start_with(delivery_window: Duration, retention: Duration) -> Self {
        let server = RedisServer::start();
        let settings = ScriptSettings::default()
            .with_delivery_window(delivery_window)
            .with_token_retention(retention);
        let mut pushes = Connection::open(&server);
        pushes.command(&["PSUBSCRIBE", "*"]);
        Self {
            clock: START,
            commands: Connection::open(&server),
            pushes,
            _server: server,
            protocol: Protocol::new("t:", settings).expect("a good prefix"),
            settings: machine::Settings::new(delivery_window, retention),
            worlds: 0,
        }
    }

    /// Plays in a new world. A difference is the end of the test; `what` then says what was played.
    fn play(
        &mut self,
        what: impl Debug,
        plays: impl FnOnce(&mut World<'_>) -> Result<(), TestCaseError>,
    ) {
        plays(&mut self.world()).unwrap_or_else(|failure| panic!("{what:?}: {failure}"));
    }

    /// A world with keys that no other one has.
    fn world(&mut self) -> World<'_> {
        let number = self.worlds;
        self.worlds += 1;
        let key = |name: &str| Key::new(format!("{name}{number}")).expect("a good key");
        let channel = |it| (self.protocol.channel(&it).into_bytes(), it);
        World {
            settings: self.settings,
            keys: [key("a"), key("{b}\n")],
            spec: 0,
            packed_records: 160,
            general: true,
            states: BTreeMap::new(),
            listening: BTreeSet::new(),
            channels: (0..=u8::MAX).map(session).map(channel).collect(),
            sequences: BTreeMap::new(),
            done: Vec::new(),
            queue: VecDeque::new(),
            tokens: Vec::new(),
            now: ServerTime::default(),
            clock: &mut self.clock,
            commands: &mut self.commands,
            pushes: &mut self.pushes,
            protocol: &self.protocol,
        }
    }
}

/// The server, the state machine, and the earlier commands.
struct World<'a> {
    clock: &'a mut Duration,
    commands: &'a mut Connection,
    pushes: &'a mut Connection,
    protocol: &'a Protocol,
    settings: machine::Settings,
    keys: [Key; 2],
    spec: u8,
    /// The maximum number of records in a string. 160 is the real limit. With a smaller one, there
    /// is no fast path, and the state is more often a hash.
    packed_records: u8,
    /// Whether the general part may serve commands.
    general: bool,
    states: BTreeMap<Key, State>,
    listening: BTreeSet<SessionId>,
    /// The session of each channel.
    channels: BTreeMap<Vec<u8>, SessionId>,
    sequences: BTreeMap<SessionId, u64>,
    done: Vec<Acquire>,
    queue: VecDeque<Acquire>,
    tokens: Vec<FencingToken>,
    now: ServerTime,
}

impl World<'_> {
    fn act(&mut self, action: &Action) -> Result<(), TestCaseError> {
        match action {
            Action::Acquire(attempt) => {
                let request = self.request(attempt);
                self.done.push(request.clone());
                self.enter(request)?;
            }
            Action::ReleaseFirst(attempt) => {
                let request = self.request(attempt);
                self.release(&request)?;
                self.both(&request.key.clone(), &Command::Acquire(request))?;
            }
            Action::Sleep(ms) => *self.clock += Duration::from_millis(u64::from(*ms)),
            Action::Listen(number, on) => self.listen(session(*number), *on),
            Action::Inspect(key) => {
                let key = self.keys[usize::from(*key)].clone();
                self.both(&key, &Command::Inspect)?;
            }
            Action::Force(key, now, all) => {
                let key = self.keys[usize::from(*key)].clone();
                let recent = if *all { 4 } else { 1 };
                let tokens = self.tokens.iter().rev().take(recent).copied().collect();
                let how = if *now {
                    ForceMode::Now
                } else {
                    ForceMode::Revoke
                };
                let request = ForceRelease::new(key.clone(), tokens).with_how(how);
                self.both(&key, &Command::ForceRelease(request))?;
            }
            Action::PollRecent(choice, count, listening) => {
                let count = usize::from(*count);
                let back = usize::from(*choice) % self.done.len().max(1);
                let recent = self.done.iter().rev().skip(back).take(count).rev();
                self.poll_all(&recent.cloned().collect::<Vec<_>>(), *listening)?;
            }
            Action::ReleaseOldest => {
                if let Some(request) = self.queue.pop_front() {
                    self.release(&request)?;
                }
            }
            Action::Repeat(choice)
            | Action::Poll(choice, _)
            | Action::Renew(choice, _)
            | Action::Release(choice)
            | Action::Note(choice, _, _)
            | Action::Convert(choice, _, _) => {
                if let Some(request) = self.recent(*choice) {
                    let command = self.command(action, &request);
                    self.both(&request.key, &command)?;
                }
            }
        }
        Ok(())
    }

    /// One of the latest attempts.
    fn recent(&self, choice: u8) -> Option<Acquire> {
        let recent = self.done.len().min(8);
        let back = usize::from(choice) % recent.max(1);
        self.done.iter().rev().nth(back).cloned()
    }

    /// The command of an action on an earlier attempt.
    fn command(&self, action: &Action, request: &Acquire) -> Command {
        let (key, operation) = (request.key.clone(), request.operation);
        match *action {
            Action::Repeat(choice) => {
                let mut again = request.clone();
                if choice >= 128 {
                    // Like a client's retry. The watermark may have expired.
                    again.deliver_before = self.now.saturating_add(DELIVERY_WINDOW / 2);
                }
                Command::Acquire(again)
            }
            Action::Poll(_, listening) => Command::Poll(Poll::new(key, operation, listening)),
            Action::Renew(_, ms) => {
                let lease = Duration::from_millis(u64::from(ms) + 1);
                Command::Renew(Renew::new(key, operation, lease).expect("a good lease"))
            }
            Action::Release(_) => release(request),
            Action::Convert(_, up, old) => {
                let token = self.tokens.iter().rev().nth(usize::from(old)).copied();
                let token = token.unwrap_or(FencingToken::new(1));
                Command::Convert(match up {
                    true => Convert::to_exclusive(key, operation, token),
                    false => Convert::to_shared(key, operation, token),
                })
            }
            Action::Note(_, version, ms) => {
                let (text, keep) = ([version; 9], Duration::from_millis(u64::from(ms)));
                let note = Note::new(key, operation, version.into(), text, keep);
                Command::Note(note.expect("a short note"))
            }
            _ => unreachable!("{action:?} has no earlier attempt"),
        }
    }

    fn listen(&mut self, session: SessionId, on: bool) {
        let command = if on { "SUBSCRIBE" } else { "UNSUBSCRIBE" };
        let channel = self.protocol.channel(&session);
        self.pushes.command(&[command, &channel]);
        if on {
            self.listening.insert(session);
        } else {
            self.listening.remove(&session);
        }
    }

    /// Queues for a lock, or acquires it.
    fn enter(&mut self, request: Acquire) -> Result<(), TestCaseError> {
        self.queue.push_back(request.clone());
        self.both(&request.key.clone(), &Command::Acquire(request))
    }

    fn poll(&mut self, request: &Acquire) -> Result<(), TestCaseError> {
        let poll = Poll::new(request.key.clone(), request.operation, true);
        self.both(&request.key, &Command::Poll(poll))
    }

    fn release(&mut self, request: &Acquire) -> Result<(), TestCaseError> {
        self.both(&request.key, &release(request))
    }

    fn release_all(
        &mut self,
        requests: impl IntoIterator<Item = Acquire>,
    ) -> Result<(), TestCaseError> {
        let mut requests = requests.into_iter();
        requests.try_for_each(|request| self.release(&request))?;
        self.inspect()
    }

    /// Inspects the first key, which tells the time of the server.
    fn inspect(&mut self) -> Result<(), TestCaseError> {
        self.both(&self.keys[0].clone(), &Command::Inspect)
    }

    /// Waits until the server's time is later than this.
    fn wait_until(&mut self, until: ServerTime) -> Result<(), TestCaseError> {
        while self.now <= until {
            *self.clock += Duration::from_millis(20);
            self.inspect()?;
        }
        Ok(())
    }

    /// Runs one command on both sides and compares.
    fn both(&mut self, key: &Key, command: &Command) -> Result<(), TestCaseError> {
        let (at, from_server) = self.run_on_server(key, command)?;
        self.now = at;
        let expected = self.expect(key, command, &from_server)?;
        self.compare_messages(expected, || format!("{command:?}"))
    }

    /// Runs one command on the state machine and compares its reply. Returns the messages that it
    /// expects.
    fn expect(
        &mut self,
        key: &Key,
        command: &Command,
        from_server: &Reply,
    ) -> Result<Vec<Message>, TestCaseError> {
        let listening = &self.listening;
        let reachable = |session: SessionId| {
            if listening.contains(&session) {
                Reach::Listening
            } else {
                Reach::Nobody
            }
        };
        let env = Env {
            now: self.now,
            settings: self.settings,
            reachable: &reachable,
        };
        let state = self.states.entry(key.clone()).or_default();
        let before = state.clone();
        let (from_machine, messages) = machine::step(state, env, command);
        let context = || format!("{command:?}\nat {:?} in {before:#?}", env.now);
        prop_assert_eq!(from_server, &from_machine, "{}", context());
        if let Reply::Acquire(leasehold_api::AcquireReply::Acquired(acquired))
        | Reply::Poll(leasehold_api::PollReply::Acquired(acquired)) = from_server
        {
            self.tokens.push(acquired.token);
        }
        if let Reply::Convert(leasehold_api::ConvertReply::Converted { token, .. }) = from_server {
            self.tokens.push(*token);
        }
        Ok(messages)
    }

    /// Compares the messages published since the last call with the expected ones. Those to different
    /// sessions may come in any order.
    fn compare_messages(
        &mut self,
        mut expected: Vec<Message>,
        context: impl Fn() -> String,
    ) -> Result<(), TestCaseError> {
        let mut published = self.published()?;
        published.sort_by_key(|message| message.to);
        expected.sort_by_key(|message| message.to);
        prop_assert_eq!(published, expected, "{}", context());
        Ok(())
    }

    fn run_on_server(
        &mut self,
        key: &Key,
        command: &Command,
    ) -> Result<(ServerTime, Reply), TestCaseError> {
        use std::slice::from_ref;
        let protocol = self.protocol;
        let call = match command {
            Command::Acquire(request) => protocol.acquire(from_ref(request)),
            Command::Poll(request) => protocol.poll(from_ref(request)),
            Command::Renew(request) => protocol.renew(from_ref(request)),
            Command::Release(request) => protocol.release(from_ref(request)),
            Command::Convert(request) => protocol.convert(request),
            Command::Inspect => protocol.inspect(key),
            Command::ForceRelease(request) => protocol.force_release(request),
            Command::Note(request) => protocol.note(request),
        };
        let bytes = self.run_call(&call)?;
        match command {
            Command::Acquire(_) => first(reply::acquires(&bytes, 1, CLOCK), Reply::Acquire),
            Command::Poll(_) => first(reply::polls(&bytes, 1, CLOCK), Reply::Poll),
            Command::Renew(_) => first(reply::renewals(&bytes, 1, CLOCK), Reply::Renew),
            Command::Release(_) => first(reply::releases(&bytes, 1, CLOCK), Reply::Release),
            Command::Convert(_) => unstamp(reply::convert(&bytes, CLOCK), Reply::Convert),
            Command::Note(_) => unstamp(reply::note(&bytes, CLOCK), Reply::Note),
            Command::Inspect => unstamp(reply::inspect(&bytes, CLOCK), Reply::Inspect),
            Command::ForceRelease(_) => {
                unstamp(reply::force_release(&bytes, CLOCK), Reply::ForceRelease)
            }
        }
    }

    /// Runs a call with the limits of this case.
    fn run_call(&mut self, call: &Call) -> Result<Vec<u8>, TestCaseError> {
        let limit = format!("packed_records = {}", self.packed_records);
        let mut changes = vec![
            ("'TIME'", "'MGET', 'seconds', 'microseconds'"),
            ("packed_records = 160", limit.as_str()),
        ];
        let fast_path = "local function fast_path(key, argument, first, now, clock_id)\n";
        let nothing = format!("{fast_path}do return nil end\n");
        if self.packed_records < 160 && call.script.source().contains(fast_path) {
            changes.push((fast_path, &nothing));
        }
        if !self.general {
            changes.push((
                "local S = {",
                "error('not served by the fast path')\nlocal S = {",
            ));
        }
        *self.clock += CALL;
        let (seconds, micros) = (self.clock.as_secs(), self.clock.subsec_micros());
        let (seconds, micros) = (seconds.to_string(), micros.to_string());
        self.commands
            .command(&["MSET", "seconds", &seconds, "microseconds", &micros]);
        match self.commands.run_changed(call, &changes) {
            Value::BulkString(bytes) => Ok(bytes),
            answer => Err(TestCaseError::fail(format!("{answer:?}"))),
        }
    }

    /// Returns the messages published since the last call. The answer to PING comes after them.
    fn published(&mut self) -> Result<Vec<Message>, TestCaseError> {
        let mut published = Vec::new();
        self.pushes.send(&["PING"]);
        loop {
            let Value::Array(parts) = self.pushes.receive() else {
                return Ok(published);
            };
            let [kind, _, channel, message] = &parts[..] else {
                // A subscriber of the channel gets the message again. The answer to PING has two parts.
                match bytes(&parts[0]) {
                    b"message" => continue,
                    _ => return Ok(published),
                }
            };
            prop_assert_eq!(bytes(kind), b"pmessage");
            let to = self.channels.get(bytes(channel));
            let to = *to.ok_or_else(|| TestCaseError::fail("a message on an unknown channel"))?;
            let notifications = decode_notification(bytes(message))
                .map_err(|error| TestCaseError::fail(error.to_string()))?;
            for notification in notifications {
                let (payload, stamp) = payload(notification);
                prop_assert_eq!((stamp.clock, stamp.at), (CLOCK, self.now));
                published.push(Message { to, payload });
            }
        }
    }
}

fn payload(notification: Notification) -> (Payload, Stamp) {
    match notification {
        Notification::Granted {
            sequence,
            token,
            remaining,
            stamp,
        } => {
            let granted = Payload::Granted {
                sequence,
                token,
                remaining,
            };
            (granted, stamp)
        }
        Notification::Revoked { sequence, stamp } => (Payload::Revoked { sequence }, stamp),
        other => panic!("the scripts never publish {other:?}"),
    }
}

fn first<T>(
    mut answers: Vec<Answer<T>>,
    wrap: impl Fn(T) -> Reply,
) -> Result<(ServerTime, Reply), TestCaseError> {
    unstamp(answers.remove(0), wrap)
}

fn unstamp<T>(
    answer: Answer<T>,
    wrap: impl Fn(T) -> Reply,
) -> Result<(ServerTime, Reply), TestCaseError> {
    let stamped = answer.map_err(|error| TestCaseError::fail(error.to_string()))?;
    Ok((stamped.stamp.at, wrap(stamped.reply)))
}

#[test]
fn scripts_match_the_state_machine() {
    let difference = difference(0..32_u8, actions());
    assert_eq!(difference, None);
}

#[test]
fn scripts_match_the_state_machine_on_a_contended_key() {
    let difference = difference(CONTENDED..CONTENDED + 3, contention());
    assert_eq!(difference, None);
}

/// Runs random cases of these actions. Returns the first difference.
fn difference(
    specs: impl Strategy<Value = u8>,
    actions: impl Strategy<Value = Action>,
) -> Option<String> {
    let server = RefCell::new(Server::start_with(DELIVERY_WINDOW, RETENTION));
    let cases = std::env::var("PORT_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(60);
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 400,
        ..Config::default()
    });
    // Half of the cases take the fast path.
    let records = vec![160_u8, 160, 160, 160, 160, 63, 12, 5, 2, 0];
    let script = (
        specs,
        prop::sample::select(records),
        prop::collection::vec(actions, 1..120),
    );
    let outcome = runner.run(&script, |(spec, records, actions)| {
        let mut server = server.borrow_mut();
        let mut world = server.world();
        world.spec = spec;
        world.packed_records = records;
        let result = world.run(&actions);
        for number in 0..4 {
            world.listen(session(number), false);
        }
        result
    });
    outcome.err().map(|failure| failure.to_string())
}

impl World<'_> {
    fn run(&mut self, actions: &[Action]) -> Result<(), TestCaseError> {
        self.inspect()?;
        for number in 0..3 {
            self.listen(session(number), true);
        }
        actions.iter().try_for_each(|action| self.act(action))
    }
}
