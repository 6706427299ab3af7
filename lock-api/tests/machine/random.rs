//! Random sequences of commands. The ledger in `ledger` checks every step.

use std::time::Duration;

use leasehold_api::machine::{Command, Reach, Reply, Settings, State};
use leasehold_api::{
    Acquire, Convert, FencingToken, ForceMode, ForceRelease, InspectReply, Kind, Label, Limits,
    LockSpec, Mode, Note, Operation, OwnerId, Poll, Release, Renew, ServerTime, Wait,
};
use proptest::prelude::*;

use crate::ledger::{Ledger, Observed, full_label};
use crate::support::{Key, ms, name};

const SESSIONS: [char; 3] = ['a', 'b', 'c'];
const WAITER_LEASE: Duration = ms(12);

/// A step of a sequence. `which` selects one of the attempts or commands so far.
#[derive(Clone, Debug)]
enum Move {
    Acquire(Ask),
    Poll {
        which: usize,
        listening: bool,
    },
    Renew {
        which: usize,
        lease: u64,
    },
    Release {
        which: usize,
    },
    Convert {
        which: usize,
        write: bool,
        old: bool,
    },
    Force {
        now: bool,
        old: bool,
    },
    Note {
        which: usize,
        version: u32,
        keep: u64,
    },
    Inspect,
    Again {
        which: usize,
    },
    Pass(Pass),
    Listen {
        session: usize,
        reach: Reach,
    },
}

#[derive(Clone, Debug)]
struct Ask {
    session: usize,
    owner: u64,
    mode: u32,
    lease: u64,
    wait: Option<(bool, Option<u64>)>,
    floor: Option<i64>,
    limits: Limits,
    /// Deliver before, relative to now, in ms.
    deliver: i64,
    /// Uses another kind of lock than the key's spec.
    other_kind: bool,
}

#[derive(Clone, Copy, Debug)]
enum Pass {
    Micros(u64),
    /// To the earliest end of a holder or waiter, minus this number of µs.
    ToNextEnd(u64),
}

fn asks() -> impl Strategy<Value = Ask> {
    let wait = prop_oneof![
        1 => Just(None),
        4 => (prop::bool::weighted(0.8), prop::option::weighted(0.2, 0..20_u64)).prop_map(Some),
    ];
    let floor = prop::option::weighted(0.2, -2..3_i64);
    let few = prop_oneof![6 => Just(100_u32), 1 => 0..3_u32];
    let limits = (few.clone(), few.clone(), few).prop_map(|(holds, waiters, holders)| Limits {
        holds,
        waiters,
        holders,
    });
    let deliver = prop_oneof![10 => 0..40_i64, 1 => Just(-1), 1 => Just(41)];
    let target = (0..3_usize, 0..3_u64, 1..4_u32, 1..30_u64);
    let other_kind = prop::bool::weighted(0.03);
    (target, wait, floor, limits, deliver, other_kind).prop_map(
        |((session, owner, mode, lease), wait, floor, limits, deliver, other_kind)| Ask {
            session,
            owner,
            mode,
            lease,
            wait,
            floor,
            limits,
            deliver,
            other_kind,
        },
    )
}

fn moves() -> impl Strategy<Value = Move> {
    let which = || 0..64_usize;
    let reach = prop_oneof![
        Just(Reach::Listening),
        Just(Reach::Nobody),
        Just(Reach::Unknown)
    ];
    let pass = prop_oneof![
        3 => (0..3_000_u64).prop_map(Pass::Micros),
        2 => (0..2_u64).prop_map(Pass::ToNextEnd),
        1 => (3_000..120_000_u64).prop_map(Pass::Micros),
    ];
    prop_oneof![
        12 => asks().prop_map(Move::Acquire),
        6 => (which(), any::<bool>()).prop_map(|(which, listening)| Move::Poll { which, listening }),
        4 => (which(), 1..30_u64).prop_map(|(which, lease)| Move::Renew { which, lease }),
        6 => which().prop_map(|which| Move::Release { which }),
        5 => (which(), any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(which, write, old)| Move::Convert { which, write, old }),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(now, old)| Move::Force { now, old }),
        3 => (which(), 0..4_u32, prop_oneof![Just(0), 1..150_u64])
            .prop_map(|(which, version, keep)| Move::Note { which, version, keep }),
        1 => Just(Move::Inspect),
        5 => which().prop_map(|which| Move::Again { which }),
        6 => pass.prop_map(Move::Pass),
        2 => (0..3_usize, reach).prop_map(|(session, reach)| Move::Listen { session, reach }),
    ]
}

