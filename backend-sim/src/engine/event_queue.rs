//! The events that are still to happen, in virtual time.
//!
//! Events that are not due yet are in a heap. Most timers are cancelled before they run out: their
//! entries stay in the heap, and are dropped when they reach its top or when they outnumber the
//! others. Events that are due wait in a line. The tape picks one of the line when it happens, not
//! when it is scheduled, so one draw decides among all events that could come next.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

/// Names something in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    slot: u32,
    number: u64,
}

#[derive(Debug)]
struct Slot<E> {
    number: u64,
    /// Number in the queue of what is due, counted from the beginning of the run.
    due: Option<u64>,
    /// Empty if the slot is free.
    what: Option<E>,
}

/// When something is to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    at: u64,
    /// Among what is at the same instant: its number, and [`LAST`].
    rank: u64,
    slot: u32,
}

/// What comes after all else of its instant.
const LAST: u64 = 1 << 63;

/// Timers have the grain of tokio's, so that a run does not depend on which driver runs it.
const GRAIN_NANOS: u64 = 1_000_000;

/// Of a second.
const NANOS: u64 = 1_000_000_000;

fn nanos_rounded_up(at: Duration) -> u64 {
    let grains = u64::from(at.subsec_nanos()).div_ceil(GRAIN_NANOS);
    let seconds = at.as_secs().saturating_mul(NANOS);
    seconds.saturating_add(grains * GRAIN_NANOS)
}

/// Everything that is going to happen.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    slots: Vec<Slot<E>>,
    free: Vec<u32>,
    /// Its top is never cancelled.
    heap: BinaryHeap<Reverse<Node>>,
    due: VecDeque<u32>,
    /// Number in the queue of the first that is due.
    first_due: u64,
    /// Up to when entries have been moved to the line.
    collected: u64,
    number: u64,
}

/// Room from the beginning for as much as small runs need.
const ROOM: usize = 16;

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self {
            slots: Vec::with_capacity(ROOM),
            free: Vec::with_capacity(ROOM),
            heap: BinaryHeap::with_capacity(ROOM),
            due: VecDeque::with_capacity(ROOM),
            first_due: 0,
            collected: 0,
            number: 0,
        }
    }
}

impl<E> EventQueue<E> {
    pub(crate) const fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Schedules something, at the next whole millisecond.
    pub(crate) fn insert(&mut self, at: Duration, what: E) -> EventId {
        self.put(at, false, what)
    }

    /// Schedules something for when nothing else is left to happen at that time.
    pub(crate) fn insert_last(&mut self, at: Duration, what: E) -> EventId {
        self.put(at, true, what)
    }

