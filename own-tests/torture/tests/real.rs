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

/// A program that isn't of this package is asked, and only what it promises is judged.
#[test]
fn a_program_of_somebody_else_is_tormented() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("my-lock");
    let torture_itself = env!("CARGO_BIN_EXE_torture");
    let text = format!("#!/bin/sh\nexec '{torture_itself}' client leasehold-redis-rs \"$@\"\n");
    std::fs::write(&program, text).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("its own");
    let program = program.to_string_lossy();
    let run = [
        "--subject",
        &*program,
        "--promises",
        "exclusion,tokens",
        "--minutes",
        "0.05",
    ];
    let ran = torture(&run, folder.path());
    let shown = String::from_utf8_lossy(&ran.stdout).into_owned();
    let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(3), "{shown}\n{errors}");
    assert!(!shown.contains(" 0 locks taken"), "{shown}");
    let history = folder.path().join("my-lock-standalone-1.jsonl");
    let history = std::fs::read_to_string(history).expect("a history");
    let promises = r#""promises":["exclusion","tokens"]"#;
    assert!(history.contains(promises), "{:?}", history.lines().next());

    let without_promises = torture(&["--subject", &*program], folder.path());
    assert_eq!(without_promises.status.code(), Some(2));
    let absent = ["--subject", "./absent", "--promises", "loss"];
    assert_eq!(torture(&absent, folder.path()).status.code(), Some(2));
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
