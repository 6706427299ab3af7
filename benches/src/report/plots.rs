//! The plots of a report, as SVG.

use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figures::Goal;
use crate::figures::hand_over::CLIENTS;
use crate::report::summary::{CONTENDED, number};
use crate::report::{Figure, PEERS, Report};
use crate::{Failure, Result};

const INK: RGBColor = RGBColor(40, 44, 52);
const GREY: RGBColor = RGBColor(150, 156, 166);
const LIGHT: RGBColor = RGBColor(226, 229, 234);
const GREEN: RGBColor = RGBColor(46, 139, 87);
/// The client libraries first, then other series.
const COLOURS: [RGBColor; 7] = [
    RGBColor(31, 98, 176),
    RGBColor(222, 112, 26),
    RGBColor(126, 166, 213),
    RGBColor(240, 177, 124),
    RGBColor(118, 92, 168),
    RGBColor(84, 150, 150),
    RGBColor(176, 84, 132),
];
const TITLE: u32 = 20;
const TEXT: u32 = 14;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws each plot that the report has figures for.
pub(super) fn draw(report: &Report, folder: &Path) -> Result<()> {
    draw_goals(report, &folder.join("goals.svg"))?;
    draw_pairs(report, &folder.join("sequential.svg"))?;
    draw_distinct_keys(report, &folder.join("distinct_keys.svg"))?;
    draw_hand_overs(report, &folder.join("hand_over.svg"))?;
    draw_rates(report, &folder.join("queues.svg"))?;
    draw_queue_length(report, &folder.join("queue_length.svg"))?;
    draw_waits(report, &folder.join("waits.svg"))
}

fn failure(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Box::new(error)
}

fn text(size: u32, colour: &RGBColor, horizontal: HPos, vertical: VPos) -> TextStyle<'_> {
    TextStyle::from(("sans-serif", size).into_font())
        .color(colour)
        .pos(Pos::new(horizontal, vertical))
}

/// A white page with a title and a subtitle.
fn page<'a>(path: &'a Path, size: (u32, u32), title: &str, below: &str) -> Result<Area<'a>> {
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE).map_err(failure)?;
    let style = text(TITLE, &INK, HPos::Left, VPos::Top);
    area.draw_text(title, &style, (16, 12)).map_err(failure)?;
    let style = text(TEXT, &GREY, HPos::Left, VPos::Top);
    area.draw_text(below, &style, (16, 38)).map_err(failure)?;
    Ok(area.margin(64, 8, 8, 16))
}

/// Draws a legend along the top. Returns the area below it.
fn legend<'a>(area: &Area<'a>, names: &[(String, RGBColor)]) -> Result<Area<'a>> {
    const ROW: i32 = 20;
    let right = i32::try_from(area.dim_in_pixel().0)?;
    let (mut x, mut y) = (16, 0);
    for (name, colour) in names {
        let width = 34 + 7 * i32::try_from(name.len())?;
        if x > 16 && x + width > right {
            (x, y) = (16, y + ROW);
        }
        let square = Rectangle::new([(x, y), (x + 12, y + 12)], colour.filled());
        area.draw(&square).map_err(failure)?;
        let style = text(TEXT, &INK, HPos::Left, VPos::Top);
        area.draw_text(name, &style, (x + 18, y - 1))
            .map_err(failure)?;
        x += width;
    }
    Ok(area.clone().margin(y + ROW + 8, 0, 0, 0))
}

