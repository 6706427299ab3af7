//! One key in virtual time, and helpers that send commands to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use leasehold_api::machine::{
    self, Command, Env, Message, Payload, Reach, Reply, Settings, State, step,
};
use leasehold_api::{
    Acquire, AcquireReply, Acquired, Contended, Convert, ConvertReply, EndReason, FencingToken,
    ForceMode, ForceRelease, ForceReply, InspectReply, Key as Name, Label, Limits, LockSpec, Mode,
    Note, NoteReply, Operation, OwnerId, Poll, PollReply, Queued, Refused, Release, ReleaseReply,
    Renew, RenewReply, ServerTime, SessionId, Wait,
};

/// The start of the virtual clock, in µs: far enough from 0 to step the clock back.
pub(crate) const START: u64 = 1_000_000_000;
/// The waiter lease of every key.
pub(crate) const WAITER_LEASE: Duration = Duration::from_secs(5);
/// The default lease of an [`Ask`].
pub(crate) const LEASE: Duration = Duration::from_secs(30);

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Asserts that a value matches a pattern.
macro_rules! assert_is {
    ($value:expr => $($pattern:tt)+) => {
        match &$value {
            $($pattern)+ => {}
            other => panic!("{}: {other:?}, wanted {}", stringify!($value), stringify!($($pattern)+)),
        }
    };
}
pub(crate) use assert_is;

/// What a value of the wanted form contains: `want!(value, pattern => result)`.
macro_rules! want {
    ($value:expr, $pattern:pat => $result:expr) => {
        match $value {
            $pattern => $result,
            other => panic!("{other:?}, wanted {}", stringify!($pattern)),
        }
    };
}
pub(crate) use want;

pub(crate) fn session(letter: char) -> SessionId {
    SessionId::from_bytes([u8::try_from(letter).expect("an ASCII letter"); 16])
}

/// One key, its clock, and the reachability of sessions.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) state: State,
    pub(crate) now: u64,
    pub(crate) spec: LockSpec,
    pub(crate) settings: Settings,
    pub(crate) reach: BTreeMap<SessionId, Reach>,
    /// The messages of the last step.
    pub(crate) messages: Vec<Message>,
    sequences: BTreeMap<SessionId, u64>,
}

impl Key {
    pub(crate) fn of(spec: LockSpec) -> Self {
        Self {
            state: State::default(),
            now: START,
            spec,
            settings: Settings::default(),
            reach: BTreeMap::new(),
            messages: Vec::new(),
            sequences: BTreeMap::new(),
        }
    }

    pub(crate) fn mutex() -> Self {
        Self::of(LockSpec::mutex())
    }

    /// A mutex that the session `a` holds and the session `b` waits for.
    pub(crate) fn awaited() -> (Self, Operation, Operation) {
        let (mut key, [a, b]) = Self::mutex().attempts(['a', 'b']);
        key.enter(Ask::write(a));
        key.queue(Ask::write(b));
        (key, a, b)
    }

    pub(crate) fn rw() -> Self {
        Self::of(LockSpec::rw_lock())
    }

    pub(crate) fn semaphore(permits: u32) -> Self {
        Self::of(LockSpec::semaphore(permits).expect("valid"))
    }

    pub(crate) fn at(&self) -> ServerTime {
        ServerTime::from_micros(self.now)
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += u64::try_from(time.as_micros()).expect("short");
    }

    pub(crate) fn set_reach(&mut self, letter: char, reach: Reach) {
        self.reach.insert(session(letter), reach);
    }

    /// A new attempt of a session, by a new owner.
    pub(crate) fn next(&mut self, letter: char) -> Operation {
        let owner = 1_000 + self.sequences.get(&session(letter)).copied().unwrap_or(0);
        self.next_of(letter, owner)
    }

    /// A new attempt of a session, by this owner.
    pub(crate) fn next_of(&mut self, letter: char, owner: u64) -> Operation {
        let session = session(letter);
        let sequence = self.sequences.entry(session).or_insert(0);
        *sequence += 1;
        Operation {
            session,
            sequence: *sequence,
            owner: OwnerId::from_u64(owner),
        }
    }

    /// The key with new attempts of these sessions, each by a new owner.
    pub(crate) fn attempts<const N: usize>(mut self, letters: [char; N]) -> (Self, [Operation; N]) {
        let attempts = letters.map(|letter| self.next(letter));
        (self, attempts)
    }

    /// The key with new attempts of the session `a`, all by one owner.
    pub(crate) fn nested<const N: usize>(mut self) -> (Self, [Operation; N]) {
        let attempts = [(); N].map(|()| self.next_of('a', 1));
        (self, attempts)
    }

