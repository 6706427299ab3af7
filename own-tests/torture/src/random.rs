//! Choices from a seed.

use std::time::Duration;

/// SplitMix64. The same seed makes the same choices.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another generator, for another thread.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("it fits");
        usize::try_from(self.next() % bound).expect("it is below a usize")
    }

    /// Whether an event with this chance happens.
    pub(crate) fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// A time from `least` up to `most`.
    pub(crate) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = (most - least).as_micros().max(1);
        let micros = u128::from(self.next()) % span;
        least + Duration::from_micros(u64::try_from(micros).expect("a short time"))
    }
}
