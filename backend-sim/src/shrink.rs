//! Making a failing run simpler.
//!
//! A run is its tape, and a tape can be changed: a draw set to 0 is the simplest choice, a tape
//! that is cut goes on with zeros. What is changed is run again, and kept if it still fails and is
//! simpler than before. There is no randomness in it: the same failure ends in the same run.
//!
//! The order of the attempts is that of Hypothesis and of delta debugging: large changes first.

use crate::simulation::{Ending, RunReport};
use crate::tape::{Site, Tape};

/// How many runs [`shrink`] makes if nothing else is said.
pub const SHRINK_RUNS: u32 = 2_000;

/// The simplest failing run that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shrunk {
    /// Its complete tape: to be [replayed](crate::Policy::Replay).
    pub tape: Tape,
    /// How many runs were made to find it.
    pub runs: u32,
}

/// How many steps a run that is tried may take: about as many as the simplest that failed so far. One
/// that does not fail would go on to its end, which is often many times as far away.
pub(crate) struct StepsAllowed {
    steps: u64,
    /// Whether the failure is that there are too many steps.
    endless: bool,
}

/// Something simpler may come a little later.
const MORE_STEPS: u64 = 50;

impl StepsAllowed {
    /// As many as this failed run took, if that was not the `limit` itself.
    pub(crate) fn of<T>(found: &RunReport<T>, limit: u64) -> Self {
        let endless = matches!(found.ending, Ending::StepLimit);
        let steps = if endless {
            limit
        } else {
            limit.min(found.steps + MORE_STEPS)
        };
        Self { steps, endless }
    }

    pub(crate) const fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether a run that failed did so by itself; then the next are allowed no more than it took.
    pub(crate) fn suffice<T>(&mut self, failed: &RunReport<T>) -> bool {
        if self.endless {
            return true;
        }
        let done = !matches!(failed.ending, Ending::StepLimit);
        if done {
            self.steps = self.steps.min(failed.steps + MORE_STEPS);
        }
        done
    }
}

/// Looks for a simpler tape that still fails, with at most `max_runs` runs.
///
/// `fails` runs what it is given under [`Policy::Guided`](crate::Policy::Guided) and returns the
/// tape that was recorded, if the run failed **in the same way**: a shrunk run that fails for
/// another reason tells nothing about the first.
///
/// A tape is simpler if fewer of its choices are other than 0; then if it is shorter; then if its
/// numbers are smaller.
pub fn shrink(tape: Tape, max_runs: u32, fails: impl FnMut(Tape) -> Option<Tape>) -> Shrunk {
    let mut shrinker = Shrinker {
        best: tape,
        runs: 0,
        max_runs,
        fails,
    };
    loop {
        let before = weight(&shrinker.best);
        shrinker.cut();
        shrinker.clear_sites();
        shrinker.clear_chunks();
        shrinker.delete_chunks();
        shrinker.lower_values();
        if shrinker.runs >= max_runs || weight(&shrinker.best) == before {
            break;
        }
    }
    Shrunk {
        tape: shrinker.best,
        runs: shrinker.runs,
    }
}

/// Choices other than 0, length without the zeros at the end, sum.
fn weight(tape: &Tape) -> (usize, usize, u64) {
    let set = tape.draws.iter().filter(|draw| draw.value != 0);
    let last = tape.draws.iter().rposition(|draw| draw.value != 0);
    let sum = tape.draws.iter().map(|draw| u64::from(draw.value)).sum();
    (set.count(), last.map_or(0, |last| last + 1), sum)
}

struct Shrinker<F> {
    best: Tape,
    runs: u32,
    max_runs: u32,
    fails: F,
}

impl<F: FnMut(Tape) -> Option<Tape>> Shrinker<F> {
    /// Keeps a changed tape if it fails and is simpler.
    fn attempt(&mut self, change: impl FnOnce(&mut Tape)) -> bool {
        if self.runs >= self.max_runs {
            return false;
        }
        let mut changed = self.best.clone();
        change(&mut changed);
        changed.trim();
        if weight(&changed) >= weight(&self.best) {
            return false;
        }
        self.runs += 1;
        let Some(recorded) = (self.fails)(changed) else {
            return false;
        };
        // What the run made of it is what counts: it may have drawn otherwise.
        let simpler = weight(&recorded) < weight(&self.best);
        if simpler {
            self.best = recorded;
        }
        simpler
    }

    /// The shortest beginning after which zeros do.
    fn cut(&mut self) {
        let (mut fits, mut short) = (weight(&self.best).1, 0);
        while short < fits {
            let middle = usize::midpoint(short, fits);
            if self.attempt(|tape| tape.draws.truncate(middle)) {
                fits = middle.min(weight(&self.best).1);
            } else {
                short = middle + 1;
            }
        }
    }

    fn clear_sites(&mut self) {
        for site in Site::ALL {
            self.attempt(|tape| {
                let of_site = tape.draws.iter_mut().filter(|draw| draw.site == site);
                of_site.for_each(|draw| draw.value = 0);
            });
        }
    }

