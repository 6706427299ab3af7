//! Each rule has cases, each case has rules, and no case is forgotten.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::families;

/// The rules that cases refer to, each with a summary. `docs/semantics.md` has the rules
/// themselves.
const RULES: &[&str] = &[
    "rule 1: the backend's clock alone decides; expired means now >= expiry",
    "rule 2: replies carry the time left when they were computed",
    "rule 3: no timers: `poll_after`, at most the poll interval",
    "rule 4: expiry is per owner, not per key",
    "rule 5: reentrancy",
    "rule 6: downgrade and upgrade",
    "rule 7: first come, first served",
    "rule 8: a release grants directly to the head of the queue",
    "rule 9: unreachable waiters are passed over",
    "rule 10: expiry of offers and waiters",
    "rule 11: pushes and replies in either order, duplicate or lost",
    "rule 12: commands may arrive twice and late",
    "rule 13: a refused command changes nothing",
    "rule 14: foreign values and formats are left alone",
    "rule 15: fencing tokens",
    "rule 16: the note of a key",
    "S1: exclusion",
    "S2: a guard ends before the backend's lease",
    "S3: release, renew and convert only affect their own holder",
    "S4: tokens increase over epochs",
    "S5: a resource that refuses old tokens is safe",
    "L1: the lock of a crashed holder is free within its lease",
    "L2: a waiter gets its turn even if every push is lost",
    "L3: the bounds of waiting",
    "L4: every call ends by its deadline",
    "trait contract: the contract of `LockBackend`",
];

/// Each rule, and its summary.
fn rules() -> impl Iterator<Item = (&'static str, &'static str)> {
    RULES.iter().filter_map(|rule| rule.split_once(": "))
}

fn families_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/families")
}

/// The file stem and the text of each family.
fn sources() -> Vec<(String, String)> {
    let entries = |folder: &Path| {
        std::fs::read_dir(folder)
            .expect("the folder exists")
            .map(|entry| entry.expect("a readable entry").path())
            .collect::<Vec<_>>()
    };
    let groups = entries(&families_folder());
    let files = groups.iter().filter(|path| path.is_dir());
    files
        .flat_map(|group| entries(group))
        .map(|file| {
            let stem = file.file_stem().expect("a file").to_string_lossy();
            let text = std::fs::read_to_string(&file).expect("UTF-8 text");
            (stem.into_owned(), text)
        })
        .filter(|(stem, _)| stem != "mod")
        .collect()
}

/// The names of the functions with a case's signature.
fn case_functions(text: &str) -> BTreeSet<String> {
    let signature = "(world: &World) -> Verdict {";
    let lines = text.lines().filter_map(|line| line.strip_suffix(signature));
    lines
        .filter_map(|line| line.strip_prefix("async fn "))
        .map(ToString::to_string)
        .collect()
}

#[test]
fn every_case_is_registered() {
    for (family, text) in sources() {
        let registered: BTreeSet<_> = families::all()
            .filter(|case| case.family == family)
            .map(|case| case.name.to_string())
            .collect();
        assert_eq!(case_functions(&text), registered, "in {family}.rs");
        assert!(!registered.is_empty(), "{family}.rs is not in the list");
    }
}

#[test]
fn names_are_unique() {
    let mut seen = BTreeSet::new();
    for case in families::all() {
        assert!(seen.insert(case.name()), "duplicate case {}", case.name());
    }
}

#[test]
fn every_rule_has_a_case_and_every_case_a_rule() {
    let known: BTreeSet<_> = rules().map(|(rule, _)| rule).collect();
    assert_eq!(known.len(), RULES.len(), "each has a summary");
    for case in families::all() {
        assert!(!case.rules.is_empty(), "{} covers nothing", case.name());
        for rule in case.rules {
            assert!(known.contains(rule), "{} names {rule:?}", case.name());
        }
    }
    for rule in known {
        let covered = families::all().any(|case| case.rules.contains(&rule));
        assert!(covered, "no case covers {rule}");
    }
}

/// `Failure::rule` reads it there.
#[test]
fn every_promise_begins_with_its_rule() {
    let known: BTreeSet<_> = rules().map(|(rule, _)| rule).collect();
    for (family, text) in sources() {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        // Other helpers take the promise after other arguments; cases name it with `let promise` first.
        for before in ["promised(", "let promise = ", ".poll_gone(", ".not_held("] {
            for call in text.split(before).skip(1) {
                let call = call.trim_start().trim_start_matches("format!(");
                let Some(promise) = call.trim_start().strip_prefix('"') else {
                    continue;
                };
                let rule = promise.split(": ").next().unwrap_or_default();
                assert!(
                    known.contains(rule) || matches!(rule, "{rule}" | "set-up"),
                    "{family}: a promise begins with {rule:?}"
                );
            }
        }
    }
}

#[test]
fn basic_cases_cannot_be_ignored() {
    for (family, at_least) in [
        ("exclusion", 10),
        ("expiry", 7),
        ("ownership", 9),
        ("redelivery", 14),
        ("stalls", 4),
        ("closing", 2),
    ] {
        let free = families::all()
            .filter(|case| case.family == family && case.needs.is_empty())
            .count();
        assert!(
            free >= at_least,
            "{family} has only {free} cases without needs"
        );
    }
}
