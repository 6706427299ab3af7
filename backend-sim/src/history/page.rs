//! The run as a self-contained HTML page with an SVG picture.

use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use leasehold_api::Mode;

use crate::history::data::History;
use crate::history::layout::{Arrow, Bar, Instant, Layout, ROW, TIME_WIDTH, is_fault};
use crate::history::spans::{Absence, Span, SpanEnd};
use crate::history::words::{describe, describe_notification, name, seconds};
use crate::record::{Content, Entry, Event, Fate, Message};

/// The page contains everything that it needs, so it may load nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
/// Half the width of a bar, in CSS pixels.
const HALF_BAR: i32 = 5;
/// About the width of a character of the descriptions.
const CHARACTER: i32 = 8;
/// Left edge and length of the overview's lanes.
const OVERVIEW: (i32, i32) = (96, 800);

pub(crate) fn render(history: &History) -> String {
    let layout = Layout::new(history);
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut page, history, &layout);
    page
}

/// Escapes text for HTML, inside or outside of quotes. Control characters become their symbols.
struct Escaped<T>(T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.to_string().chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' => f.write_str("&#10;")?,
                '\u{0}'..='\u{1f}' => {
                    let picture = char::from_u32(0x2400 + u32::from(c));
                    f.write_char(picture.unwrap_or('?'))?;
                }
                '\u{7f}'..='\u{9f}' => f.write_char('\u{2421}')?,
                // These characters would reverse the rest of the line.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

fn write_page(out: &mut String, history: &History, layout: &Layout) -> fmt::Result {
    let title = Escaped(&history.title);
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{}</style>\n\
         </head>\n<body>",
        include_str!("page.css")
    )?;
    write_head(out, history, layout)?;
    write_overview(out, history, layout)?;
    let texts = history.entries.iter().map(entry_text);
    let longest = texts.map(|text| text.chars().count()).max().unwrap_or(0);
    let longest = i32::try_from(longest + widest_name(layout) + 4).unwrap_or(i32::MAX);
    let longest = longest.saturating_mul(CHARACTER);
    let width = layout.text_x().saturating_add(longest);
    writeln!(out, "<div class=\"scroll\" style=\"min-width:{width}px\">")?;
    write_headings(out, layout)?;
    let height = layout.height;
    writeln!(
        out,
        "<svg class=\"run\" width=\"{width}\" height=\"{height}\" role=\"img\">{HATCH}"
    )?;
    write_lines(out, layout)?;
    for absence in &layout.absences {
        write_absence(out, layout, absence)?;
    }
    for bar in layout.bars() {
        write_bar(out, history, &bar)?;
    }
    for (entry, &y) in history.entries.iter().zip(&layout.rows) {
        write_row(out, history, layout, entry, y)?;
    }
    for message in &history.messages {
        write_message(out, history, layout, message)?;
    }
    writeln!(
        out,
        "</svg>\n</div>\n<div id=\"tip\"></div>\n<script>\n{}</script>\n</body>\n</html>",
        include_str!("page.js")
    )
}

const HATCH: &str = "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternTransform=\"rotate(45)\" \
    patternUnits=\"userSpaceOnUse\"><path d=\"M0 0V6\" stroke=\"#b97a00\" stroke-width=\"1.6\" opacity=\".45\"/></pattern></defs>";

fn widest_name(layout: &Layout) -> usize {
    let names = layout.columns.iter().map(|name| name.chars().count());
    names.max().unwrap_or(0).max("server".len())
}

fn write_head(out: &mut String, history: &History, layout: &Layout) -> fmt::Result {
    writeln!(out, "<h1>{}</h1>", Escaped(&history.title))?;
    let (clients, end) = (layout.columns.len(), seconds(history.end()));
    let (entries, messages) = (history.entries.len(), history.messages.len());
    write!(
        out,
        "<p class=\"sum\">{clients} clients, {end} of virtual time, {entries} events, {messages} messages"
    )?;
    if history.dropped > 0 {
        write!(out, "; {} earlier events are not shown", history.dropped)?;
    }
    writeln!(out, ".</p>")?;
    if let Some(verdict) = &history.verdict {
        writeln!(out, "<div class=\"verdict\">{}</div>", Escaped(verdict))?;
    }
    if let Some(replay) = &history.replay {
        let replay = Escaped(replay);
        writeln!(
            out,
            "<div class=\"replay\">To repeat it: <code>{replay}</code></div>"
        )?;
    }
    writeln!(out, "{}", include_str!("legend.html"))
}

