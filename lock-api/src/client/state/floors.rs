//! The highest token that the client has seen for each key, as the floor of its acquires.
//!
//! With a floor, tokens keep increasing even if the server has lost the stored one (rule 15). The
//! memory is a least-recently-used cache: a new key replaces the key that was updated longest ago.

use std::collections::BTreeMap;

use crate::id::{FencingToken, Key};
use crate::sync::Mutex;

/// How many keys are remembered.
const MAX_KEYS: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct Floors(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    by_key: BTreeMap<Key, Seen>,
    by_use: BTreeMap<u64, Key>,
    uses: u64,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    token: FencingToken,
    used: u64,
}

impl Floors {
    /// Notes a token of the key.
    pub(crate) fn saw(&self, key: &Key, token: FencingToken) {
        let mut state = self.0.lock();
        state.uses += 1;
        let used = state.uses;
        let seen = state
            .by_key
            .entry(key.clone())
            .or_insert(Seen { token, used: 0 });
        let before = std::mem::replace(&mut seen.used, used);
        seen.token = seen.token.max(token);
        state.by_use.remove(&before);
        state.by_use.insert(used, key.clone());
        if state.by_use.len() > MAX_KEYS
            && let Some((_, oldest)) = state.by_use.pop_first()
        {
            state.by_key.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<FencingToken> {
        self.0.lock().by_key.get(key).map(|seen| seen.token)
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
        assert_eq!(floors.0.lock().by_key.len(), MAX_KEYS);
        assert_eq!(floors.0.lock().by_use.len(), MAX_KEYS);
    }
}
