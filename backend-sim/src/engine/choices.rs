//! The source of every choice of a simulation.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::engine::tape::{Draw, Site, Tape};

/// How a run makes its choices.
///
/// # Examples
/// ```
/// use leasehold_sim::tools::Scheduling;
/// use leasehold_sim::{Ending, SimOptions, SimServer, Simulation};
///
/// async fn scenario(sim: SimServer) -> u32 {
///     sim.draw(1_000)
/// }
///
/// let simulation = Simulation::new(SimOptions::new(7));
/// let first = simulation.clone().run(scenario);
/// let replay = simulation.scheduling(Scheduling::Replay(first.tape)).run(scenario);
/// assert_eq!(first.ending, replay.ending);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheduling {
    /// Draws each choice independently, from the seed.
    #[default]
    Random,
    /// Like [`Random`](Self::Random), except that random priorities decide which task runs and
    /// which event happens. The priorities change at only `depth - 1` points of the run. This finds
    /// bugs that need few, but well-placed switches.
    ///
    /// Source: Burckhardt, Kothari, Musuvathi and Nagarakatte, "A randomized scheduler with
    /// probabilistic guarantees of finding bugs" (2010).
    Pct {
        /// The number of ordering constraints that a bug needs; at least 1.
        depth: u32,
        /// The approximate number of such choices in a run. The points are drawn from this range.
        length: u32,
    },
    /// Follows a tape exactly. Its seed replaces the seed of the options. If the run needs another
    /// choice than the tape has next, it [diverges](Divergence), which is a failure.
    Replay(Tape),
    /// Follows a changed tape as far as it fits. The run records a tape that
    /// [`Replay`](Self::Replay) can follow.
    ///
    /// Each [site](Site) takes the next value that the tape has for that site, so that an
    /// additional or a missing choice of one site doesn't shift those of others. [`Site::User`]
    /// takes the first of its next 16 values that was drawn below the same bound, if there is one,
    /// because that was probably the same choice. A value that is not below its bound becomes the
    /// bound minus 1. A site without values left gets 0.
    Guided(Tape),
}

/// The point at which a replay needed another choice than its tape has.
///
/// Either the code under test, its dependencies or this crate changed since the tape was recorded,
/// or something in the run does not come from the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Index of the draw, from 0.
    pub draw: usize,
    /// The number of draws on the tape.
    pub of: usize,
    /// The draw on the tape.
    pub recorded: Draw,
    /// The site and the bound that the run needed; `None` if the run ended first.
    pub asked: Option<(Site, u32)>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (draw, of) = (self.draw, self.of);
        let Draw { site, bound, value } = self.recorded;
        let recorded = format_args!("{site:?} {value} of {bound}");
        match self.asked {
            Some((site, bound)) => write!(
                f,
                "the replay diverges at draw {draw}: the tape has {recorded}, \
                 the run asks for {site:?} of {bound}"
            ),
            None => write!(
                f,
                "the replay diverges: the run ended after {draw} of {of} draws, \
                 the tape goes on with {recorded}"
            ),
        }
    }
}

impl std::error::Error for Divergence {}

/// The only source of choices: latencies, the order of simultaneous events, the order of tasks.
///
/// Each choice is a [`draw`](Self::draw) at a site, below a bound, and 0 is the simplest value. So
/// a run is a list of small numbers, which can be recorded, replayed and simplified.
#[derive(Debug)]
pub(crate) struct Choices {
    seed: u64,
    mode: Mode,
    /// The draws so far, if they are recorded.
    draws: Vec<Draw>,
    recording: bool,
    pub(crate) divergence: Option<Divergence>,
    /// The hash of all draws and events.
    pub(crate) trace: Trace,
}

#[derive(Debug)]
enum Mode {
    Random(SplitMix),
    Pct(Box<Pct>),
    /// The draws that are left on the tape.
    Replay(std::vec::IntoIter<Draw>),
    /// The remaining values of each site.
    Guided(Box<[SiteValues; Site::ALL.len()]>),
}

/// The values of a tape for one site.
#[derive(Debug)]
struct SiteValues {
    /// Pairs of bound and value.
    left: VecDeque<(u32, u32)>,
    /// How many of the next values to search for one with the same bound.
    window: usize,
}

impl SiteValues {
    fn of(tape: &Tape, site: Site) -> Self {
        let draws = tape.draws.iter().filter(|draw| draw.site == site);
        Self {
            left: draws.map(|draw| (draw.bound, draw.value)).collect(),
            // The bound of any other site is a count, so it doesn't identify the choice.
            window: if site == Site::User { 16 } else { 1 },
        }
    }

    fn take(&mut self, bound: u32) -> u32 {
        let mut next = self.left.iter().take(self.window);
        let fits = next.position(|(below, _)| *below == bound);
        let answer = self.left.remove(fits.unwrap_or(0));
        answer.map_or(0, |(_, value)| value.min(bound - 1))
    }
}

