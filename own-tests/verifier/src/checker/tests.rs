//! The checker on histories made by hand: correct ones break no promise, and changed ones do.

use std::time::Duration;

use leasehold_api::machine::{self, Command, Env, Reach, Reply, Settings, State, StateParts};
use leasehold_api::{
    Acquire, AcquireReply, Convert, ConvertReply, FencingToken, ForceRelease, Key, LockSpec, Mode,
    Operation, OwnerId, Poll, PollReply, Release, Renew, ServerTime, SessionId, Wait,
};
use leasehold_sim::tools::{ClientEvent, Event};

use crate::checker::findings::Model;
use crate::checker::run::Checker;
use crate::checker::step::{Step, operation as operation_of};

/// Longer than a waiter lease, so that offers end with their waiters.
const LEASE: Duration = Duration::from_secs(6);
const START: u64 = 1_000_000_000;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Operation `sequence` of a client, for one of its owners.
fn operation(client: u8, owner: u64, sequence: u64) -> Operation {
    Operation {
        session: SessionId::from_bytes([client; 16]),
        sequence,
        owner: OwnerId::from_u64(owner),
    }
}

type Change = fn(&mut StateParts);

/// One key on the real state machine, with the checker.
struct History {
    key: Key,
    state: State,
    spec: LockSpec,
    at: Duration,
    checker: Checker,
    /// The floor of the next acquire.
    floor: Option<FencingToken>,
    /// Whether anybody listens.
    heard: bool,
    /// Changes the state after the next step, before it is checked.
    change: Option<Change>,
}

impl History {
    fn of(spec: LockSpec) -> Self {
        let mut checker = Checker::new(Model::Within);
        // Nobody polls in these tests.
        checker.duties.slow_network();
        Self {
            key: Key::new("job").expect("a valid key"),
            state: State::default(),
            spec,
            at: Duration::ZERO,
            floor: None,
            checker,
            heard: true,
            change: None,
        }
    }

    fn now(&self) -> ServerTime {
        ServerTime::from_micros(START).saturating_add(self.at)
    }

    fn pass(&mut self, time: Duration) -> &mut Self {
        self.at += time;
        self
    }

    fn step(&mut self, command: &Command) -> Reply {
        let before = self.state.to_parts();
        let heard = self.heard;
        let env = Env {
            now: self.now(),
            settings: Settings::default(),
            reachable: &|_| match heard {
                true => Reach::Listening,
                false => Reach::Nobody,
            },
        };
        let (reply, _) = machine::step(&mut self.state, env, command);
        let mut after = self.state.to_parts();
        if let Some(change) = self.change.take() {
            change(&mut after);
        }
        let own = operation_of(command);
        let session = own.map(|own| own.session);
        self.checker.step(&Step {
            sent: self.at,
            at: self.at,
            client: session.map_or(0, |session| session.as_bytes()[0].into()),
            key: &self.key,
            command,
            own,
            reply: &reply,
            now: self.now(),
            batch_size: 1,
            redelivered: false,
            before: &before,
            after: &after,
        });
        reply
    }

    fn asks(&mut self, operation: Operation, mode: Mode, wait: Option<Wait>) -> AcquireReply {
        let (key, until) = (self.key.clone(), self.now().saturating_add(ms(1_000)));
        let request = Acquire::new(key, self.spec, mode, operation, LEASE, until);
        let mut request = request.expect("within the limits");
        (request.wait, request.floor) = (wait, self.floor.take());
        match self.step(&Command::Acquire(request)) {
            Reply::Acquire(reply) => reply,
            other => panic!("an acquire was answered {other:?}"),
        }
    }

    fn takes(&mut self, operation: Operation, mode: Mode) {
        let reply = self.asks(operation, mode, None);
        assert!(matches!(reply, AcquireReply::Acquired(_)), "{reply:?}");
    }

    fn queues(&mut self, operation: Operation, mode: Mode, listening: bool) {
        let reply = self.asks(operation, mode, Some(Wait::new(listening)));
        assert!(matches!(reply, AcquireReply::Queued(_)), "{reply:?}");
    }

    fn ends(&mut self, operation: Operation) -> Reply {
        self.step(&Command::Release(Release::new(self.key.clone(), operation)))
    }

    fn polls(&mut self, operation: Operation) -> Reply {
        self.step(&Command::Poll(Poll::new(self.key.clone(), operation, true)))
    }

