//! A short run on a real server.

use std::path::Path;
use std::process::{Command, Output};

fn torture(arguments: &[&str], folder: &Path) -> Output {
    let program = env!("CARGO_BIN_EXE_torture");
    let output = Command::new(program)
        .args(arguments)
        .arg("--out")
        .arg(folder)
        .output();
    output.expect("it runs")
}

/// It sees too little, and says so.
#[test]
fn short_run_acquits_nobody_and_can_be_checked_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = ["leasehold-redis-rs", "--minutes", "0.05", "--seed", "7"];
    let first = torture(&run, folder.path());
    let shown = String::from_utf8_lossy(&first.stdout).into_owned();
    let errors = String::from_utf8_lossy(&first.stderr).into_owned();
    assert_eq!(first.status.code(), Some(3), "{shown}\n{errors}");
    assert!(shown.contains("NOT SHOWN"), "{shown}");
    assert!(!shown.contains(" 0 locks taken"), "{shown}");
    let history = folder.path().join("leasehold-redis-rs-standalone-7.jsonl");
    let again = torture(&["--check", &history.to_string_lossy()], folder.path());
    assert_eq!(String::from_utf8_lossy(&again.stdout), shown);
    assert_eq!(again.status.code(), Some(3));
}

#[test]
fn unknown_fault_is_refused_with_the_names_of_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = torture(&["leasehold-redis-rs", "--only", "typo"], folder.path());
    assert_eq!(refused.status.code(), Some(2));
    let shown = String::from_utf8_lossy(&refused.stderr).into_owned();
    for text in ["has no fault `typo`", "step clock", "kill client"] {
        assert!(shown.contains(text), "no {text}: {shown}");
    }
    let empty = std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(empty, 0, "nothing ran");
}

#[test]
fn unknown_subject_is_refused_with_the_names_of_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = torture(&["nobody"], folder.path());
    assert_eq!(refused.status.code(), Some(2));
    let shown = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        shown.contains("leasehold-redis-rs, leasehold-fred"),
        "{shown}"
    );
}
