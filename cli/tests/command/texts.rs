//! Completions and manual pages.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::scenarios::operators::run as ask;
use crate::scenarios::support::Place;

fn place() -> Place {
    // Nothing is asked there.
    Place::new("redis://127.0.0.1:1", "texts")
}

/// The names below `Commands:` in a help text.
fn commands(help: &str) -> Vec<String> {
    let list = help.split("Commands:\n").nth(1).unwrap_or_default();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|it| *it != "help")
        .map(str::to_owned)
        .collect()
}

/// The long options in a help text.
fn options(help: &str) -> Vec<&str> {
    let list = help.split_once("Options:\n").map_or("", |(_, list)| list);
    let lines = list.lines().map(str::trim_start);
    let lines = lines.filter(|line| line.starts_with('-'));
    lines
        .filter_map(|line| line.split([' ', ',']).find(|it| it.starts_with("--")))
        .collect()
}

/// Every sub-command, as the words after the name of the command.
fn all(place: &Place) -> Vec<Vec<String>> {
    let (_, help) = ask(place, &["--help"]);
    let mut all = vec![Vec::new()];
    for command in commands(&help) {
        let (_, help) = ask(place, &[&command, "--help"]);
        let below = commands(&help);
        all.push(vec![command.clone()]);
        all.extend(below.into_iter().map(|it| vec![command.clone(), it]));
    }
    assert!(all.contains(&vec!["once".into(), "show".into()]), "{all:?}");
    assert!(all.contains(&vec!["top".into()]), "{all:?}");
    all
}

/// Each page has the name, the title and all options of its sub-command, and groff understands it.
#[test]
fn manual_pages() {
    let place = place();
    for words in all(&place) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (status, page) = ask(&place, &[&["man"][..], &words[..]].concat());
        assert_eq!(status, Some(0), "{words:?}");
        let name = [&["leasehold"][..], &words[..]].concat().join("-");
        assert!(page.contains(&format!(".TH {name} 1")), "{words:?}: {page}");
        let (_, help) = ask(&place, &[&words[..], &["--help"][..]].concat());
        let groff = std::env::var_os("LEASEHOLD_GROFF");
        let mut groff = Command::new(groff.unwrap_or_else(|| "groff".into()));
        groff.args(["-man", "-Tascii", "-ww", "-P-cbou", "-rLL=1000n"]);
        groff.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut groff = groff.stderr(Stdio::piped()).spawn().expect("groff");
        let mut input = groff.stdin.take().expect("a pipe");
        input.write_all(page.as_bytes()).expect("read by groff");
        drop(input);
        let output = groff.wait_with_output().expect("groff");
        let warnings = String::from_utf8_lossy(&output.stderr);
        assert_eq!(warnings, "", "{words:?}");
        let shown = String::from_utf8_lossy(&output.stdout);
        for option in options(&help) {
            assert!(shown.contains(option), "{option} of {words:?}: {shown}");
        }
    }
    assert_eq!(ask(&place, &["man", "nothing"]).0, Some(64));
}

/// Bash completes sub-commands and options with it. The other shells are not here: their texts name every sub-command.
#[test]
fn completions() {
    let place = place();
    let all = all(&place);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (status, script) = ask(&place, &["completions", shell]);
        assert_eq!(status, Some(0), "{shell}");
        for word in all.iter().flatten() {
            assert!(script.contains(word.as_str()), "{word} for {shell}");
        }
        if shell == "bash" {
            std::fs::write(place.file("completions"), script).expect("written");
        }
    }
    let complete = |line: &str| {
        let script = "source ./completions; COMP_WORDS=($0); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
                      _leasehold leasehold \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"; \
                      echo \"${COMPREPLY[@]}\"";
        let output = Command::new("bash")
            .args(["-c", script, line])
            .current_dir(place.file("."))
            .output();
        let output = output.expect("bash");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(complete("leasehold lea"), "leader\n");
    assert_eq!(complete("leasehold run --inf"), "--info\n");
    assert_eq!(complete("leasehold once sh"), "show\n");
}

/// A help text has the election by its name.
#[test]
fn help_names_the_election() {
    let (status, text) = ask(&place(), &["run", "--help"]);
    assert_eq!(status, Some(0));
    let (_, election) = text.split_once("Elect a leader:\n").expect("the heading");
    for option in ["--info <TEXT>", "--again"] {
        assert!(election.contains(option), "{text}");
    }
}