    pub(crate) fn step(&mut self, command: &Command) -> Reply {
        let reach = self.reach.clone();
        let reachable = |session| reach.get(&session).copied().unwrap_or(Reach::Listening);
        let env = Env {
            now: self.at(),
            settings: self.settings,
            reachable: &reachable,
        };
        let (reply, messages) = step(&mut self.state, env, command);
        self.messages = messages;
        reply
    }

    /// The sessions that a step asks about, but does not ask about if nobody listens.
    pub(crate) fn unlisted(&self, command: &Command) -> Vec<SessionId> {
        let listed = self.asked(command, |_| Reach::Nobody);
        let reach = |session| self.reach.get(&session).copied();
        let asked = self.asked(command, |session| {
            reach(session).unwrap_or(Reach::Listening)
        });
        asked.difference(&listed).copied().collect()
    }

    fn asked(
        &self,
        command: &Command,
        reach: impl Fn(SessionId) -> Reach + Sync,
    ) -> BTreeSet<SessionId> {
        let asked = Mutex::new(BTreeSet::new());
        let reachable = |session| {
            asked.lock().expect("no panic").insert(session);
            reach(session)
        };
        let env = Env {
            now: self.at(),
            settings: self.settings,
            reachable: &reachable,
        };
        machine::step(&mut self.state.clone(), env, command);
        asked.into_inner().expect("no panic")
    }

    pub(crate) fn ask(&mut self, ask: Ask) -> AcquireReply {
        let request = ask.request(self);
        self.deliver(request)
    }

    /// Delivers an acquire that was built earlier, like a retry.
    pub(crate) fn deliver(&mut self, request: Acquire) -> AcquireReply {
        want!(self.step(&Command::Acquire(request)), Reply::Acquire(reply) => reply)
    }

    /// Acquires, or panics if the key is not free.
    pub(crate) fn enter(&mut self, ask: Ask) -> Acquired {
        want!(self.ask(ask), AcquireReply::Acquired(acquired) => acquired)
    }

    /// Queues, or panics.
    pub(crate) fn queue(&mut self, ask: Ask) -> Queued {
        want!(self.ask(ask), AcquireReply::Queued(queued) => queued)
    }

    /// Expects `Contended`, or panics.
    pub(crate) fn held(&mut self, ask: Ask) -> Contended {
        want!(self.ask(ask.no_wait()), AcquireReply::Contended(held) => held)
    }

    /// Expects that this is refused, and why.
    #[track_caller]
    pub(crate) fn refuses(&mut self, ask: Ask, reason: Refused) {
        assert_eq!(self.ask(ask), AcquireReply::Refused(reason));
    }

    /// Expects that this is stale.
    #[track_caller]
    pub(crate) fn is_stale(&mut self, ask: Ask) {
        assert_eq!(self.ask(ask), AcquireReply::Stale);
    }

    pub(crate) fn poll(&mut self, operation: Operation) -> PollReply {
        self.poll_as(operation, true)
    }

    pub(crate) fn poll_as(&mut self, operation: Operation, listening: bool) -> PollReply {
        let poll = Poll::new(name(), operation, listening);
        want!(self.step(&Command::Poll(poll)), Reply::Poll(reply) => reply)
    }

    pub(crate) fn renew(&mut self, operation: Operation, lease: Duration) -> RenewReply {
        let request = Renew::new(name(), operation, lease).expect("valid");
        want!(self.step(&Command::Renew(request)), Reply::Renew(reply) => reply)
    }

    #[track_caller]
    pub(crate) fn renewed(
        &mut self,
        operation: Operation,
        lease: Duration,
    ) -> (FencingToken, Duration) {
        let reply = self.renew(operation, lease);
        want!(reply, RenewReply::Renewed { token, remaining } => (token, remaining))
    }

    /// Renews what is lost, and returns why it is.
    #[track_caller]
    pub(crate) fn lost(&mut self, operation: Operation) -> EndReason {
        want!(self.renew(operation, LEASE), RenewReply::Lost(reason) => reason)
    }

    pub(crate) fn release(&mut self, operation: Operation) -> ReleaseReply {
        let release = Release::new(name(), operation);
        want!(self.step(&Command::Release(release)), Reply::Release(reply) => reply)
    }

    /// Releases what is not held, and returns why it is not.
    #[track_caller]
    pub(crate) fn not_held(&mut self, operation: Operation) -> EndReason {
        want!(self.release(operation), ReleaseReply::NotHeld(reason) => reason)
    }

    pub(crate) fn convert(
        &mut self,
        operation: Operation,
        expected: FencingToken,
        to: Mode,
    ) -> ConvertReply {
        let request = match to {
            Mode::Exclusive => Convert::to_exclusive(name(), operation, expected),
            _ => Convert::to_shared(name(), operation, expected),
        };
        want!(self.step(&Command::Convert(request)), Reply::Convert(reply) => reply)
    }

