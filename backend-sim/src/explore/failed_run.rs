//! A failed run, and its report.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use crate::engine::tape::Tape;
use crate::handle::environment::{self, replay_command, test_name};
use crate::history::History;
use crate::simulation::{Ending, RunReport};

/// The simplest failing run that an [`Exploration`](crate::Exploration) found.
///
/// [`Display`](fmt::Display) writes the reason, the timeline, and the command that repeats the run.
/// It leaves out the middle of a timeline of more than 300 lines.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FailedRun {
    /// The number of runs up to and including the first that failed, without those that simplified
    /// it.
    pub runs: u64,
    /// The seed of the run that failed.
    pub seed: u64,
    /// Why the run failed: the message and location of a panic, an error, or why the run did not
    /// finish.
    pub reason: String,
    /// The choices of the simplified run, for [`Scheduling::Replay`](crate::tools::Scheduling::Replay).
    pub tape: Tape,
    /// The history of the simplified run.
    pub history: History,
    /// The number of choices before shrinking, and the number of runs that shrinking took.
    shrunk: Option<(usize, u32)>,
    /// The open holds and waits of a run that did not finish; empty for any other run.
    unfinished: Vec<String>,
}

/// The numbers of lines that are printed from the start and from the end of a long timeline.
const PRINTED: (usize, usize) = (200, 100);

impl FailedRun {
    pub(super) fn new<T>(
        runs: u64,
        seed: u64,
        reason: String,
        report: &RunReport<T>,
        shrunk: Option<(usize, u32)>,
    ) -> Self {
        let mut tape = report.tape.clone();
        tape.trim();
        let history = report.history();
        let unfinished = match report.ending {
            Ending::Deadlock | Ending::TimeLimit | Ending::StepLimit => history.unfinished(),
            _ => Vec::new(),
        };
        let history = history
            .with_title(test_name().unwrap_or_else(|| "leasehold simulation".to_owned()))
            .with_verdict(&*reason)
            .with_replay(replay_command(&tape));
        Self {
            runs,
            seed,
            reason,
            tape,
            history,
            shrunk,
            unfinished,
        }
    }

    /// Sets the tape. A run that diverged from its tape has recorded another.
    pub(super) fn of_tape(mut self, tape: Tape) -> Self {
        self.history.replay = Some(replay_command(&tape));
        self.tape = tape;
        self
    }

    /// Returns the shell command that repeats the run, with `LEASEHOLD_SIM_REPLAY` set to its tape.
    pub fn replay(&self) -> String {
        replay_command(&self.tape)
    }

    #[track_caller]
    pub(super) fn panic(self) -> ! {
        let page = match self.save() {
            Ok(page) => format!("as a page: {}", page.display()),
            Err(error) => format!("the page could not be written: {error}"),
        };
        panic!("{self}\n{page}\n");
    }

    /// Writes the [page](History::html) of the run, and returns its path.
    ///
    /// It is named after the test. The folder is the value of the environment variable
    /// `LEASEHOLD_SIM_PAGES`, or else `leasehold-sim` in the folder for temporary files.
    ///
    /// # Errors
    /// Returns an error if the folder or the file cannot be written.
    pub fn save(&self) -> std::io::Result<PathBuf> {
        let folder = environment::pages();
        fs::create_dir_all(&folder)?;
        let name = test_name().unwrap_or_else(|| "run".to_owned());
        let name = name.replace(|c: char| !c.is_alphanumeric() && c != '_', "-");
        let page = folder.join(format!("{name}.html"));
        self.history.save(&page)?;
        Ok(page)
    }
}

impl fmt::Display for FailedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (runs, seed, draws) = (self.runs, self.seed, &self.tape.draws);
        let reason = self.reason.replace('\n', "\n  ");
        writeln!(f, "run {runs}, with seed {seed}, fails:\n\n  {reason}\n")?;
        if !self.unfinished.is_empty() {
            writeln!(f, "at that point:\n  {}\n", self.unfinished.join("\n  "))?;
        }
        if let Some((found, tried @ 1..)) = self.shrunk {
            let set = draws.iter().filter(|draw| draw.value != 0).count();
            let left = draws.len();
            writeln!(
                f,
                "simplified in {tried} runs: from {found} to {left} choices, {set} of them not 0"
            )?;
        }
        write_timeline(f, &self.history.text())?;
        write!(f, "\nto repeat it: {}", self.replay())
    }
}

fn write_timeline(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let (first, last) = PRINTED;
    let left_out = text.lines().count().saturating_sub(first + last);
    for (number, line) in text.lines().enumerate() {
        if number == first && left_out > 0 {
            writeln!(
                f,
                "({left_out} lines are left out; the page has all of them)"
            )?;
        }
        if number < first || number >= first + left_out {
            writeln!(f, "{line}")?;
        }
    }
    Ok(())
}
