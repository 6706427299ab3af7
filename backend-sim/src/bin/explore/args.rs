//! The command line.

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use leasehold_sim::{Policy, Tape};

/// Explores runs of lock clients, with everything that can go wrong, and judges each of them.
///
/// Exits with 1 if a promise was broken, or if after 20,000 seeds a rare situation was never
/// reached; with 2 if it could not do what was asked.
#[derive(Clone, Debug, Parser)]
#[command(name = "explore")]
pub(crate) struct Args {
    /// Which seeds, the end not included
    #[arg(long, default_value = "0..20000", value_parser = seeds)]
    pub(crate) seeds: Range<u64>,

    /// How the order of events is chosen: random, pct:DEPTH, or dfs, which tries all of a --scope
    #[arg(long, default_value = "random")]
    pub(crate) policy: Choose,

    /// A small scope instead of the swarm: CLIENTSxSTEPS, each client as many atomic steps, no
    /// faults
    #[arg(long)]
    pub(crate) scope: Option<Scope>,

    /// Servers lose data and clocks are stepped; what is promised even then is judged
    #[arg(long)]
    pub(crate) out_of_model: bool,

    /// Plants a fault that must be found (builds with --cfg leasehold_mutants)
    #[arg(long, value_name = "NAME")]
    pub(crate) mutant: Option<String>,

    /// Tries each fault that can be planted this many times, from different seeds, and prints a
    /// table of how many seeds it takes to find it
    #[arg(long, value_name = "TRIALS")]
    pub(crate) all_mutants: Option<u32>,

    /// Lists the faults that can be planted, each with the seeds within which it must be found
    #[arg(long)]
    pub(crate) list_mutants: bool,

    /// Runs one tape again, as a failed run prints it
    #[arg(long, value_name = "TAPE")]
    pub(crate) replay: Option<Tape>,

    /// Writes the failed or replayed run as a page to be looked at in a browser
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Writes the summary as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    match text.split_once("..") {
        Some((from, to)) => Ok(number(from)?..number(to)?),
        None => number(text).map(|seed| seed..seed.saturating_add(1)),
    }
}

/// How choices are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choose {
    Random,
    Pct(u32),
    DepthFirst,
}

/// About how many turns a run of the swarm has.
const TURNS: u32 = 1_000;

impl Choose {
    pub(crate) const fn policy(self) -> Policy {
        match self {
            Self::Pct(depth) => Policy::Pct {
                depth,
                length: TURNS,
            },
            Self::Random | Self::DepthFirst => Policy::Random,
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
                _ => Err(format!("{depth:?} is no depth")),
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
