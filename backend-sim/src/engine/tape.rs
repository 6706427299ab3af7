//! The tape: all choices of a run, as a list of small numbers.

use std::fmt::{self, Write as _};
use std::str::FromStr;

/// The kind of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Site {
    /// By how many milliseconds a message exceeds the minimum latency.
    Latency,
    /// Which of several events at the same instant happens first.
    Order,
    /// Whether a client gets the reply to its command before the pushes that the command caused.
    ReplyFirst,
    /// Which of several ready tasks runs first. If an event is due, the last value lets the event
    /// happen before any of the tasks.
    Task,
    /// Reserved for faults. The simulator draws nothing at this site: a
    /// [`FaultMix`](crate::FaultMix) draws at [`User`](Self::User).
    Fault,
    /// What a scenario draws with [`SimServer::draw`](crate::SimServer::draw), and the faults of a
    /// [`FaultMix`](crate::FaultMix).
    User,
}

impl Site {
    /// All sites.
    pub const ALL: [Self; 6] = [
        Self::Latency,
        Self::Order,
        Self::ReplyFirst,
        Self::Task,
        Self::Fault,
        Self::User,
    ];

    /// Returns the site's letter in the text form of a tape.
    const fn letter(self) -> char {
        match self {
            Self::Latency => 'l',
            Self::Order => 'o',
            Self::ReplyFirst => 'r',
            Self::Task => 't',
            Self::Fault => 'f',
            Self::User => 'u',
        }
    }

    fn from_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|site| site.letter() == letter)
    }
}

/// One choice of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Draw {
    /// The kind of the choice.
    pub site: Site,
    /// The number of possible values, at least 2.
    pub bound: u32,
    /// The chosen value, below the bound. 0 is the simplest.
    pub value: u32,
}

/// The choices of a run, in order.
///
/// A tape determines a run: the same scenario with the same tape gives the same run, byte for byte.
/// After the end of the tape every choice is 0, so you can cut a tape. Setting a value to 0 makes
/// the run simpler. [`SimServer::tape`](crate::SimServer::tape) and
/// [`RunReport::tape`](crate::RunReport::tape) return a run's tape, and
/// [`Scheduling::Replay`](crate::tools::Scheduling::Replay) repeats it.
///
/// # Text form
/// [`Display`](fmt::Display) writes a tape as one line of letters, digits and `.:-`, for a command
/// line or an environment variable. [`FromStr`] reads it. The form is `SEED.TABLE.DRAWS`:
///
/// - `SEED` is the seed in hexadecimal.
/// - `TABLE` lists the distinct draws, each as a letter for the site, the bound, `:` and the value.
/// - `DRAWS` has a letter for each draw: `A` is the first of the table. Each `-` before a letter
///   adds 52 to its index. A number after it says how often it occurs in a row.
///
/// Zeros at the end are omitted.
///
/// # Examples
/// ```
/// use leasehold_sim::tools::{Draw, Site, Tape};
///
/// let mut tape = Tape::new(0x2a);
/// tape.draws.push(Draw { site: Site::Order, bound: 3, value: 2 });
/// assert_eq!(tape.to_string(), "2a.o3:2.A");
/// assert_eq!("2a.o3:2.A".parse(), Ok(tape));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tape {
    /// The seed. It determines identities such as session ids, which are not choices.
    pub seed: u64,
    /// The choices.
    pub draws: Vec<Draw>,
}

impl Tape {
    /// Creates a tape without draws, which is the simplest run.
    pub const fn new(seed: u64) -> Self {
        let draws = Vec::new();
        Self { seed, draws }
    }

    /// Removes the zeros at the end, which have no effect on the run.
    pub fn trim(&mut self) {
        self.draws.truncate(self.trimmed_len());
    }

    /// The number of draws without the zeros at the end.
    pub(crate) fn trimmed_len(&self) -> usize {
        let last = self.draws.iter().rposition(|draw| draw.value != 0);
        last.map_or(0, |last| last + 1)
    }

    /// Turns the complete tape of a run into the start of the next one, in a depth-first search.
    /// Returns `false` after the last run.
    ///
    /// Only choices at `sites` vary. To search, start with [`Tape::new`]. Run it under
    /// [`Scheduling::Replay`](crate::tools::Scheduling::Replay), call this method on the recorded tape,
    /// and repeat while it returns `true`. The search reaches each sequence of choices once.
    /// [`Simulation::run_all`](crate::Simulation::run_all) does this for you.
    pub fn advance(&mut self, sites: &[Site]) -> bool {
        while let Some(draw) = self.draws.last_mut() {
            if draw.value + 1 < draw.bound && sites.contains(&draw.site) {
                draw.value += 1;
                return true;
            }
            self.draws.pop();
        }
        false
    }
}

/// The letters of the first draws in the table. Those of later draws have prefixes.
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

impl fmt::Display for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let draws = &self.draws[..self.trimmed_len()];
        let mut table = draws.to_vec();
        table.sort_unstable();
        table.dedup();
        write!(f, "{:x}.", self.seed)?;
        for draw in &table {
            write!(f, "{}{}:{}", draw.site.letter(), draw.bound, draw.value)?;
        }
        f.write_char('.')?;
        for run in draws.chunk_by(|a, b| a == b) {
            let at = table
                .binary_search(&run[0])
                .expect("the table has every draw");
            (0..at / LETTERS.len()).try_for_each(|_| f.write_char('-'))?;
            let letter = at % LETTERS.len();
            f.write_str(&LETTERS[letter..=letter])?;
            if run.len() > 1 {
                write!(f, "{}", run.len())?;
            }
        }
        Ok(())
    }
}

