//! Shrinking: finding a simpler run that still fails.
//!
//! Shrinking changes the tape of a failing run: it sets draws to 0, which is the simplest choice,
//! and cuts the tape, which then continues with zeros. It runs the changed tape, and keeps the
//! result if that still fails and is simpler. Nothing is random, so the same failure leads to the
//! same result.
//!
//! Large changes come first, as in Hypothesis and in delta debugging. No change is tried twice.
//! Shrinking ends when a round of all changes has found nothing simpler.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use crate::engine::tape::{Draw, Site, Tape};
use crate::simulation::{Ending, RunReport};

/// The default maximum number of runs that simplify a failing run.
pub const SHRINK_RUNS: u32 = 1_000;

/// The result of [`shrink`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shrunk {
    /// The complete tape of the simplest failing run, for
    /// [`Scheduling::Replay`](crate::tools::Scheduling::Replay).
    pub tape: Tape,
    /// The number of runs that shrinking took.
    pub runs: u32,
}

/// Limits the steps of the runs that [`shrink`] tries. Each run may take 50 steps more than the
/// shortest failing run so far.
///
/// Without this limit, a run that doesn't fail would run to its end, which often takes many times
/// as long.
#[derive(Clone, Copy, Debug)]
pub struct StepsAllowed {
    limit: u64,
    steps: u64,
}

/// A simpler run may fail a little later.
const MORE_STEPS: u64 = 50;

impl StepsAllowed {
    /// Starts from a failing run that had this [limit](crate::Simulation::step_limit).
    pub fn of<T>(failed: &RunReport<T>, limit: u64) -> Self {
        let steps = limit.min(failed.steps + MORE_STEPS);
        Self { limit, steps }
    }

    /// Returns the step limit of the next run.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns whether a failed run failed by itself, not by this limit. If so, lowers the limit of
    /// the next runs to 50 steps more than this one took.
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
/// `fails` runs a tape under [`Scheduling::Guided`](crate::tools::Scheduling::Guided). If the run fails
/// **in the same way** as the original, it returns the recorded tape. A run that fails for another
/// reason doesn't count, because it says nothing about the original failure.
///
/// A tape is simpler if fewer of its choices are other than 0. Then a shorter tape is simpler, then
/// one with smaller numbers. [`Exploration`](crate::Exploration) calls this function for you.
///
/// # Examples
/// ```
/// use leasehold_sim::tools::{SHRINK_RUNS, Scheduling, Tape, shrink};
/// use leasehold_sim::{Ending, SimOptions, SimServer, Simulation};
///
/// async fn scenario(sim: SimServer) -> bool {
///     sim.draw(100) < 90 // `false` is a failure
/// }
///
/// let fails = |tape: Tape| {
///     let simulation = Simulation::new(SimOptions::new(tape.seed));
///     let report = simulation.scheduling(Scheduling::Guided(tape)).run(scenario);
///     (report.ending == Ending::Completed(false)).then_some(report.tape)
/// };
/// let failing = (0..).find_map(|seed| {
///     let report = Simulation::new(SimOptions::new(seed)).run(scenario);
///     (report.ending == Ending::Completed(false)).then_some(report.tape)
/// });
/// let shrunk = shrink(failing.expect("a seed fails"), SHRINK_RUNS, fails);
/// assert_eq!(shrunk.tape.draws[0].value, 90);
/// ```
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
        // Most of the remaining choices are needed, so try them one by one.
        largest = 1;
    }
    Shrunk {
        tape: shrinker.best,
        runs: shrinker.runs,
    }
}

/// The number of choices other than 0, the length without trailing zeros, and the sum.
type Weight = (usize, usize, u64);

fn weight(tape: &Tape) -> Weight {
    let set = tape.draws.iter().filter(|draw| draw.value != 0);
    let sum = tape.draws.iter().map(|draw| u64::from(draw.value)).sum();
    (set.count(), tape.trimmed_len(), sum)
}

/// Hashes a value, with the same result in every process.
fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

struct Shrinker<F> {
    best: Tape,
    weight: Weight,
    /// Hashes of the changes that were tried.
    tried: BTreeSet<u64>,
    /// How often a simpler tape was found.
    changes: u32,
    runs: u32,
    max_runs: u32,
    fails: F,
}

impl<F: FnMut(Tape) -> Option<Tape>> Shrinker<F> {
    /// Returns whether all runs are used up. Callers check it early, because finding the next
    /// change takes a while on long tapes.
    const fn is_spent(&self) -> bool {
        self.runs >= self.max_runs
    }