    pub(crate) fn force(&mut self, tokens: &[FencingToken], how: ForceMode) -> ForceReply {
        let request = ForceRelease::new(name(), tokens.to_vec()).with_how(how);
        want!(self.step(&Command::ForceRelease(request)), Reply::ForceRelease(reply) => reply)
    }

    /// Forces the holders with this token, and returns their number.
    #[track_caller]
    pub(crate) fn forced(&mut self, token: FencingToken, how: ForceMode) -> u32 {
        want!(self.force(&[token], how), ForceReply::Forced { holders } => holders)
    }

    pub(crate) fn note(
        &mut self,
        operation: Operation,
        version: u32,
        bytes: &[u8],
        keep: Duration,
    ) -> NoteReply {
        let request = Note::new(name(), operation, version, bytes, keep).expect("valid");
        want!(self.step(&Command::Note(request)), Reply::Note(reply) => reply)
    }

    pub(crate) fn inspect(&self) -> InspectReply {
        want!(self.clone().step(&Command::Inspect), Reply::Inspect(reply) => reply)
    }

    /// The labels of the waiters, in order.
    pub(crate) fn waiting(&self) -> Vec<String> {
        let waiters = self.inspect().waiters;
        waiters.iter().map(|w| w.label.to_string()).collect()
    }

    /// The labels of the holders, sorted.
    pub(crate) fn holding(&self) -> Vec<String> {
        let holders = self.inspect().holders;
        let mut labels: Vec<_> = holders.iter().map(|h| h.label.to_string()).collect();
        labels.sort();
        labels
    }

    /// The attempts that the last step notified of a grant, in order.
    pub(crate) fn granted(&self) -> Vec<(SessionId, u64)> {
        let granted = |message: &Message| match message.payload {
            Payload::Granted { sequence, .. } => Some((message.to, sequence)),
            _ => None,
        };
        self.messages.iter().filter_map(granted).collect()
    }
}

pub(crate) fn name() -> Name {
    Name::new("key").expect("valid")
}

/// The label of an operation: session letter and sequence.
pub(crate) fn label(operation: Operation) -> String {
    let letter = char::from(operation.session.as_bytes()[0]);
    format!("{letter}{}", operation.sequence)
}

/// The session and the sequence, by which messages name an operation.
pub(crate) fn id(operation: Operation) -> (SessionId, u64) {
    (operation.session, operation.sequence)
}

/// A builder for an acquire. By default it waits, listens, and has the lease [`LEASE`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    operation: Operation,
    mode: Mode,
    lease: Duration,
    wait: Option<Wait>,
    floor: Option<FencingToken>,
    limits: Limits,
    deliver_in: Duration,
}

impl Ask {
    pub(crate) fn write(operation: Operation) -> Self {
        Self::new(operation, Mode::Exclusive)
    }

    pub(crate) fn read(operation: Operation) -> Self {
        Self::new(operation, Mode::Shared)
    }

    pub(crate) fn permits(operation: Operation, n: u32) -> Self {
        Self::new(operation, Mode::Permits(n))
    }

    fn new(operation: Operation, mode: Mode) -> Self {
        Self {
            operation,
            mode,
            lease: LEASE,
            wait: Some(Wait::new(true)),
            floor: None,
            limits: Limits::default(),
            deliver_in: secs(2),
        }
    }

    pub(crate) fn no_wait(mut self) -> Self {
        self.wait = None;
        self
    }

    pub(crate) fn not_listening(mut self) -> Self {
        self.wait = Some(Wait::new(false));
        self
    }

    pub(crate) fn until(mut self, until: ServerTime) -> Self {
        self.wait = self.wait.map(|wait| wait.with_wait_until(until));
        self
    }

    pub(crate) fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    pub(crate) fn floor(mut self, floor: u64) -> Self {
        self.floor = Some(FencingToken::new(floor));
        self
    }

    pub(crate) fn limits(mut self, holds: u32, waiters: u32, holders: u32) -> Self {
        self.limits = Limits {
            holds,
            waiters,
            holders,
        };
        self
    }

    pub(crate) fn deliver_in(mut self, time: Duration) -> Self {
        self.deliver_in = time;
        self
    }

    /// Builds the request at the key's time.
    pub(crate) fn request(self, key: &Key) -> Acquire {
        let deliver_before = key.at().saturating_add(self.deliver_in);
        let (spec, mode, of) = (key.spec, self.mode, self.operation);
        let request = Acquire::new(name(), spec, mode, of, self.lease, deliver_before);
        let label = Label::new(label(of)).expect("short");
        let request = request.expect("valid").with_label(label);
        let mut request = request.with_limits(self.limits);
        request.wait = self.wait;
        request.floor = self.floor;
        request
    }
}