    fn renews(&mut self, operation: Operation) -> Reply {
        let renew = Renew::new(self.key.clone(), operation, LEASE);
        self.step(&Command::Renew(renew.expect("within the limits")))
    }

    /// Returns the broken promises.
    fn broken(mut self) -> Vec<&'static str> {
        let (violations, _) = self.checker.verdict();
        violations.iter().map(|it| it.promise).collect()
    }
}

/// A hold overtakes nobody if its owner's waiter was granted in the same step.
#[test]
fn owner_joins_its_own_grant_past_a_waiter() {
    let mut key = History::of(LockSpec::rw_lock());
    key.takes(operation(1, 1, 1), Mode::Exclusive);
    key.queues(operation(2, 7, 1), Mode::Shared, false);
    key.queues(operation(3, 1, 1), Mode::Exclusive, false);
    // The writer's lease expires. This step grants the first waiter, and joins its holder.
    key.pass(LEASE).takes(operation(2, 7, 2), Mode::Shared);
    assert_eq!(key.broken(), Vec::<&str>::new());
}

/// A waiter's own poll grants it the time of the waiter that the poll has just refreshed.
#[test]
fn grant_by_own_poll_extends_the_owners_holder() {
    let mut key = History::of(LockSpec::rw_lock());
    let (writer, first, second) = (operation(1, 1, 1), operation(2, 7, 1), operation(2, 7, 2));
    key.takes(writer, Mode::Exclusive);
    key.queues(first, Mode::Shared, false);
    key.queues(second, Mode::Shared, true);
    key.heard = false;
    key.ends(writer);
    // The first is an offer now. The second is unreachable until it polls.
    key.pass(ms(1_000));
    let reply = key.polls(second);
    let Reply::Poll(PollReply::Acquired(acquired)) = reply else {
        panic!("{reply:?}");
    };
    assert_eq!((acquired.holds, acquired.remaining), (2, ms(5_000)));
    assert_eq!(key.broken(), Vec::<&str>::new());
}

/// A downgrade starts an epoch and grants to a reader with a higher floor, which starts the next
/// epoch in the same step. Both tokens count as granted.
#[test]
fn epoch_that_ends_in_its_first_step_counts_as_granted() {
    let mut key = History::of(LockSpec::rw_lock());
    let (writer, reader) = (operation(1, 1, 1), operation(2, 1, 1));
    key.takes(writer, Mode::Exclusive);
    key.floor = Some(FencingToken::new(START + 60_000_000));
    key.queues(reader, Mode::Shared, true);
    let token = key.state.to_parts().token;
    let down = Convert::to_shared(key.key.clone(), writer, FencingToken::new(token));
    let reply = key.step(&Command::Convert(down));
    let Reply::Convert(ConvertReply::Converted { token, .. }) = reply else {
        panic!("{reply:?}");
    };
    assert!(
        token.get() < key.state.to_parts().token,
        "one epoch: {token}"
    );
    let name = key.key.clone();
    key.checker.written(key.at, &name, token.get());
    assert_eq!(key.broken(), Vec::<&str>::new());
}

/// A server has lost the grant of a hold, and grants it again with the same token when its client
/// converts it. The notification has that token, the reply the next one.
#[test]
fn lost_grant_is_repeated_and_converted_in_one_step() {
    let mut key = History::of(LockSpec::rw_lock());
    let (first, waiter) = (operation(1, 1, 1), operation(2, 1, 1));
    key.takes(first, Mode::Exclusive);
    key.queues(waiter, Mode::Exclusive, true);
    for _ in 0..2 {
        key.pass(LEASE * 2 / 5).polls(waiter);
    }
    // The first lease is over. The client knows of the grant, the server has lost it.
    key.pass(LEASE / 5);
    let lost = FencingToken::new(key.now().as_micros());
    let down = Convert::to_shared(key.key.clone(), waiter, lost);
    let reply = key.step(&Command::Convert(down));
    let Reply::Convert(ConvertReply::Converted { token, .. }) = reply else {
        panic!("{reply:?}");
    };
    assert_eq!(token.get(), lost.get() + 1);
    assert_eq!(key.broken(), Vec::<&str>::new());
}