    fn put(&mut self, at: Duration, last: bool, what: E) -> EventId {
        let at = nanos_rounded_up(at);
        let number = self.number();
        let is_due = at <= self.collected && !last;
        let entry = Slot {
            number,
            due: is_due.then(|| self.first_due + self.due.len() as u64),
            what: Some(what),
        };
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = entry;
            slot
        } else {
            self.slots.push(entry);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 events at a time")
        };
        if is_due {
            self.due.push_back(slot);
        } else {
            let rank = if last { number | LAST } else { number };
            self.heap.push(Reverse(Node { at, rank, slot }));
        }
        EventId { slot, number }
    }

    fn slot(&mut self, ticket: EventId) -> Option<&mut Slot<E>> {
        let slot = self.slots.get_mut(ticket.slot as usize)?;
        (slot.number == ticket.number && slot.what.is_some()).then_some(slot)
    }

    /// What was scheduled, unless it has happened.
    pub(crate) fn get_mut(&mut self, ticket: EventId) -> Option<&mut E> {
        self.slot(ticket)?.what.as_mut()
    }

    /// Takes something out before it happens.
    pub(crate) fn cancel(&mut self, ticket: EventId) -> Option<E> {
        let due = self.slot(ticket)?.due;
        let event = self.vacate(ticket.slot);
        match due {
            Some(number) => self.leave_line((number - self.first_due) as usize),
            None => self.drop_cancelled(),
        }
        event
    }

    /// Restores the top of the heap, and keeps cancelled entries from piling up.
    fn drop_cancelled(&mut self) {
        let slots = &self.slots;
        let lives = |node: &Node| {
            let slot = &slots[node.slot as usize];
            slot.number == node.rank & !LAST && slot.what.is_some()
        };
        while self.heap.peek().is_some_and(|Reverse(node)| !lives(node)) {
            self.heap.pop();
        }
        let live = slots.len() - self.free.len();
        if self.heap.len() > 2 * live + ROOM {
            self.heap.retain(|Reverse(node)| lives(node));
        }
    }

    fn vacate(&mut self, slot: u32) -> Option<E> {
        self.free.push(slot);
        self.slots[slot as usize].what.take()
    }

    /// When the next thing happens, in nanoseconds; in the past if it is due.
    pub(crate) fn next_at(&self) -> Option<u64> {
        if self.due.is_empty() {
            self.heap.peek().map(|Reverse(node)| node.at)
        } else {
            Some(0)
        }
    }

    /// Lines up what is due at a time in nanoseconds.
    #[inline]
    pub(crate) fn collect(&mut self, now: u64) {
        self.collected = now;
        if self.heap.peek().is_some_and(|Reverse(node)| node.at <= now) {
            self.enqueue();
        }
    }

    fn enqueue(&mut self) {
        while let Some(&Reverse(Node { at, rank, slot })) = self.heap.peek() {
            if at > self.collected || rank >= LAST {
                break;
            }
            let number = self.first_due + self.due.len() as u64;
            self.slots[slot as usize].due = Some(number);
            self.due.push_back(slot);
            self.heap.pop();
            self.drop_cancelled();
        }
    }

    /// How many things are due, those aside that are to come last.
    pub(crate) fn due(&self) -> usize {
        self.due.len()
    }

    /// The event at an index of the line, and its number.
    pub(crate) fn peek(&self, index: usize) -> (u64, Option<&E>) {
        let slot = &self.slots[self.due[index] as usize];
        (slot.number, slot.what.as_ref())
    }

    /// Takes what is due at an index of the line.
    pub(crate) fn take_due(&mut self, index: usize) -> Option<E> {
        let slot = *self.due.get(index)?;
        self.leave_line(index);
        self.vacate(slot)
    }

    /// Takes what is to come last, if nothing else is due.
    pub(crate) fn take_last(&mut self) -> Option<E> {
        let &Reverse(Node { at, slot, .. }) = self.heap.peek()?;
        if at > self.collected || !self.due.is_empty() {
            return None;
        }
        self.heap.pop();
        let event = self.vacate(slot);
        self.drop_cancelled();
        event
    }

    /// The first of the line takes the position of who leaves.
    fn leave_line(&mut self, index: usize) {
        let first = self.due[0];
        self.due.swap_remove_front(index);
        self.slots[first as usize].due = Some(self.first_due + index as u64);
        self.first_due += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn nanos(ms: u64) -> u64 {
        ms * GRAIN_NANOS
    }

    #[test]
    fn what_happens_comes_in_the_order_of_time() {
        let mut queue = EventQueue::default();
        // A permutation of 0..101, and every third taken out again.
        let order = (0..101_u64).map(|n| n * 37 % 101);
        let tickets: Vec<_> = order.map(|n| (n, queue.insert(ms(n), n))).collect();
        for (n, ticket) in tickets {
            if n % 3 == 0 {
                assert_eq!(queue.cancel(ticket), Some(n));
                assert!(queue.get_mut(ticket).is_none(), "it is gone");
                assert!(queue.cancel(ticket).is_none(), "it is gone");
            }
        }
        for n in (0..101_u64).filter(|n| n % 3 != 0) {
            assert_eq!(queue.next_at(), Some(nanos(n)));
            queue.collect(nanos(n));
            assert_eq!(queue.due(), 1);
            assert_eq!(queue.take_due(0), Some(n));
        }
        assert_eq!(queue.next_at(), None);
    }

    #[test]
    fn cancelled_entries_do_not_pile_up() {
        let mut queue = EventQueue::default();
        queue.insert(ms(1), 0);
        for n in 1..=1_000 {
            let ticket = queue.insert(ms(n), n);
            assert_eq!(queue.cancel(ticket), Some(n));
        }
        assert!(queue.heap.len() <= 2 + ROOM, "{}", queue.heap.len());
        queue.collect(nanos(1_000));
        assert_eq!((queue.due(), queue.take_due(0)), (1, Some(0)));
        assert_eq!(queue.next_at(), None);
    }

    #[test]
    fn out_of_the_line_any_can_be_taken() {
        let mut queue = EventQueue::default();
        queue.collect(nanos(1));
        let tickets = [0, 1, 2, 3, 4].map(|n| queue.insert(ms(1), n));
        assert_eq!(queue.take_due(3), Some(3));
        // The first takes the position of who left.
        assert_eq!(queue.cancel(tickets[0]), Some(0));
        assert_eq!(queue.cancel(tickets[4]), Some(4));
        queue.insert(ms(0), 5);
        let mut rest: Vec<_> = std::iter::from_fn(|| queue.take_due(0)).collect();
        rest.sort_unstable();
        assert_eq!(rest, [1, 2, 5]);
    }

    #[test]
    fn who_is_to_come_last_does() {
        let mut queue = EventQueue::default();
        queue.insert_last(ms(1), 9);
        queue.insert(Duration::from_micros(300), 1);
        queue.collect(nanos(1));
        assert_eq!(queue.due(), 1);
        assert!(queue.take_last().is_none(), "something is due");
        assert_eq!(queue.take_due(0), Some(1));
        assert_eq!(queue.take_last(), Some(9));
    }

    #[test]
    fn times_are_whole_milliseconds() {
        let mut queue = EventQueue::default();
        let ticket = queue.insert(Duration::from_nanos(1), 0);
        assert_eq!(queue.next_at(), Some(nanos(1)));
        queue.cancel(ticket);
        queue.insert(Duration::MAX, 0);
        assert_eq!(queue.next_at(), Some(u64::MAX));
    }
}
