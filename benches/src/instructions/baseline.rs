//! The baseline, and the comparison with it.

use std::collections::{BTreeMap, BTreeSet};
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

/// Shows a count next to the one of the baseline. Also returns whether there are both, and the new one is within
/// its tolerance.
fn compared(name: &str, kept: Option<f64>, counted: Option<f64>) -> (String, bool) {
    let tolerance = match name.starts_with("server.") {
        true => SERVER_TOLERANCE,
        false => TOLERANCE,
    };
    let line = match (kept, counted) {
        (Some(kept), Some(counted)) => {
            let change = counted / kept - 1.0;
            let holds = change.abs() <= tolerance;
            // Avoids "-0.0 %".
            let percent = (1000.0 * change).round() / 10.0 + 0.0;
            let verdict = if holds { "" } else { "  MOVED" };
            let counts = format!("{name:<28} {counted:>10.0}  kept {kept:>10.0}");
            return (format!("{counts}  {percent:+.1} %{verdict}"), holds);
        }
        (None, Some(counted)) => format!("{name:<28} {counted:>10.0}  NOT KEPT"),
        (kept, None) => {
            let kept = kept.unwrap_or_default();
            format!("{name:<28} {:>10}  kept {kept:>10.0}  NOT COUNTED", "")
        }
    };
    (line, false)
}

impl Baseline {
    /// Reads a baseline.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("no baseline in {}: {error}", path.display()))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Writes the baseline, with rounded counts.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut rounded = self.clone();
        rounded
            .counts
            .values_mut()
            .for_each(|count| *count = count.round());
        fs::write(path, format!("{:#}\n", serde_json::to_value(rounded)?))?;
        Ok(())
    }

    /// Compares the counts of every case that either baseline has. Returns a line for each, and whether it holds.
    #[must_use]
    pub fn compare(&self, counted: &Self) -> Vec<(String, bool)> {
        let names: BTreeSet<_> = self.counts.keys().chain(counted.counts.keys()).collect();
        let of = |baseline: &Self, name| baseline.counts.get(name).copied();
        let names = names.into_iter();
        names
            .map(|name| compared(name, of(self, name), of(counted, name)))
            .collect()
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
        let seen = kept.compare(&now);
        let expected = [
            ("down", "  -3.1 %  MOVED", false),
            ("from nothing", " %  MOVED", false),
            ("gone", "  NOT COUNTED", false),
            ("new", "  NOT KEPT", false),
            ("same", "  +2.9 %", true),
            ("up", "  +3.1 %  MOVED", false),
        ];
        assert_eq!(seen.len(), expected.len());
        for ((line, holds), (name, verdict, expected)) in seen.iter().zip(expected) {
            let is_shown = line.starts_with(name) && line.ends_with(verdict);
            assert!(is_shown && *holds == expected, "{line}");
        }
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
