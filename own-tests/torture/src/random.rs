//! Choices from a seed. Another version of `fastrand` may choose otherwise.

use std::time::Duration;

pub(crate) use fastrand::Rng as Random;

/// Whether an event with this chance happens.
pub(crate) fn percent(random: &mut Random, chance: usize) -> bool {
    random.usize(..100) < chance
}

/// Cards in a random order. Each is dealt once before any is dealt again.
#[derive(Debug)]
pub(crate) struct Deck<T> {
    all: Vec<T>,
    left: Vec<T>,
}

impl<T: Copy> Deck<T> {
    pub(crate) const fn new(all: Vec<T>) -> Self {
        let left = Vec::new();
        Self { all, left }
    }

    /// The next card. None if there are none at all.
    pub(crate) fn deal(&mut self, random: &mut Random) -> Option<T> {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
            random.shuffle(&mut self.left);
        }
        self.left.pop()
    }

    /// Deals this card again next.
    pub(crate) fn put_back(&mut self, card: T) {
        self.left.push(card);
    }
}

/// A time from `least` up to `most`.
pub(crate) fn between(random: &mut Random, least: Duration, most: Duration) -> Duration {
    least + (most - least).mul_f64(random.f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_card_is_dealt_before_any_is_dealt_again() {
        let (mut deck, mut random) = (Deck::new((0..9).collect()), Random::with_seed(1));
        assert_eq!(Deck::<u8>::new(Vec::new()).deal(&mut random), None);
        for _ in 0..3 {
            let mut dealt: Vec<_> = (0..9).filter_map(|_| deck.deal(&mut random)).collect();
            assert!(!dealt.is_sorted());
            dealt.sort_unstable();
            assert_eq!(dealt, (0..9).collect::<Vec<_>>());
        }
        let card = deck.deal(&mut random).expect("a card");
        deck.put_back(card);
        assert_eq!(deck.deal(&mut random), Some(card));
    }
}
