//! The plots of a report, as SVG.

use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figures::hand_over::CLIENTS;
use crate::report::summary::{CONTENDED, number};
use crate::report::{Figure, Report};
use crate::{PEERS, Result};

const INK: RGBColor = RGBColor(40, 44, 52);
const GREY: RGBColor = RGBColor(150, 156, 166);
const LIGHT: RGBColor = RGBColor(226, 229, 234);
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
const WIDTH: u32 = 860;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws each plot that the report has figures for.
pub(super) fn draw(report: &Report, folder: &Path) -> Result<()> {
    for (name, plot) in [
        ("sequential.svg", pairs(report)),
        ("distinct_keys.svg", distinct_keys(report)),
        ("hand_over.svg", hand_overs(report)),
        ("queues.svg", rates(report)),
        ("queue_length.svg", queue_length(report)),
        ("waits.svg", waits(report)),
    ] {
        plot.draw(&folder.join(name))?;
    }
    Ok(())
}

fn text(size: u32, colour: &RGBColor, horizontal: HPos, vertical: VPos) -> TextStyle<'_> {
    TextStyle::from(("sans-serif", size).into_font())
        .color(colour)
        .pos(Pos::new(horizontal, vertical))
}

/// A white page with a title and a subtitle.
fn page<'a>(path: &'a Path, height: u32, title: &str, below: &str) -> Result<Area<'a>> {
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw_text(title, &text(TITLE, &INK, HPos::Left, VPos::Top), (16, 12))?;
    area.draw_text(below, &text(TEXT, &GREY, HPos::Left, VPos::Top), (16, 38))?;
    Ok(area.margin(64, 8, 8, 16))
}

/// Draws a legend along the top. Returns the area below it.
fn legend<'a>(area: &Area<'a>, names: &[&(String, RGBColor)]) -> Result<Area<'a>> {
    const ROW: i32 = 20;
    let right = i32::try_from(area.dim_in_pixel().0)?;
    let (mut x, mut y) = (16, 0);
    for (name, colour) in names {
        let width = 34 + 7 * i32::try_from(name.len())?;
        if x > 16 && x + width > right {
            (x, y) = (16, y + ROW);
        }
        area.draw(&Rectangle::new([(x, y), (x + 12, y + 12)], colour.filled()))?;
        let style = text(TEXT, &INK, HPos::Left, VPos::Top);
        area.draw_text(name, &style, (x + 18, y - 1))?;
        x += width;
    }
    Ok(area.clone().margin(y + ROW + 8, 0, 0, 0))
}

fn clients(report: &Report) -> Vec<(String, RGBColor)> {
    report.clients().map(str::to_owned).zip(COLOURS).collect()
}

/// Draws text at a pixel of the whole picture.
fn put(chart: &Chart<'_, '_>, words: &str, style: &TextStyle<'_>, at: (i32, i32)) -> Result<()> {
    let area = chart.plotting_area().strip_coord_spec();
    let (origin_x, origin_y) = area.get_base_pixel();
    Ok(area.draw_text(words, style, (at.0 - origin_x, at.1 - origin_y))?)
}

/// A name and one optional value per series.
type Group = (String, Vec<Option<f64>>);

/// A chart of bars in groups, with a number above each bar, or of lines.
#[derive(Default)]
struct Plot {
    title: &'static str,
    below: &'static str,
    /// The name and colour of each bar of a group, or of each line.
    series: Vec<(String, RGBColor)>,
    /// Charts one above the other, on the same scale, each with a heading.
    panels: Vec<(String, Vec<Group>)>,
    /// Draws a line at the floor.
    line: Option<f64>,
    /// Draws lines, and the groups are at these places of a logarithmic axis.
    marks: Option<&'static [usize]>,
}

impl Plot {
    fn draw(mut self, path: &Path) -> Result<()> {
        let has_values = |(_, values): &Group| values.iter().any(Option::is_some);
        if self.marks.is_none() {
            for (_, groups) in &mut self.panels {
                groups.retain(has_values);
            }
        }
        self.panels
            .retain(|(_, groups)| groups.iter().any(has_values));
        let groups = || self.panels.iter().flat_map(|(_, groups)| groups);
        let values = groups().flat_map(|(_, values)| values).flatten().copied();
        let most = values.fold(0.0, f64::max);
        if most <= 0.0 {
            return Ok(());
        }
        let most = most.max(self.line.unwrap_or_default());
        let is_drawn = |index: usize| groups().any(|(_, values)| values[index].is_some());
        let names = self.series.iter().enumerate();
        let names = names.filter_map(|(index, name)| is_drawn(index).then_some(name));
        let height = 120 + 300 * u32::try_from(self.panels.len())?;
        let area = page(path, height, self.title, self.below)?;
        let rest = legend(&area, &names.collect::<Vec<_>>())?;
        let parts = rest.split_evenly((self.panels.len(), 1));
        for ((heading, groups), part) in self.panels.iter().zip(parts) {
            part.draw_text(heading, &text(TEXT, &INK, HPos::Left, VPos::Top), (16, 0))?;
            self.draw_panel(&part.margin(18, 0, 0, 0), groups, most)?;
        }
        Ok(area.present()?)
    }

