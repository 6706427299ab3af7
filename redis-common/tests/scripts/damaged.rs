//! Stored values that are damaged: the scripts refuse or handle them, and grant no lock that is held.
//!
//! A value has no checksum, so a changed byte can be a valid value with another meaning. A value that is cut
//! off, and one with another beginning, can't: then nothing may be granted.

use std::cell::RefCell;
use std::time::Duration;

use leasehold_api::{
    Acquire, AcquireReply, BackendError, Convert, FencingToken, ForceMode, ForceRelease, Kind,
    LockSpec, Mode, Operation, Poll, Release, Renew, Wait,
};
use leasehold_redis_common::script::reply;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use redis::Value;

use super::server::{Fixture, attempt, key, only};
use super::support::{CLOCK, bytes};

/// The session that holds the lock, and one that knows nothing of it.
const HOLDER: u8 = 1;
const STRANGER: u8 = 99;

/// What happens to a stored text.
#[derive(Clone, Debug)]
enum Damage {
    /// The rest is missing.
    Cut(Index),
    /// The format isn't ours.
    Begins(u8, u8),
    Changed(Vec<(Index, u8)>),
    Grown(Vec<u8>),
    /// Something else behind our format.
    Random(Vec<u8>),
}

impl Damage {
    fn any() -> impl Strategy<Value = Self> {
        let bytes = || prop::collection::vec(any::<u8>(), 1..200);
        prop_oneof![
            3 => any::<Index>().prop_map(Self::Cut),
            1 => (0..3_u8, any::<u8>()).prop_map(|(at, byte)| Self::Begins(at, byte)),
            3 => prop::collection::vec((any::<Index>(), any::<u8>()), 1..6).prop_map(Self::Changed),
            1 => bytes().prop_map(Self::Grown),
            1 => bytes().prop_map(Self::Random),
        ]
    }

    fn apply(&self, text: &mut Vec<u8>) {
        match self {
            Self::Cut(at) => text.truncate(at.index(text.len())),
            Self::Begins(at, byte) => text[usize::from(*at)] = *byte,
            Self::Changed(changes) => {
                for (at, byte) in changes {
                    let at = at.index(text.len());
                    text[at] = *byte;
                }
            }
            Self::Grown(more) => text.extend(more),
            Self::Random(other) => {
                text.truncate(3);
                text.extend(other);
            }
        }
    }

    /// Whether no valid value can be the result.
    fn is_evident(&self, before: &[u8], after: &[u8]) -> bool {
        before != after && matches!(self, Self::Cut(_) | Self::Begins(..))
    }
}

/// What is stored before the damage.
#[derive(Clone, Debug)]
struct Stored {
    kind: Kind,
    holders: u8,
    waiters: u8,
    watermarks: u8,
}

impl Stored {
    fn any() -> impl Strategy<Value = Self> {
        let kinds = prop::sample::select(vec![Kind::Mutex, Kind::RwLock, Kind::Semaphore]);
        // Few records are a string, many a hash.
        let few_or_many = || prop_oneof![2 => 0..3_u8, 1 => 30..50_u8];
        let parts = (kinds, 0..4_u8, few_or_many(), few_or_many());
        parts.prop_map(|(kind, holders, waiters, watermarks)| Self {
            kind,
            holders,
            // Nobody waits for a free lock.
            waiters: if holders == 0 { 0 } else { waiters },
            watermarks,
        })
    }

    /// A mutex with a queue.
    fn mutex(waiters: u8) -> Self {
        Self {
            kind: Kind::Mutex,
            holders: 1,
            waiters,
            watermarks: 0,
        }
    }

    fn request(&self, fixture: &mut Fixture, name: &str, operation: Operation) -> Acquire {
        let (spec, mode) = match self.kind {
            Kind::Mutex => (LockSpec::mutex(), Mode::Exclusive),
            Kind::RwLock => (LockSpec::rw_lock(), Mode::Exclusive),
            Kind::Semaphore => {
                let spec = LockSpec::semaphore(u32::from(self.holders.max(1)));
                (spec.expect("a good number"), Mode::Permits(1))
            }
        };
        fixture.request(name, operation, spec, mode)
    }

