//! A queue that grows and shrinks while its key changes between a string and a hash.

use std::time::Duration;

use leasehold_api::bounds::TOKEN_RETENTION;
use leasehold_api::machine::Command;
use leasehold_api::{Acquire, LockSpec, Mode, Operation, OwnerId, Renew, SessionId, Wait};
use proptest::prelude::*;

use super::{Server, WINDOW, World, patient, session};

#[test]
pub(super) fn queue_survives_changes_between_string_and_hash() {
    let kinds = [
        (LockSpec::mutex(), 200, &LENGTHS[..]),
        (LockSpec::rw_lock(), 3, &LENGTHS[2..]),
        (
            LockSpec::semaphore(2).expect("a good number"),
            1,
            &PERMIT_LENGTHS[..],
        ),
    ];
    let delivery_window = Duration::from_millis(500);
    for (spec, writers, lengths) in kinds {
        let mut server = Server::start_with(delivery_window, TOKEN_RETENTION);
        server.play(spec, |world| {
            world.grow_and_shrink(patient(spec), writers, lengths, delivery_window)
        });
    }
}

/// Numbers of holders and waiters, and the type of the key with each. A key with waiters is a hash.
const LENGTHS: [(u64, &str); 11] = [
    (1_100, "hash"),
    (1, "string"),
    (100, "hash"),
    (70, "hash"),
    (1, "string"),
    (2, "hash"),
    (18, "hash"),
    (12, "hash"),
    (1, "string"),
    (90, "hash"),
    (1, "string"),
];
/// The same for a semaphore of two permits.
const PERMIT_LENGTHS: [(u64, &str); 7] = [
    (100, "hash"),
    (70, "hash"),
    (1, "string"),
    (3, "hash"),
    (1, "string"),
    (90, "hash"),
    (1, "string"),
];
/// Few enough that a session waits several times in the longest queue.
const SESSIONS: u64 = 251;

fn session_of(number: u64) -> SessionId {
    session(u8::try_from(number % SESSIONS).expect("fewer than 256"))
}

impl World<'_> {
    /// Brings a queue to each of [`LENGTHS`]. Every `writers`th request is a writer.
    fn grow_and_shrink(
        &mut self,
        spec: LockSpec,
        writers: u64,
        lengths: &[(u64, &str)],
        delivery_window: Duration,
    ) -> Result<(), TestCaseError> {
        let mut numbers = 0..;
        for (length, form) in lengths {
            self.inspect()?;
            while (self.queue.len() as u64) < *length {
                let number = numbers.next().expect("no end");
                self.listen(session_of(number), true);
                let writer = number.is_multiple_of(writers);
                self.enter_queue(spec, number, writer, delivery_window / 2)?;
                if number % 8 == 7 {
                    self.leave_queue()?;
                }
            }
            while self.queue.len() as u64 > *length {
                self.leave_queue()?;
            }
            if *length == 1 {
                self.leave_queue()?;
                // Later requests remove the watermarks of earlier sessions.
                *self.clock += delivery_window * 2;
                for _ in 0..150 {
                    self.enter_queue(spec, 0, true, delivery_window / 2)?;
                    self.leave_queue()?;
                }
                self.enter_queue(spec, 0, true, delivery_window / 2)?;
            }
            prop_assert_eq!(&self.form(), form, "{} in the queue", length);
        }
        Ok(())
    }

    fn enter_queue(
        &mut self,
        spec: LockSpec,
        number: u64,
        writer: bool,
        ahead: Duration,
    ) -> Result<(), TestCaseError> {
        let request = self.waiter(spec, number, writer, ahead);
        self.enter(request)
    }

    /// Releases a request: usually the first, which holds, and sometimes one that waits. Neighbours
    /// leave one after the other in either order, and so do the last ones.
    fn leave_queue(&mut self) -> Result<(), TestCaseError> {
        let length = self.queue.len();
        let index = match length % 9 {
            _ if length < 4 => 0,
            0 | 3 => length / 2,
            1 => length / 2 - 1,
            2 | 5 => length - 1,
            6 => 1,
            _ => 0,
        };
        let request = self.queue.remove(index).expect("it is not empty");
        self.release(&request)?;
        // The watermark of an earlier request may have expired.
        if let Some(gone) = self.done.iter().rev().nth(self.queue.len() % 8).cloned() {
            self.release(&gone)?;
        }
        self.done.push(request);
        self.poll_some()?;
        match self.queue.front().cloned() {
            Some(next) => self.poll(&next),
            None => Ok(()),
        }
    }

    /// Polls the holder, some waiters and an attempt that is gone in one call.
    fn poll_some(&mut self) -> Result<(), TestCaseError> {
        let length = self.queue.len();
        if !length.is_multiple_of(5) {
            return Ok(());
        }
        let mut some: Vec<Acquire> = self.queue.iter().take(3).cloned().collect();
        some.extend(self.done.last().cloned());
        some.extend(self.queue.iter().skip(length / 2).take(20).cloned());
        self.poll_all(&some, length.is_multiple_of(2))
    }

    pub(super) fn waiter(
        &mut self,
        spec: LockSpec,
        number: u64,
        writer: bool,
        ahead: Duration,
    ) -> Acquire {
        let mode = match (spec.kind(), writer) {
            (leasehold_api::Kind::RwLock, false) => Mode::Shared,
            (leasehold_api::Kind::Semaphore, _) => Mode::Permits(1 + u32::from(number % 2 == 1)),
            _ => Mode::Exclusive,
        };
        let session = session_of(number);
        let sequence = self.sequences.entry(session).or_insert(0);
        *sequence += 1;
        let operation = Operation {
            session,
            sequence: *sequence,
            owner: OwnerId::from_u64(number << 32 | *sequence),
        };
        let until = self.now.saturating_add(ahead);
        let minute = Duration::from_secs(60);
        let request = Acquire::new(self.keys[0].clone(), spec, mode, operation, minute, until);
        request.expect("a good request").with_wait(Wait::new(true))
    }
}