/// Plots each figure as a fraction of its goal; a figure left of the line meets its goal.
fn draw_goals(report: &Report, path: &Path) -> Result<()> {
    const LEAST: f64 = 0.1;
    const MOST: f64 = 10.0;
    const LINE: f64 = 1.0;
    let mut names: Vec<&str> = Vec::new();
    let drawn = |figure: &&Figure| used(figure).is_some();
    for figure in report.figures.iter().filter(drawn) {
        if !names.contains(&figure.name.as_str()) {
            names.push(&figure.name);
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    let rows = names.len() as f64;
    let height = 140 + 22 * u32::try_from(names.len())?;
    let below = "1 is the goal; further left is better (logarithmic)";
    let area = page(
        path,
        (860, height),
        "Figures as a fraction of their goals",
        below,
    )?;
    let rest = legend(&area, &clients(report))?;
    let x = LEAST.ln()..MOST.ln();
    let mut chart = ChartBuilder::on(&rest.margin(0, 0, 260, 0))
        .x_label_area_size(28)
        .build_cartesian_2d(x, rows..0.0)
        .map_err(failure)?;
    let reached = Rectangle::new([(LEAST.ln(), 0.0), (0.0, rows)], GREEN.mix(0.08).filled());
    chart.draw_series([reached]).map_err(failure)?;
    for at in [0.1, 0.2, 0.5, 1.0_f64, 2.0, 5.0, 10.0] {
        let colour = if at == 1.0 { GREEN } else { LIGHT };
        let line = PathElement::new([(at.ln(), 0.0), (at.ln(), rows)], colour.stroke_width(1));
        chart.draw_series([line]).map_err(failure)?;
        let (x, y) = chart.backend_coord(&(at.ln(), rows));
        let style = text(TEXT, &INK, HPos::Center, VPos::Top);
        put(&chart, &at.to_string(), &style, (x, y + 6))?;
    }
    for (row, name) in names.iter().enumerate() {
        let y = row as f64 + 0.5 * LINE;
        let (x, line) = chart.backend_coord(&(LEAST.ln(), y));
        let style = text(TEXT, &INK, HPos::Right, VPos::Center);
        put(&chart, name, &style, (x - 10, line))?;
        for (client, colour) in clients(report) {
            let figure = report.figure(name, &client);
            if let Some(used) = figure.and_then(used) {
                let at = (used.clamp(LEAST, MOST).ln(), y);
                let dot = Circle::new(at, 5, colour.mix(0.85).filled());
                chart.draw_series([dot]).map_err(failure)?;
            }
        }
    }
    area.present().map_err(failure)
}

/// The fraction of the goal: 0.5 is half of what the goal allows, 2 is twice as much.
fn used(figure: &Figure) -> Option<f64> {
    let goal = figure.goal?;
    let compared = if goal.is_on_ratio() {
        figure.ratio?
    } else {
        figure.value
    };
    let used = match goal {
        Goal::RatioAtLeast(limit) => limit / compared,
        Goal::RatioAtMost(limit) | Goal::AtMost(limit) => compared / limit,
    };
    // A limit of zero has no fractions.
    (goal.limit() > 0.0 && used.is_finite()).then_some(used)
}

fn clients(report: &Report) -> Vec<(String, RGBColor)> {
    let names = report
        .plan
        .libraries
        .iter()
        .map(|own| own.name().to_owned());
    names.zip(COLOURS).collect()
}

/// Draws text at a pixel of the whole picture.
fn put(chart: &Chart<'_, '_>, words: &str, style: &TextStyle<'_>, at: (i32, i32)) -> Result<()> {
    let area = chart.plotting_area().strip_coord_spec();
    let (origin_x, origin_y) = area.get_base_pixel();
    let at = (at.0 - origin_x, at.1 - origin_y);
    area.draw_text(words, style, at).map_err(failure)
}

/// A name and one optional value per series.
type Group = (String, Vec<Option<f64>>);

/// A bar chart in groups, with a number above each bar.
struct Bars<'a> {
    title: &'a str,
    below: &'a str,
    /// The name and colour of each bar of a group.
    series: Vec<(String, RGBColor)>,
    /// Charts one above the other, on the same scale, each with a heading.
    panels: Vec<(String, Vec<Group>)>,
    /// Draws a line at the floor or the goal.
    line: Option<f64>,
}

impl Bars<'_> {
    fn draw(mut self, path: &Path) -> Result<()> {
        for (_, groups) in &mut self.panels {
            groups.retain(|(_, values)| values.iter().any(Option::is_some));
        }
        self.panels.retain(|(_, groups)| !groups.is_empty());
        let groups = self.panels.iter().flat_map(|(_, groups)| groups);
        let values = groups.flat_map(|(_, values)| values);
        let most = values.flatten().copied().fold(0.0, f64::max);
        if most <= 0.0 {
            return Ok(());
        }
        let height = 120 + 300 * u32::try_from(self.panels.len())?;
        let area = page(path, (860, height), self.title, self.below)?;
        let rest = legend(&area, &self.series)?;
        let parts = rest.split_evenly((self.panels.len(), 1));
        for ((heading, groups), part) in self.panels.iter().zip(parts) {
            self.draw_panel(&part, heading, groups, most)?;
        }
        area.present().map_err(failure)
    }

    fn draw_panel(
        &self,
        area: &Area<'_>,
        heading: &str,
        groups: &[Group],
        most: f64,
    ) -> Result<()> {
        let style = text(TEXT, &INK, HPos::Left, VPos::Top);
        area.draw_text(heading, &style, (16, 0)).map_err(failure)?;
        let right = groups.len() as f64;
        let mut chart = ChartBuilder::on(&area.clone().margin(18, 0, 0, 0))
            .y_label_area_size(64)
            .x_label_area_size(28)
            .build_cartesian_2d(0.0..right, 0.0..most * 1.12)
            .map_err(failure)?;
        scale(&mut chart, &number)?;
        for (index, group) in groups.iter().enumerate() {
            self.draw_group(&mut chart, index as f64, group)?;
        }
        if let Some(at) = self.line {
            let line = PathElement::new([(0.0, at), (right, at)], INK.stroke_width(1));
            chart.draw_series([line]).map_err(failure)?;
        }
        Ok(())
    }

    fn draw_group(
        &self,
        chart: &mut Chart<'_, '_>,
        left: f64,
        (name, values): &Group,
    ) -> Result<()> {
        let bars = values.iter().zip(&self.series);
        let bars = bars.filter_map(|(value, (_, colour))| Some(((*value)?, colour)));
        let bars: Vec<_> = bars.collect();
        // A single bar is as wide as one of two.
        let width = 0.86 / bars.len().max(2) as f64;
        let from = left + 0.5 - width * bars.len() as f64 / 2.0;
        for (at, (value, colour)) in bars.into_iter().enumerate() {
            let from = from + width * at as f64;
            let bar = [(from, 0.0), (from + 0.92 * width, value)];
            chart
                .draw_series([Rectangle::new(bar, colour.filled())])
                .map_err(failure)?;
            let (x, y) = chart.backend_coord(&(from + 0.46 * width, value));
            let style = text(11, &INK, HPos::Center, VPos::Bottom);
            put(chart, &number(value), &style, (x, y - 3))?;
        }
        let (x, y) = chart.backend_coord(&(left + 0.5, 0.0));
        let style = text(TEXT, &INK, HPos::Center, VPos::Top);
        put(chart, name, &style, (x, y + 8))
    }
}

