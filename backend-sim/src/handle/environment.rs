//! The environment variables that choose a run, and the commands that repeat one.

use std::env;
use std::path::PathBuf;

use crate::engine::tape::Tape;

const REPLAY: &str = "LEASEHOLD_SIM_REPLAY";
const SEED: &str = "LEASEHOLD_SIM_SEED";
const PAGES: &str = "LEASEHOLD_SIM_PAGES";

/// Which run is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Nothing,
    Seed(u64),
    Replay(Tape),
}

/// # Panics
/// If what is asked for cannot be read: a run of something else would mislead.
#[track_caller]
pub(crate) fn wish() -> Wish {
    let read = |name| env::var(name).ok().filter(|text| !text.is_empty());
    match parse(read(REPLAY).as_deref(), read(SEED).as_deref()) {
        Ok(wish) => wish,
        Err(message) => panic!("{message}"),
    }
}

fn parse(replay: Option<&str>, seed: Option<&str>) -> Result<Wish, String> {
    if let Some(text) = replay {
        let tape = text.trim().parse();
        return tape
            .map(Wish::Replay)
            .map_err(|error| format!("{REPLAY}: {error}"));
    }
    let Some(text) = seed else {
        return Ok(Wish::Nothing);
    };
    let seed = text.trim().parse();
    seed.map(Wish::Seed)
        .map_err(|_| format!("{SEED}: {text:?} is no seed, which is a number below 2^64"))
}

/// Where pages of failed runs go.
pub(crate) fn pages() -> PathBuf {
    env::var_os(PAGES).map_or_else(|| env::temp_dir().join("leasehold-sim"), PathBuf::from)
}

/// The name of the test that runs: libtest gives it to the test's thread.
pub(crate) fn test_name() -> Option<String> {
    let thread = std::thread::current();
    thread
        .name()
        .filter(|name| *name != "main")
        .map(str::to_owned)
}

/// The line that repeats a test with its tape.
pub(crate) fn replay_command(tape: &Tape) -> String {
    format!("{REPLAY}={tape} {}", this_program())
}

/// The line that repeats a test with its seed.
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
    fn what_is_wished_is_read_or_refused() {
        assert_eq!(parse(None, None), Ok(Wish::Nothing));
        assert_eq!(parse(None, Some(" 7 ")), Ok(Wish::Seed(7)));
        let tape = Tape::new(0x2a);
        assert_eq!(parse(Some("2a.."), Some("7")), Ok(Wish::Replay(tape)));
        let refused = |replay, seed| parse(replay, seed).expect_err("refused");
        assert!(refused(None, Some("x")).contains("LEASEHOLD_SIM_SEED: \"x\""));
        assert!(refused(Some("2a"), None).contains("LEASEHOLD_SIM_REPLAY: not a tape: at byte 2"));
    }
}
