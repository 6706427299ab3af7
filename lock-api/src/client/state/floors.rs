//! The highest token that the client has seen for each key, as the floor of its acquires.
//!
//! With a floor, tokens keep increasing even if the server has lost the stored one (rule 15). The
//! memory has a bound: a new key replaces the one whose token was noted longest ago.

use lru::LruCache;

use crate::id::{FencingToken, Key};
use crate::sync::Mutex;

/// How many keys are remembered.
const MAX_KEYS: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Floors(Mutex<LruCache<Key, FencingToken>>);

impl Default for Floors {
    fn default() -> Self {
        // A cache with a bound would allocate it at once, for each client.
        Self(Mutex::new(LruCache::unbounded()))
    }
}

impl Floors {
    pub(crate) fn saw(&self, key: &Key, token: FencingToken) {
        let mut floors = self.0.lock();
        match floors.get_mut(key) {
            Some(floor) => *floor = token.max(*floor),
            None => drop(floors.put(key.clone(), token)),
        }
        if floors.len() > MAX_KEYS {
            floors.pop_lru();
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<FencingToken> {
        self.0.lock().peek(key).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).expect("valid")
    }

    #[test]
    fn highest_token_is_kept() {
        let floors = Floors::default();
        assert_eq!(floors.get(&key("a")), None);
        floors.saw(&key("a"), FencingToken::new(7));
        floors.saw(&key("a"), FencingToken::new(5));
        let floor = floors.get(&key("a"));
        assert_eq!(floor, Some(FencingToken::new(7)));
    }

    #[test]
    fn recently_used_keys_are_kept() {
        let floors = Floors::default();
        for n in 0..=MAX_KEYS {
            floors.saw(&key("kept"), FencingToken::new(1));
            floors.saw(&key(&format!("k{n}")), FencingToken::new(1));
        }
        assert!(floors.get(&key("kept")).is_some());
        assert!(floors.get(&key("k0")).is_none());
        assert_eq!(floors.0.lock().len(), MAX_KEYS);
    }
}