/// Writes the overview: the whole run to scale, with a lane for each client and a tick for each
/// fault.
fn write_overview(out: &mut String, history: &History, layout: &Layout) -> fmt::Result {
    let (left, width) = OVERVIEW;
    let end = history.end().max(Duration::from_millis(1)).as_secs_f64();
    let x = |at: Duration| f64::from(left) + at.as_secs_f64() / end * f64::from(width);
    let height = 18 * layout.columns.len() + 20;
    writeln!(
        out,
        "<svg class=\"overview\" width=\"{}\" height=\"{height}\" data-left=\"{left}\" \
         data-width=\"{width}\" data-end=\"{end:.6}\">{HATCH}",
        left + width + 60
    )?;
    for (lane, name) in layout.columns.iter().enumerate() {
        let y = 18 * lane + 9;
        let shown: String = name.chars().take(12).collect();
        let (text, shown) = (y + 4, Escaped(&shown));
        writeln!(out, "<text x=\"0\" y=\"{text}\">{shown}</text>")?;
        writeln!(
            out,
            "<path class=\"lane\" d=\"M{left} {y}H{}\"/>",
            left + width
        )?;
        for span in layout.spans.iter().filter(|span| span.client == *name) {
            let (from, to) = (x(span.from), x(span.to));
            let (class, color, top) = (class(span), color(history, span), y - 5);
            let wide = (to - from).max(1.0);
            writeln!(
                out,
                "<rect class=\"{class} {color}\" x=\"{from:.1}\" y=\"{top}\" width=\"{wide:.1}\" height=\"10\"/>"
            )?;
        }
        let absences = layout.absences.iter();
        for absence in absences.filter(|it| it.client.as_ref() == Some(name)) {
            let (from, to, top) = (x(absence.from), x(absence.to), y - 7);
            let wide = (to - from).max(1.0);
            writeln!(
                out,
                "<g class=\"gone\"><rect x=\"{from:.1}\" y=\"{top}\" width=\"{wide:.1}\" height=\"14\"/></g>"
            )?;
        }
        let faults = history.entries.iter().filter(|it| is_fault(&it.event));
        for entry in faults.filter(|entry| entry.client.as_ref() == Some(name)) {
            let (at, top) = (x(entry.at), y - 8);
            writeln!(out, "<path class=\"tick\" d=\"M{at:.1} {top}v16\"/>")?;
        }
    }
    let (y, middle) = (18 * layout.columns.len() + 13, left + width / 2);
    for (at, anchor, time) in [
        (left, "start", 0.0),
        (middle, "middle", end / 2.0),
        (left + width, "end", end),
    ] {
        writeln!(
            out,
            "<text class=\"dim\" x=\"{at}\" y=\"{y}\" text-anchor=\"{anchor}\">{time:.3} s</text>"
        )?;
    }
    writeln!(out, "</svg>")
}

fn write_headings(out: &mut String, layout: &Layout) -> fmt::Result {
    write!(
        out,
        "<div class=\"heads\"><i style=\"left:{}px\">time, s</i>",
        TIME_WIDTH - 58
    )?;
    for name in &layout.columns {
        let (x, name) = (layout.x(Some(name)), Escaped(name));
        write!(out, "<b style=\"left:{x}px\" title=\"{name}\">{name}</b>")?;
    }
    let x = layout.x(None);
    writeln!(
        out,
        "<b style=\"left:{x}px\">server</b><i style=\"left:{}px\">what happened</i></div>",
        layout.text_x()
    )
}

/// Writes the lifelines of the clients and the server, and the times next to them.
fn write_lines(out: &mut String, layout: &Layout) -> fmt::Result {
    let height = layout.height;
    for name in &layout.columns {
        let x = layout.x(Some(name));
        writeln!(out, "<path class=\"life\" d=\"M{x} 0V{height}\"/>")?;
    }
    let x = layout.x(None);
    writeln!(out, "<path class=\"life server\" d=\"M{x} 0V{height}\"/>")?;
    let mut before: Option<&Instant> = None;
    for instant in layout.instants.iter().filter(|instant| instant.rows > 0) {
        let (x, y, at) = (TIME_WIDTH - 16, instant.first + 4, instant.at.as_secs_f64());
        writeln!(out, "<text class=\"at\" x=\"{x}\" y=\"{y}\">{at:.3}</text>")?;
        if let Some(before) = before {
            let (passed, room) = (instant.at - before.at, instant.first - before.last);
            if passed >= Duration::from_millis(50) && room >= ROW + 14 {
                let y = before.last + room / 2 + 4;
                let passed = passed.as_secs_f64();
                writeln!(
                    out,
                    "<text class=\"gap\" x=\"{x}\" y=\"{y}\">+{passed:.3}</text>"
                )?;
            }
        }
        before = Some(instant);
    }
    Ok(())
}

