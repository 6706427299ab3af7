//! Counts instructions with valgrind's callgrind.

use std::env;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::Result;

/// The variable that names the valgrind program; the default is the one in `PATH`.
const VARIABLE: &str = "LEASEHOLD_VALGRIND";

/// The instructions of one iteration: the difference between N and 2 N iterations, divided by N. So the start of the
/// program does not count.
pub(super) fn of_one(times: u32, whole: impl Fn(u32) -> Result<u64>) -> Result<f64> {
    let (once, twice) = (whole(times)?, whole(2 * times)?);
    let more = twice.checked_sub(once);
    let more = more.ok_or("twice the iterations took fewer instructions")?;
    Ok(more as f64 / f64::from(times))
}

/// Starts a program under callgrind, with these arguments.
pub(super) fn start(add_program: impl FnOnce(&mut Command)) -> Result<Child> {
    let valgrind = env::var_os(VARIABLE).map_or_else(|| "valgrind".into(), PathBuf::from);
    let mut command = Command::new(&valgrind);
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    add_program(&mut command);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    child.map_err(|error| {
        let valgrind = valgrind.display();
        format!("{valgrind} does not start: {error}; install valgrind, or set {VARIABLE}").into()
    })
}

/// Waits for the end of the program. Returns its instructions.
pub(super) fn finish(child: Child) -> Result<u64> {
    let output = child.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("failed under callgrind: {stderr}").into());
    }
    collected(&stderr).ok_or_else(|| format!("callgrind printed no count: {stderr}").into())
}

/// Reads the number in the line `==PID== Collected : NUMBER`.
fn collected(stderr: &str) -> Option<u64> {
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
