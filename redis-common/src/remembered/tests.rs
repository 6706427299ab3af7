//! Clients on a server that compares, whose scripts are the state machine.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt;
use leasehold_api::machine::{self, Env, Reach, State};
use leasehold_api::{
    Acquire, AcquireReply, Acquired, BackendError, ClockId, EndReason, FencingToken, LockSpec,
    Mode, Operation, OwnerId, Release, ReleaseReply, ServerTime, SessionId,
};

use super::clock::CLOCK_LASTS;
use super::step::{expiry, hold_of};
use super::*;

const LEASE: Duration = Duration::from_secs(30);

/// A server. Its clock and that of the clients are set by the test.
struct Fake {
    states: Mutex<BTreeMap<Key, State>>,
    moment: Mutex<Moment>,
    clock: Mutex<Stamp>,
    scripts: AtomicU32,
    refuses: Mutex<Option<fn() -> StepOutcome>>,
}

impl Fake {
    fn new() -> Self {
        let clock = Stamp {
            clock: ClockId::new(7),
            at: ServerTime::from_micros(1_000_000_000_000),
        };
        Self {
            states: Mutex::default(),
            moment: Mutex::default(),
            clock: Mutex::new(clock),
            scripts: AtomicU32::new(0),
            refuses: Mutex::default(),
        }
    }

    fn pass(&self, time: Duration) {
        let mut moment = self.moment.lock().expect("no panic");
        *moment = moment.saturating_add(time);
        let mut clock = self.clock.lock().expect("no panic");
        clock.at = clock.at.saturating_add(time);
    }

    fn stamp(&self) -> Stamp {
        *self.clock.lock().expect("no panic")
    }

    fn scripts(&self) -> u32 {
        self.scripts.swap(0, Ordering::Relaxed)
    }

    fn execute(&self, step: &Step) -> StepOutcome {
        if let Some(outcome) = self.refuses.lock().expect("no panic").take() {
            return outcome();
        }
        let now = self.stamp().at.as_micros() / 1_000;
        let mut states = self.states.lock().expect("no panic");
        states.retain(|_, state| expiry(state.stored_end()) > now);
        let found = states.get(&step.key).and_then(encode);
        if found.as_deref() == step.expected() {
            let state = decode(&step.replacement).expect("a state");
            states.insert(step.key.clone(), state);
            return StepOutcome::Same;
        }
        StepOutcome::Other(found.filter(|_| step.learns()))
    }
}

impl Server for Fake {
    fn now(&self) -> Moment {
        *self.moment.lock().expect("no panic")
    }

    fn can_compare(&self) -> bool {
        true
    }

    async fn compare_and_set(
        &self,
        steps: &[Step],
    ) -> Result<(Few<StepOutcome>, ServerTime), BackendError> {
        let Stamp { clock, at } = self.stamp();
        if steps.iter().any(|step| step.stamp.clock != clock) {
            return Err(BackendError::unavailable("another server"));
        }
        Ok((steps.iter().map(|step| self.execute(step)).collect(), at))
    }
}

impl<E: Predictable> Scripts<E> for Fake {
    async fn run(&self, batch: &[E]) -> Vec<Answer<E::Reply>> {
        self.scripts.fetch_add(1, Ordering::Relaxed);
        let (stamp, mut states) = (self.stamp(), self.states.lock().expect("no panic"));
        let mut run = |request: &E| {
            let env = Env {
                now: stamp.at,
                settings: Settings::default(),
                reachable: &|_| Reach::Unknown,
            };
            let state = states.entry(request.key().clone()).or_default();
            let (reply, _) = machine::step(state, env, &request.command());
            let reply = E::unwrap(reply).expect("the reply of this command");
            Ok(Stamped { stamp, reply })
        };
        batch.iter().map(&mut run).collect()
    }
}

struct Client {
    memory: Memory,
    session: u8,
    sequence: u64,
}