/// Draws the scale on the left and its lines.
fn scale(chart: &mut Chart<'_, '_>, label: &dyn Fn(f64) -> String) -> Result<()> {
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(LIGHT)
        .axis_style(LIGHT)
        .y_labels(6)
        .y_label_formatter(&|value| label(*value))
        .y_label_style(text(TEXT, &INK, HPos::Right, VPos::Center))
        .draw()
        .map_err(failure)
}

fn draw_pairs(report: &Report, path: &Path) -> Result<()> {
    let ratio = |name: &str, client: &str| report.figure(name, client)?.ratio;
    let each = |name: &str| {
        let clients = report.plan.libraries.iter();
        clients.map(|own| ratio(name, own.name())).collect()
    };
    let mut groups: Vec<Group> = vec![
        ("leasehold, TCP".into(), each("sequential.p50")),
        ("leasehold, Unix".into(), each("sequential_unix.p50")),
        ("semaphore".into(), each("semaphore.p50")),
    ];
    for peer in PEERS {
        let value = ratio(&format!("peer.{peer}.sequential.p50"), "peer");
        let nothing = report.plan.libraries.iter().map(|_| None);
        groups.push((peer.into(), nothing.chain([value]).collect()));
    }
    let mut series = clients(report);
    series.push(("another library".into(), GREY));
    Bars {
        title: "Acquiring and releasing a free lock, one pair at a time",
        below: "median time ÷ that of SET NX PX and a compare-and-delete script on the same client; lower is better",
        series,
        panels: vec![(String::new(), groups)],
        line: Some(1.0),
    }
    .draw(path)
}

fn draw_hand_overs(report: &Report, path: &Path) -> Result<()> {
    let (mut series, mut groups) = (Vec::new(), Vec::new());
    for ((client, colour), pale) in clients(report).into_iter().zip(&COLOURS[2..]) {
        series.push((format!("PUBLISH, {client}"), *pale));
        series.push((format!("hand-over, {client}"), colour));
    }
    for contenders in CLIENTS {
        let name = format!("hand_over.{contenders}.p50");
        let mut values = Vec::new();
        for (client, _) in clients(report) {
            let figure = report.figure(&name, &client);
            values.push(figure.and_then(|figure| figure.floor));
            values.push(figure.map(|figure| figure.value));
        }
        groups.push((format!("{contenders} clients"), values));
    }
    Bars {
        title: "Hand-over: from the release of one client to the grant of the next",
        below: "median in µs, next to a bare PUBLISH from one connection to another; lower is better",
        series,
        panels: vec![(String::new(), groups)],
        line: None,
    }
    .draw(path)
}

