//! A run that failed, and how it is printed.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use crate::engine::tape::Tape;
use crate::handle::environment::{self, replay_command, test_name};
use crate::history::History;
use crate::simulation::{Ending, RunReport};

/// The simplest failing run that was found.
///
/// [`Display`](fmt::Display) writes all that one needs to understand and repeat it; of a timeline of
/// more than 300 lines the middle is left out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// How many runs were made until one failed, that one included.
    pub runs: u64,
    /// The seed that failed.
    pub seed: u64,
    /// What failed: the message of a panic and where it was, an error, or why it did not end.
    pub reason: String,
    /// The choices of the run, to be replayed.
    pub tape: Tape,
    /// What happened in it.
    pub history: History,
    /// How many choices the run had when it was found, and how many runs made it simpler.
    shrunk: Option<(usize, u32)>,
    /// Who held and waited when a run was stopped that was not done; else nothing.
    unfinished: Vec<String>,
}

/// How much of a long timeline is printed: so many lines of its beginning, and of its end.
const PRINTED: (usize, usize) = (200, 100);

impl Failure {
    pub(super) fn new(
        runs: u64,
        seed: u64,
        reason: String,
        report: &RunReport<()>,
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

    /// The same as what came of this tape: a run that diverged from it has another.
    pub(super) fn of_tape(mut self, tape: Tape) -> Self {
        self.history.replay = Some(replay_command(&tape));
        self.tape = tape;
        self
    }

    /// The line that repeats the run.
    pub fn replay(&self) -> String {
        replay_command(&self.tape)
    }

    /// Writes the page of the run and fails the test.
    #[track_caller]
    pub(super) fn panic(self) -> ! {
        let page = match self.save() {
            Ok(page) => format!("as a picture: {}", page.display()),
            Err(error) => format!("no picture was written: {error}"),
        };
        panic!("{self}\n{page}\n");
    }

    /// Writes the [page](History::html) of the run, and the [JSON](History::perfetto) beside it, to
    /// the folder that `LEASEHOLD_SIM_PAGES` names, or `leasehold-sim` in the folder for temporary
    /// files; returns where the page is. It is named after the test.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn save(&self) -> std::io::Result<PathBuf> {
        let folder = environment::pages();
        fs::create_dir_all(&folder)?;
        let name: String = test_name()
            .unwrap_or_else(|| "run".to_owned())
            .chars()
            .map(|c| {
                if c.is_alphanumeric() || c == '_' {
                    c
                } else {
                    '-'
                }
            })
            .collect();
        let page = folder.join(format!("{name}.html"));
        self.history.save(&page)?;
        Ok(page)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            runs,
            seed,
            reason,
            tape,
            ..
        } = self;
        writeln!(
            f,
            "run {runs}, with seed {seed}, fails:\n\n  {}\n",
            reason.replace('\n', "\n  ")
        )?;
        if !self.unfinished.is_empty() {
            writeln!(f, "by then:\n  {}\n", self.unfinished.join("\n  "))?;
        }
        if let Some((found, tried @ 1..)) = self.shrunk {
            let (set, left) = (
                tape.draws.iter().filter(|draw| draw.value != 0).count(),
                tape.draws.len(),
            );
            writeln!(
                f,
                "made simpler in {tried} runs: of {found} choices, {left} are left, {set} of them not the simplest"
            )?;
        }
        write_timeline(f, &self.history.text())?;
        write!(f, "\nto repeat it: {}", self.replay())
    }
}

fn write_timeline(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let (first, last) = PRINTED;
    let count = text.lines().count();
    if count <= first + last {
        return f.write_str(text);
    }
    for line in text.lines().take(first) {
        writeln!(f, "{line}")?;
    }
    let left_out = count - first - last;
    writeln!(f, "({left_out} lines are left out; the page has all)")?;
    for line in text.lines().skip(count - last) {
        writeln!(f, "{line}")?;
    }
    Ok(())
}
