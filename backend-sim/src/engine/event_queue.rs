//! What is going to happen, in virtual time.
//!
//! What is not due yet is in a heap that knows where each of its entries is, because most timers
//! are taken out again before they run out. What is due waits in a line of its own, out of which a
//! choice is made when it happens, not when it is scheduled: so one draw decides among all that
//! could come next.

use std::collections::VecDeque;
use std::time::Duration;

/// Names something in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    slot: u32,
    number: u64,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// Index in the heap.
    Heap(usize),
    /// Number in the line of what is due, counted from the beginning of the run.
    Due(u64),
}

#[derive(Debug)]
struct Slot<E> {
    number: u64,
    place: Place,
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
    heap: Vec<Node>,
    due: VecDeque<u32>,
    /// Number in the line of the first that is due.
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
            heap: Vec::with_capacity(ROOM),
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
    pub(crate) fn insert(&mut self, at: Duration, what: E) -> Ticket {
        self.put(at, false, what)
    }

    /// Schedules something for when nothing else is left to happen at that time.
    pub(crate) fn insert_last(&mut self, at: Duration, what: E) -> Ticket {
        self.put(at, true, what)
    }

    fn put(&mut self, at: Duration, last: bool, what: E) -> Ticket {
        let at = nanos_rounded_up(at);
        let number = self.number();
        let is_due = at <= self.collected && !last;
        let place = if is_due {
            Place::Due(self.first_due + self.due.len() as u64)
        } else {
            Place::Heap(self.heap.len())
        };
        let entry = Slot {
            number,
            place,
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
            self.heap.push(Node {
                at,
                rank: if last { number | LAST } else { number },
                slot,
            });
            if self.heap.len() > 1 {
                self.rise(self.heap.len() - 1);
            }
        }
        Ticket { slot, number }
    }

    fn slot(&mut self, ticket: Ticket) -> Option<&mut Slot<E>> {
        let slot = self.slots.get_mut(ticket.slot as usize)?;
        (slot.number == ticket.number && slot.what.is_some()).then_some(slot)
    }

    /// What was scheduled, unless it has happened.
    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut E> {
        self.slot(ticket)?.what.as_mut()
    }

    /// Takes something out before it happens.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> Option<E> {
        match self.slot(ticket)?.place {
            Place::Heap(index) => self.leave_heap(index),
            Place::Due(number) => self.leave_line((number - self.first_due) as usize),
        }
        self.vacate(ticket.slot)
    }

    fn vacate(&mut self, slot: u32) -> Option<E> {
        self.free.push(slot);
        self.slots[slot as usize].what.take()
    }

    /// When the next thing happens, in nanoseconds; in the past if it is due.
    pub(crate) fn next_at(&self) -> Option<u64> {
        if self.due.is_empty() {
            self.heap.first().map(|node| node.at)
        } else {
            Some(0)
        }
    }

    /// Lines up what is due at a time in nanoseconds.
    #[inline]
    pub(crate) fn collect(&mut self, now: u64) {
        self.collected = now;
        if self.heap.first().is_some_and(|node| node.at <= now) {
            self.line_up();
        }
    }

    fn line_up(&mut self) {
        while let Some(&Node { at, rank, slot }) = self.heap.first() {
            if at > self.collected || rank >= LAST {
                break;
            }
            self.leave_heap(0);
            let number = self.first_due + self.due.len() as u64;
            self.slots[slot as usize].place = Place::Due(number);
            self.due.push_back(slot);
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
        let &Node { at, slot, .. } = self.heap.first()?;
        if at > self.collected || !self.due.is_empty() {
            return None;
        }
        self.leave_heap(0);
        self.vacate(slot)
    }

    /// The first of the line takes the place of who leaves.
    fn leave_line(&mut self, index: usize) {
        let first = self.due[0];
        self.due.swap_remove_front(index);
        self.slots[first as usize].place = Place::Due(self.first_due + index as u64);
        self.first_due += 1;
    }

    fn leave_heap(&mut self, index: usize) {
        self.heap.swap_remove(index);
        let Some(moved) = self.heap.get(index) else {
            return;
        };
        if index > 0 && *moved < self.heap[(index - 1) / 2] {
            self.rise(index);
        } else {
            self.sink(index);
        }
    }

    fn settle(&mut self, index: usize, node: Node) {
        self.heap[index] = node;
        self.slots[node.slot as usize].place = Place::Heap(index);
    }

    /// Moves an entry towards the top, to where it belongs.
    fn rise(&mut self, mut index: usize) {
        let node = self.heap[index];
        while index > 0 {
            let parent = (index - 1) / 2;
            if self.heap[parent] < node {
                break;
            }
            self.settle(index, self.heap[parent]);
            index = parent;
        }
        self.settle(index, node);
    }

    /// Moves an entry away from the top, to where it belongs.
    fn sink(&mut self, mut index: usize) {
        let node = self.heap[index];
        loop {
            let left = 2 * index + 1;
            let Some(&(mut least)) = self.heap.get(left) else {
                break;
            };
            let mut child = left;
            if let Some(&right) = self.heap.get(left + 1).filter(|&&right| right < least) {
                (child, least) = (left + 1, right);
            }
            if node < least {
                break;
            }
            self.settle(index, least);
            index = child;
        }
        self.settle(index, node);
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
    fn out_of_the_line_any_can_be_taken() {
        let mut queue = EventQueue::default();
        queue.collect(nanos(1));
        let tickets = [0, 1, 2, 3, 4].map(|n| queue.insert(ms(1), n));
        assert_eq!(queue.take_due(3), Some(3));
        // The first takes the place of who left.
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