fn draw_rates(report: &Report, path: &Path) -> Result<()> {
    let mut panels = Vec::new();
    for (client, _) in clients(report) {
        let mut groups = Vec::new();
        for (kind, words) in [("zero_hold", "no hold"), ("drain", "drain")] {
            for contenders in [2, 32, 1_000] {
                let name = format!("{kind}.{contenders}");
                let own = report.figure(&name, &client);
                let token = report.figure(&format!("{name}.beside_token"), &client);
                let floor = |figure: Option<&Figure>| figure.and_then(|figure| figure.floor);
                let values = vec![own.map(|own| own.value), floor(own), floor(token)];
                groups.push((format!("{words}, {contenders}"), values));
            }
        }
        panels.push((client, groups));
    }
    let names = ["leasehold", "BLPOP, a signal", "BLPOP, a token"];
    let names = names.map(str::to_owned);
    Bars {
        title: "Acquisitions of one lock by 2, 32 or 1,000 clients, per second",
        below: "held for no time, or a queue that drains; higher is better",
        series: names.into_iter().zip([COLOURS[0], LIGHT, GREY]).collect(),
        panels,
        line: None,
    }
    .draw(path)
}

/// Plots how long clients wait for a contended lock.
fn draw_waits(report: &Report, path: &Path) -> Result<()> {
    let group = |(words, name): (&str, &str)| {
        let figure = report.figure(&format!("peer.{name}.steady.wait_p99"), "peer");
        (
            words.replace('`', ""),
            vec![figure.map(|figure| figure.value)],
        )
    };
    Bars {
        title: "Waiting for one lock that 8 clients share",
        below: "99th percentile of the wait in ms; each client holds it for 5 ms, then pauses for 20 ms; lower is better",
        series: vec![("wait".into(), COLOURS[0])],
        panels: vec![(String::new(), CONTENDED.map(group).into())],
        line: None,
    }
    .draw(path)
}

/// Charts of lines over a logarithmic axis.
struct Lines<'a> {
    title: &'a str,
    below: &'a str,
    /// The marks of the axis, and the word for more than one.
    marks: &'a [usize],
    word: &'a str,
    /// Draws a line at this value.
    line: Option<f64>,
    label: &'a dyn Fn(f64) -> String,
    /// Charts one above the other, on the same scale, each with a heading.
    panels: Vec<(String, Vec<Line>)>,
}

/// The name, colour and points of a line.
type Line = (String, RGBColor, Vec<(f64, f64)>);

