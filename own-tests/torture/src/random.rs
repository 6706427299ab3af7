//! Choices from a seed. Another version of `fastrand` may choose otherwise.

use std::time::Duration;

pub(crate) use fastrand::Rng as Random;

/// Whether an event with this chance happens.
pub(crate) fn percent(random: &mut Random, chance: usize) -> bool {
    random.usize(..100) < chance
}

/// A time from `least` up to `most`.
pub(crate) fn between(random: &mut Random, least: Duration, most: Duration) -> Duration {
    least + (most - least).mul_f64(random.f64())
}
