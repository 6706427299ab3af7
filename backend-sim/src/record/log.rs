//! The log of a run: its latest entries and messages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::record::{Content, Entry, Fate, Message};

/// The latest entries and messages, oldest first.
#[derive(Debug)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    messages: VecDeque<Message>,
    limit: usize,
    dropped: u64,
    /// The number of messages so far.
    sent: u64,
}

impl Log {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            messages: VecDeque::new(),
            limit,
            dropped: 0,
            sent: 0,
        }
    }

    pub(crate) const fn is_kept(&self) -> bool {
        self.limit > 0
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries.push_back(entry);
        if self.entries.len() > self.limit {
            self.entries.pop_front();
            self.dropped += 1;
        }
    }

    /// Adds a message that was just sent, and returns its number.
    pub(crate) fn sent(&mut self, sent: Duration, client: Arc<str>, content: Content) -> u64 {
        let number = self.sent;
        self.sent += 1;
        self.messages.push_back(Message {
            number,
            client,
            content,
            sent,
            fate: Fate::UnderWay,
        });
        if self.messages.len() > self.limit {
            self.messages.pop_front();
        }
        number
    }

    /// Sets the fate of a message.
    pub(crate) fn ended(&mut self, number: u64, fate: Fate) {
        let first = self.messages.front().map_or(self.sent, |m| m.number);
        let index = number
            .checked_sub(first)
            .and_then(|i| usize::try_from(i).ok());
        if let Some(message) = index.and_then(|i| self.messages.get_mut(i)) {
            message.fate = fate;
        }
    }

    pub(crate) fn messages(&self) -> impl ExactSizeIterator<Item = &Message> {
        self.messages.iter()
    }

    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Returns the number of entries that were dropped because of the limit.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }
}
