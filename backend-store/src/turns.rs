//! Turns: the commands of one client on one key follow each other.
//!
//! Two commands at the same time would spoil each other's compare-and-set.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::lock::{Mutex as AsyncMutex, OwnedMutexGuard};
use leasehold_api::Key;

/// The keys that commands are executing on or waiting for.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    keys: Mutex<BTreeMap<Key, Arc<AsyncMutex<()>>>>,
}

/// One command's turn, or its place among those that wait for it.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    key: &'a Key,
    mutex: Arc<AsyncMutex<()>>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<AsyncMutex<()>>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other command is executing on the key. Dropping the turn ends it.
    ///
    /// # Cancel safety
    /// Dropping the future gives the place up.
    pub(crate) async fn wait<'a>(&'a self, key: &'a Key) -> Turn<'a> {
        let mutex = Arc::clone(self.keys().entry(key.clone()).or_default());
        let mut turn = Turn {
            turns: self,
            key,
            mutex: Arc::clone(&mutex),
            guard: None,
        };
        turn.guard = Some(mutex.lock_owned().await);
        turn
    }

    /// The number of keys that are remembered.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.keys().len()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut keys = self.turns.keys();
        // The map and this turn. Nobody gets another copy while the map is locked.
        if Arc::strong_count(&self.mutex) == 2 {
            keys.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use futures_util::FutureExt;

    #[test]
    fn turns_follow_each_other_and_are_forgotten() {
        let (turns, key) = (Turns::default(), Key::new("a").expect("valid"));
        let first = turns.wait(&key).now_or_never().expect("a free key");
        let other = Key::new("b").expect("valid");
        drop(turns.wait(&other).now_or_never().expect("another key"));
        let mut second = Box::pin(turns.wait(&key));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(turns.wait(&key).now_or_never().is_none(), "a dropped wait");
        drop(first);
        let second = second.now_or_never().expect("the turn");
        assert_eq!(turns.len(), 1);
        drop(second);
        assert_eq!(turns.len(), 0);
    }
}
