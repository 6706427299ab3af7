//! Runs one sequence on a backend and on the state machine, and compares the results.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::machine::{Command, Env, Message, Reach, Reply, Settings, State, step};
use leasehold_api::{
    Acquire, BackendError, Convert, FencingToken, ForceRelease, Kind, LockBackend, LockSpec, Mode,
    Note, Operation, OwnerId, Poll, Release, Renew, ServerTime, SessionId, Stamped, Wait, bounds,
};

use super::describe::{describe, label};
use super::estimates::step_as_answered;
use super::moves::{AcquireMove, Deliver, Floor, KEYS, Lease, Move, SESSIONS, Script, mode};
use super::outcomes::{Counts, Outcome, QUOTA, allow_sooner_polls};
use super::subscribers::Subscriber;

/// The state that outlasts one sequence.
pub(super) struct Fixture {
    pub(super) backend: Arc<dyn LockBackend>,
    pub(super) subscribers: [Subscriber; SESSIONS],
    pub(super) counts: Counts,
    /// The number of keys used so far.
    keys: u64,
    /// About the time that two commands take, in whole ms.
    unit: Duration,
    /// How many times fewer commands are played than on a fast backend.
    pub(super) slowness: u64,
    /// Whether the backend tells which sessions listen.
    tells_reach: bool,
    /// Whether the backend executes some acquires at an estimate of its clock.
    estimates: bool,
}

/// The number of calls that measure the unit.
const CALLS: usize = 9;
/// The longest unit, in ms.
const LONGEST_UNIT: u64 = 500;
/// The unit, in ms, from which on fewer commands are played, and the greatest reduction.
const SLOW_UNIT: u64 = 10;
const GREATEST_SLOWNESS: u64 = 5;
/// The longest waiter lease that the machine takes.
const LONGEST_WAITER_LEASE: Duration = Duration::from_secs(60);
/// A sleep is longer by this margin than the lease that should expire.
const MARGIN: Duration = Duration::from_micros(300);

/// A key and its state in the machine.
struct Lock {
    name: leasehold_api::Key,
    spec: LockSpec,
    model: State,
    tokens: Vec<FencingToken>,
    /// The time of the last command.
    last_step: ServerTime,
    /// The last stamp, and the time of the last command before that.
    last_stamp: ServerTime,
    step_before: ServerTime,
}

/// A command and its key.
#[derive(Clone, Debug, PartialEq)]
struct Sent {
    lock: u64,
    command: Command,
}

/// A running sequence.
struct Play<'a> {
    fixture: &'a mut Fixture,
    locks: BTreeMap<u64, Lock>,
    /// The lock in each slot.
    slots: [u64; KEYS],
    specs: [LockSpec; KEYS],
    sent: Vec<Sent>,
    attempts: Vec<(u64, Operation)>,
    /// The server's time in the last reply.
    now: ServerTime,
    trace: String,
}

impl Fixture {
    pub(super) async fn new(
        backend: Arc<dyn LockBackend>,
        estimates: bool,
    ) -> Result<Self, String> {
        let subscribers = [(); SESSIONS].map(|()| Subscriber::new(&*backend));
        let unit = twice_the_time_of_a_command(&*backend).await;
        let unit = unit.map_err(|error| error.to_string())?;
        let millis = u64::try_from(unit.as_millis()).unwrap_or(LONGEST_UNIT);
        let capabilities = backend.capabilities();
        Ok(Self {
            backend,
            subscribers,
            counts: Counts::new(),
            keys: 0,
            unit,
            slowness: (millis / SLOW_UNIT).clamp(1, GREATEST_SLOWNESS),
            tells_reach: capabilities.push && capabilities.reachability,
            estimates,
        })
    }

    /// One line for each outcome that missed its quota so far.
    pub(super) fn missed_quotas(&self) -> Vec<String> {
        self.counts.missed(QUOTA / self.slowness, self.tells_reach)
    }

    /// A time of a move, which is meant for a unit of 1 ms.
    fn scaled(&self, time: Duration) -> Duration {
        time * u32::try_from(self.unit.as_millis()).unwrap_or(1)
    }

