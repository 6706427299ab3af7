//! The command line.

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use leasehold_sim::tools::{Scheduling, Tape};
use leasehold_verifier::SmallScope;

use crate::subject::Variant;

/// Runs the production lock client on simulated machines, injects every kind of fault, and checks
/// each run.
///
/// A seed draws its variant: in the model or out of it. A flag that names a variant, a mutant or a tape to replay
/// draws none.
///
/// The exit status is 1 if a promise was broken. It is also 1 if, after 20,000 seeds of a variant, a rare
/// situation of it was never reached. It is 2 if explore could not do its work, for example because two options
/// contradict each other.
#[derive(Clone, Debug, Parser)]
#[command(name = "explore")]
pub(crate) struct Args {
    /// The seeds, excluding the end of the range, or a single seed [default: 0..80000]
    #[arg(long, value_parser = seeds, conflicts_with_all = ["scope", "replay"])]
    pub(crate) seeds: Option<Range<u64>>,

    /// How the order of events is chosen: random, pct:DEPTH, or dfs, which runs every order of a
    /// --scope [default: random; dfs with --scope]
    #[arg(long, conflicts_with = "replay")]
    pub(crate) scheduling: Option<Choose>,

    /// Explores a small scope instead of stress runs: this many clients with this many atomic calls
    /// each, without faults
    #[arg(long, value_name = "CLIENTSxCALLS", conflicts_with = "out_of_model")]
    pub(crate) scope: Option<SmallScope>,

    /// Also lets servers lose data and steps their clocks; checks what is promised even then
    #[arg(long)]
    pub(crate) out_of_model: bool,

    /// Lets replicas that lag answer commands that write nothing; checks exclusion and fencing (S1 to
    /// S5), which don't depend on what a replica does
    #[arg(long, conflicts_with_all = ["scope", "mutant"])]
    pub(crate) replicas_answer: bool,

    /// Activates a mutant, and stops at the first seed that finds it (most mutants are only
    /// in a build of the copy that .ci/plant makes)
    #[arg(long, value_name = "NAME")]
    pub(crate) mutant: Option<String>,

    /// Finds each mutant this many times, from different seeds, and prints a table of the seeds that
    /// it took
    #[arg(long, value_name = "TRIALS", exclusive = true, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) all_mutants: Option<u32>,

    /// Lists the mutants of this build, each with its budget: the number of seeds within which it must be found
    #[arg(long, exclusive = true)]
    pub(crate) list_mutants: bool,

    /// Repeats the run of a tape that a failed run printed; give the same other options
    #[arg(long, value_name = "TAPE")]
    pub(crate) replay: Option<Tape>,

    /// Writes the first failed run, or the replayed one, as an HTML page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Writes the summary as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl Args {
    pub(crate) fn seeds(&self) -> Range<u64> {
        self.seeds.clone().unwrap_or(0..80_000)
    }

    /// The variant that the flags name, or that the seed draws.
    pub(crate) const fn variant(&self, seed: u64) -> Variant {
        let named = self.out_of_model
            || self.replicas_answer
            || self.mutant.is_some()
            || self.scope.is_some()
            || self.replay.is_some();
        match named {
            true => Variant {
                out_of_model: self.out_of_model,
            },
            false => Variant::ALL[(seed % 2) as usize],
        }
    }

    /// Refuses options that make no sense, before hours are spent on them.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.scheduling, self.scope) {
            (Some(Choose::DepthFirst), None) if self.replay.is_none() => {
                return Err("dfs needs a --scope: stress runs have too many orders".into());
            }
            (Some(Choose::Random | Choose::Pct(_)), Some(_)) => {
                return Err(
                    "a --scope runs every order: leave out --scheduling, or use dfs".into(),
                );
            }
            _ => {}
        }
        if let Some(scope) = self.scope.filter(|scope| scope.orders() > MOST_ORDERS) {
            return Err(format!(
                "{scope} has more than {MOST_ORDERS} orders, which would take days"
            ));
        }
        for file in [&self.html, &self.json].into_iter().flatten() {
            let folder = file.parent().filter(|it| !it.as_os_str().is_empty());
            if file.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(format!("cannot create the file {}", file.display()));
            }
        }
        Ok(())
    }
}

/// A scope with more orders would take longer than a day.
const MOST_ORDERS: u64 = 1_000_000_000;

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| {
        let number = text.parse::<u64>();
        number.map_err(|_| "expected a range like 0..20000, or a number".to_owned())
    };
    match text.split_once("..") {
        Some((from, to)) => {
            let (from, to) = (number(from)?, number(to)?);
            if from >= to {
                return Err("the range is empty".into());
            }
            Ok(from..to)
        }
        None => match number(text)? {
            u64::MAX => Err("the seed is too large".to_owned()),
            seed => Ok(seed..seed + 1),
        },
    }
}

/// A value of `--scheduling`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choose {
    Random,
    Pct(u32),
    DepthFirst,
}

/// The approximate number of turns in a stress run.
const TURNS: u32 = 1_000;

impl Choose {
    pub(crate) const fn scheduling(self) -> Scheduling {
        match self {
            Self::Pct(depth) => Scheduling::Pct {
                depth,
                length: TURNS,
            },
            Self::Random | Self::DepthFirst => Scheduling::Random,
        }
    }
}

impl FromStr for Choose {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "random" => Ok(Self::Random),
            None if text == "dfs" => Ok(Self::DepthFirst),
            Some(("pct", depth)) => match depth.parse() {
                Ok(depth) if depth > 0 => Ok(Self::Pct(depth)),
                _ => Err(format!("the depth {depth:?} is not a number of at least 1")),
            },
            _ => Err("expected random, pct:DEPTH or dfs".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        let words = std::iter::once("explore").chain(line.split(' '));
        match Args::try_parse_from(words) {
            Ok(args) => args.check().expect_err("bad options are refused"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn bad_options_are_refused_with_a_reason() {
        for (line, reason) in [
            ("--seeds 5..2", "the range is empty"),
            ("--seeds 18446744073709551615", "too large"),
            ("--scheduling pct:0", "not a number of at least 1"),
            ("--scheduling dfs", "needs a --scope"),
            ("--scope 2x2 --scheduling random", "runs every order"),
            ("--scope 0x4", "not a number from 1 to 6"),
            ("--scope 6x6", "more than 1000000000 orders"),
            ("--html /nowhere/page.html", "cannot create the file"),
        ] {
            let error = refused(line);
            assert!(error.contains(reason), "{line}: {error}");
        }
        assert_eq!(parsed("--scope 4x4").check(), Ok(()));
    }

    fn parsed(line: &str) -> Args {
        let words = std::iter::once("explore").chain(line.split_whitespace());
        Args::try_parse_from(words).expect("good options")
    }

    #[test]
    fn seed_draws_its_variant_unless_a_flag_names_one() {
        assert_eq!([4, 5].map(|seed| parsed("").variant(seed)), Variant::ALL);
        let plain = Variant::ALL[0];
        for (line, variant) in [
            ("--out-of-model", Variant { out_of_model: true }),
            ("--mutant some", plain),
            ("--replicas-answer", plain),
        ] {
            assert_eq!([4, 5].map(|seed| parsed(line).variant(seed)), [variant; 2]);
        }
    }
}
