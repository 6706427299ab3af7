//! A set and a map of few elements, such as the sessions or the locks of a run.

use litemap::LiteMap;
use smallvec::SmallVec;

/// A small set. The checker stores few elements per run, and there are many runs: sorted vectors
/// are built, searched and dropped faster than trees.
pub(crate) type Set<T> = LiteMap<T, ()>;

/// A map that searches its entries one by one, in insertion order. `N` of them are stored inline.
#[derive(Debug)]
pub(crate) struct SmallMap<K, V, const N: usize>(SmallVec<[(K, V); N]>);

impl<K, V, const N: usize> Default for SmallMap<K, V, N> {
    fn default() -> Self {
        Self(SmallVec::new())
    }
}

impl<K: Clone + PartialEq, V, const N: usize> SmallMap<K, V, N> {
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let mut entries = self.0.iter();
        entries.find(|(k, _)| k == key).map(|(_, value)| value)
    }

    /// Returns the value of a key, inserting `first()` if there is none.
    pub(crate) fn or_insert_with(&mut self, key: &K, first: impl FnOnce() -> V) -> &mut V {
        let at = self.0.iter().position(|(k, _)| k == key);
        let at = at.unwrap_or_else(|| {
            self.0.push((key.clone(), first()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }
}
