//! Making a failing run simpler.
//!
//! A run is its tape, and a tape can be changed: a draw set to 0 is the simplest choice, a tape
//! that is cut goes on with zeros. What is changed is run again, and kept if it still fails and is
//! simpler than before. There is no randomness in it: the same failure ends in the same run.
//!
//! The order of the attempts is that of Hypothesis and of delta debugging: large changes first. What
//! was tried is not tried again, and it ends when a round of all of them has found nothing.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use crate::engine::tape::{Draw, Site, Tape};
use crate::simulation::{Ending, RunReport};

/// How many runs [`shrink`] makes if nothing else is said.
pub const SHRINK_RUNS: u32 = 1_000;

/// The simplest failing run that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shrunk {
    /// Its complete tape: to be [replayed](crate::Scheduling::Replay).
    pub tape: Tape,
    /// How many runs were made to find it.
    pub runs: u32,
}

/// Limits the steps of the runs that [`shrink`] tries: each may take about as many as the shortest
/// failing run so far.
///
/// A run that doesn't fail would go on to its end, which is often many times as far away.
#[derive(Clone, Copy, Debug)]
pub struct StepsAllowed {
    limit: u64,
    steps: u64,
}

/// Something simpler may come a little later.
const MORE_STEPS: u64 = 50;

impl StepsAllowed {
    /// Starts from a failing run, which ran with this [limit](crate::Simulation::with_step_limit).
    pub fn of<T>(failed: &RunReport<T>, limit: u64) -> Self {
        let steps = limit.min(failed.steps + MORE_STEPS);
        Self { limit, steps }
    }

    /// The step limit of the next run.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns whether a run that failed was not cut off by the limit. If so, the limit of the next
    /// runs falls to about the steps of this one.
    pub fn suffice<T>(&mut self, failed: &RunReport<T>) -> bool {
        if matches!(failed.ending, Ending::StepLimit) {
            return self.steps == self.limit;
        }
        self.steps = self.steps.min(failed.steps + MORE_STEPS);
        true
    }
}

/// Looks for a simpler tape that still fails, with at most `max_runs` runs.
///
/// `fails` runs what it is given under [`Scheduling::Guided`](crate::Scheduling::Guided) and returns the
/// tape that was recorded, if the run failed **in the same way**: a shrunk run that fails for
/// another reason tells nothing about the first.
///
/// A tape is simpler if fewer of its choices are other than 0; then if it is shorter; then if its
/// numbers are smaller.
pub fn shrink(tape: Tape, max_runs: u32, fails: impl FnMut(Tape) -> Option<Tape>) -> Shrunk {
    let mut shrinker = Shrinker {
        weight: weight(&tape),
        best: tape,
        tried: BTreeSet::new(),
        changes: 0,
        runs: 0,
        max_runs,
        fails,
    };
    shrinker.attempt(|tape| tape.draws.clear());
    shrinker.cut();
    shrinker.clear_sites();
    shrinker.clear_first();
    let mut largest = shrinker.set().len().div_ceil(2);
    loop {
        let before = shrinker.changes;
        shrinker.clear_chunks(largest);
        shrinker.delete_chunks();
        shrinker.lower_values();
        if shrinker.is_spent() || shrinker.changes == before {
            break;
        }
        // Most of what is left is needed: one by one.
        largest = 1;
    }
    Shrunk {
        tape: shrinker.best,
        runs: shrinker.runs,
    }
}

/// Choices other than 0, length without the zeros at the end, sum.
type Weight = (usize, usize, u64);

fn weight(tape: &Tape) -> Weight {
    let set = tape.draws.iter().filter(|draw| draw.value != 0);
    let last = tape.draws.iter().rposition(|draw| draw.value != 0);
    let sum = tape.draws.iter().map(|draw| u64::from(draw.value)).sum();
    (set.count(), last.map_or(0, |last| last + 1), sum)
}