    /// Runs a changed tape, and keeps the result if it fails and is simpler.
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
        // Weigh the recorded tape, because the run may have made other choices.
        let recorded_weight = weight(&recorded);
        let simpler = recorded_weight < self.weight;
        if simpler {
            (self.best, self.weight) = (recorded, recorded_weight);
            self.changes += 1;
        }
        simpler
    }

    /// Finds the shortest prefix that still fails when zeros follow.
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

    /// Sets each of the first choices to 0. They often determine the numbers of clients and faults,
    /// so that later attempts become shorter.
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

    /// Sets smaller and smaller groups of choices to 0.
    fn clear_chunks(&mut self, largest: usize) {
        let mut size = largest;
        while size > 0 {
            let mut from = 0;
            while !self.is_spent() {
                let set = self.set();
                let Some(chunk @ [_, ..]) = set.get(from..set.len().min(from + size)) else {
                    break;
                };
                let cleared = self.attempt(|tape| {
                    chunk.iter().for_each(|&at| tape.draws[at].value = 0);
                });
                // A cleared group is no longer in the set, so the next group has moved up.
                from += if cleared { 0 } else { size };
            }
            size /= 2;
        }
    }

    /// For each choice that is set, deletes choices before it at the same site. It and the later ones then move
    /// forward.
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

    /// Returns the earlier choices that can take the place of this one in a guided run, latest
    /// first.
    fn before(&self, at: usize) -> Vec<usize> {
        let draws = &self.best.draws;
        let Draw { site, bound, .. } = draws[at];
        let same = |draw: &Draw| draw.site == site && (draw.bound == bound || site != Site::User);
        let earlier = (0..at).rev();
        earlier.filter(|&index| same(&draws[index])).collect()
    }

    /// Returns the numbers of earlier choices that are worth removing: up to and including one
    /// other than 0, or zeros only.
    fn sizes(&self, before: &[usize]) -> Vec<usize> {
        let is_zero = |at: &&usize| self.best.draws[**at].value == 0;
        let zeros = before.iter().take_while(is_zero).count();
        let over = (zeros + 1..=zeros + 3).rev();
        let over = over.filter(|&size| size <= before.len().min(MAX_REMOVED));
        let alone = [zeros, 2, 1].into_iter();
        let alone = alone.filter(|&size| 0 < size && size <= zeros);
        over.chain(alone).collect()
    }

    fn delete(&mut self, at: usize, chunk: &[usize]) -> bool {
        let draws = &self.best.draws;
        let removed: Vec<Draw> = chunk.iter().map(|&at| draws[at]).collect();
        let later = draws[at..].iter().filter(|draw| draw.value != 0).count();
        // A removal that failed is tried again only if its own choices, the one that it is for, or the number of
        // later choices that are set have changed.
        if !self.tried.insert(hash_of(&(later, draws[at], removed))) {
            return false;
        }
        self.attempt(|tape| {
            for &at in chunk {
                tape.draws.remove(at);
            }
        })
    }

    /// Lowers each choice by binary search, assuming that every value above a failing one fails
    /// too.
    fn lower_values(&mut self) {
        for at in self.set() {
            let (mut fits, mut low) = (self.best.draws.get(at).map_or(0, |draw| draw.value), 1);
            while low < fits {
                let middle = u32::midpoint(low, fits);
                let lowered = self.attempt(|tape| {
                    if let Some(draw) = tape.draws.get_mut(at) {
                        draw.value = middle;
                    }
                });
                if lowered {
                    fits = middle;
                } else {
                    low = middle + 1;
                }
            }
        }
    }

    /// Returns the indexes of the choices other than 0.
    fn set(&self) -> Vec<usize> {
        let draws = &self.best.draws;
        (0..draws.len())
            .filter(|&at| draws[at].value != 0)
            .collect()
    }
}

/// How many choices [`Shrinker::clear_first`] tries.
const FIRST: usize = 40;

/// The maximum number of choices that are removed at once. A fault takes a handful of choices.
const MAX_REMOVED: usize = 12;

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
    fn needed_choices_are_left() {
        let mut all = noise();
        (all[100], all[200]) = (700, 950);
        let shrunk = shrink(tape(&all), SHRINK_RUNS, |tape| {
            let draws = &tape.draws;
            let high = |at: usize, least| draws.get(at).is_some_and(|draw| draw.value >= least);
            (high(100, 600) && high(200, 900)).then_some(tape)
        });
        let left = values(&shrunk.tape).into_iter().enumerate();
        let left: Vec<_> = left.filter(|(_, value)| *value != 0).collect();
        assert_eq!(left, [(100, 600), (200, 900)]);
        assert!(shrunk.runs < 300, "{} runs", shrunk.runs);
    }

    #[test]
    fn events_move_to_the_start() {
        // A run fails if an 8 directly follows a 7, anywhere.
        let mut all = noise();
        (all[150], all[151]) = (7, 8);
        let shrunk = shrink(tape(&all), SHRINK_RUNS, |tape| {
            let found = values(&tape).windows(2).any(|pair| pair == [7, 8]);
            found.then_some(tape)
        });
        assert_eq!(values(&shrunk.tape), [7, 8]);
    }

    #[test]
    fn the_number_of_runs_is_limited() {
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
    fn the_empty_tape_is_tried_first() {
        let shrunk = shrink(tape(&noise()), SHRINK_RUNS, Some);
        assert_eq!((values(&shrunk.tape), shrunk.runs), (vec![], 1));
    }

    #[test]
    fn no_tape_is_tried_twice() {
        let mut tried = BTreeSet::new();
        let shrunk = shrink(tape(&noise()), SHRINK_RUNS, |tape| {
            assert!(tried.insert(values(&tape)), "{tape}");
            let draws = tape.draws.iter();
            (draws.filter(|draw| draw.value > 900).count() > 3).then_some(tape)
        });
        assert_eq!(values(&shrunk.tape), [901; 4]);
    }

    #[test]
    fn the_same_failure_gives_the_same_result() {
        let fails = |tape: Tape| {
            let sum: u32 = values(&tape).iter().sum();
            (sum > 5_000).then_some(tape)
        };
        let first = shrink(tape(&noise()), SHRINK_RUNS, fails);
        assert_eq!(first, shrink(tape(&noise()), SHRINK_RUNS, fails));
        assert_eq!(values(&first.tape).iter().sum::<u32>(), 5_001);
    }
}
