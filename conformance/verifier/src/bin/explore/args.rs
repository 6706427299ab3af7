//! The command line.

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use leasehold_sim::{Scheduling, Tape};

/// Explores runs of lock clients, with everything that can go wrong, and judges each of them.
///
/// Exits with 1 if a promise was broken, or if after 20,000 seeds a rare situation was never
/// reached; with 2 if it could not do what was asked.
#[derive(Clone, Debug, Parser)]
#[command(name = "explore")]
pub(crate) struct Args {
    /// Which seeds, the end not included; or a single one [default: 0..20000]
    #[arg(long, value_parser = seeds, conflicts_with_all = ["scope", "replay"])]
    pub(crate) seeds: Option<Range<u64>>,

    /// How the order of events is chosen: random, pct:DEPTH, or dfs, which tries all of a --scope
    /// [default: random; dfs with --scope]
    #[arg(long, conflicts_with = "replay")]
    pub(crate) scheduling: Option<Choose>,

    /// A small scope instead of the stress runs: CLIENTSxSTEPS, each client as many atomic steps, no
    /// faults
    #[arg(long, conflicts_with = "out_of_model")]
    pub(crate) scope: Option<Scope>,

    /// Servers lose data and clocks are stepped; what is promised even then is judged
    #[arg(long)]
    pub(crate) out_of_model: bool,

    /// Plants a fault that must be found (builds with --cfg leasehold_mutants); ends with the
    /// first seed that finds it
    #[arg(long, value_name = "NAME")]
    pub(crate) mutant: Option<String>,

    /// Tries each fault that can be planted this many times, from different seeds, and prints a
    /// table of how many seeds it takes to find it
    #[arg(long, value_name = "TRIALS", exclusive = true, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) all_mutants: Option<u32>,

    /// Lists the faults that can be planted, each with the seeds within which it must be found
    #[arg(long, exclusive = true)]
    pub(crate) list_mutants: bool,

    /// Runs one tape again, as a failed run prints it, under the same other flags
    #[arg(long, value_name = "TAPE")]
    pub(crate) replay: Option<Tape>,

    /// Writes the first failed run, or the replayed one, as a page to be looked at in a browser
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Writes the same run for <https://ui.perfetto.dev>
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,

    /// Writes the summary as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl Args {
    pub(crate) fn seeds(&self) -> Range<u64> {
        self.seeds.clone().unwrap_or(0..20_000)
    }

    /// Says what makes no sense before hours are spent on it.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.scheduling, self.scope) {
            (Some(Choose::DepthFirst), None) if self.replay.is_none() => {
                return Err("dfs needs a --scope: the stress has no end".into());
            }
            (Some(Choose::Random | Choose::Pct(_)), Some(_)) => {
                return Err("a --scope is searched completely: --scheduling dfs, or none".into());
            }
            _ => {}
        }
        if let Some(scope) = self.scope.filter(|scope| scope.orders() > MOST_ORDERS) {
            let Scope { clients, steps } = scope;
            return Err(format!(
                "{clients}x{steps} has more than {MOST_ORDERS} orders, which would take days: make it smaller"
            ));
        }
        for file in [&self.html, &self.perfetto, &self.json]
            .into_iter()
            .flatten()
        {
            let folder = file.parent().filter(|it| !it.as_os_str().is_empty());
            if file.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(format!("{}: no file can be made there", file.display()));
            }
        }
        Ok(())
    }
}

/// A larger scope would not be done in a day.
const MOST_ORDERS: u64 = 1_000_000_000;

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| {
        let number = text.parse::<u64>();
        number.map_err(|_| "not like 0..20000, or 7".to_owned())
    };
    match text.split_once("..") {
        Some((from, to)) => {
            let (from, to) = (number(from)?, number(to)?);
            if from >= to {
                return Err("no seed is from the first number on and below the second".into());
            }
            Ok(from..to)
        }
        None => match number(text)? {
            u64::MAX => Err("too large".to_owned()),
            seed => Ok(seed..seed + 1),
        },
    }
}

/// How choices are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choose {
    Random,
    Pct(u32),
    DepthFirst,
}

/// About how many turns a stress run has.
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
                _ => Err(format!(
                    "{depth:?} is no depth, which is a number from 1 on"
                )),
            },
            _ => Err(format!("{text:?} is none of random, pct:DEPTH, dfs")),
        }
    }
}

/// A small scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) clients: u32,
    pub(crate) steps: u32,
}

impl Scope {
    /// How many orders there are: (clients × steps)! / steps! ^ clients.
    pub(crate) fn orders(self) -> u64 {
        // One client after the other: where its steps go among those before.
        let choose = |n: u64, k: u64| (1..=k).fold(1, |product, i| product * (n - k + i) / i);
        let steps = u64::from(self.steps);
        (1..=u64::from(self.clients)).fold(1, |product: u64, n| {
            product.saturating_mul(choose(n * steps, steps))
        })
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (clients, steps) = text
            .split_once('x')
            .ok_or_else(|| format!("{text:?} is not like 3x4"))?;
        let number = |text: &str| match text.parse() {
            Ok(n @ 1..=6) => Ok(n),
            _ => Err(format!("{text:?} is not 1 to 6")),
        };
        Ok(Self {
            clients: number(clients)?,
            steps: number(steps)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        let words = std::iter::once("explore").chain(line.split(' '));
        match Args::try_parse_from(words) {
            Ok(args) => args.check().expect_err("it makes no sense"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_does() {
        for (line, reason) in [
            ("--seeds 5..2", "no seed is from the first number on"),
            ("--seeds 18446744073709551615", "too large"),
            ("--scheduling pct:0", "a number from 1 on"),
            ("--scheduling dfs", "needs a --scope"),
            ("--scope 2x2 --scheduling random", "searched completely"),
            ("--scope 0x4", "not 1 to 6"),
            ("--scope 6x6", "more than 1000000000 orders"),
            ("--html /nowhere/page.html", "no file can be made there"),
        ] {
            let told = refused(line);
            assert!(told.contains(reason), "{line}: {told}");
        }
        let args = Args::try_parse_from(["explore", "--scope", "4x4"]).expect("good options");
        assert_eq!(args.check(), Ok(()));
    }
}
