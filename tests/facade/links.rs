//! Checks the links between the pages of the repository.

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

/// The anchors of a page, as code forges derive them from its headings.
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
    if link.starts_with("https://") {
        return false;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = page.parent().expect("a page is in a folder");
    let target = if file.is_empty() {
        page.to_owned()
    } else {
        folder.join(file)
    };
    if anchor.is_empty() {
        return !target.exists();
    }
    let text = fs::read_to_string(&target).unwrap_or_default();
    !anchors(&text).contains(anchor)
}

#[test]
fn lead_somewhere() {
    let mut seen = 0;
    let mut dead = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("text");
        for link in links(&text) {
            seen += 1;
            if broken(&page, link) {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(seen > 30, "only {seen} links were found");
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}