#[test]
pub(super) fn expired_waiters_of_a_long_queue_are_dropped() {
    let mut server = Server::start();
    for expired in [1..3, 2..4, 5..40, 1..41] {
        for command in 0..5 {
            server.play((&expired, command), |world| {
                world.expire_in_queue(expired.clone(), command)
            });
        }
    }
}

impl World<'_> {
    /// Builds a queue of 40, lets these waiters expire, and sends one of several commands.
    fn expire_in_queue(
        &mut self,
        expired: std::ops::Range<u64>,
        command: u8,
    ) -> Result<(), TestCaseError> {
        let spec = LockSpec::mutex();
        self.inspect()?;
        let mut end = self.now;
        for number in 0..=40 {
            self.listen(session_of(number), true);
            let mut request = self.waiter(spec, number, true, WINDOW);
            if expired.contains(&number) {
                // Long enough to build the rest of the queue.
                end = self.now.saturating_add(Duration::from_millis(250));
                request = request.with_wait(Wait::new(true).with_wait_until(end));
            }
            self.enter(request)?;
        }
        if command == 3 {
            // While all of them wait.
            let all: Vec<Acquire> = self.queue.iter().skip(1).cloned().collect();
            self.poll_all(&all, true)?;
        }
        self.wait_until(end)?;
        let (holder, last) = (self.queue[0].clone(), self.queue[40].clone());
        if command == 4 {
            let all: Vec<Acquire> = self.queue.iter().rev().cloned().collect();
            self.poll_all(&all, true)?;
        }
        match command {
            0 => {
                let request = self.waiter(spec, 41, true, WINDOW);
                self.both(&request.key.clone(), &Command::Acquire(request))?;
            }
            1 => self.poll(&last)?,
            2 => {
                let key = holder.key.clone();
                let renew = Renew::new(key.clone(), holder.operation, Duration::from_secs(90));
                self.both(&key, &Command::Renew(renew.expect("a lease")))?;
            }
            _ => self.release(&holder)?,
        }
        for request in [&last, &self.queue[20].clone(), &self.queue[4].clone()] {
            self.poll(request)?;
        }
        for request in self.queue.clone() {
            self.release(&request)?;
            self.inspect()?;
        }
        Ok(())
    }
}

#[test]
pub(super) fn ordinary_commands_to_a_long_queue_take_the_fast_path() {
    let mut server = Server::start();
    let semaphore = LockSpec::semaphore(3).expect("a good number");
    for length in [12, 70, 1_100] {
        for (spec, holders) in [
            (LockSpec::mutex(), 1),
            (semaphore, 3),
            (LockSpec::rw_lock(), 4),
        ] {
            server.play((spec, length), |world| {
                world.play_on_the_fast_path(patient(spec), holders, holders + length)
            });
        }
    }
}

impl World<'_> {
    /// Builds a queue. Then hands over, enters, polls and leaves, without the general part.
    fn play_on_the_fast_path(
        &mut self,
        spec: LockSpec,
        holders: usize,
        length: usize,
    ) -> Result<(), TestCaseError> {
        self.inspect()?;
        // Even numbers take one permit.
        let mut numbers = (0..).step_by(2);
        let readers = spec.kind() == leasehold_api::Kind::RwLock;
        for place in 0..length {
            let number = numbers.next().expect("no end");
            self.listen(session_of(number), true);
            self.enter_queue(spec, number, !readers || place == holders, WINDOW)?;
        }
        self.general = false;
        let mut released = Vec::new();
        for round in 0..4 {
            if !readers {
                let oldest = self.queue.pop_front().expect("it holds");
                self.release(&oldest)?;
                released.push(oldest);
            }
            // The first waiter, but not the writer that keeps readers out; neighbours in either order.
            let middle = self.queue.len() / 2;
            let first = holders + usize::from(readers);
            for index in [first, middle, middle, middle - 1, middle + round] {
                let request = self.queue.remove(index).expect("it waits");
                self.release(&request)?;
                let number = numbers.next().expect("no end");
                self.listen(session_of(number), true);
                self.enter_queue(spec, number, false, WINDOW)?;
            }
            let waiters: Vec<Acquire> = self.queue.iter().skip(holders).cloned().collect();
            self.poll_all(&waiters[..8], round % 2 == 0)?;
            self.poll(waiters.last().expect("some wait"))?;
            // Not all said that they listen.
            waiters[..8].iter().try_for_each(|it| self.poll(it))?;
        }
        self.general = true;
        // Nothing of them is left.
        self.release_all(released)?;
        let queue = std::mem::take(&mut self.queue);
        self.release_all(queue)
    }
}