impl Client {
    fn new(session: u8) -> Self {
        Self {
            memory: Memory::default(),
            session,
            sequence: 0,
        }
    }

    fn operation(&self) -> Operation {
        Operation {
            session: SessionId::from_bytes([self.session; 16]),
            sequence: self.sequence,
            owner: OwnerId::from_u64(self.sequence),
        }
    }

    fn acquire(&mut self, server: &Fake) -> Answer<AcquireReply> {
        self.acquire_for(server, LEASE)
    }

    fn acquire_for(&mut self, server: &Fake, lease: Duration) -> Answer<AcquireReply> {
        let request = self.request("a", server, lease);
        self.execute(server, request)
    }

    fn execute<E: Predictable>(&self, server: &Fake, request: E) -> Answer<E::Reply> {
        let answers = self.execute_all(server, &[request]);
        answers.into_iter().next().expect("one answer")
    }

    fn execute_all<E: Predictable>(&self, server: &Fake, batch: &[E]) -> Vec<Answer<E::Reply>> {
        let answers = self.memory.execute(server, server, batch);
        answers.now_or_never().expect("the server answers at once")
    }

    fn request(&mut self, key: &str, server: &Fake, lease: Duration) -> Acquire {
        self.sequence += 1;
        let before = server.stamp().at.saturating_add(Duration::from_secs(2));
        let request = Acquire::new(
            Key::new(key).expect("a good key"),
            LockSpec::mutex(),
            Mode::Exclusive,
            self.operation(),
            lease,
            before,
        );
        request.expect("a good request")
    }

    /// The step of an acquire of the key, which is on its way.
    fn step(&mut self, server: &Fake) -> Option<Step> {
        self.step_for(server, LEASE)
    }

    fn step_for(&mut self, server: &Fake, lease: Duration) -> Option<Step> {
        let request = self.request("a", server, lease);
        self.memory.steps(&[request], server.now()).pop()
    }

    fn reads_the_clock_of(&self, server: &Fake) {
        let now = server.now();
        self.memory.note_clock(server.stamp(), now, now);
    }

    fn release(&self, server: &Fake) -> Answer<ReleaseReply> {
        self.execute(server, Release::new(key(), self.operation()))
    }

    /// Acquires and releases. Returns the token, and how many scripts that took.
    fn pair(&mut self, server: &Fake) -> (FencingToken, u32) {
        server.scripts();
        let token = acquired(&self.acquire(server)).token;
        let released = self.release(server).expect("released").reply;
        assert!(matches!(
            released,
            ReleaseReply::Released { holds_left: 0, .. }
        ));
        (token, server.scripts())
    }
}

fn key() -> Key {
    Key::new("a").expect("a good key")
}

fn acquired(answer: &Answer<AcquireReply>) -> Acquired {
    match answer {
        Ok(Stamped {
            reply: AcquireReply::Acquired(acquired),
            ..
        }) => *acquired,
        other => panic!("not acquired: {other:?}"),
    }
}

#[test]
fn free_key_of_one_client_needs_one_script() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    let (mut last, scripts) = client.pair(&server);
    assert_eq!(scripts, 1, "the first acquire");
    for _ in 0..50 {
        server.pass(Duration::from_millis(700));
        let (token, scripts) = client.pair(&server);
        assert_eq!(scripts, 0);
        assert!(token > last, "tokens grow");
        last = token;
    }
}

#[test]
fn new_key_that_others_hold_is_a_miss() {
    let (server, mut one, mut other) = (Fake::new(), Client::new(1), Client::new(2));
    one.acquire(&server).expect("acquired");
    other.reads_the_clock_of(&server);
    server.scripts();
    let answer = other.acquire(&server).expect("an answer").reply;
    assert!(matches!(answer, AcquireReply::Contended { .. }));
    assert_eq!(server.scripts(), 1, "after the miss");
    assert_eq!(other.memory.inner().misses, 1);
    let held = one.release(&server).expect("an answer").reply;
    assert!(matches!(held, ReleaseReply::Released { holds_left: 0, .. }));
}