/// An owner's further hold shares the epoch of its first, whatever its floor is. If the server lost
/// the token, that floor does not make the epoch later than another.
#[test]
fn further_hold_has_no_floor() {
    let mut key = History::of(LockSpec::rw_lock());
    let highest = START + 60_000_000;
    key.floor = Some(FencingToken::new(highest - 1));
    key.takes(operation(1, 1, 1), Mode::Exclusive);
    assert_eq!(key.state.to_parts().token, highest);
    // The server loses its data.
    key.state = State::default();
    key.floor = None;
    key.takes(operation(2, 1, 1), Mode::Exclusive);
    key.queues(operation(3, 1, 1), Mode::Shared, true);
    key.floor = Some(FencingToken::new(highest));
    key.queues(operation(3, 1, 2), Mode::Shared, true);
    key.ends(operation(2, 1, 1));
    assert!(key.state.to_parts().token < highest);
    assert_eq!(key.broken(), Vec::<&str>::new());
}

/// Only a client whose clock has jumped may give up a release.
#[test]
fn only_a_client_with_a_jumped_clock_may_leave_a_hold() {
    for jumped in [false, true] {
        let mut key = History::of(LockSpec::mutex());
        key.takes(operation(1, 1, 1), Mode::Exclusive);
        if jumped {
            let event = Event::Client(ClientEvent::ClockJumped { by: LEASE });
            key.checker.event(key.at, Some(1), &event);
        }
        key.pass(ms(1_500));
        let left = key.checker.guards.left_by(key.at);
        assert_eq!(left.is_empty(), jumped, "{left:?}");
        let name = key.key.clone();
        key.checker.check_nothing_left(key.at, 1, &name, ms(1_000));
        assert_eq!(key.broken().is_empty(), jumped);
    }
}

/// Runs a history with each kind of detail that the checker reads, changes the step at index
/// `changed`, and returns the broken promises.
fn long_history(changed: usize, change: Change) -> Vec<&'static str> {
    let mut key = History::of(LockSpec::rw_lock());
    let (a, nested) = (operation(1, 1, 1), operation(1, 1, 2));
    let (b, c) = (operation(2, 1, 1), operation(3, 1, 1));
    let steps: &[&dyn Fn(&mut History)] = &[
        &|key| key.takes(a, Mode::Exclusive),
        &|key| key.takes(nested, Mode::Shared),
        &|key| drop(key.asks(c, Mode::Shared, None)),
        &|key| key.queues(b, Mode::Exclusive, true),
        &|key| drop(key.ends(nested)),
        &|key| drop(key.ends(a)),
        &|key| drop(key.renews(b)),
        &|key| {
            let tokens = vec![FencingToken::new(key.state.to_parts().token)];
            let force = ForceRelease::new(key.key.clone(), tokens);
            drop(key.step(&Command::ForceRelease(force)));
        },
        &|key| drop(key.renews(b)),
        &|key| drop(key.ends(a)),
        &|key| drop(key.pass(ms(10_000)).ends(b)),
    ];
    for (n, step) in steps.iter().enumerate() {
        key.change = (n == changed).then_some(change);
        step(&mut key);
    }
    key.broken()
}

#[test]
fn correct_history_breaks_nothing() {
    assert_eq!(long_history(usize::MAX, |_| ()), Vec::<&str>::new());
}

#[test]
fn changed_history_breaks_a_promise() {
    let changes: [(usize, &str, Change); 9] = [
        (0, "rule 14", |after| {
            after.stored_end = ServerTime::default();
        }),
        (1, "S3", |after| after.holders.clear()),
        (4, "S3", |after| {
            let holds = after.holders[0].holds.iter().copied();
            after.holders[0].holds = holds.chain([(2, Mode::Shared)]).collect();
        }),
        (5, "rule 9", |after| after.holders.clear()),
        (5, "rule 10", |after| {
            after.holders[0].end = ServerTime::from_micros(START + 10_000_000);
        }),
        (5, "S4", |after| after.token = 1),
        (6, "rule 5", |after| {
            after.holders[0].end = ServerTime::from_micros(START + 1);
        }),
        (6, "S3", |after| {
            after.holders[0].end = ServerTime::from_micros(START + 10_000_000);
        }),
        (8, "S3", |after| after.holders[0].revoked = false),
    ];
    for (n, (at, promise, change)) in changes.into_iter().enumerate() {
        let broken = long_history(at, change);
        assert!(broken.contains(&promise), "change {n}: {broken:?}");
    }
}
