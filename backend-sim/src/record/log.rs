//! The log of a run: its latest entries and messages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::record::{Content, Entry, Fate, Message};

#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) messages: VecDeque<Message>,
    limit: usize,
    /// The number of entries that were dropped because of the limit.
    pub(crate) dropped: u64,
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

    pub(crate) fn ended(&mut self, number: u64, fate: Fate) {
        let index = self.messages.binary_search_by_key(&number, |it| it.number);
        if let Ok(index) = index {
            self.messages[index].fate = fate;
        }
    }
}
