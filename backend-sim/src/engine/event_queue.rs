//! The queue of future events, in virtual time.
//!
//! Events that are not due yet are in a heap. Most timers are cancelled before they expire. Their
//! entries stay in the heap until they reach its top or outnumber the others. Events that are due
//! are in a separate queue. The tape picks one of them when the next event happens, so one draw
//! decides among all events that could be next.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use slab::Slab;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    slot: usize,
    number: u64,
}

#[derive(Debug)]
struct Slot<E> {
    number: u64,
    /// Position among the due events, counted from the start of the run.
    due: Option<u64>,
    event: E,
}

/// The time of an event, and its rank among those at the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    at: u64,
    /// The number of the event, with [`LAST`] set if it comes last.
    rank: u64,
    slot: usize,
}

/// Marks an event that comes after all others of its instant.
const LAST: u64 = 1 << 63;

/// The resolution of timers. It is that of tokio, so that a run doesn't depend on its driver.
const TICK_NANOS: u64 = 1_000_000;

/// Converts a time to nanoseconds, at most about 584 years.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    slots: Slab<Slot<E>>,
    /// The top is never a cancelled event.
    heap: BinaryHeap<Reverse<Node>>,
    due: VecDeque<usize>,
    /// Position of the first due event.
    first_due: u64,
    /// The time up to which events have been moved to `due`.
    collected: u64,
    number: u64,
}