/// The same in every process.
fn hash_of(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

struct Shrinker<F> {
    best: Tape,
    weight: Weight,
    /// Hashes of what was tried, which is not tried again.
    tried: BTreeSet<u64>,
    /// How often something simpler was found.
    changes: u32,
    runs: u32,
    max_runs: u32,
    fails: F,
}

impl<F: FnMut(Tape) -> Option<Tape>> Shrinker<F> {
    /// Whether all runs were made: on long tapes it takes its time to see what could be tried.
    const fn is_spent(&self) -> bool {
        self.runs >= self.max_runs
    }

    /// Keeps a changed tape if it fails and is simpler.
    fn attempt(&mut self, change: impl FnOnce(&mut Tape)) -> bool {
        if self.is_spent() {
            return false;
        }
        let mut changed = self.best.clone();
        change(&mut changed);
        changed.trim();
        if weight(&changed) >= self.weight || !self.tried.insert(hash_of(&changed.draws)) {
            return false;
        }
        self.runs += 1;
        let Some(recorded) = (self.fails)(changed) else {
            return false;
        };
        // What the run made of it is what counts: it may have drawn otherwise.
        let recorded_weight = weight(&recorded);
        let simpler = recorded_weight < self.weight;
        if simpler {
            (self.best, self.weight) = (recorded, recorded_weight);
            self.changes += 1;
        }
        simpler
    }

    /// The shortest beginning after which zeros do.
    fn cut(&mut self) {
        let (mut fits, mut short) = (self.weight.1, 0);
        while short < fits {
            let middle = usize::midpoint(short, fits);
            if self.attempt(|tape| tape.draws.truncate(middle)) {
                fits = middle.min(self.weight.1);
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

    /// Sets each of the first choices to 0: they tend to decide how much there is at all, of clients, of
    /// faults, and what is tried later costs less.
    fn clear_first(&mut self) {
        let mut index = 0;
        while let Some(&at) = self.set().get(index)
            && at < FIRST
            && !self.is_spent()
        {
            let cleared = self.attempt(|tape| tape.draws[at].value = 0);
            index += usize::from(!cleared);
        }
    }

    /// Sets ever smaller groups of choices to 0.
    fn clear_chunks(&mut self, largest: usize) {
        let mut size = largest;
        while size > 0 {
            let mut from = 0;
            while !self.is_spent() {
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
                // What was there is gone, and the next group moves up.
                from += if cleared { 0 } else { size };
            }
            size /= 2;
        }
    }

    /// Takes out choices of the same sort before one: that one and what comes after it happen
    /// earlier.
    fn delete_chunks(&mut self) {
        let mut index = 0;
        while let Some(&at) = self.set().get(index)
            && !self.is_spent()
        {
            let before = self.before(at);
            let mut sizes = self.sizes(&before).into_iter();
            let earlier = sizes.any(|size| self.delete(at, &before[..size]));
            index += usize::from(!earlier);
        }
    }

    /// The earlier answers of which a guided run takes one where it took this one, the latest first.
    fn before(&self, at: usize) -> Vec<usize> {
        let draws = &self.best.draws;
        let Draw { site, bound, .. } = draws[at];
        let same = |draw: &Draw| draw.site == site && (draw.bound == bound || site != Site::User);
        let earlier = (0..at).rev();
        earlier.filter(|&index| same(&draws[index])).collect()
    }

    /// How many of those before one are worth a try: such as reach over one that is set, or zeros
    /// alone.
    fn sizes(&self, before: &[usize]) -> Vec<usize> {
        let is_zero = |at: &&usize| self.best.draws[**at].value == 0;
        let zeros = before.iter().take_while(is_zero).count();
        let over = (zeros + 1..=zeros + 3).rev();
        let over = over.filter(|&size| size <= before.len().min(TOGETHER));
        let alone = [zeros, 2, 1].into_iter();
        let alone = alone.filter(|&size| 0 < size && size <= zeros);
        over.chain(alone).collect()
    }

    fn delete(&mut self, at: usize, chunk: &[usize]) -> bool {
        let draws = &self.best.draws;
        let removed: Vec<Draw> = chunk.iter().map(|&at| draws[at]).collect();
        let later = draws[at..].iter().filter(|draw| draw.value != 0).count();
        // What did not do once will not do if only other choices have changed.
        if !self.tried.insert(hash_of(&(later, draws[at], removed))) {
            return false;
        }
        self.attempt(|tape| {
            for &at in chunk {
                tape.draws.remove(at);
            }
        })
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

/// How many choices [`Shrinker::clear_first`] looks at.
const FIRST: usize = 40;

/// What belongs together, such as the choices of one incident, is a handful.
const TOGETHER: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_simplest_run_of_all_is_tried_first() {
        let shrunk = shrink(tape(&noise()), SHRINK_RUNS, Some);
        assert_eq!((values(&shrunk.tape), shrunk.runs), (vec![], 1));
    }

    #[test]
    fn nothing_is_tried_twice() {
        let mut tried = BTreeSet::new();
        let shrunk = shrink(tape(&noise()), SHRINK_RUNS, |tape| {
            assert!(tried.insert(values(&tape)), "{tape}");
            let draws = tape.draws.iter();
            (draws.filter(|draw| draw.value > 900).count() > 3).then_some(tape)
        });
        assert_eq!(values(&shrunk.tape), [901; 4]);
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
