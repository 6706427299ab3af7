//! The table on the screen.

use std::time::Instant;

use leasehold::inspect::{Inspection, Role};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table};

use crate::operate::printable;
use crate::top::round::Round;

const HEADER: [&str; 5] = ["WAITERS", "KEY", "USE", "HELD BY", "LEFT"];

/// The last round, and what went wrong since.
pub(super) struct View {
    prefix: String,
    round: Option<(Round, Instant)>,
    problem: Option<String>,
}

impl View {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: printable(prefix),
            round: None,
            problem: None,
        }
    }

    pub(super) fn show(&mut self, round: Round) {
        self.round = Some((round, Instant::now()));
        self.problem = None;
    }

    /// The rows stay, and get older.
    pub(super) fn say(&mut self, problem: String) {
        self.problem = Some(problem);
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let rows = [Constraint::Length(2), Constraint::Min(0)];
        let [top, rest] = Layout::vertical(rows).areas(frame.area());
        frame.render_widget(self.head(), top);
        let keys = self.round.iter().flat_map(|(round, _)| &round.keys);
        let widths = [
            Constraint::Length(7),
            Constraint::Fill(2),
            Constraint::Length(9),
            Constraint::Fill(2),
            Constraint::Length(6),
        ];
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let table = Table::new(keys.map(row), widths).header(Row::new(HEADER).style(bold));
        frame.render_widget(table, rest);
    }

    /// How much there is, and how well it is known.
    fn head(&self) -> ratatui::text::Text<'_> {
        let Some((round, at)) = &self.round else {
            let text = self.problem.as_deref().unwrap_or("asking");
            return Line::from(text.to_owned()).into();
        };
        let sum = |count: fn(&Inspection) -> u32| round.keys.iter().map(count).sum::<u32>();
        let held = round.keys.iter().filter(|it| it.is_held()).count();
        let mut text = format!(
            "{} keys {:?}: {held} held, {} waiters",
            round.keys.len(),
            self.prefix,
            sum(Inspection::waiter_count)
        );
        if let Some(why) = &round.partial {
            text += &format!(", partial: {why}");
        }
        let below = match &self.problem {
            Some(problem) => format!("{} s old: {problem}", at.elapsed().as_secs()),
            None => "q quits".to_owned(),
        };
        vec![Line::from(text), Line::from(below)].into()
    }
}

fn row(state: &Inspection) -> Row<'static> {
    let use_of = match (state.role(), state.spec()) {
        (Some(Role::Job), _) => "job".to_owned(),
        (Some(Role::Election), _) => "election".to_owned(),
        (_, Some(spec)) => format!("{:?}", spec.kind()).to_lowercase(),
        _ => String::new(),
    };
    let holders = state.holders();
    let mut by = holders
        .first()
        .map_or_else(|| "-".to_owned(), |holder| printable(holder.label.as_str()));
    if state.holder_count() > 1 {
        by += &format!(" and {}", state.holder_count() - 1);
    }
    if let Some(leader) = state.leader() {
        by += &format!(": {}", printable(&String::from_utf8_lossy(&leader.info)));
    }
    let is_known = state.last_change().is_none();
    let left = holders.first().filter(|_| is_known);
    let left = left.map(|it| it.remaining.as_secs());
    Row::new([
        state.waiter_count().to_string(),
        printable(state.key().as_str()),
        use_of,
        by,
        left.map_or_else(String::new, |left| format!("{left} s")),
    ])
}