/// The initial capacity, enough for small runs.
const CAPACITY: usize = 16;

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self {
            slots: Slab::with_capacity(CAPACITY),
            heap: BinaryHeap::with_capacity(CAPACITY),
            due: VecDeque::with_capacity(CAPACITY),
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

    /// Schedules an event at the next whole millisecond.
    pub(crate) fn insert(&mut self, at: Duration, event: E) -> EventId {
        self.put(at, false, event)
    }

    /// Schedules an event that comes after all others of its instant.
    pub(crate) fn insert_last(&mut self, at: Duration, event: E) -> EventId {
        self.put(at, true, event)
    }

    fn put(&mut self, at: Duration, last: bool, event: E) -> EventId {
        let ticks = nanos(at).div_ceil(TICK_NANOS);
        let at = ticks.saturating_mul(TICK_NANOS);
        let number = self.number();
        let is_due = at <= self.collected && !last;
        let due = is_due.then(|| self.first_due + self.due.len() as u64);
        let slot = self.slots.insert(Slot { number, due, event });
        if is_due {
            self.due.push_back(slot);
        } else {
            let rank = if last { number | LAST } else { number };
            self.heap.push(Reverse(Node { at, rank, slot }));
        }
        EventId { slot, number }
    }

    fn slot(&mut self, id: EventId) -> Option<&mut Slot<E>> {
        let slot = self.slots.get_mut(id.slot)?;
        (slot.number == id.number).then_some(slot)
    }

    pub(crate) fn get_mut(&mut self, id: EventId) -> Option<&mut E> {
        self.slot(id).map(|slot| &mut slot.event)
    }

    pub(crate) fn cancel(&mut self, id: EventId) -> Option<E> {
        if let Some(number) = self.slot(id)?.due {
            self.remove_due((number - self.first_due) as usize);
        }
        let event = self.slots.remove(id.slot).event;
        self.drop_cancelled();
        Some(event)
    }

    /// Removes cancelled events from the top of the heap, and all of them if there are too many.
    fn drop_cancelled(&mut self) {
        let slots = &self.slots;
        let lives = |node: &Node| {
            let slot = slots.get(node.slot);
            slot.is_some_and(|slot| slot.number == node.rank & !LAST)
        };
        while self.heap.peek().is_some_and(|Reverse(node)| !lives(node)) {
            self.heap.pop();
        }
        if self.heap.len() > 2 * slots.len() + CAPACITY {
            self.heap.retain(|Reverse(node)| lives(node));
        }
    }

    /// Returns the time of the next event in nanoseconds, or 0 if an event is due.
    pub(crate) fn next_at(&self) -> Option<u64> {
        if self.due.is_empty() {
            self.heap.peek().map(|Reverse(node)| node.at)
        } else {
            Some(0)
        }
    }

    /// Moves the events that are due at `now`, in nanoseconds, to `due`.
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
            self.slots[slot].due = Some(self.first_due + self.due.len() as u64);
            self.due.push_back(slot);
            self.heap.pop();
            self.drop_cancelled();
        }
    }

    /// Returns the number of due events, without those that come last.
    pub(crate) fn due(&self) -> usize {
        self.due.len()
    }

    /// Returns the number and the event at an index of `due`.
    pub(crate) fn peek(&self, index: usize) -> (u64, &E) {
        let slot = &self.slots[self.due[index]];
        (slot.number, &slot.event)
    }

    /// Takes the due event at an index.
    pub(crate) fn take_due(&mut self, index: usize) -> Option<E> {
        let slot = *self.due.get(index)?;
        self.remove_due(index);
        Some(self.slots.remove(slot).event)
    }

    /// Takes an event that comes last, if no other is due.
    pub(crate) fn take_last(&mut self) -> Option<E> {
        let &Reverse(Node { at, slot, .. }) = self.heap.peek()?;
        if at > self.collected || !self.due.is_empty() {
            return None;
        }
        self.heap.pop();
        let event = self.slots.remove(slot).event;
        self.drop_cancelled();
        Some(event)
    }

    /// Removes an index of `due`. The first due event takes its position.
    fn remove_due(&mut self, index: usize) {
        let first = self.due[0];
        self.due.swap_remove_front(index);
        self.slots[first].due = Some(self.first_due + index as u64);
        self.first_due += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn events_happen_in_order_of_time() {
        let mut queue = EventQueue::default();
        // Insert a permutation of 0..101, and cancel every third.
        let order = (0..101_u64).map(|n| n * 37 % 101);
        let ids: Vec<_> = order.map(|n| (n, queue.insert(ms(n), n))).collect();
        for (n, id) in ids {
            if n % 3 == 0 {
                assert_eq!(queue.cancel(id), Some(n));
                assert!(queue.get_mut(id).is_none(), "it is gone");
                assert!(queue.cancel(id).is_none(), "it is gone");
            }
        }
        for n in (0..101_u64).filter(|n| n % 3 != 0) {
            assert_eq!(queue.next_at(), Some(nanos(ms(n))));
            queue.collect(nanos(ms(n)));
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
            let id = queue.insert(ms(n), n);
            assert_eq!(queue.cancel(id), Some(n));
        }
        assert!(queue.heap.len() <= 2 + CAPACITY, "{}", queue.heap.len());
        queue.collect(nanos(ms(1_000)));
        assert_eq!((queue.due(), queue.take_due(0)), (1, Some(0)));
        assert_eq!(queue.next_at(), None);
    }

    #[test]
    fn any_due_event_can_be_taken() {
        let mut queue = EventQueue::default();
        queue.collect(nanos(ms(1)));
        let ids = [0, 1, 2, 3, 4].map(|n| queue.insert(ms(1), n));
        assert_eq!(queue.take_due(3), Some(3));
        // The first event takes the position of the one that left.
        assert_eq!(queue.cancel(ids[0]), Some(0));
        assert_eq!(queue.cancel(ids[4]), Some(4));
        queue.insert(ms(0), 5);
        let mut rest: Vec<_> = std::iter::from_fn(|| queue.take_due(0)).collect();
        rest.sort_unstable();
        assert_eq!(rest, [1, 2, 5]);
    }

    #[test]
    fn the_last_event_comes_last() {
        let mut queue = EventQueue::default();
        queue.insert_last(ms(1), 9);
        queue.insert(Duration::from_micros(300), 1);
        queue.collect(nanos(ms(1)));
        assert_eq!(queue.due(), 1);
        assert!(queue.take_last().is_none(), "another event is due");
        assert_eq!(queue.take_due(0), Some(1));
        assert_eq!(queue.take_last(), Some(9));
    }

    #[test]
    fn times_are_whole_milliseconds() {
        let mut queue = EventQueue::default();
        let id = queue.insert(Duration::from_nanos(1), 0);
        assert_eq!(queue.next_at(), Some(nanos(ms(1))));
        queue.cancel(id);
        queue.insert(Duration::MAX, 0);
        assert_eq!(queue.next_at(), Some(u64::MAX));
    }
}