    /// Fills the lock with holders, waiters and watermarks.
    fn fill(&self, fixture: &mut Fixture, name: &str) {
        for session in 0..self.watermarks {
            let gone = attempt(100 + session, 1);
            fixture.release(name, gone);
        }
        let holders = match self.kind {
            Kind::Semaphore => self.holders.max(1),
            _ => 1,
        };
        for holder in 0..holders {
            let request = self.request(fixture, name, attempt(HOLDER + holder, 1));
            fixture.acquired(&request);
        }
        if self.holders == 0 {
            fixture.release(name, attempt(HOLDER, 1));
        }
        for waiter in 0..self.waiters {
            let request = self.request(fixture, name, attempt(10 + waiter, 1));
            fixture.queued(&request.with_wait(Wait::new(waiter % 2 == 0)));
        }
    }
}

/// Damages one of the stored texts. Returns it before and after, or `None` if nothing is stored.
fn damage(
    fixture: &mut Fixture,
    name: &str,
    at: Index,
    damage: &Damage,
) -> Option<(Vec<u8>, Vec<u8>, bool)> {
    let stored = fixture.protocol.key(&key(name));
    let connection = &mut fixture.connection;
    if let Value::BulkString(before) = connection.command(&[&b"GET"[..], &stored]) {
        let mut after = before.clone();
        damage.apply(&mut after);
        connection.command(&[&b"SET"[..], &stored, &after, b"KEEPTTL"]);
        return Some((before, after, true));
    }
    let Value::Array(all) = connection.command(&[&b"HGETALL"[..], &stored]) else {
        return None;
    };
    let fields: Vec<_> = all.chunks(2).collect();
    // The head every other time: everything begins with it.
    let is_head = |field: &&&[Value]| bytes(&field[0]) == b"head";
    let number = at.index(2 * fields.len());
    let field = match fields.get(number) {
        Some(field) => field,
        None => fields.iter().find(is_head)?,
    };
    let (before, mut after) = (bytes(&field[1]).to_vec(), bytes(&field[1]).to_vec());
    let is_head = is_head(&field);
    if before.len() > 3 {
        damage.apply(&mut after);
    }
    connection.command(&[&b"HSET"[..], &stored, bytes(&field[0]), &after]);
    Some((before, after, is_head))
}

/// Sends each command. Returns the reply to a stranger's acquire, which comes first.
fn send_all(
    fixture: &mut Fixture,
    stored: &Stored,
    name: &str,
) -> Result<AcquireReply, BackendError> {
    let request = stored.request(fixture, name, attempt(STRANGER, 1));
    let acquired = fixture.try_acquire(&request);
    let (name, token) = (key(name), FencingToken::new(1));
    for operation in [attempt(HOLDER, 1), attempt(10, 1), attempt(STRANGER, 2)] {
        let protocol = &fixture.protocol;
        let poll = protocol.poll(&[Poll::new(name.clone(), operation, true)]);
        let renew = Renew::new(name.clone(), operation, Duration::from_secs(30));
        let renew = protocol.renew(&[renew.expect("a good lease")]);
        let to_shared = Convert::to_shared(name.clone(), operation, token);
        let convert = protocol.convert(&to_shared);
        let inspect = protocol.inspect(&name);
        let release = protocol.release(&[Release::new(name.clone(), operation)]);
        let _ = fixture.run(&poll, only(reply::polls));
        let _ = fixture.run(&renew, only(reply::renewals));
        let _ = fixture.run(&convert, reply::convert);
        let _ = fixture.run(&inspect, reply::inspect);
        let _ = fixture.run(&release, only(reply::releases));
    }
    let force = ForceRelease::new(name, vec![token]).with_how(ForceMode::Now);
    let force = fixture.protocol.force_release(&force);
    let _ = fixture.run(&force, reply::force_release);
    acquired
}

impl Fixture {
    /// What is stored as a string.
    fn get(&mut self, name: &str) -> Vec<u8> {
        let stored = self.protocol.key(&key(name));
        bytes(&self.connection.command(&[&b"GET"[..], &stored])).to_vec()
    }

    fn set(&mut self, name: &str, bytes: &[u8]) {
        let stored = self.protocol.key(&key(name));
        self.connection
            .command(&[&b"SET"[..], &stored, bytes, b"KEEPTTL"]);
    }

    /// Inspects the key, which must say that the queue is damaged.
    fn expect_damaged_queue(&mut self, name: &str) {
        let inspect = self.protocol.inspect(&key(name));
        let error = self.run(&inspect, reply::inspect);
        let error = error.expect_err("the queue is damaged").to_string();
        assert!(error.contains("the queue is damaged"), "{error}");
    }
}

