//! The report as one self-contained HTML page, from its Markdown.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html::push_html};

use crate::timeline::{HATCH, html, visible};

/// What the report needs beside the style of the timelines.
const OWN_STYLE: &str = "h2 { font-size: 16px; margin: 28px 0 6px; } h3 { font-size: 14px; margin: 22px 0 4px; }\n\
    code, pre { font: 12px/1.45 ui-monospace, Menlo, Consolas, \"DejaVu Sans Mono\", monospace; }\n\
    pre { background: var(--box); padding: 8px 12px; margin: 0 0 10px; overflow-x: auto; } li { max-width: 100ch; }\n\
    a { color: var(--note); } figure { margin: 14px 0; overflow-x: auto; }\n\
    .table { overflow-x: auto; } table { border-collapse: collapse; } th { text-align: left; }\n\
    th, td { padding: 3px 10px 3px 0; border-bottom: 1px solid var(--line); vertical-align: top; }\n\
    td strong { color: var(--fault); } td:nth-last-child(-n+3) { white-space: nowrap; } summary { cursor: pointer; margin: 0 0 10px; }\n\
    details > div { overflow-x: auto; margin: 0 0 14px; } .none { position: absolute; }\n";

pub(crate) fn page(title: &str, markdown: &str) -> String {
    let hatch = format!("<svg class=\"none\" width=\"0\" height=\"0\">{HATCH}</svg>\n");
    html(title, OWN_STYLE, &(hatch + &body(markdown)))
}

/// A block of HTML is ours. Within a line, it is what a library has said, so it is shown as text. So is an image, which
/// the page would load.
fn body(markdown: &str) -> String {
    let lines: Vec<String> = markdown.lines().map(visible).collect();
    let markdown = lines.join("\n");
    let events = Parser::new_ext(&markdown, Options::ENABLE_TABLES).flat_map(|event| match event {
        Event::InlineHtml(html) => vec![Event::Text(html)],
        Event::Start(Tag::Image { .. }) | Event::End(TagEnd::Image) => Vec::new(),
        Event::Start(Tag::Table(_)) => vec![Event::Html("<div class=\"table\">".into()), event],
        Event::End(TagEnd::Table) => vec![event, Event::Html("</div>\n".into())],
        _ => vec![event],
    });
    let mut out = String::new();
    push_html(&mut out, events);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_library_says_is_text() {
        let text = "# One\n\nshe said <img>, ![x](http://y) and \u{202e}\n\n| a | b |\n|---|---|\n| **no** | <hr> |\n\n<hr>\n";
        assert_eq!(
            body(text),
            "<h1>One</h1>\n<p>she said &lt;img&gt;, x and \u{fffd}</p>\n\
             <div class=\"table\"><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody>\n\
             <tr><td><strong>no</strong></td><td>&lt;hr&gt;</td></tr>\n</tbody></table>\n</div>\n<hr>"
        );
    }
}
