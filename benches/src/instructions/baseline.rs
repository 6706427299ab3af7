//! The baseline, and the comparison with it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Result;

/// The relative change that a count may have.
pub const TOLERANCE: f64 = 0.03;
/// The same for a count of the server, whose regular work depends on the time that passes.
const SERVER_TOLERANCE: f64 = 0.1;

/// Instructions per iteration, by case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// The compiler of the program. Counts differ between compilers.
    pub compiler: String,
    /// The counts, by the name of the case.
    #[serde(rename = "instructions")]
    pub counts: BTreeMap<String, f64>,
}

/// A count next to the one of the baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The case.
    pub name: String,
    /// The count of the baseline, if there is one.
    pub kept: Option<f64>,
    /// The new count, if there is one.
    pub counted: Option<f64>,
}

impl Comparison {
    /// Whether there are both counts, and the new one is within [`TOLERANCE`], or 10 % for a count of
    /// the server.
    #[must_use]
    pub fn holds(&self) -> bool {
        let both = self.kept.zip(self.counted);
        let tolerance = match self.name.starts_with("server.") {
            true => SERVER_TOLERANCE,
            false => TOLERANCE,
        };
        both.is_some_and(|(kept, counted)| (counted / kept - 1.0).abs() <= tolerance)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (self.kept, self.counted) {
            (Some(kept), Some(counted)) => {
                // Avoids "-0.0 %".
                let change = (1000.0 * (counted / kept - 1.0)).round() / 10.0 + 0.0;
                let verdict = if self.holds() { "" } else { "  MOVED" };
                write!(
                    f,
                    "{name:<28} {counted:>10.0}  kept {kept:>10.0}  {change:+.1} %{verdict}"
                )
            }
            (None, Some(counted)) => write!(f, "{name:<28} {counted:>10.0}  NOT KEPT"),
            (Some(kept), None) => {
                write!(f, "{name:<28} {:>10}  kept {kept:>10.0}  NOT COUNTED", "")
            }
            (None, None) => write!(f, "{name:<28} NOT COUNTED"),
        }
    }
}

impl Baseline {
    /// Reads a baseline.
    ///
    /// # Errors
    /// If there is no such file, or it is not a baseline as [`write`](Self::write) writes it.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("no baseline in {}: {error}", path.display()))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Writes the baseline, with rounded counts.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut rounded = self.clone();
        rounded
            .counts
            .values_mut()
            .for_each(|count| *count = count.round());
        fs::write(path, format!("{:#}\n", serde_json::to_value(rounded)?))?;
        Ok(())
    }

    /// Compares the counts of every case that either baseline has.
    #[must_use]
    pub fn compare(&self, counted: &Self) -> Vec<Comparison> {
        let mut names: Vec<_> = self.counts.keys().chain(counted.counts.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let of = |name: &String| Comparison {
            name: name.clone(),
            kept: self.counts.get(name).copied(),
            counted: counted.counts.get(name).copied(),
        };
        names.into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counts: &[(&str, f64)]) -> Baseline {
        let counts = counts
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count));
        Baseline {
            compiler: "rustc 1".to_owned(),
            counts: counts.collect(),
        }
    }

    #[test]
    fn moved_and_missing_counts_fail() {
        let kept = counts(&[
            ("down", 1000.0),
            ("from nothing", 0.0),
            ("gone", 10.0),
            ("same", 1000.0),
            ("up", 1000.0),
        ]);
        let now = counts(&[
            ("down", 969.0),
            ("from nothing", 0.0),
            ("new", 10.0),
            ("same", 1029.0),
            ("up", 1031.0),
        ]);
        let seen: Vec<_> = kept
            .compare(&now)
            .iter()
            .map(|it| (it.name.clone(), it.holds()))
            .collect();
        let expected = [
            ("down", false),
            ("from nothing", false),
            ("gone", false),
            ("new", false),
            ("same", true),
            ("up", false),
        ];
        assert_eq!(seen, expected.map(|(name, holds)| (name.to_owned(), holds)));
    }

    #[test]
    fn read_returns_what_write_wrote() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("baseline.json");
        let kept = counts(&[("a", 12.0), ("b", 3.0)]);
        kept.write(&path)?;
        assert_eq!(Baseline::read(&path)?, kept);
        Ok(())
    }
}
