//! Counts instructions with valgrind's callgrind.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::instructions::{Case, Queue};

/// The variable that names the valgrind program; the default is the one in `PATH`.
const VARIABLE: &str = "LEASEHOLD_VALGRIND";

/// Runs this program again, in one process per count.
#[derive(Debug)]
pub struct Callgrind {
    valgrind: PathBuf,
    program: PathBuf,
}

impl Callgrind {
    /// Counts in `program`, which runs a case when called with `--play NAME --times N`.
    #[must_use]
    pub fn new(program: &Path) -> Self {
        let valgrind = env::var_os(VARIABLE).map_or_else(|| "valgrind".into(), PathBuf::from);
        Self {
            valgrind,
            program: program.to_owned(),
        }
    }

    /// Counts the instructions of one iteration of `case`. This is the difference between N and 2 N
    /// iterations, divided by N, so that the start of the program does not count.
    ///
    /// # Errors
    /// If there is no valgrind, or the case fails.
    pub fn count(&self, case: &Case) -> Result<f64> {
        let once = self.whole(case, case.times)?;
        let twice = self.whole(case, 2 * case.times)?;
        let more = twice.checked_sub(once).ok_or_else(|| {
            format!(
                "{}: twice the iterations took fewer instructions",
                case.name
            )
        })?;
        Ok(more as f64 / f64::from(case.times))
    }

    /// Counts the instructions of a server for one turn of a queue.
    ///
    /// # Errors
    /// If there is no valgrind or no server, or a turn fails.
    pub fn count_queue(&self, queue: &Queue) -> Result<f64> {
        queue.count(&self.valgrind)
    }

    fn whole(&self, case: &Case, times: u32) -> Result<u64> {
        let output = Command::new(&self.valgrind)
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(&self.program)
            .args(["--play", case.name, "--times", &times.to_string()])
            .output()
            .map_err(|error| cannot_start(&self.valgrind, &error))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{} failed under callgrind: {stderr}", case.name).into());
        }
        collected(&stderr).ok_or_else(|| format!("callgrind printed no count: {stderr}").into())
    }
}

pub(super) fn cannot_start(valgrind: &Path, error: &io::Error) -> String {
    format!(
        "{} does not start: {error}; install valgrind, or set {VARIABLE}",
        valgrind.display()
    )
}

/// Reads the number in the line `==PID== Collected : NUMBER`.
pub(super) fn collected(stderr: &str) -> Option<u64> {
    let mut lines = stderr.lines();
    let (_, number) = lines.find_map(|line| line.split_once("Collected :"))?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collected_parses_the_output_of_callgrind() {
        let stderr =
            "==7== Events    : Ir\n==7== Collected : 1234567\n==7== \n==7== I   refs: 1,234,567";
        assert_eq!(collected(stderr), Some(1_234_567));
        assert_eq!(collected("==7== Command: ./instructions"), None);
    }
}
