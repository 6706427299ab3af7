//! The report as one self-contained HTML page, from its Markdown.
//!
//! It knows as much of Markdown as the report uses: headings, paragraphs, lists, tables, code, bold text and
//! links. A line that begins with `<` is HTML.

use std::fmt::Write;

use crate::timeline::{HATCH, escaped, html};

/// What the report needs beside the style of the timelines.
const OWN_STYLE: &str = "h2 { font-size: 16px; margin: 28px 0 6px; } h3 { font-size: 14px; margin: 22px 0 4px; }\n\
    code, pre { font: 12px/1.45 ui-monospace, Menlo, Consolas, \"DejaVu Sans Mono\", monospace; }\n\
    pre { background: var(--box); padding: 8px 12px; margin: 0 0 10px; overflow-x: auto; } li { max-width: 100ch; }\n\
    a { color: var(--note); } figure { margin: 14px 0; overflow-x: auto; }\n\
    .table { overflow-x: auto; } table { border-collapse: collapse; } th { text-align: left; }\n\
    th, td { padding: 3px 10px 3px 0; border-bottom: 1px solid var(--line); vertical-align: top; }\n\
    td strong { color: var(--fault); } td:nth-last-child(-n+3) { white-space: nowrap; } summary { cursor: pointer; margin: 0 0 10px; }\n\
    details > div { overflow-x: auto; margin: 0 0 14px; } .none { position: absolute; }\n";

/// The page with this title and this content.
pub(crate) fn page(title: &str, markdown: &str) -> String {
    let hatch = format!("<svg class=\"none\" width=\"0\" height=\"0\">{HATCH}</svg>\n");
    html(title, OWN_STYLE, &(hatch + &body(markdown)))
}

/// What a line continues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    Paragraph,
    List,
    Table,
    Code,
}

impl Open {
    const fn end(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Paragraph => "</p>\n",
            Self::List => "</li>\n</ul>\n",
            Self::Table => "</table></div>\n",
            Self::Code => "</code></pre>\n",
        }
    }
}

fn body(markdown: &str) -> String {
    let (mut out, mut open) = (String::new(), Open::Nothing);
    for line in markdown.lines() {
        let next = match (open, line) {
            (Open::Code, _) if line.starts_with("```") => Open::Nothing,
            (Open::Code, _) => Open::Code,
            _ if line.starts_with("```") => Open::Code,
            (_, "") => Open::Nothing,
            _ if line.starts_with('#') || line.starts_with('<') => Open::Nothing,
            _ if line.starts_with('|') => Open::Table,
            _ if line.starts_with("- ") => Open::List,
            (Open::List, _) => Open::List,
            _ => Open::Paragraph,
        };
        let begins = next != open;
        if begins {
            out.push_str(open.end());
        }
        open = next;
        write_line(&mut out, line, open, begins);
    }
    out.push_str(open.end());
    out
}

/// Writes a line of an element that may begin with it.
fn write_line(out: &mut String, line: &str, element: Open, begins: bool) {
    // Writing to a string cannot fail.
    let _ = match element {
        Open::Nothing if line.starts_with('<') => writeln!(out, "{line}"),
        Open::Nothing if line.starts_with('#') => {
            let text = line.trim_start_matches('#');
            let level = line.len() - text.len();
            writeln!(out, "<h{level}>{}</h{level}>", inline(text.trim()))
        }
        Open::Nothing => Ok(()),
        Open::Code if begins => write!(out, "<pre><code>"),
        Open::Code => writeln!(out, "{}", escaped(line)),
        Open::Paragraph if begins => writeln!(out, "<p>{}", inline(line)),
        Open::Paragraph => writeln!(out, "{}", inline(line)),
        Open::List => {
            let start = if begins { "<ul>\n<li>" } else { "</li>\n<li>" };
            match line.strip_prefix("- ") {
                Some(text) => writeln!(out, "{start}{}", inline(text)),
                None => writeln!(out, "{}", inline(line)),
            }
        }
        // The line below the head of a table.
        Open::Table if line.starts_with("|--") => Ok(()),
        Open::Table => {
            let (start, cell) = match begins {
                true => ("<div class=\"table\"><table>\n", "th"),
                false => ("", "td"),
            };
            let cells = line.trim_matches('|').split('|');
            let cells = cells.map(|text| format!("<{cell}>{}</{cell}>", inline(text.trim())));
            writeln!(out, "{start}<tr>{}</tr>", cells.collect::<String>())
        }
    };
}

/// Code, bold text and links within a line.
fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        out.push_str(&escaped(&rest[..at]));
        rest = &rest[at..];
        let (element, after) = element(rest).unwrap_or_else(|| (rest[..1].into(), &rest[1..]));
        out.push_str(&element);
        rest = after;
    }
    out + &escaped(rest)
}

/// The element that the text begins with, and what follows it.
fn element(text: &str) -> Option<(String, &str)> {
    if let Some((code, after)) = text.strip_prefix('`').and_then(|it| it.split_once('`')) {
        return Some((format!("<code>{}</code>", escaped(code)), after));
    }
    if let Some((bold, after)) = text.strip_prefix("**").and_then(|it| it.split_once("**")) {
        return Some((format!("<strong>{}</strong>", inline(bold)), after));
    }
    let (label, after) = text.strip_prefix('[')?.split_once("](")?;
    let (address, after) = after.split_once(')')?;
    let link = format!("<a href=\"{}\">{}</a>", escaped(address), inline(label));
    Some((link, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_of_the_report_becomes_html() {
        let text = "# One\n\nA *line*,\n`a < b` and **bold [link](to.md)**.\n\n- first\n  more\n- second\n\n\
            ```text\n<x>\n\n- y\n```\n\n| a | b |\n|---|---|\n| **no** | 2 |\n<hr>\nend";
        assert_eq!(
            body(text),
            "<h1>One</h1>\n<p>A *line*,\n<code>a &lt; b</code> and <strong>bold <a href=\"to.md\">link</a></strong>.\n</p>\n\
             <ul>\n<li>first\n  more\n</li>\n<li>second\n</li>\n</ul>\n<pre><code>&lt;x&gt;\n\n- y\n</code></pre>\n\
             <div class=\"table\"><table>\n<tr><th>a</th><th>b</th></tr>\n<tr><td><strong>no</strong></td><td>2</td></tr>\n\
             </table></div>\n<hr>\n<p>end\n</p>\n"
        );
    }
}