    fn scaled_micros(&self, micros: i64) -> i64 {
        micros * i64::try_from(self.unit.as_millis()).unwrap_or(1)
    }

    /// A spec of a script, with a scaled waiter lease.
    fn scaled_spec(&self, spec: LockSpec) -> LockSpec {
        let lease = self.scaled(spec.waiter_lease()).min(LONGEST_WAITER_LEASE);
        spec.with_waiter_lease(lease).expect("a valid waiter lease")
    }

    /// Plays a sequence on new keys. An error lists all commands and replies.
    pub(super) async fn play(&mut self, script: &Script) -> Result<(), String> {
        let backend = Arc::clone(&self.backend);
        let listening = [true, script.listening, false];
        for (subscriber, listens) in self.subscribers.iter_mut().zip(listening) {
            subscriber.set_listening(&backend, listens).await?;
        }
        let now = backend.hello().await.map_err(|error| error.to_string())?.at;
        let specs = script.specs.map(|spec| self.scaled_spec(spec));
        let mut play = Play {
            fixture: self,
            locks: BTreeMap::new(),
            slots: [0; KEYS],
            specs,
            sent: Vec::new(),
            attempts: Vec::new(),
            now,
            trace: String::new(),
        };
        for slot in 0..KEYS {
            play.fresh(slot);
        }
        let result = play.play_all(&script.moves).await;
        let trace = std::mem::take(&mut play.trace);
        result.map_err(|error| {
            // Notifications of this sequence must not reach the next one.
            self.subscribers = [(); SESSIONS].map(|()| Subscriber::new(&*backend));
            format!("{error}\nCommands and replies:\n{trace}")
        })
    }
}

/// Twice the median time from one command to the next, in whole ms. Measured with releases, because commands that
/// write may take longer.
async fn twice_the_time_of_a_command(backend: &dyn LockBackend) -> Result<Duration, BackendError> {
    let mut gaps = Vec::new();
    let mut last = backend.hello().await?.at;
    let session = Subscriber::new(backend).session;
    let name = leasehold_api::Key::new("differential unit").expect("short enough");
    for sequence in 1..=CALLS as u64 {
        let operation = Operation {
            session,
            sequence,
            owner: OwnerId::from_u64(1),
        };
        let release = [Release::new(name.clone(), operation)];
        let now = backend.release(&release).await.remove(0)?.stamp.at;
        gaps.push(now.saturating_since(last));
        last = now;
    }
    gaps.sort();
    let millis = (gaps[CALLS / 2] * 2).as_micros().div_ceil(1_000);
    let millis = u64::try_from(millis).unwrap_or(LONGEST_UNIT);
    Ok(Duration::from_millis(millis.clamp(1, LONGEST_UNIT)))
}

