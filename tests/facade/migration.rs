//! Compares docs/migration.md with examples/migration.rs, which runs the code of that page.

use std::fs;
use std::path::Path;

/// The Rust blocks of a page that run, without their imports.
fn blocks(page: &str) -> Vec<&str> {
    let starts = page.split("```rust\n").skip(1);
    let codes = starts.filter_map(|rest| rest.split("\n```").next());
    codes
        .map(|code| code.find("async fn").map_or(code, |start| &code[start..]))
        .collect()
}

#[test]
fn example_runs_the_code_of_the_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/migration.md")).expect("the page exists");
    let example = fs::read_to_string(root.join("examples/migration.rs")).expect("it exists");
    let blocks = blocks(&page);
    assert!(blocks.len() >= 12, "found only {} blocks", blocks.len());
    for block in blocks {
        assert!(
            example.contains(block),
            "examples/migration.rs does not contain this block of docs/migration.md:\n{block}"
        );
    }
}