impl Lines<'_> {
    fn draw(mut self, path: &Path) -> Result<()> {
        for (_, lines) in &mut self.panels {
            lines.retain(|(.., points)| !points.is_empty());
        }
        self.panels.retain(|(_, lines)| !lines.is_empty());
        let lines = self.panels.iter().flat_map(|(_, lines)| lines);
        let points = lines.flat_map(|(.., points)| points);
        let most = points.map(|point| point.1).fold(0.0, f64::max);
        let Some((_, lines)) = self.panels.first() else {
            return Ok(());
        };
        let names = lines
            .iter()
            .map(|(name, colour, _)| (name.clone(), *colour));
        let names: Vec<_> = names.collect();
        let height = 120 + 300 * u32::try_from(self.panels.len())?;
        let area = page(path, (860, height), self.title, self.below)?;
        let parts = legend(&area, &names)?.split_evenly((self.panels.len(), 1));
        for ((heading, lines), part) in self.panels.iter().zip(parts) {
            self.draw_panel(
                &part,
                heading,
                lines,
                most.max(self.line.unwrap_or_default()),
            )?;
        }
        area.present().map_err(failure)
    }

    fn draw_panel(&self, area: &Area<'_>, heading: &str, lines: &[Line], most: f64) -> Result<()> {
        let style = text(TEXT, &INK, HPos::Left, VPos::Top);
        area.draw_text(heading, &style, (16, 0)).map_err(failure)?;
        let at = |mark: usize| (mark as f64).log2();
        let (Some(first), Some(last)) = (self.marks.first(), self.marks.last()) else {
            return Ok(());
        };
        let margin = 0.05 * (at(*last) - at(*first));
        let (left, right) = (at(*first) - margin, at(*last) + margin);
        let mut chart = ChartBuilder::on(&area.clone().margin(18, 0, 0, 0))
            .y_label_area_size(64)
            .x_label_area_size(28)
            .build_cartesian_2d(left..right, 0.0..most * 1.1)
            .map_err(failure)?;
        scale(&mut chart, self.label)?;
        if let Some(value) = self.line {
            let line = PathElement::new([(left, value), (right, value)], INK.stroke_width(1));
            chart.draw_series([line]).map_err(failure)?;
        }
        for mark in self.marks {
            let (x, y) = chart.backend_coord(&(at(*mark), 0.0));
            let style = text(TEXT, &INK, HPos::Center, VPos::Top);
            let plural = if *mark == 1 { "" } else { "s" };
            put(
                &chart,
                &format!("{mark} {}{plural}", self.word),
                &style,
                (x, y + 8),
            )?;
        }
        for (_, colour, points) in lines {
            let points = || points.iter().map(|(x, y)| (x.log2(), *y));
            let line = LineSeries::new(points(), colour.stroke_width(2));
            chart.draw_series(line).map_err(failure)?;
            let dots = points().map(|point| Circle::new(point, 4, colour.filled()));
            chart.draw_series(dots).map_err(failure)?;
        }
        Ok(())
    }
}

/// Plots pairs/s ÷ floor against the number of tasks.
fn draw_distinct_keys(report: &Report, path: &Path) -> Result<()> {
    const TASKS: [usize; 4] = [1, 16, 64, 256];
    let mut ids: Vec<(String, String, String)> = Vec::new();
    for (kind, id) in [
        ("one call each", "distinct_keys"),
        ("batched", "distinct_keys_batched"),
    ] {
        for (client, _) in clients(report) {
            ids.push((format!("{client}, {kind}"), id.into(), client));
        }
    }
    for peer in PEERS {
        let id = format!("peer.{peer}.distinct_keys");
        ids.push((peer.into(), id, "peer".into()));
    }
    let lines = ids.into_iter().zip(COLOURS);
    let lines = lines.map(|((name, id, client), colour)| {
        let ratio = |tasks: usize| report.figure(&format!("{id}.{tasks}"), &client)?.ratio;
        let points = TASKS.into_iter();
        let points = points.filter_map(|tasks| Some((tasks as f64, ratio(tasks)?)));
        (name, colour, points.collect())
    });
    Lines {
        title: "Uncontended locks, by tasks of one client",
        below: "pairs/s ÷ those of SET NX PX and compare-and-delete; higher is better",
        marks: &TASKS,
        word: "task",
        line: Some(1.0),
        label: &|value| format!("{value:.1}"),
        panels: vec![(String::new(), lines.collect())],
    }
    .draw(path)
}

/// Plots acquisitions/s of one lock against the number of clients that want it.
fn draw_queue_length(report: &Report, path: &Path) -> Result<()> {
    let panel = |(client, _): (String, RGBColor)| {
        let points = |end: &str, value: fn(&Figure) -> Option<f64>| -> Vec<(f64, f64)> {
            let lengths = CLIENTS.into_iter();
            let point = |length: usize| {
                let name = format!("zero_hold.{length}{end}");
                Some((length as f64, value(report.figure(&name, &client)?)?))
            };
            lengths.filter_map(point).collect()
        };
        let lines = vec![
            (
                "leasehold".into(),
                COLOURS[0],
                points("", |own| Some(own.value)),
            ),
            (
                "BLPOP, a signal".into(),
                COLOURS[1],
                points("", |own| own.floor),
            ),
            (
                "BLPOP, a token".into(),
                GREY,
                points(".beside_token", |own| own.floor),
            ),
        ];
        (client, lines)
    };
    Lines {
        title: "One lock, by the number of clients that want it all the time",
        below: "acquisitions per second, held for no time (the axis is logarithmic); higher is better",
        marks: &CLIENTS,
        word: "client",
        line: None,
        label: &number,
        panels: clients(report).into_iter().map(panel).collect(),
    }
    .draw(path)
}