#[test]
fn deleted_key_is_a_new_one() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    let (first, _) = client.pair(&server);
    server.pass(bounds::TOKEN_RETENTION * 2);
    client.reads_the_clock_of(&server);
    let (second, scripts) = client.pair(&server);
    assert_eq!(scripts, 0);
    assert!(second > first, "tokens grow");
}

#[test]
fn late_step_on_a_new_key_holds_nothing_after_others() {
    for lease in [LEASE, bounds::TOKEN_RETENTION] {
        let (server, mut client, mut other) = (Fake::new(), Client::new(1), Client::new(2));
        client.reads_the_clock_of(&server);
        let step = client.step_for(&server, lease).expect("a step");
        other.pair(&server);
        // The key is deleted after this time, so the step is executed.
        server.pass(bounds::TOKEN_RETENTION + bounds::TOKEN_RETENTION / 8 + 2 * LEASE);
        let outcome = server.execute(&step);
        assert!(matches!(outcome, StepOutcome::Same));
        let (stamp, now) = (server.stamp(), server.now());
        let answer = client.memory.inner().finish(step, outcome, stamp, now);
        let Some(Ok(Reply::Acquire(AcquireReply::Acquired(held)))) = answer else {
            panic!("not acquired: {answer:?}");
        };
        assert_eq!(held.remaining, Duration::ZERO);
        assert!(other.pair(&server).1 > 0, "nobody holds the key");
    }
    let (server, mut client) = (Fake::new(), Client::new(1));
    client.reads_the_clock_of(&server);
    let longer = bounds::TOKEN_RETENTION + Duration::from_millis(1);
    assert!(client.step_for(&server, longer).is_none());
}

#[test]
fn key_that_others_use_is_left_to_the_scripts_for_a_while() {
    let (server, mut one, mut other) = (Fake::new(), Client::new(1), Client::new(2));
    one.pair(&server);
    other.pair(&server);
    // The states of both sessions are stored, so nothing is learned.
    assert_eq!(one.pair(&server).1, 2);
    server.pass(SHARED_FOR - Duration::from_millis(1));
    assert_eq!(one.pair(&server).1, 2);
    server.pass(SHARED_FOR);
    // It is taken for a new key. The release misses, and brings the string.
    assert_eq!(one.pair(&server).1, 2);
    for _ in 0..8 {
        server.pass(SHARED_FOR / 4);
        one.pair(&server);
    }
    server.pass(Duration::from_secs(1));
    assert_eq!(one.pair(&server).1, 0);
}

#[test]
fn clients_that_take_turns_rarely_miss() {
    let (server, mut one, mut other) = (Fake::new(), Client::new(1), Client::new(2));
    let mut compared = 0;
    for _ in 0..100 {
        for client in [&mut one, &mut other] {
            server.pass(Duration::from_millis(10));
            client.pair(&server);
            compared += u32::from(client.memory.inner().misses > 0);
            client.memory.inner().misses = 0;
        }
    }
    assert!(compared <= 4, "{compared} misses in 2 s");
}

#[test]
fn hold_ends_early_and_never_late() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    client.pair(&server);
    server.pass(Duration::from_secs(5));
    let before = server.stamp().at;
    let answer = client.acquire(&server).expect("acquired");
    assert_eq!(server.scripts(), 0);
    let Acquired { remaining, .. } = acquired(&Ok(answer));
    // A hundredth of the time since the last stamp, and 10 ms.
    assert_eq!(remaining, LEASE - Duration::from_millis(60));
    let hold = hold_of(&server.states.lock().expect("no panic")[&key()]);
    assert_eq!(hold.expect("a hold").end, before.saturating_add(remaining));
}