fn write_absence(out: &mut String, layout: &Layout, absence: &Absence) -> fmt::Result {
    let client = absence.client.as_deref();
    let x = layout.x(client) - 18;
    let end = absence.rows.1.map(|row| layout.rows[row]);
    let bottom = end.unwrap_or(layout.instant(absence.to).first);
    let top = layout.rows[absence.rows.0];
    let (height, name) = ((bottom - top).max(4), absence.kind.name());
    let subject = Escaped(client.unwrap_or("the server"));
    let (from, to) = (seconds(absence.from), seconds(absence.to));
    writeln!(
        out,
        "<g class=\"gone\" data-t=\"{subject} is {name} from {from} to {to}\">\
         <rect x=\"{x}\" y=\"{top}\" width=\"36\" height=\"{height}\"/>\
         <text x=\"{}\" y=\"{}\">{name}</text></g>",
        x - 3,
        top + 12
    )
}

fn class(span: &Span) -> &'static str {
    match (span.is_hold(), span.mode) {
        (true, Mode::Exclusive) => "hold",
        (true, _) => "shared",
        (false, _) => "wait",
    }
}

/// Returns the colour class of a key. The colours repeat after six keys.
fn color(history: &History, span: &Span) -> &'static str {
    let mut keys = Vec::new();
    for entry in &history.entries {
        if let Event::Executed { key, .. } = &entry.event {
            if *key == span.key {
                break;
            }
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    ["k0", "k1", "k2", "k3", "k4", "k5"][keys.len() % 6]
}

fn write_bar(out: &mut String, history: &History, bar: &Bar) -> fmt::Result {
    let Bar {
        span,
        x,
        top,
        bottom,
    } = bar;
    let (class, color) = (class(span), color(history, span));
    let (left, height) = (x - HALF_BAR, bottom - top);
    write!(
        out,
        "<g class=\"bar {color}\" data-t=\"{}\">",
        Escaped(bar_text(span))
    )?;
    write!(
        out,
        "<rect class=\"{class}\" x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{height}\"/>",
        2 * HALF_BAR
    )?;
    if matches!(
        span.end,
        SpanEnd::Expired | SpanEnd::Forced | SpanEnd::Forgotten
    ) {
        let (from, to) = (left - 3, left + 2 * HALF_BAR + 3);
        write!(out, "<path class=\"over\" d=\"M{from} {bottom}H{to}\"/>")?;
    }
    if span.is_hold() && height >= ROW {
        let key: String = span.key.as_str().chars().take(9).collect();
        let (x, y, key) = (left + 2 * HALF_BAR + 3, top + 11, Escaped(&key));
        write!(out, "<text x=\"{x}\" y=\"{y}\">{key}</text>")?;
    }
    writeln!(out, "</g>")
}

fn bar_text(span: &Span) -> String {
    let (client, key, number) = (&span.client, &span.key, span.sequence);
    let how = match (span.token, span.mode) {
        (None, _) => "waits for",
        (Some(_), Mode::Exclusive) => "holds exclusively:",
        (Some(_), _) => "holds with others:",
    };
    let end = match span.end {
        SpanEnd::Open => "still open at the end of the log",
        SpanEnd::Became if span.token.is_none() => "until it was granted",
        SpanEnd::Became => "until it was converted",
        SpanEnd::Released => "until the client released it",
        SpanEnd::Expired => "until it expired",
        SpanEnd::Forced => "until a forced release",
        SpanEnd::Forgotten => "until the server no longer knew it",
    };
    let [from, to, long] = [span.from, span.to, span.to - span.from].map(seconds);
    let mut text =
        format!("{client} {how} {key:?}, attempt #{number}\n{from} to {to} ({long}), {end}");
    if let Some(token) = span.token {
        let _ = write!(text, "\ntoken {token}");
    }
    text
}

/// Returns the CSS class of an event's row.
fn kind(event: &Event) -> &'static str {
    match event {
        event if is_fault(event) => "fault",
        Event::Failed { .. } => "failed",
        Event::Client(_) | Event::Server(_) => "action",
        Event::Note { .. } => "note",
        Event::Notified { .. } => "push",
        _ => "step",
    }
}

fn entry_text(entry: &Entry) -> String {
    describe(&entry.event).to_string()
}