#[test]
fn damaged_values_are_refused_or_handled() {
    let fixture = RefCell::new(Fixture::new());
    let counts = RefCell::new(Counts::default());
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::default()
    });
    let cases = (Stored::any(), any::<Index>(), Damage::any());
    let result = runner.run(&cases, |(stored, at, kind)| {
        let (mut fixture, mut counts) = (fixture.borrow_mut(), counts.borrow_mut());
        counts.cases += 1;
        let name = format!("damaged {}", counts.cases);
        stored.fill(&mut fixture, &name);
        let changed = damage(&mut fixture, &name, at, &kind);
        let reply = send_all(&mut fixture, &stored, &name);
        counts.refused += u32::from(reply.is_err());
        if let Some((before, after, true)) = changed
            && kind.is_evident(&before, &after)
        {
            counts.evident += 1;
            let granted = matches!(reply, Ok(AcquireReply::Acquired(_)));
            prop_assert!(!granted, "{reply:?}");
        }
        prop_assert_eq!(
            fixture.connection.command(&["PING"]),
            Value::SimpleString("PONG".into())
        );
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let counts = counts.into_inner();
    println!("{counts:?}");
    assert!(counts.evident > counts.cases / 10 && counts.refused > 0);
}

/// Random cuts seldom leave just enough for the fast path.
#[test]
fn free_lock_that_is_cut_off_is_never_granted() {
    let mut fixture = Fixture::new();
    fixture.hold("free", attempt(HOLDER, 1));
    fixture.released("free", attempt(HOLDER, 1));
    let value = fixture.get("free");
    for length in 1..value.len() {
        fixture.set("free", &value[..length]);
        let request = fixture.mutex("free", attempt(STRANGER, 1));
        let reply = fixture.try_acquire(&request);
        assert!(reply.is_err(), "{length} bytes: {reply:?}");
    }
}

/// One damaged value touches no other element of a batch, neither before it nor after it.
#[test]
fn batch_with_a_damaged_value_fails_only_there() {
    let mut fixture = Fixture::new();
    let names = ["first", "damaged", "last"];
    fixture.hold("damaged", attempt(7, 1));
    let value = fixture.get("damaged");
    fixture.set("damaged", &value[..60]);

    let acquires = names.map(|name| fixture.mutex(name, attempt(HOLDER, 1)));
    let call = fixture.protocol.acquire(&acquires);
    let answer = fixture.connection.run(&call);
    let acquired = reply::acquires(bytes(&answer), 3, CLOCK);
    let replies = acquired.iter().map(|answer| answer.as_ref().ok());
    let granted = replies.map(|it| Some(matches!(it?.reply, AcquireReply::Acquired(_))));
    let granted: Vec<_> = granted.collect();
    assert_eq!(granted, [Some(true), None, Some(true)], "{acquired:?}");

    let releases = names.map(|name| Release::new(key(name), attempt(HOLDER, 1)));
    let answer = fixture.connection.run(&fixture.protocol.release(&releases));
    let released = reply::releases(bytes(&answer), 3, CLOCK);
    let ok: Vec<_> = released.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, false, true], "{released:?}");
}

/// A walk over the queue of a hash would never end: the server is blocked, and only SIGKILL helps.
#[test]
fn a_hole_in_the_queue_that_leads_back_is_an_error() {
    let mut fixture = Fixture::new();
    Stored::mutex(40).fill(&mut fixture, "hole");
    // The waiters of the tickets 11 to 13 leave.
    for waiter in 10..13 {
        fixture.release("hole", attempt(10 + waiter, 1));
    }
    let field = |ticket: f64| [b"w".as_slice(), &ticket.to_le_bytes()].concat();
    let (stored, hole) = (fixture.protocol.key(&key("hole")), field(11.0));
    let connection = &mut fixture.connection;
    let end = connection.command(&[&b"HGET"[..], &stored, &hole]);
    assert_eq!(bytes(&end), 13_f64.to_le_bytes());
    connection.command(&[&b"HSET"[..], &stored, &hole, &2_f64.to_le_bytes()]);
    fixture.expect_damaged_queue("hole");
}

#[derive(Debug, Default)]
struct Counts {
    cases: u32,
    /// The damage was evident.
    evident: u32,
    /// The stranger got an error.
    refused: u32,
}