    /// The middle of a group.
    fn x(&self, index: usize) -> f64 {
        match self.marks {
            Some(marks) => (marks[index] as f64).log2(),
            None => index as f64 + 0.5,
        }
    }

    fn draw_panel(&self, area: &Area<'_>, groups: &[Group], most: f64) -> Result<()> {
        let (first, last) = (self.x(0), self.x(groups.len() - 1));
        let margin = self.marks.map_or(0.5, |_| 0.05 * (last - first));
        let (left, right) = (first - margin, last + margin);
        let mut chart = ChartBuilder::on(area)
            .y_label_area_size(64)
            .x_label_area_size(28)
            .build_cartesian_2d(left..right, 0.0..most * 1.12)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .light_line_style(TRANSPARENT)
            .bold_line_style(LIGHT)
            .axis_style(LIGHT)
            .y_labels(6)
            .y_label_formatter(&|value| number(*value))
            .y_label_style(text(TEXT, &INK, HPos::Right, VPos::Center))
            .draw()?;
        for (index, (name, values)) in groups.iter().enumerate() {
            if self.marks.is_none() {
                self.draw_bars(&mut chart, self.x(index), values)?;
            }
            let (x, y) = chart.backend_coord(&(self.x(index), 0.0));
            let style = text(TEXT, &INK, HPos::Center, VPos::Top);
            put(&chart, name, &style, (x, y + 8))?;
        }
        if let Some(at) = self.line {
            let line = PathElement::new([(left, at), (right, at)], INK.stroke_width(1));
            chart.draw_series([line])?;
        }
        if self.marks.is_some() {
            self.draw_lines(&mut chart, groups)?;
        }
        Ok(())
    }

    fn draw_bars(
        &self,
        chart: &mut Chart<'_, '_>,
        middle: f64,
        values: &[Option<f64>],
    ) -> Result<()> {
        let bars = values.iter().zip(&self.series);
        let bars = bars.filter_map(|(value, (_, colour))| Some(((*value)?, colour)));
        let bars: Vec<_> = bars.collect();
        // A single bar is as wide as one of two.
        let width = 0.86 / bars.len().max(2) as f64;
        let from = middle - width * bars.len() as f64 / 2.0;
        for (at, (value, colour)) in bars.into_iter().enumerate() {
            let from = from + width * at as f64;
            let bar = [(from, 0.0), (from + 0.92 * width, value)];
            chart.draw_series([Rectangle::new(bar, colour.filled())])?;
            let (x, y) = chart.backend_coord(&(from + 0.46 * width, value));
            let style = text(11, &INK, HPos::Center, VPos::Bottom);
            put(chart, &number(value), &style, (x, y - 3))?;
        }
        Ok(())
    }

    fn draw_lines(&self, chart: &mut Chart<'_, '_>, groups: &[Group]) -> Result<()> {
        for (series, (_, colour)) in self.series.iter().enumerate() {
            let groups = groups.iter().enumerate();
            let points = groups.filter_map(|(at, (_, values))| Some((self.x(at), values[series]?)));
            let dot = |point| Circle::new(point, 4, colour.filled());
            chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
            chart.draw_series(points.map(dot))?;
        }
        Ok(())
    }
}

fn pairs(report: &Report) -> Plot {
    let each = |name: &str| {
        let ratios = report.clients().map(|client| report.ratio(name, client));
        ratios.chain([None]).collect()
    };
    let mut groups: Vec<Group> = vec![("leasehold".into(), each("sequential.p50"))];
    for peer in PEERS {
        let value = report.ratio(&format!("peer.{peer}.sequential.p50"), "peer");
        let nothing = report.clients().map(|_| None);
        groups.push((peer.into(), nothing.chain([value]).collect()));
    }
    let mut series = clients(report);
    series.push(("another library".into(), GREY));
    Plot {
        title: "Acquiring and releasing a free lock, one pair at a time",
        below: "median time ÷ that of SET NX PX and a compare-and-delete script on the same client; lower is better",
        series,
        panels: vec![(String::new(), groups)],
        line: Some(1.0),
        ..Plot::default()
    }
}