#[test]
fn short_lease_is_not_shortened_much() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    client.pair(&server);
    server.pass(Duration::from_secs(5));
    let lease = Duration::from_millis(800); // an eighth is 100 ms, and the lag is 120 ms
    let held = acquired(&client.acquire_for(&server, lease));
    assert_eq!((held.remaining, server.scripts()), (lease, 1));
}

#[test]
fn clock_that_was_read_long_ago_is_not_estimated() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    client.pair(&server);
    server.pass(CLOCK_LASTS + Duration::from_millis(1));
    assert_eq!(client.pair(&server).1, 1, "the acquire");
}

#[test]
fn clock_that_was_set_back_voids_what_is_remembered() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    client.pair(&server);
    server.pass(Duration::from_secs(1));
    let hour = 3_600_000_000;
    let back = server.stamp().at.as_micros() - hour;
    server.clock.lock().expect("no panic").at = ServerTime::from_micros(back);
    client.reads_the_clock_of(&server);
    let held = acquired(&client.acquire(&server));
    assert_eq!(server.scripts(), 1, "a script knows the time");
    assert_eq!(held.remaining, LEASE);
}

#[test]
fn another_server_voids_what_is_remembered() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    client.pair(&server);
    server.clock.lock().expect("no panic").clock = ClockId::new(8);
    // The step was for the old one, so its stamp says nothing.
    assert_eq!(client.pair(&server).1, 2);
}

#[test]
fn release_at_the_end_of_the_lease_does_not_guess() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    client.acquire(&server).expect("acquired");
    // The local clock is slow, so the step is before the end.
    let now = server.now();
    server.pass(LEASE);
    *server.moment.lock().expect("no panic") = now;
    let released = client.release(&server).expect("an answer").reply;
    assert_eq!(released, ReleaseReply::NotHeld(EndReason::Unknown));
}

#[test]
fn refused_and_unknown_steps() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    client.pair(&server);
    *server.refuses.lock().expect("no panic") = Some(|| StepOutcome::NotExecuted);
    assert_eq!(client.pair(&server).1, 2, "scripts serve the key");
    server.pass(SHARED_FOR);
    client.pair(&server);
    *server.refuses.lock().expect("no panic") =
        Some(|| StepOutcome::Unknown(BackendError::outcome_unknown("lost")));
    server.pass(SHARED_FOR * 2);
    let mut unknown = 0;
    for _ in 0..3 {
        unknown += u32::from(client.acquire(&server).is_err());
        unknown += u32::from(client.release(&server).is_err());
    }
    assert_eq!(unknown, 1, "the caller is told the truth once");
}

#[test]
fn memory_is_bounded_and_shows_no_secret() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    for _ in 0..MOST_MISSES {
        client.memory.inner().count_miss(server.now());
    }
    for n in 0..2 * MOST_KEYS {
        let request = client.request(&n.to_string(), &server, LEASE);
        client.execute(&server, request).expect("acquired");
    }
    assert_eq!(client.memory.inner().keys.len(), MOST_KEYS);
    assert_eq!(format!("{:?}", client.memory), "Memory { .. }");
}

#[test]
fn token_of_a_new_key_is_the_time() {
    let (server, mut client, mut other) = (Fake::new(), Client::new(1), Client::new(2));
    client.reads_the_clock_of(&server);
    server.pass(CLOCK_LASTS / 2);
    let (lost, _) = other.pair(&server);
    server.states.lock().expect("no panic").clear();
    server.pass(Duration::from_millis(1));
    let (token, scripts) = client.pair(&server);
    assert_eq!(scripts, 0, "a new key needs none");
    assert!(token > lost, "all keys were deleted");
}

#[test]
fn new_keys_make_up_for_misses() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    client.reads_the_clock_of(&server);
    for _ in 0..MOST_MISSES - 1 {
        client.memory.inner().count_miss(server.now());
    }
    for n in 0..NEW_KEYS_PER_MISS {
        let request = client.request(&n.to_string(), &server, LEASE);
        client.execute(&server, request).expect("acquired");
    }
    assert_eq!(client.memory.inner().misses, MOST_MISSES - 2);
}