fn specs() -> impl Strategy<Value = LockSpec> {
    let semaphore = LockSpec::semaphore(3).expect("valid");
    let all = [LockSpec::mutex(), LockSpec::rw_lock(), semaphore];
    let all = all.map(|spec| spec.with_waiter_lease(WAITER_LEASE));
    prop::sample::select(all.map(|spec| spec.expect("valid")).to_vec())
}

/// One run: the key, the commands that were sent, and the ledger.
struct Run {
    key: Key,
    sent: Vec<Command>,
    attempts: Vec<Operation>,
    tokens: Vec<FencingToken>,
    ledger: Ledger,
}

impl Run {
    fn new(spec: LockSpec) -> Self {
        let mut key = Key::of(spec);
        key.settings = Settings::new(ms(40), ms(60));
        Self {
            key,
            sent: Vec::new(),
            attempts: Vec::new(),
            tokens: vec![FencingToken::new(1)],
            ledger: Ledger::default(),
        }
    }

    fn play(&mut self, next: &Move) -> Result<(), TestCaseError> {
        match next {
            Move::Pass(Pass::Micros(us)) => self.key.now += us,
            Move::Pass(Pass::ToNextEnd(early)) => self.pass_to_next_end(*early),
            Move::Listen { session, reach } => self.key.set_reach(SESSIONS[*session], *reach),
            other => {
                if let Some(command) = self.command(other) {
                    self.sent.push(command.clone());
                    return self.step(&command);
                }
            }
        }
        Ok(())
    }

    fn pass_to_next_end(&mut self, early: u64) {
        let inspection = self.key.inspect();
        let holders = inspection.holders.iter().map(|h| h.remaining);
        let ends = holders.chain(inspection.waiters.iter().map(|w| w.waiter_remaining));
        if let Some(first) = ends.min() {
            self.key
                .pass(first.saturating_sub(Duration::from_micros(early)));
        }
    }

    fn command(&mut self, next: &Move) -> Option<Command> {
        let attempt = |which: &usize| {
            let newest_first = self.attempts.iter().rev();
            newest_first
                .copied()
                .nth(which % self.attempts.len().max(1))
        };
        let token = |old: &bool| {
            let newest = self.tokens.len() - 1;
            self.tokens[if *old { newest / 2 } else { newest }]
        };
        Some(match next {
            Move::Acquire(ask) => Command::Acquire(self.acquire(ask)),
            Move::Poll { which, listening } => {
                Command::Poll(Poll::new(name(), attempt(which)?, *listening))
            }
            Move::Renew { which, lease } => {
                let request = Renew::new(name(), attempt(which)?, ms(*lease));
                Command::Renew(request.expect("valid"))
            }
            Move::Release { which } => Command::Release(Release::new(name(), attempt(which)?)),
            Move::Convert { which, write, old } => {
                let (of, at) = (attempt(which)?, token(old));
                Command::Convert(if *write {
                    Convert::to_exclusive(name(), of, at)
                } else {
                    Convert::to_shared(name(), of, at)
                })
            }
            Move::Force { now, old } => {
                let how = if *now {
                    ForceMode::Now
                } else {
                    ForceMode::Revoke
                };
                Command::ForceRelease(ForceRelease::new(name(), vec![token(old)]).with_how(how))
            }
            Move::Note {
                which,
                version,
                keep,
            } => {
                let of = attempt(which)?;
                let bytes = of.sequence.to_le_bytes();
                let note = Note::new(name(), of, *version, bytes, ms(*keep));
                Command::Note(note.expect("valid"))
            }
            Move::Inspect => Command::Inspect,
            Move::Again { which } => self.sent.get(which % self.sent.len().max(1))?.clone(),
            Move::Pass(_) | Move::Listen { .. } => return None,
        })
    }