impl Choices {
    /// Creates the choices of a run. `recording` says whether to keep random choices; choices from
    /// a tape are always kept.
    pub(crate) fn new(seed: u64, scheduling: Scheduling, recording: bool) -> Self {
        let (seed, mode) = match scheduling {
            Scheduling::Random => (seed, Mode::Random(SplitMix(seed))),
            Scheduling::Pct { depth, length } => {
                let pct = Pct::new(seed, depth, length);
                (seed, Mode::Pct(Box::new(pct)))
            }
            Scheduling::Replay(tape) => (tape.seed, Mode::Replay(tape.draws.into_iter())),
            Scheduling::Guided(tape) => {
                let values = Site::ALL.map(|site| SiteValues::of(&tape, site));
                (tape.seed, Mode::Guided(Box::new(values)))
            }
        };
        Self {
            seed,
            recording: recording || matches!(mode, Mode::Replay(_) | Mode::Guided(_)),
            mode,
            draws: Vec::new(),
            divergence: None,
            trace: Trace(mix(seed)),
        }
    }

    /// Draws a number below `bound`. Returns 0 without drawing if the bound is 0 or 1.
    #[inline]
    pub(crate) fn draw(&mut self, site: Site, bound: u32) -> u32 {
        if bound <= 1 {
            return 0;
        }
        self.draw_one_of(site, bound)
    }

    fn draw_one_of(&mut self, site: Site, bound: u32) -> u32 {
        let value = match &mut self.mode {
            Mode::Random(random) => random.below(bound),
            Mode::Pct(pct) => pct.random.below(bound),
            Mode::Replay(left) => left.next().map_or(0, |recorded| {
                if recorded.site != site || recorded.bound != bound {
                    self.divergence.get_or_insert(Divergence {
                        draw: self.draws.len(),
                        of: self.draws.len() + 1 + left.len(),
                        recorded,
                        asked: Some((site, bound)),
                    });
                }
                recorded.value.min(bound - 1)
            }),
            Mode::Guided(values) => values[site as usize].take(bound),
        };
        self.keep(site, bound, value)
    }

    /// Like [`draw`](Self::draw), for choosing the next actor. `actor` maps a value to its actor,
    /// which has a priority under [`Scheduling::Pct`].
    #[inline]
    pub(crate) fn pick(&mut self, site: Site, bound: u32, actor: impl Fn(u32) -> u64) -> u32 {
        if bound <= 1 {
            return 0;
        }
        match &mut self.mode {
            Mode::Pct(pct) => {
                let value = pct.pick(bound, actor);
                self.keep(site, bound, value)
            }
            _ => self.draw_one_of(site, bound),
        }
    }

    fn keep(&mut self, site: Site, bound: u32, value: u32) -> u32 {
        self.trace
            .fold(u64::from(value) << 40 | u64::from(bound) << 8 | site as u64);
        if self.recording {
            self.draws.push(Draw { site, bound, value });
        }
        value
    }

    /// Returns the divergence of a replay that ends now, if there is one.
    pub(crate) fn unused(&self) -> Option<Divergence> {
        let Mode::Replay(left) = &self.mode else {
            return None;
        };
        let next = left.as_slice().first();
        let unused = next.map(|&recorded| Divergence {
            draw: self.draws.len(),
            of: self.draws.len() + left.len(),
            recorded,
            asked: None,
        });
        self.divergence.or(unused)
    }

    pub(crate) fn tape(&self) -> Tape {
        let (seed, draws) = (self.seed, self.draws.clone());
        Tape { seed, draws }
    }

    /// Returns the tape of a run that has ended, and its divergence from the tape that it followed.
    pub(crate) fn finish(&mut self) -> (Tape, Option<Divergence>) {
        let divergence = self.unused();
        let (seed, draws) = (self.seed, std::mem::take(&mut self.draws));
        (Tape { seed, draws }, divergence)
    }

    /// Returns a generator of identities (session ids, owners) for one client.
    ///
    /// Identities are not draws, because setting draws to 0 must not give two clients the same
    /// identity.
    pub(crate) fn identities(&self, client: usize) -> Identities {
        Identities(SplitMix(mix(self.seed ^ mix(client as u64 + 1))))
    }
}

/// Sebastiano Vigna's `SplitMix64`. It is implemented here, so that no version of a library changes
/// the run of a seed.
#[derive(Debug)]
struct SplitMix(u64);

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `bound`, by multiply and shift. The bias is less than `bound` / 2^32.
    fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }
}

/// The random bytes of one client.
#[derive(Debug)]
pub(crate) struct Identities(SplitMix);

impl Identities {
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.0.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// A hash of all draws and events of a run, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace(u64);

impl Trace {
    pub(crate) const fn fold(&mut self, fact: u64) {
        self.0 = (self.0.rotate_left(5) ^ fact).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    pub(crate) fn value(self) -> u64 {
        mix(self.0)
    }
}

/// Random priorities of actors, which decide who is next.
#[derive(Debug)]
struct Pct {
    seed: u64,
    random: SplitMix,
    picks: u32,
    /// The picks at which the actor with the highest priority gets the lowest one, in descending
    /// order.
    changes: Vec<u32>,
    /// The actors whose priority was lowered. An actor that was lowered earlier has a higher value,
    /// and goes before one that was lowered later.
    lowered: BTreeMap<u64, usize>,
}

impl Pct {
    fn new(seed: u64, depth: u32, length: u32) -> Self {
        let mut random = SplitMix(seed);
        let seed = random.next();
        // There can be no more changes than points.
        let depth = depth.min(length.saturating_add(1));
        let mut changes: Vec<u32> = (1..depth).map(|_| random.below(length.max(1))).collect();
        changes.sort_unstable_by(|a, b| b.cmp(a));
        Self {
            seed,
            random,
            picks: 0,
            changes,
            lowered: BTreeMap::new(),
        }
    }