#[test]
fn wrong_guesses_are_limited() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    for _ in 0..MOST_MISSES {
        client.memory.inner().count_miss(server.now());
    }
    client.reads_the_clock_of(&server);
    let (_, scripts) = client.pair(&server);
    assert_eq!(scripts, 2, "the key isn't taken for a new one");
    server.pass(SHARED_FOR);
    assert_eq!(client.pair(&server).1, 2, "a wrong guess");
    server.pass(SHARED_FOR);
    client.pair(&server);
    assert_eq!(client.pair(&server).1, 0, "it was learned");
}

#[test]
fn batch_has_steps_that_are_executed_or_miss_and_scripts() {
    let (server, mut client, mut other) = (Fake::new(), Client::new(1), Client::new(2));
    let pair = |client: &mut Client, name| {
        let acquire = client.request(name, &server, LEASE);
        let release = Release::new(acquire.key.clone(), client.operation());
        client.execute(&server, acquire).expect("acquired");
        client.execute(&server, release).expect("released");
    };
    for name in ["same", "changed", "last"] {
        pair(&mut client, name);
    }
    pair(&mut other, "changed");
    server.scripts();
    let names = ["same", "new", "long", "changed", "last"];
    let lease = |name| match name {
        "long" => 2 * bounds::TOKEN_RETENTION,
        _ => LEASE,
    };
    let batch = names.map(|name| client.request(name, &server, lease(name)));
    let answers = client.execute_all(&server, &batch);
    let scripts = "one for the long lease, one for the miss";
    assert_eq!(server.scripts(), 2, "{scripts}");
    let states = server.states.lock().expect("no panic");
    for (request, answer) in batch.iter().zip(&answers) {
        let state = &states[&request.key];
        assert_eq!(acquired(answer).token.get(), state.to_parts().token);
        let hold = hold_of(state).expect("a hold");
        assert_eq!(hold.operation, request.operation);
    }
    assert_eq!(answers.len(), names.len());
}

#[test]
fn state_is_uncertain_if_something_else_was_sent_meanwhile() {
    for disturbs in [false, true] {
        let (server, mut client) = (Fake::new(), Client::new(1));
        client.pair(&server);
        let step = client.step(&server).expect("a step");
        if disturbs {
            client.memory.forget(&key());
        }
        assert!(client.step(&server).is_none(), "one is on its way");
        let (stamp, now) = (server.stamp(), server.now());
        let mut inner = client.memory.inner();
        let answer = inner.finish(step, StepOutcome::Same, stamp, now);
        assert!(answer.is_some_and(|it| it.is_ok()));
        let known = entry_of(&mut inner.keys, &key()).known.as_ref();
        assert_eq!(known.expect("a state").is_certain, !disturbs);
    }
}

#[test]
fn clock_that_was_set_back_under_a_step_does_not_keep_the_key() {
    let (server, mut client) = (Fake::new(), Client::new(1));
    client.pair(&server);
    let step = client.step(&server).expect("a step");
    let (mut stamp, now) = (server.stamp(), server.now());
    stamp.at = ServerTime::from_micros(stamp.at.as_micros() - 3_600_000_000);
    let mut inner = client.memory.inner();
    inner.finish(step, StepOutcome::Same, stamp, now);
    assert!(entry_of(&mut inner.keys, &key()).known.is_none());
}

#[test]
fn clients_that_take_turns_slowly_miss_less_and_less() {
    let (server, mut one, mut other) = (Fake::new(), Client::new(1), Client::new(2));
    let mut misses = 0;
    for _ in 0..60 {
        for client in [&mut one, &mut other] {
            server.pass(Duration::from_secs(30));
            client.pair(&server);
        }
        misses += std::mem::take(&mut one.memory.inner().misses);
    }
    assert!((1..=9).contains(&misses), "{misses} in an hour");
}