    fn acquire(&mut self, ask: &Ask) -> Acquire {
        let spec = if ask.other_kind {
            LockSpec::semaphore(9).expect("valid")
        } else {
            self.key.spec
        };
        let mut operation = self.key.next_of(SESSIONS[ask.session], ask.owner);
        operation.owner = OwnerId::from_u64(ask.owner);
        let mode = match spec.kind() {
            Kind::Mutex => Mode::Exclusive,
            Kind::RwLock if ask.mode == 1 => Mode::Exclusive,
            Kind::RwLock => Mode::Shared,
            Kind::Semaphore => Mode::Permits(ask.mode),
        };
        let micros = self.key.now.saturating_add_signed(ask.deliver * 1_000);
        let deliver_before = ServerTime::from_micros(micros);
        let mut request =
            Acquire::new(name(), spec, mode, operation, ms(ask.lease), deliver_before)
                .expect("valid")
                .with_label(Label::new(full_label(spec.kind(), operation)).expect("short"))
                .with_limits(ask.limits);
        request.wait = ask.wait.map(|(listening, until)| {
            let wait = Wait::new(listening);
            until.map_or(wait, |after| {
                wait.with_wait_until(self.key.at().saturating_add(ms(after)))
            })
        });
        let last = self.tokens.last().map_or(0, |token| token.get());
        request.floor = ask
            .floor
            .map(|by| FencingToken::new(last.saturating_add_signed(by)));
        self.attempts.push(operation);
        request
    }

    /// Plays and checks one step. Then checks that a copy of the same command changes nothing.
    fn step(&mut self, command: &Command) -> Result<(), TestCaseError> {
        let before = self.key.inspect();
        let was = self.key.clone();
        let reply = self.key.step(command);
        let after = self.key.inspect();
        if matches!(command, Command::Inspect) {
            prop_assert_eq!(&self.key.state, &was.state);
            prop_assert_eq!(&reply, &Reply::Inspect(before.clone()));
        }
        let seen = Observed {
            before: &before,
            after: &after,
            command,
            reply: &reply,
            was: &was,
            key: &self.key,
        };
        if let Err(violation) = self.ledger.check(&seen) {
            let message =
                format!("{violation}\n  {command:?}\n  {reply:?}\n  {before:#?}\n  {after:#?}");
            return Err(TestCaseError::fail(message));
        }
        self.tokens.extend(after.token);
        let parts = self.key.state.to_parts();
        prop_assert_eq!(State::from_parts(parts), Ok(self.key.state.clone()));
        let bytes = self.key.state.to_bytes();
        prop_assert_eq!(State::from_bytes(&bytes), Ok(self.key.state.clone()));
        prop_assert_eq!(was.unlisted(command), []);
        let mut again = self.key.clone();
        again.step(command);
        prop_assert_eq!(
            again.inspect(),
            after,
            "a copy of {:?} had an effect",
            command
        );
        Ok(())
    }

    /// Checks that nothing is left after all attempts are released, or after all leases expire.
    fn release_all(&mut self) -> Result<(), TestCaseError> {
        let mut by_time = self.key.clone();
        by_time.now += 100_000;
        prop_assert!(
            by_time.state.is_idle(by_time.at()),
            "idle after every lease"
        );
        by_time.now = by_time.state.stored_end().as_micros();
        prop_assert_eq!(by_time.inspect(), InspectReply::default());
        for attempt in self.attempts.clone() {
            self.step(&Command::Release(Release::new(name(), attempt)))?;
        }
        let inspection = self.key.inspect();
        prop_assert_eq!((inspection.holder_count, inspection.waiter_count), (0, 0));
        prop_assert!(self.key.state.is_idle(self.key.at()));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rules_hold_for_random_commands(
        spec in specs(),
        moves in prop::collection::vec(moves(), 1..80),
    ) {
        let mut run = Run::new(spec);
        for (n, next) in moves.iter().enumerate() {
            run.play(next).map_err(|e| TestCaseError::fail(format!("at {n}: {e}")))?;
        }
        run.release_all()?;
    }
}
