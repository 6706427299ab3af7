//! Checks the links between the pages of the repository, and that their examples are compiled.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        root.to_owned(),
        root.join("docs"),
        root.join("docs/decisions"),
    ];
    let files = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).expect("a folder"));
    let paths = files.map(|entry| entry.expect("readable").path());
    paths
        .filter(|path| path.extension().is_some_and(|ext| ext == "md"))
        .collect()
}

/// The link targets of a page.
fn links(text: &str) -> Vec<&str> {
    let after = text.split("](").skip(1);
    after.filter_map(|rest| rest.split(')').next()).collect()
}

/// The anchors of a page, as GitHub derives them from its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

fn broken(page: &Path, link: &str) -> bool {
    if link.starts_with("https://") || link.starts_with("http://") {
        return false;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = page.parent().expect("a file in a folder");
    let target = if file.is_empty() {
        page.to_owned()
    } else {
        folder.join(file)
    };
    if anchor.is_empty() {
        return !target.exists();
    }
    let text = fs::read_to_string(&target).unwrap_or_default();
    if target.extension().is_some_and(|it| it == "html") {
        return !text.contains(&format!("id=\"{anchor}\""));
    }
    !anchors(&text).contains(anchor)
}

#[test]
fn links_have_targets() {
    let mut seen = 0;
    let mut broken_links = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("UTF-8 text");
        for link in links(&text) {
            seen += 1;
            if broken(&page, link) {
                broken_links.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(seen > 30, "found only {seen} links");
    assert!(
        broken_links.is_empty(),
        "broken links:\n{}",
        broken_links.join("\n")
    );
}

/// A page whose Rust blocks nobody compiles is missing in `pages` of `src/lib.rs`.
#[test]
fn examples_are_compiled() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiled = include_str!("../../src/lib.rs");
    let mut seen = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("UTF-8 text");
        let mut languages = text.lines().filter_map(|line| line.strip_prefix("```"));
        if languages.any(|it| it.starts_with("rust") && it != "rust,ignore") {
            let page = page.strip_prefix(root).expect("a page").display();
            let included = format!("include_str!(\"../{page}\")");
            assert!(compiled.contains(&included), "{page} is not compiled");
            seen += 1;
        }
    }
    assert!(seen > 10, "found only {seen} pages with examples");
}