    fn pick(&mut self, bound: u32, actor: impl Fn(u32) -> u64) -> u32 {
        let at = self.picks;
        self.picks += 1;
        while self.changes.pop_if(|change| *change <= at).is_some() {
            let first = actor(self.first(bound, &actor));
            let left = self.changes.len();
            self.lowered.insert(first, left);
        }
        self.first(bound, &actor)
    }

    /// Returns the value whose actor has the highest priority.
    fn first(&self, bound: u32, actor: &impl Fn(u32) -> u64) -> u32 {
        let priority = |value: &u32| {
            let actor = actor(*value);
            match self.lowered.get(&actor) {
                Some(&left) => (false, left as u64),
                None => (true, mix(self.seed ^ mix(actor))),
            }
        };
        // `max_by_key` returns the last of equal elements, so reverse the order to get the first.
        (0..bound).rev().max_by_key(priority).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: u64) -> Choices {
        Choices::new(seed, Scheduling::Random, true)
    }

    #[test]
    fn the_sequence_of_a_seed_is_part_of_the_contract() {
        // The published first outputs for seed 0: 0xe220a839…, 0x6e789e6a…, 0x06c45d18…, …
        let mut choices = random(0);
        let drawn: Vec<u32> = (0..6).map(|_| choices.draw(Site::Order, 1_000)).collect();
        assert_eq!(drawn, [883, 431, 26, 970, 106, 327]);
    }

    #[test]
    fn clients_have_different_identities() {
        let choices = random(7);
        let (mut a, mut b) = ([0; 16], [0; 16]);
        choices.identities(0).fill(&mut a);
        choices.identities(1).fill(&mut b);
        assert_ne!(a, b);
        assert_ne!(a[..8], a[8..]);
    }

    #[test]
    fn a_divergence_names_its_draw() {
        let mut choices = random(3);
        choices.draw(Site::Order, 4);
        choices.draw(Site::Task, 3);
        choices.draw(Site::User, 5);
        let (tape, _) = choices.finish();

        let mut other = Choices::new(0, Scheduling::Replay(tape.clone()), true);
        other.draw(Site::Order, 4);
        other.draw(Site::Task, 2);
        let divergence = other.finish().1.expect("a divergence");
        assert_eq!((divergence.draw, divergence.recorded), (1, tape.draws[1]));
        assert_eq!(divergence.of, 3);
        assert!(divergence.to_string().contains("diverges at draw 1"));

        let mut short = Choices::new(0, Scheduling::Replay(tape.clone()), true);
        short.draw(Site::Order, 4);
        let divergence = short.finish().1.expect("a divergence");
        assert_eq!((divergence.draw, divergence.asked), (1, None));
        let text = divergence.to_string();
        assert!(text.contains("ended after 1 of 3 draws"), "{text}");

        let mut guided = Choices::new(0, Scheduling::Guided(tape), true);
        guided.draw(Site::User, 2);
        assert_eq!(guided.finish().1, None);
    }

    #[test]
    fn a_guided_run_finds_values_with_the_same_bound() {
        let answers = [(2, 1), (60, 42), (4, 3), (9, 8)];
        let draws = [Site::User, Site::Order]
            .map(|site| answers.map(|(bound, value)| Draw { site, bound, value }));
        let mut tape = Tape::new(0);
        tape.draws.extend(draws.into_iter().flatten());
        let mut guided = Choices::new(0, Scheduling::Guided(tape), true);
        // One choice is missing, one is new, and there is one too many.
        let asked = [2, 4, 50, 9, 9].map(|bound| guided.draw(Site::User, bound));
        assert_eq!(asked, [1, 3, 42, 8, 0]);
        // The bound of an order does not identify the choice.
        let asked = [2, 4, 50, 9, 9].map(|bound| guided.draw(Site::Order, bound));
        assert_eq!(asked, [1, 3, 3, 8, 0]);
    }

    #[test]
    fn priorities_change_only_at_the_drawn_points() {
        // Four actors are always ready. With depth d, the sequence has at most d runs.
        for seed in 0..50 {
            let scheduling = Scheduling::Pct {
                depth: 3,
                length: 40,
            };
            let mut choices = Choices::new(seed, scheduling, true);
            let order: Vec<u32> = (0..40)
                .map(|_| choices.pick(Site::Task, 4, u64::from))
                .collect();
            let runs = order.chunk_by(|a, b| a == b).count();
            assert!(runs <= 3, "{order:?}");
        }
    }
}
