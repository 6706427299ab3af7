//! The decision tape: every choice of a run, as a list of small numbers.

use std::fmt::{self, Write as _};
use std::str::FromStr;

/// What is being chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Site {
    /// How much longer than the shortest latency a message takes, in milliseconds.
    Latency,
    /// Which of several events that are due at the same instant happens first.
    Order,
    /// Whether a client gets the reply to its command before the pushes that the command caused.
    ReplyFirst,
    /// Which of several tasks that can run goes first; the last answer lets an event happen
    /// before any of them.
    Task,
    /// What goes wrong.
    Fault,
    /// What the scenario itself draws, with [`SimServer::draw`](crate::SimServer::draw).
    User,
}

impl Site {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Latency,
        Self::Order,
        Self::ReplyFirst,
        Self::Task,
        Self::Fault,
        Self::User,
    ];

    /// Its letter in the text form of a tape.
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

/// One choice that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Draw {
    /// About what.
    pub site: Site,
    /// Among how many answers; at least 2, because a single answer is no choice.
    pub bound: u32,
    /// Which: below the bound, 0 the simplest.
    pub value: u32,
}

/// The choices of one run, in the order in which they were made.
///
/// A tape is a run: the same scenario with the same tape is the same run, byte for byte. Past its
/// end every choice is 0, so that a tape can be cut; setting a value to 0 makes the run simpler.
///
/// # Text form
/// [`Display`](fmt::Display) writes a tape on one line, of letters, digits and `.:-`, for a command
/// line or an environment variable; [`FromStr`] reads it. It is `SEED.TABLE.DRAWS`: the seed in
/// hexadecimal; the different draws of the tape as `SITE BOUND : VALUE`, one after the other; and
/// the draws as letters, `A` for the first of the table, each `-` before it 52 more, a number after
/// it how often. Zeros at the end are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tape {
    /// The seed: identities are made from it, and are no choices.
    pub seed: u64,
    /// The choices.
    pub draws: Vec<Draw>,
}

impl Tape {
    /// A tape without any choice: the simplest run.
    pub const fn new(seed: u64) -> Self {
        let draws = Vec::new();
        Self { seed, draws }
    }

    /// Leaves out the zeros at the end, which mean the same there as nothing.
    pub fn trim(&mut self) {
        let last = self.draws.iter().rposition(|draw| draw.value != 0);
        self.draws.truncate(last.map_or(0, |last| last + 1));
    }

    /// Makes of the complete tape of a run the beginning of the next one, depth first; false if
    /// it was the last.
    ///
    /// Only the choices at these `sites` are varied. A search begins with [`Tape::new`] and, while
    /// this is true, goes on with what the run recorded under
    /// [`Scheduling::Replay`](crate::Scheduling::Replay); it reaches each sequence of choices once.
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

/// How many draws of the table have a letter without a prefix.
const LETTERS: usize = 52;

fn letter(index: usize) -> char {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    char::from(letters[index % LETTERS])
}

fn index(letter: char) -> Option<usize> {
    match letter {
        'A'..='Z' => Some(letter as usize - 'A' as usize),
        'a'..='z' => Some(letter as usize - 'a' as usize + 26),
        _ => None,
    }
}

impl fmt::Display for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.draws.iter().rposition(|draw| draw.value != 0);
        let draws = &self.draws[..last.map_or(0, |last| last + 1)];
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
            (0..at / LETTERS).try_for_each(|_| f.write_char('-'))?;
            f.write_char(letter(at))?;
            if run.len() > 1 {
                write!(f, "{}", run.len())?;
            }
        }
        Ok(())
    }
}

/// A text that is no tape.
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

/// How many draws a text may stand for: a short text must not ask for all memory.
const MAX_DRAWS: usize = 10_000_000;

impl FromStr for Tape {
    type Err = TapeError;

    fn from_str(text: &str) -> Result<Self, TapeError> {
        let mut reader = Reader { text, at: 0 };
        let seed = reader.until('.');
        let seed = u64::from_str_radix(seed, 16).map_err(|_| TapeError {
            at: 0,
            wanted: "a seed in hexadecimal",
        })?;
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

    fn until(&mut self, end: char) -> &'a str {
        let part = self.rest().split(end).next().unwrap_or_default();
        self.at += part.len();
        part
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
            at += LETTERS;
            self.at += 1;
        }
        let letter = self.peek().and_then(index);
        let letter = letter.ok_or_else(|| self.error("a letter"))?;
        let draw = table.get(at + letter).copied();
        let draw = draw.ok_or_else(|| self.error("a letter of the table"))?;
        self.at += 1;
        Ok(draw)
    }
}

#[cfg(test)]
mod tests {
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
    fn what_is_no_tape_is_refused_with_its_waiter() {
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

    #[test]
    fn depth_first_reaches_each_sequence_once() {
        // Three answers; after the first answer, another choice among two.
        let mut tape = Tape::new(0);
        let mut seen = Vec::new();
        loop {
            let first = tape.draws.first().map_or(0, |draw| draw.value);
            if tape.draws.is_empty() {
                tape.draws.push(draw(Site::Order, 3, 0));
            }
            if first == 0 && tape.draws.len() == 1 {
                tape.draws.push(draw(Site::Order, 2, 0));
            }
            seen.push(tape.draws.iter().map(|d| d.value).collect::<Vec<_>>());
            if !tape.advance(&[Site::Order]) {
                break;
            }
        }
        assert_eq!(seen, [vec![0, 0], vec![0, 1], vec![1], vec![2]]);
    }
}
