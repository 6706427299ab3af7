//! What pages name as shown by a test is there.

use std::fs;
use std::path::{Path, PathBuf};

const GUARANTEES: &str = include_str!("../../docs/guarantees.md");
const WHICH_ONE: &str = include_str!("../../docs/which-one.md");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut files = Vec::new();
    for path in entries.map(|entry| entry.expect("readable").path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files.extend(sources(&path));
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
    files
}

fn text_of(folder: &str) -> String {
    let files = sources(&root().join(folder));
    let text = files
        .iter()
        .map(|file| fs::read_to_string(file).expect("UTF-8 text"));
    text.collect()
}

/// What is in backticks in the column "shown by" of the tables.
fn shown_by(page: &str) -> Vec<&str> {
    let (_, tables) = page.split_once(" | shown by |").expect("the tables");
    let rows = tables.lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.trim_end_matches([' ', '|']).rsplit_once(" | "));
    cells
        .flat_map(|(_, cell)| cell.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn what_shows_a_guarantee_is_there() {
    let (all, torture) = (text_of(""), text_of("own-tests/torture"));
    let is_there = |name: &str| {
        let (family, case) = name.rsplit_once("::").unwrap_or(("", name));
        if case == "*" {
            return all.contains(&format!("cases!(\"{family}\";"));
        }
        let function = match case.strip_suffix('…') {
            Some(prefix) => format!("fn {prefix}"),
            None => format!("fn {case}("),
        };
        // Faults and subjects of torture; files, and programs that are examples.
        let text = name.trim_end_matches('…');
        let named = [format!("\"{text}"), format!(", {text}\"")];
        let files = [
            root().join(name),
            root().join("own-tests/processes/examples").join(name),
        ];
        all.contains(&function)
            || named.iter().any(|it| torture.contains(it))
            || files.iter().any(|it| it.exists())
    };
    for (page, least) in [(GUARANTEES, 80), (WHICH_ONE, 10)] {
        let names = shown_by(page);
        assert!(names.len() > least, "only {} names", names.len());
        let missing: Vec<_> = names.iter().filter(|name| !is_there(name)).collect();
        assert!(missing.is_empty(), "{missing:#?}");
    }
}