impl Play<'_> {
    fn fresh(&mut self, slot: usize) {
        self.fixture.keys += 1;
        let number = self.fixture.keys;
        let session = self.fixture.subscribers[0].session;
        let bytes = session.as_bytes();
        let name = format!("differential {:02x}{:02x} {number}", bytes[0], bytes[1]);
        let lock = Lock {
            name: leasehold_api::Key::new(name).expect("short enough"),
            spec: self.specs[slot],
            model: State::default(),
            tokens: vec![FencingToken::new(1)],
            last_step: ServerTime::from_micros(0),
            last_stamp: ServerTime::from_micros(0),
            step_before: ServerTime::from_micros(0),
        };
        self.locks.insert(number, lock);
        self.slots[slot] = number;
    }

    /// Plays all moves, and then checks that no notification is left.
    async fn play_all(&mut self, moves: &[Move]) -> Result<(), String> {
        for next in moves {
            self.play(*next).await?;
        }
        let backend = Arc::clone(&self.fixture.backend);
        for subscriber in &mut self.fixture.subscribers {
            subscriber.barrier(&backend).await?;
        }
        Ok(())
    }

    async fn play(&mut self, next: Move) -> Result<(), String> {
        let backend = Arc::clone(&self.fixture.backend);
        match next {
            Move::Sleep(time) => self.sleep(self.fixture.scaled(time)).await,
            Move::SleepUnit => self.sleep(self.fixture.unit + MARGIN).await,
            Move::Listen(listen) => {
                self.fixture.subscribers[1]
                    .set_listening(&backend, listen)
                    .await?;
                let _ = writeln!(self.trace, "  the second session listens: {listen}");
            }
            Move::Fresh { key } => self.fresh(key),
            other => {
                let batch = self.commands(other);
                return self.deliver(&batch).await;
            }
        }
        Ok(())
    }

    async fn sleep(&mut self, time: Duration) {
        self.fixture.backend.runtime().sleep(time).await;
        let _ = writeln!(self.trace, "  sleep {time:?}");
    }

    fn lease(&self, lease: Lease) -> Duration {
        match lease {
            Lease::Short => self.fixture.unit,
            Lease::Millis(millis) => self.fixture.scaled(Duration::from_millis(millis)),
        }
    }

    /// The commands of a move; none if the sequence has no attempt or command that it can use.
    fn commands(&mut self, next: Move) -> Vec<Sent> {
        let one = |sent: Option<Sent>| sent.into_iter().collect();
        match next {
            Move::Acquire(ask) => vec![self.acquire(ask)],
            Move::Acquires(asks) => asks.map(|ask| self.acquire(ask)).into(),
            Move::Poll {
                which,
                batch,
                listening,
            } => self.about(which, batch, |name, operation| {
                Command::Poll(Poll::new(name, operation, listening))
            }),
            Move::Renew {
                which,
                batch,
                lease,
            } => self.about(which, batch, |name, operation| {
                let request = Renew::new(name, operation, self.lease(lease));
                Command::Renew(request.expect("a valid lease"))
            }),
            Move::Release { which, batch } => self.about(which, batch, |name, operation| {
                Command::Release(Release::new(name, operation))
            }),
            Move::Convert { which, to, old } => one(self.convert(which, to, old)),
            Move::Force { key, how, old } => {
                let lock = self.slots[key];
                let known = &self.locks[&lock];
                let tokens = vec![token(&known.tokens, old)];
                let request = ForceRelease::new(known.name.clone(), tokens).with_how(how);
                let command = Command::ForceRelease(request);
                vec![Sent { lock, command }]
            }
            Move::Inspect { key } => vec![Sent {
                lock: self.slots[key],
                command: Command::Inspect,
            }],
            Move::Note {
                which,
                version,
                length,
                keep,
            } => self.about(which, 1, |name, operation| {
                let mark = version as u8 ^ operation.sequence as u8;
                let bytes = vec![mark; length];
                let note = Note::new(name, operation, version, bytes, self.lease(keep));
                Command::Note(note.expect("a short note"))
            }),
            Move::Again { back } => one(self.sent.iter().rev().nth(back).cloned()),
            Move::Sleep(_) | Move::SleepUnit | Move::Listen(_) | Move::Fresh { .. } => Vec::new(),
        }
    }

    fn about(
        &self,
        which: usize,
        batch: usize,
        command: impl Fn(leasehold_api::Key, Operation) -> Command,
    ) -> Vec<Sent> {
        let newest_first = self.attempts.iter().rev().skip(which).take(batch);
        newest_first
            .map(|(lock, operation)| Sent {
                lock: *lock,
                command: command(self.locks[lock].name.clone(), *operation),
            })
            .collect()
    }

    fn convert(&self, which: usize, to: Mode, old: bool) -> Option<Sent> {
        let (lock, operation) = *self.attempts.iter().rev().nth(which)?;
        let known = &self.locks[&lock];
        let (name, expected) = (known.name.clone(), token(&known.tokens, old));
        let request = match to {
            Mode::Exclusive => Convert::to_exclusive(name, operation, expected),
            _ => Convert::to_shared(name, operation, expected),
        };
        let command = Command::Convert(request);
        Some(Sent { lock, command })
    }

    fn acquire(&mut self, ask: AcquireMove) -> Sent {
        let lock = self.slots[ask.key];
        let subscriber = &mut self.fixture.subscribers[ask.session];
        let newest = subscriber.next_sequence();
        let operation = Operation {
            session: subscriber.session,
            // Unused so far, and lower than the previous one.
            sequence: if ask.old {
                newest.saturating_sub(3).max(1)
            } else {
                newest
            },
            owner: OwnerId::from_u64(ask.owner + 1),
        };
        let known = &self.locks[&lock];
        let spec = match (ask.other_kind, known.spec.kind()) {
            (false, _) => known.spec,
            (true, Kind::Mutex) => LockSpec::rw_lock(),
            (true, _) => LockSpec::mutex(),
        };
        let too_far = bounds::DELIVERY_WINDOW + self.fixture.unit;
        let deliver_before = match ask.deliver {
            Deliver::In(micros) => shifted(self.now, micros),
            Deliver::Early => self.now.saturating_add(too_far),
        };
        let (name, lease) = (known.name.clone(), self.lease(ask.lease));
        let mode = mode(spec.kind(), ask.weight);
        let request = Acquire::new(name, spec, mode, operation, lease, deliver_before);
        let mut request = request
            .expect("moves are valid")
            .with_label(label(operation))
            .with_limits(ask.limits);
        request.wait = ask.wait.map(|waiter| {
            let wait = Wait::new(waiter.listening);
            waiter.until.map_or(wait, |until| {
                let until = self.fixture.scaled_micros(until);
                wait.with_wait_until(shifted(self.now, until))
            })
        });
        let last = known.tokens.last().map_or(0, |token| token.get());
        request.floor = match ask.floor {
            Floor::None => None,
            Floor::Near(offset) => Some(last.saturating_add_signed(offset)),
            Floor::TooHigh => {
                let ahead = shifted(self.now, 60_000_000).saturating_add(bounds::MAX_FLOOR_AHEAD);
                Some(ahead.as_micros().max(last + ahead.as_micros()))
            }
        }
        .map(FencingToken::new);
        self.attempts.push((lock, operation));
        let command = Command::Acquire(request);
        Sent { lock, command }
    }

    /// Sends a batch of one kind of command, and compares replies and notifications.
    async fn deliver(&mut self, batch: &[Sent]) -> Result<(), String> {
        if batch.is_empty() {
            return Ok(());
        }
        let replies = send(&*self.fixture.backend, &self.locks, batch).await;
        let (answered, asked) = (replies.len(), batch.len());
        if answered != asked {
            return Err(format!("{answered} replies to {asked} commands"));
        }
        let mut messages = Vec::new();
        for (sent, reply) in batch.iter().zip(replies) {
            let command = describe(&sent.command, self.now);
            let _ = writeln!(self.trace, "> key {}: {command}", sent.lock);
            let reply = reply.map_err(|error| format!("{:?}: {error}", sent.command))?;
            self.compare(sent, &reply, &mut messages)?;
        }
        self.compare_notifications(&messages).await
    }

    fn compare(
        &mut self,
        sent: &Sent,
        reply: &Stamped<Reply>,
        messages: &mut Vec<(Message, ServerTime)>,
    ) -> Result<(), String> {
        let Some(lock) = self.locks.get_mut(&sent.lock) else {
            return Err("a command to an unknown key".to_owned());
        };
        self.now = reply.stamp.at;
        let subscribers = self.fixture.subscribers.iter();
        let listening = subscribers.filter(|it| it.listens()).map(|it| it.session);
        let listening: Vec<SessionId> = listening.collect();
        let tells_reach = self.fixture.tells_reach;
        let reachable = |session| {
            if !tells_reach {
                Reach::Unknown
            } else if listening.contains(&session) {
                Reach::Listening
            } else {
                Reach::Nobody
            }
        };
        let env = Env {
            now: self.now,
            settings: Settings::default(),
            reachable: &reachable,
        };
        let pushes = self.fixture.backend.capabilities().push;
        // Acquires that share a write have one stamp, and one time of their step.
        if lock.last_stamp != self.now {
            (lock.last_stamp, lock.step_before) = (self.now, lock.last_step);
        }
        let estimated = self.fixture.estimates.then_some(lock.step_before);
        let (mut expected, new_messages, executed_at) =
            step_as_answered(&mut lock.model, env, &sent.command, reply, estimated);
        lock.last_step = executed_at;
        allow_sooner_polls(&mut expected, &reply.reply, pushes);
        let at = self.now.as_micros();
        let _ = writeln!(self.trace, "    at {at}: {:?}", reply.reply);
        if reply.reply != expected {
            let _ = writeln!(self.trace, "    the machine: {expected:?}");
            return Err("the replies differ".to_owned());
        }
        if let Reply::Inspect(inspection) = step(&mut lock.model, env, &Command::Inspect).0 {
            lock.tokens.extend(inspection.token);
        }
        let repeated = self.sent.contains(sent);
        self.sent.push(sent.clone());
        match Outcome::of(&sent.command, &reply.reply) {
            Some(outcome) => self.fixture.counts.count(outcome, repeated),
            None => return Err("a reply to another command".to_owned()),
        }
        for message in new_messages {
            let _ = writeln!(self.trace, "    notifies {message:?}");
            messages.push((message, self.now));
        }
        Ok(())
    }

    /// Compares the notifications of each session, in order. A surplus notification fails here or
    /// at the end of the sequence.
    async fn compare_notifications(
        &mut self,
        messages: &[(Message, ServerTime)],
    ) -> Result<(), String> {
        let backend = Arc::clone(&self.fixture.backend);
        let subscribers = self.fixture.subscribers.iter_mut();
        for subscriber in subscribers.filter(|subscriber| subscriber.listens()) {
            let session = subscriber.session;
            let expected = messages.iter().filter(|(message, _)| message.to == session);
            for (message, at) in expected {
                subscriber.expect(&backend, message, *at).await?;
                self.fixture.counts.count_notifications(1);
            }
            let received = subscriber.leftovers();
            if !received.is_empty() {
                return Err(format!("received unexpectedly: {received:?}"));
            }
        }
        Ok(())
    }
}