/// The error for a text that is not a tape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapeError {
    at: usize,
    wanted: &'static str,
}

impl fmt::Display for TapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, wanted } = self;
        write!(f, "not a tape: at byte {at}, {wanted} was expected")
    }
}

impl std::error::Error for TapeError {}

/// The maximum number of draws of a text, so that a short text can't exhaust the memory.
const MAX_DRAWS: usize = 10_000_000;

impl FromStr for Tape {
    type Err = TapeError;

    fn from_str(text: &str) -> Result<Self, TapeError> {
        let at = text.find('.').unwrap_or(text.len());
        let seed = u64::from_str_radix(&text[..at], 16).map_err(|_| TapeError {
            at: 0,
            wanted: "a seed in hexadecimal",
        })?;
        let mut reader = Reader { text, at };
        reader.expect('.')?;
        let mut table = Vec::new();
        while reader.peek() != Some('.') {
            table.push(reader.draw()?);
        }
        reader.expect('.')?;
        let mut tape = Self::new(seed);
        while reader.peek().is_some() {
            let draw = reader.symbol(&table)?;
            let times = match reader.peek() {
                Some('0'..='9') => reader.number()? as usize,
                _ => 1,
            };
            if tape.draws.len() + times > MAX_DRAWS {
                return Err(reader.error("fewer draws"));
            }
            tape.draws.extend(std::iter::repeat_n(draw, times));
        }
        Ok(tape)
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    const fn error(&self, wanted: &'static str) -> TapeError {
        let at = self.at;
        TapeError { at, wanted }
    }

    fn expect(&mut self, wanted: char) -> Result<(), TapeError> {
        if self.peek() != Some(wanted) {
            return Err(self.error(if wanted == '.' { "a dot" } else { "a colon" }));
        }
        self.at += wanted.len_utf8();
        Ok(())
    }

    fn number(&mut self) -> Result<u32, TapeError> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_digit());
        let digits = &rest[..end.unwrap_or(rest.len())];
        let number = digits.parse().map_err(|_| self.error("a number"))?;
        self.at += digits.len();
        Ok(number)
    }

    fn draw(&mut self) -> Result<Draw, TapeError> {
        let site = self.peek().and_then(Site::from_letter);
        let site = site.ok_or_else(|| self.error("the letter of a site"))?;
        self.at += 1;
        let bound = self.number()?;
        self.expect(':')?;
        let value = self.number()?;
        if bound < 2 || value >= bound {
            return Err(self.error("a value below its bound"));
        }
        Ok(Draw { site, bound, value })
    }

    fn symbol(&mut self, table: &[Draw]) -> Result<Draw, TapeError> {
        let mut at = 0;
        while self.peek() == Some('-') {
            at += LETTERS.len();
            self.at += 1;
        }
        let letter = self.peek().and_then(|letter| LETTERS.find(letter));
        let letter = letter.ok_or_else(|| self.error("a letter"))?;
        let draw = table.get(at + letter).copied();
        let draw = draw.ok_or_else(|| self.error("a letter of the table"))?;
        self.at += 1;
        Ok(draw)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn draw(site: Site, bound: u32, value: u32) -> Draw {
        Draw { site, bound, value }
    }

    #[test]
    fn a_tape_is_one_short_line() {
        let mut tape = Tape::new(0x2a);
        tape.draws
            .extend(std::iter::repeat_n(draw(Site::Latency, 4, 0), 12));
        tape.draws.push(draw(Site::Order, 3, 2));
        tape.draws.push(draw(Site::Latency, 4, 0));
        assert_eq!(tape.to_string(), "2a.l4:0o3:2.A12B");
        let read: Tape = tape.to_string().parse().expect("a tape");
        tape.trim();
        assert_eq!(read, tape);
    }

    #[test]
    fn large_tables_are_read_back() {
        let mut tape = Tape::new(u64::MAX);
        for n in 0..500 {
            tape.draws.push(draw(Site::User, 1_000, n % 250));
        }
        tape.trim();
        assert_eq!(tape.to_string().parse(), Ok(tape));
    }

    #[test]
    fn an_invalid_tape_is_refused_with_its_position() {
        let message = |text: &str| match text.parse::<Tape>() {
            Ok(tape) => panic!("{text} was read as {tape:?}"),
            Err(error) => error.to_string(),
        };
        for (text, at) in [
            ("", 0),
            ("xyz", 0),
            ("2a", 2),
            ("2a.q4:0.A", 3),
            ("2a.l4-0.A", 5),
            ("2a.l4:4.A", 7),
            ("2a.l1:0.A", 7),
            ("2a.l4:1.B", 8),
            ("2a.l4:1.A99999999", 17),
            ("2a.l4:1.A99999999999", 9),
            ("2a.l4:1.-A", 9),
        ] {
            let at = format!("at byte {at},");
            assert!(message(text).contains(&at), "{text}: {}", message(text));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_tape_or_refused(
            text in prop_oneof![
                3 => "[0-9a-f]{0,17}\\.([A-Za-z][0-9]{0,11}:[0-9]{0,11}){0,3}\\.(-{0,2}[A-Za-z][0-9]{0,5}){0,5}",
                1 => any::<String>(),
            ],
        ) {
            if let Ok(tape) = text.parse::<Tape>() {
                let again: Tape = tape.to_string().parse().expect("readable");
                prop_assert_eq!(again.to_string(), tape.to_string());
                prop_assert_eq!(again.seed, tape.seed);
            }
        }
    }
}
