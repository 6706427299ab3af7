//! The floors of keys whose last acquire was not elected.

use std::collections::BTreeMap;

use leasehold_api::Key;

/// The maximum number of keys whose floor is remembered until their next grant.
const MAX_FLOORS: usize = 1_024;

/// The highest tokens of grants that were not elected, by key.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    floors: BTreeMap<Key, Floor>,
    /// The number of floors that were noted.
    noted: u64,
}

#[derive(Debug)]
struct Floor {
    token: u64,
    /// When it was last noted.
    noted: u64,
}

impl Floors {
    /// The floor of a key.
    pub(crate) fn get(&self, key: &Key) -> Option<u64> {
        self.floors.get(key).map(|floor| floor.token)
    }

    /// Notes a token of a key. If there are too many keys, the one that was noted first is forgotten: a
    /// client that still wants its key has noted it again.
    pub(crate) fn note(&mut self, key: &Key, token: u64) {
        self.noted += 1;
        let noted = self.noted;
        if let Some(floor) = self.floors.get_mut(key) {
            floor.token = floor.token.max(token);
            floor.noted = noted;
            return;
        }
        if self.floors.len() >= MAX_FLOORS {
            let oldest = self.floors.iter().min_by_key(|(_, floor)| floor.noted);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.floors.remove(&oldest);
            }
        }
        self.floors.insert(key.clone(), Floor { token, noted });
    }

    /// Forgets a key that was granted.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.floors.remove(key);
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
        assert_eq!(floors.floors.len(), MAX_FLOORS);
        assert_eq!(floors.get(&key("m")), None);
        assert_eq!(floors.get(&key("a")), Some(9));
        assert_eq!(floors.get(&key("z")), Some(9));
        assert_eq!(floors.get(&key("key 0001")), None);
        let last = format!("key {:04}", MAX_FLOORS - 1);
        assert_eq!(floors.get(&key(&last)), Some(5));
    }
}
