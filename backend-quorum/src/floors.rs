//! The floors of keys whose last acquire did not win.

use leasehold_api::Key;
use lru::LruCache;

/// The maximum number of keys whose floor is remembered until their next grant.
const MAX_FLOORS: usize = 1_024;

/// The highest tokens of grants that did not win, by key.
#[derive(Debug)]
pub(crate) struct Floors(LruCache<Key, u64>);

impl Default for Floors {
    fn default() -> Self {
        // A cache with a bound would allocate it at once.
        Self(LruCache::unbounded())
    }
}

impl Floors {
    /// The floor of a key.
    pub(crate) fn get(&self, key: &Key) -> Option<u64> {
        self.0.peek(key).copied()
    }

    /// Notes a token of a key. If there are too many keys, the one that was noted longest ago is forgotten: a
    /// client that still wants its key has noted it again.
    pub(crate) fn note(&mut self, key: &Key, token: u64) {
        match self.0.get_mut(key) {
            Some(floor) => *floor = token.max(*floor),
            None => drop(self.0.put(key.clone(), token)),
        }
        if self.0.len() > MAX_FLOORS {
            self.0.pop_lru();
        }
    }

    /// Forgets a key that was granted.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.0.pop(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).expect("valid")
    }

    #[test]
    fn floor_is_the_highest_token() {
        let mut floors = Floors::default();
        for token in [5, 7, 6] {
            floors.note(&key("a"), token);
        }
        assert_eq!(floors.get(&key("a")), Some(7));
        assert_eq!(floors.get(&key("b")), None);
        floors.forget(&key("a"));
        assert_eq!(floors.get(&key("a")), None);
    }

    /// A key that is tried again keeps its floor, wherever it is in the alphabet.
    #[test]
    fn floor_that_was_noted_first_makes_room() {
        let mut floors = Floors::default();
        for name in ["a", "m", "z"] {
            floors.note(&key(name), 9);
        }
        for number in 0..MAX_FLOORS {
            floors.note(&key(&format!("key {number:04}")), 5);
            floors.note(&key("a"), 7);
            floors.note(&key("z"), 7);
        }
        assert_eq!(floors.0.len(), MAX_FLOORS);
        assert_eq!(floors.get(&key("m")), None);
        assert_eq!(floors.get(&key("a")), Some(9));
        assert_eq!(floors.get(&key("z")), Some(9));
        assert_eq!(floors.get(&key("key 0001")), None);
        let last = format!("key {:04}", MAX_FLOORS - 1);
        assert_eq!(floors.get(&key(&last)), Some(5));
    }
}
