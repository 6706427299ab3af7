//! Runs the program on a server, on none, and with bad arguments.

use std::process::{Command, Output};

use leasehold_test_servers::RedisServer;

fn run(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_conformance_report"));
    let output = program.args(arguments).output();
    output.expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs some cases through a client library. Nothing is left but what was there before.
fn on_redis(client: &str) {
    let server = RedisServer::start();
    server.run(&["SET", "somebody", "else"]);
    let path = |name: &str| {
        let name = format!("report-{}-{client}.{name}", std::process::id());
        std::env::temp_dir().join(name).display().to_string()
    };
    let (url, json, html) = (server.url(), path("json"), path("html"));
    let on = ["--redis", &url, "--client", client, "--only", "ownership"];
    let output = run(&[&on[..], &["--json", &json, "--html", &html]].concat());
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    assert!(
        stdout.contains(&format!("conformance {client}: ")),
        "{stdout}"
    );
    let report = std::fs::read_to_string(&json).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert!(report["passed"].as_u64() >= Some(9), "{report}");
    assert_eq!(report["failed"], 0, "{report}");
    let page = std::fs::read_to_string(&html).expect("a page");
    assert!(
        page.contains("ownership::another_session_cannot_release"),
        "{page}"
    );
    assert!(stderr.contains("removed "), "{stderr}");
    assert_eq!(server.run(&["DBSIZE"]).trim(), "1", "{stderr}");
    assert_eq!(server.run(&["GET", "somebody"]).trim(), "else");
    for file in [json, html] {
        std::fs::remove_file(file).expect("the file was written");
    }
}

#[test]
fn redis_passes_through_the_redis_crate() {
    on_redis("redis-rs");
}

#[test]
fn redis_passes_through_fred() {
    on_redis("fred");
}

#[test]
fn server_that_is_not_there_is_one_error() {
    let output = run(&["--redis", "redis://me:sesame@127.0.0.1:1"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("127.0.0.1:1"), "{stderr}");
    assert!(!stderr.contains("sesame"), "{stderr}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[test]
fn bad_arguments_are_errors_without_secrets() {
    for arguments in [
        &["--redis", "redis://:sesame@h", "--fast"][..],
        &["--redsi", "redis://:sesame@h"],
        &["--redsi=redis://:sesame@h"],
        &["redis://:sesame@h"],
        &[
            "--redis",
            "redis://:sesame@h",
            "--postgres",
            "postgres://me:sesame@h/d",
        ],
        &["--redis", "redis://:sesame@h", "--client", "jedis"],
        &["--redis", "redis://:sesame@h", "--unit", "1"],
        &[],
    ] {
        let output = run(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains("error: "), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("sesame"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn help_says_what_the_program_does_to_a_server() {
    let output = run(&["--help"]);
    let help = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0));
    for word in [
        "--redis",
        "--postgres",
        "--json",
        "--html",
        "prefix of this run",
        "exit status",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
}