fn hand_overs(report: &Report) -> Plot {
    let mut series = Vec::new();
    for ((client, colour), pale) in clients(report).into_iter().zip(&COLOURS[2..]) {
        series.push((format!("PUBLISH, {client}"), *pale));
        series.push((format!("hand-over, {client}"), colour));
    }
    let group = |contenders: usize| {
        let values = report.clients().flat_map(|client| {
            let figure = report.figure(&format!("hand_over.{contenders}.p50"), client);
            [figure.and_then(|it| it.floor), figure.map(|it| it.value)]
        });
        (format!("{contenders} clients"), values.collect())
    };
    Plot {
        title: "Hand-over: from the release of one client to the grant of the next",
        below: "median in µs, next to a bare PUBLISH from one connection to another; lower is better",
        series,
        panels: vec![(String::new(), CLIENTS.map(group).into())],
        ..Plot::default()
    }
}

/// The acquisitions per second of leasehold, and of the two locks on `BLPOP` next to it.
fn beside_blpop(report: &Report, name: &str, client: &str) -> Vec<Option<f64>> {
    let own = report.figure(name, client);
    let token = report.figure(&format!("{name}.beside_token"), client);
    let floor = |figure: Option<&Figure>| figure.and_then(|figure| figure.floor);
    vec![own.map(|own| own.value), floor(own), floor(token)]
}

fn blpop_series(colours: [RGBColor; 3]) -> Vec<(String, RGBColor)> {
    let names = ["leasehold", "BLPOP, a signal", "BLPOP, a token"];
    names.map(str::to_owned).into_iter().zip(colours).collect()
}

fn rates(report: &Report) -> Plot {
    let panel = |(client, _): (String, RGBColor)| {
        let mut groups = Vec::new();
        for (kind, words) in [("zero_hold", "no hold"), ("drain", "drain")] {
            for contenders in [2, 32, 1_000] {
                let values = beside_blpop(report, &format!("{kind}.{contenders}"), &client);
                groups.push((format!("{words}, {contenders}"), values));
            }
        }
        (client, groups)
    };
    Plot {
        title: "Acquisitions of one lock by 2, 32 or 1,000 clients, per second",
        below: "held for no time, or a queue that drains; higher is better",
        series: blpop_series([COLOURS[0], LIGHT, GREY]),
        panels: clients(report).into_iter().map(panel).collect(),
        ..Plot::default()
    }
}

/// Plots how long clients wait for a contended lock.
fn waits(report: &Report) -> Plot {
    let group = |(words, name): (&str, &str)| {
        let wait = |at| report.value(&format!("peer.{name}.steady.wait_{at}"), "peer");
        (words.replace('`', ""), vec![wait("p50"), wait("p99")])
    };
    Plot {
        title: "Waiting for one lock that 8 clients share",
        below: "the wait in ms; each client holds it for 5 ms, then pauses for 20 ms; lower is better",
        series: vec![
            ("median".into(), COLOURS[2]),
            ("99th percentile".into(), COLOURS[0]),
        ],
        panels: vec![(String::new(), CONTENDED.map(group).into())],
        ..Plot::default()
    }
}

/// The name of a mark on the axis.
fn count(mark: usize, word: &str) -> String {
    format!("{mark} {word}{}", if mark == 1 { "" } else { "s" })
}

/// Plots pairs/s ÷ floor against the number of tasks.
fn distinct_keys(report: &Report) -> Plot {
    const TASKS: &[usize] = &[1, 16, 64, 256];
    let own = |client: &'static str| (client.to_owned(), "distinct_keys".to_owned(), client);
    let mut ids: Vec<(String, String, &str)> = report.clients().map(own).collect();
    for peer in PEERS {
        ids.push((peer.into(), format!("peer.{peer}.distinct_keys"), "peer"));
    }
    let group = |tasks: &usize| {
        let ratio = |(_, id, client): &(String, String, &str)| {
            report.ratio(&format!("{id}.{tasks}"), client)
        };
        (count(*tasks, "task"), ids.iter().map(ratio).collect())
    };
    let groups = TASKS.iter().map(group).collect();
    let names = ids.iter().map(|(name, ..)| name.clone());
    Plot {
        title: "Uncontended locks, by tasks of one client",
        below: "pairs/s ÷ those of SET NX PX and compare-and-delete; higher is better",
        series: names.zip(COLOURS).collect(),
        panels: vec![(String::new(), groups)],
        line: Some(1.0),
        marks: Some(TASKS),
    }
}

/// Plots acquisitions/s of one lock against the number of clients that want it.
fn queue_length(report: &Report) -> Plot {
    let panel = |(client, _): (String, RGBColor)| {
        let groups = CLIENTS.map(|length| {
            let values = beside_blpop(report, &format!("zero_hold.{length}"), &client);
            (count(length, "client"), values)
        });
        (client, groups.into())
    };
    Plot {
        title: "One lock, by the number of clients that want it all the time",
        below: "acquisitions per second, held for no time (the axis is logarithmic); higher is better",
        series: blpop_series([COLOURS[0], COLOURS[1], GREY]),
        panels: clients(report).into_iter().map(panel).collect(),
        marks: Some(&CLIENTS),
        ..Plot::default()
    }
}