fn token(tokens: &[FencingToken], old: bool) -> FencingToken {
    let newest = tokens.len() - 1;
    tokens[if old { newest / 2 } else { newest }]
}

fn shifted(at: ServerTime, micros: i64) -> ServerTime {
    ServerTime::from_micros(at.as_micros().saturating_add_signed(micros))
}

/// Sends a batch of requests of one kind.
async fn send(
    backend: &dyn LockBackend,
    locks: &BTreeMap<u64, Lock>,
    batch: &[Sent],
) -> Vec<Result<Stamped<Reply>, BackendError>> {
    macro_rules! all {
        ($sort:ident, $method:ident) => {{
            let requests: Vec<_> = batch
                .iter()
                .filter_map(|sent| match &sent.command {
                    Command::$sort(request) => Some(request.clone()),
                    _ => None,
                })
                .collect();
            let replies = backend.$method(&requests).await;
            replies
                .into_iter()
                .map(|reply| reply.map(|it| stamped(it, Reply::$sort)))
                .collect()
        }};
    }
    macro_rules! one {
        ($reply:expr, $sort:ident) => {
            vec![$reply.await.map(|it| stamped(it, Reply::$sort))]
        };
    }
    match &batch[0].command {
        Command::Acquire(_) => all!(Acquire, acquire),
        Command::Convert(request) => one!(backend.convert(request), Convert),
        Command::Inspect => one!(backend.inspect(&locks[&batch[0].lock].name), Inspect),
        Command::ForceRelease(request) => one!(backend.force_release(request), ForceRelease),
        Command::Note(request) => one!(backend.write_note(request), Note),
        Command::Poll(_) => all!(Poll, poll),
        Command::Renew(_) => all!(Renew, renew),
        Command::Release(_) => all!(Release, release),
    }
}

fn stamped<T>(from: Stamped<T>, wrap: impl Fn(T) -> Reply) -> Stamped<Reply> {
    Stamped {
        stamp: from.stamp,
        reply: wrap(from.reply),
    }
}