fn write_row(
    out: &mut String,
    history: &History,
    layout: &Layout,
    entry: &Entry,
    y: i32,
) -> fmt::Result {
    let at_server = matches!(kind(&entry.event), "step") || entry.client.is_none();
    let client = entry.client.as_deref();
    let x = layout.x(if at_server { None } else { client });
    let (kind, at) = (kind(&entry.event), entry.at.as_secs_f64());
    let (subject, event) = (client.unwrap_or("server"), entry_text(entry));
    let cause = entry.message.and_then(|number| message(history, number));
    let mut details = format!("{at:.6} s  {subject}: {event}");
    if let Some(message) = cause {
        let text = message_text(history, layout, message);
        let _ = write!(details, "\n{text}");
    }
    let details = Escaped(details);
    write!(
        out,
        "<g class=\"row {kind}\" data-at=\"{at:.6}\" data-t=\"{details}\""
    )?;
    if let Some(group) = cause.map(group) {
        write!(out, " data-m=\"{group}\"")?;
    }
    let (top, text_x) = (y - ROW / 2, layout.text_x());
    let name = i32::try_from(widest_name(layout)).unwrap_or(0) * CHARACTER;
    writeln!(
        out,
        "><rect class=\"hit\" x=\"0\" y=\"{top}\" width=\"100%\" height=\"{ROW}\"/>\
         <path class=\"rule\" d=\"M{x} {y}H{}\"/><circle class=\"dot\" cx=\"{x}\" cy=\"{y}\" r=\"3\"/>\
         <text class=\"who\" x=\"{text_x}\" y=\"{}\">{}</text>\
         <text class=\"what\" x=\"{}\" y=\"{}\">{}</text></g>",
        text_x - 6,
        y + 4,
        Escaped(subject),
        text_x + name + 8,
        y + 4,
        Escaped(event)
    )
}

fn message(history: &History, number: u64) -> Option<&Message> {
    let messages = &history.messages;
    let index = messages.binary_search_by_key(&number, |it| it.number);
    index.ok().map(|index| &messages[index])
}

/// Returns the group of messages that are highlighted together: a request and its reply.
fn group(message: &Message) -> u64 {
    match message.content {
        Content::Reply { to, .. } => to,
        _ => message.number,
    }
}

fn message_text(history: &History, layout: &Layout, message: &Message) -> String {
    let (client, sent) = (&message.client, seconds(message.sent));
    let subject = match message.content {
        Content::Request { call, again: false } => format!("{} of {client}", name(call)),
        Content::Request { call, again: true } => format!("{} of {client}, sent again", name(call)),
        Content::Reply { call, .. } => format!("reply to {} of {client}", name(call)),
        Content::Push { notification, .. } => {
            format!("push to {client}: {}", describe_notification(&notification))
        }
        Content::Unlisten => format!("{client} unsubscribes"),
    };
    let fate = match message.fate {
        Fate::Arrived(at) => format!("arrived at {} ({:?})", seconds(at), at - message.sent),
        Fate::Lost(at) => format!("lost at {}", seconds(at)),
        Fate::UnderWay => "still in flight".to_owned(),
    };
    let mut text = format!("{subject}\nsent at {sent}, {fate}");
    for &fault in layout.faults(message.number) {
        let _ = write!(text, "\n{}", describe(&history.entries[fault].event));
    }
    text
}

fn write_message(
    out: &mut String,
    history: &History,
    layout: &Layout,
    message: &Message,
) -> fmt::Result {
    let direction = match message.content {
        Content::Reply { .. } => "reply",
        Content::Push { .. } => "push",
        _ => "request",
    };
    let lost = matches!(message.fate, Fate::Lost(_));
    let fault = if lost { " fault" } else { "" };
    let Arrow {
        from: (x0, y0),
        to: (x1, y1),
    } = layout.arrow(message);
    // The arrow of a message that did not arrive ends halfway.
    let (x1, y1) = match message.fate {
        Fate::Arrived(_) => (x1, y1),
        _ => (x0 + (x1 - x0) * 3 / 5, y0 + (y1 - y0) * 3 / 5),
    };
    let details = Escaped(message_text(history, layout, message));
    let number = group(message);
    write!(
        out,
        "<g class=\"msg {direction}{fault}\" data-m=\"{number}\" data-t=\"{details}\">\
         <path class=\"wide\" d=\"M{x0} {y0}L{x1} {y1}\"/><path d=\"M{x0} {y0}L{x1} {y1}\"/>"
    )?;
    match message.fate {
        Fate::Arrived(_) => write_tip(out, (x0, y0), (x1, y1))?,
        Fate::Lost(_) => {
            let (left, top) = (x1 - 5, y1 - 5);
            write!(
                out,
                "<path class=\"cross\" d=\"M{left} {top}l10 10m0 -10l-10 10\"/>"
            )?;
        }
        Fate::UnderWay => {}
    }
    writeln!(out, "</g>")
}

fn write_tip(out: &mut String, from: (i32, i32), to: (i32, i32)) -> fmt::Result {
    let (dx, dy) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
    let length = dx.hypot(dy).max(1.0);
    let (dx, dy) = (dx / length, dy / length);
    let (x, y) = (f64::from(to.0), f64::from(to.1));
    let (bx, by) = (x - 8.0 * dx, y - 8.0 * dy);
    write!(
        out,
        "<path class=\"tip\" d=\"M{x:.1} {y:.1}L{:.1} {:.1}L{:.1} {:.1}Z\"/>",
        bx - 3.2 * dy,
        by + 3.2 * dx,
        bx + 3.2 * dy,
        by - 3.2 * dx
    )
}
