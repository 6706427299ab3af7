//! The environment variables that choose a run, and the commands that repeat one.

use std::env;
use std::path::PathBuf;

use crate::engine::tape::Tape;

const REPLAY: &str = "LEASEHOLD_SIM_REPLAY";
const SEED: &str = "LEASEHOLD_SIM_SEED";
const SEEDS: &str = "LEASEHOLD_SEEDS";
const PAGES: &str = "LEASEHOLD_SIM_PAGES";

/// The run that the environment asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestedRun {
    Nothing,
    Seed(u64),
    Replay(Tape),
}

/// Reads the environment.
///
/// # Panics
/// Panics if a variable has an invalid value, because another run would mislead.
#[track_caller]
pub(crate) fn requested() -> RequestedRun {
    let read = |name| env::var(name).ok().filter(|text| !text.is_empty());
    match parse(read(REPLAY).as_deref(), read(SEED).as_deref()) {
        Ok(request) => request,
        Err(message) => panic!("{message}"),
    }
}

fn parse(replay: Option<&str>, seed: Option<&str>) -> Result<RequestedRun, String> {
    if let Some(text) = replay {
        let tape = text.trim().parse();
        return tape
            .map(RequestedRun::Replay)
            .map_err(|error| format!("{REPLAY}: {error}"));
    }
    let Some(text) = seed else {
        return Ok(RequestedRun::Nothing);
    };
    let seed = text.trim().parse();
    seed.map(RequestedRun::Seed)
        .map_err(|_| format!("{SEED}: {text:?} is no seed: a seed is a number below 2^64"))
}

/// Returns the number of seeds that the environment asks for.
///
/// # Panics
/// Panics if it is no number, or 0.
#[track_caller]
pub(crate) fn seeds() -> Option<u64> {
    let text = env::var(SEEDS).ok().filter(|text| !text.is_empty())?;
    match text.trim().parse() {
        Ok(seeds @ 1..) => Some(seeds),
        _ => panic!("{SEEDS}: {text:?} is no number of seeds"),
    }
}

pub(crate) fn pages() -> PathBuf {
    env::var_os(PAGES).map_or_else(|| env::temp_dir().join("leasehold-sim"), PathBuf::from)
}

/// Returns the name of the running test, which libtest gives to the test's thread.
pub(crate) fn test_name() -> Option<String> {
    let thread = std::thread::current();
    thread
        .name()
        .filter(|name| *name != "main")
        .map(str::to_owned)
}

/// Returns the command that repeats a test with a tape.
pub(crate) fn replay_command(tape: &Tape) -> String {
    format!("{REPLAY}={tape} {}", this_program())
}

/// Returns the command that repeats a test with a seed.
pub(crate) fn command_with_seed(seed: u64) -> String {
    format!("{SEED}={seed} {}", this_program())
}

fn this_program() -> String {
    match test_name() {
        Some(name) => format!("cargo test -- --exact {name}"),
        None => std::env::args().collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_variables_are_refused() {
        assert_eq!(parse(None, None), Ok(RequestedRun::Nothing));
        assert_eq!(parse(None, Some(" 7 ")), Ok(RequestedRun::Seed(7)));
        let tape = Tape::new(0x2a);
        assert_eq!(
            parse(Some("2a.."), Some("7")),
            Ok(RequestedRun::Replay(tape))
        );
        let refused = |replay, seed| parse(replay, seed).expect_err("refused");
        assert!(refused(None, Some("x")).contains("LEASEHOLD_SIM_SEED: \"x\""));
        assert!(refused(Some("2a"), None).contains("LEASEHOLD_SIM_REPLAY: not a tape: at byte 2"));
    }
}