    /// Sets ever smaller groups of choices to 0.
    fn clear_chunks(&mut self) {
        let mut size = self.set().len().div_ceil(2);
        while size > 0 {
            let mut from = 0;
            loop {
                let set = self.set();
                let Some(chunk) = set.get(from..set.len().min(from + size)) else {
                    break;
                };
                if chunk.is_empty() {
                    break;
                }
                let cleared = self.attempt(|tape| {
                    chunk.iter().for_each(|&at| tape.draws[at].value = 0);
                });
                // What was there is gone, and the next group has its place.
                from += if cleared { 0 } else { size };
            }
            size /= 2;
        }
    }

    /// Takes out ever smaller groups of choices before one of the same site: that one and what
    /// comes after it happen earlier.
    fn delete_chunks(&mut self) {
        // What belongs together, such as the choices of one incident, is a handful.
        for size in (1..=12).rev() {
            let mut index = 0;
            while let Some(&at) = self.set().get(index) {
                let before = self.before(at, size);
                let remove = |tape: &mut Tape| {
                    for &at in &before {
                        tape.draws.remove(at);
                    }
                };
                let earlier = before.len() == size && self.attempt(remove);
                index += usize::from(!earlier);
            }
        }
    }

    /// The last so many choices of the same site before one, the latest first.
    fn before(&self, at: usize, count: usize) -> Vec<usize> {
        let draws = &self.best.draws;
        let earlier = (0..at).rev();
        let of_site = earlier.filter(|&index| draws[index].site == draws[at].site);
        of_site.take(count).collect()
    }

    /// The lowest of each choice's answers, as if those above a failing one failed too.
    fn lower_values(&mut self) {
        for at in self.set() {
            let (mut fits, mut low) = (self.best.draws.get(at).map_or(0, |draw| draw.value), 1);
            while low < fits {
                let middle = u32::midpoint(low, fits);
                let set = |tape: &mut Tape| {
                    if let Some(draw) = tape.draws.get_mut(at) {
                        draw.value = middle;
                    }
                };
                if self.attempt(set) {
                    fits = middle;
                } else {
                    low = middle + 1;
                }
            }
        }
    }

    /// Where the choices other than 0 are.
    fn set(&self) -> Vec<usize> {
        let draws = self.best.draws.iter().enumerate();
        draws
            .filter(|(_, draw)| draw.value != 0)
            .map(|(at, _)| at)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::Draw;

    fn tape(values: &[u32]) -> Tape {
        let draws = values.iter().map(|&value| Draw {
            site: Site::User,
            bound: 1_000,
            value,
        });
        Tape {
            seed: 1,
            draws: draws.collect(),
        }
    }

    fn values(tape: &Tape) -> Vec<u32> {
        tape.draws.iter().map(|draw| draw.value).collect()
    }

    fn noise() -> Vec<u32> {
        (0..300_u32)
            .map(|n| n.wrapping_mul(2_654_435_761) % 1_000)
            .collect()
    }

    #[test]
    fn what_matters_is_left() {
        let mut all = noise();
        (all[100], all[200]) = (700, 950);
        let shrunk = shrink(tape(&all), SHRINK_RUNS, |tape| {
            let draws = &tape.draws;
            let high = |at: usize, least| draws.get(at).is_some_and(|draw| draw.value >= least);
            (high(100, 600) && high(200, 900)).then_some(tape)
        });
        let left: Vec<_> = values(&shrunk.tape)
            .into_iter()
            .enumerate()
            .filter(|(_, v)| *v != 0)
            .collect();
        assert_eq!(left, [(100, 600), (200, 900)]);
        assert!(shrunk.runs < 300, "{} runs", shrunk.runs);
    }

    #[test]
    fn what_can_happen_earlier_does() {
        // It fails if a 7 is followed by an 8 at once, anywhere.
        let mut all = noise();
        (all[150], all[151]) = (7, 8);
        let shrunk = shrink(tape(&all), SHRINK_RUNS, |tape| {
            let found = values(&tape).windows(2).any(|pair| pair == [7, 8]);
            found.then_some(tape)
        });
        assert_eq!(values(&shrunk.tape), [7, 8]);
    }

    #[test]
    fn it_is_bounded_and_keeps_what_failed() {
        let all = noise();
        let mut runs = 0;
        let shrunk = shrink(tape(&all), 20, |_| {
            runs += 1;
            None
        });
        assert_eq!((shrunk.runs, runs), (20, 20));
        assert_eq!(values(&shrunk.tape), all);
    }

    #[test]
    fn the_same_failure_ends_in_the_same_run() {
        let fails = |tape: Tape| {
            let sum: u32 = values(&tape).iter().sum();
            (sum > 5_000).then_some(tape)
        };
        let first = shrink(tape(&noise()), SHRINK_RUNS, fails);
        assert_eq!(first, shrink(tape(&noise()), SHRINK_RUNS, fails));
        assert_eq!(values(&first.tape).iter().sum::<u32>(), 5_001);
    }
}
