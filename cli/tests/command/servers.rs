//! The server is out of reach while CMD runs.

use std::cell::RefCell;
use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_test_servers::{
    Data, RedisServer, ServerOptions, SteppedClock, at_a_distance, block_until, within,
};
use rustix::process::Signal;

use crate::scenarios::support::{LEASE, Place, STUBBORN, Started, alive_in};
use crate::scenarios::table::Drawn;
use crate::scenarios::{elections, operators, pauses};

const JOB: [&str; 2] = ["--not-within", "1h"];
const UNTIL_TOLD: &str = "while [ ! -e end ]; do sleep 0.1; done";

#[test]
fn unreachable() {
    for url in [
        "redis://127.0.0.1:1",
        "postgres://nobody@127.0.0.1:1/nothing",
    ] {
        let place = Place::new(url, "unreachable");
        let start = |wait: &[&str]| Started::new(place.run(wait, "true"));
        let mut short = start(&["--wait", "2s"]);
        // It tries for 5 s.
        let mut no_wait = start(&["--no-wait"]);
        let mut long = start(&["--wait", "15s"]);
        short.expect_status(69);
        assert!(!no_wait.has_ended(), "the shorter wait ends first");
        for (started, told) in [(&mut no_wait, 0), (&mut long, 1)] {
            let text = started.expect_status(69);
            assert_eq!(text.matches("trying again").count(), told, "{text}");
        }
    }
}

/// So far away that an attempt to connect takes longer than by default.
#[test]
fn distant() {
    let server = RedisServer::start();
    let line = at_a_distance(server.address(), Duration::from_millis(200));
    let place = Place::new(&format!("redis://{}", line.address()), "distant");
    let mut started = Started::new(place.run(&["--no-wait"], "exit 5"));
    started.expect_status(69);
    let longer = ["--no-wait", "--connect-timeout", "4s"];
    let mut started = Started::new(place.run(&longer, "exit 5"));
    started.expect_status(5);
}

/// Without `--wait`, the command waits for the server as it does for the lock, and says so.
#[test]
fn away_when_the_command_starts() {
    let mut server = RedisServer::start();
    let place = Place::new(&server.url(), "away");
    server.kill();
    let mut started = Started::new(place.run(&[], "exit 5"));
    // `--no-wait` would give up after 5 s.
    let gave_up = within(Duration::from_secs(7), || started.has_ended());
    assert!(!gave_up);
    server.start_again();
    let text = started.expect_status(5);
    assert_eq!(text.matches("trying again").count(), 1, "{text}");
}

/// CMD is dead before the lease ends.
#[test]
fn killed() {
    let mut server = RedisServer::start();
    let place = Place::new(&server.url(), "killed");
    let mut started = place.start(&[], STUBBORN);
    server.kill();
    started.expect_dead_before_the_lease_ends();
    let text = started.expect_status(70);
    assert!(text.contains("about to be lost"), "{text}");
    assert!(text.contains("connection refused"), "{text}");
}

#[test]
fn clock_set_back() {
    let clock = SteppedClock::new();
    let server = ServerOptions::default()
        .with_program(clock.program())
        .start();
    pauses::clock_set_back(&Place::new(&server.url(), "clock"), &clock);
    clock.set(0);
    pauses::clock_set_back_under_a_leader(&Place::new(&server.url(), "leader"), &clock);
}

/// A leader stands for election again when the server is back, with its data, or after a while without an answer.
#[test]
fn killed_and_back() {
    let server = RefCell::new(ServerOptions::default().with_append_only().start());
    let place = Place::new(&server.borrow().url(), "away");
    elections::service_away(
        &place,
        || server.borrow_mut().kill(),
        || server.borrow_mut().start_again(),
    );
}

#[test]
fn frozen_and_back() {
    let server = RedisServer::start();
    let place = Place::new(&server.url(), "frozen");
    elections::service_away(&place, || server.pause(), || server.resume());
}

/// A follower says once that the server is away, and goes on when it is back.
#[test]
fn watching_while_the_server_is_away() {
    let mut server = ServerOptions::default().with_append_only().start();
    let place = Place::new(&server.url(), "watched");
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" > lines 2> problems", "sh"]);
    let mut watch = place.leasehold();
    watch.args(["leader", "--watch", &place.key]);
    let mut watching = place.through(shell, &watch);
    let read = |name: &str| std::fs::read_to_string(place.file(name)).unwrap_or_default();
    let says = |text: &str| {
        block_until(text, || read("lines").ends_with(text));
    };
    says("nobody leads\n");
    let options = [
        "--info",
        "10.0.0.7:80",
        "--lease",
        "30m",
        "--kill-after",
        "1s",
    ];
    let mut leader = place.start_with(&options, "sleep 300");
    says(": 10.0.0.7:80\n");
    server.kill();
    block_until("it says so", || read("problems").contains("trying again"));
    server.start_again();
    leader.signal(Signal::TERM);
    leader.expect_signal(Signal::TERM);
    says("nobody leads\n");
    assert_eq!(read("problems").lines().count(), 1, "{}", read("problems"));
    assert!(!watching.has_ended());
    server.kill();
    let (status, _) = operators::run(&place, &["leader", &place.key]);
    assert_eq!(status, Some(69));
}

/// The rows stay, and the table says how old they are.
#[test]
fn table_while_the_server_is_away() {
    let mut server = ServerOptions::default().with_append_only().start();
    let place = Place::new(&server.url(), "away");
    let options = ["--lease", "30m", "--kill-after", "1s"];
    let _started = place.start_with(&options, "sleep 300");
    let drawn = Drawn::run(&place, "$L top");
    drawn.expect("1 held");
    server.kill();
    drawn.expect_head("an outage", |it| {
        it.contains("1 held") && it.contains("s old: ")
    });
    server.start_again();
    drawn.expect_head("no outage", |it| {
        it.contains("1 held") && it.contains("q quits")
    });
}

/// A round has a limit.
#[test]
fn table_of_many_keys() {
    let server = RedisServer::start();
    let place = Place::new(&server.url(), "many");
    let client = place.client();
    let lease = Duration::from_secs(600);
    let lock = |n| client.locks.mutex(format!("many/{n}")).expect("a key");
    let locks: Vec<_> = (0..501).map(|n| lock(n).lease(lease)).collect();
    let guards = join_all(locks.iter().map(|it| it.lock()));
    let guards = client.runtime.block_on(guards);
    assert!(guards.iter().all(Result::is_ok));
    let drawn = Drawn::run(&place, "$L top many/");
    drawn.expect("500 keys \"many/\": 500 held, 0 waiters, partial: the first 500 keys");
    let fewer = Drawn::run(&place, "$L top many/10");
    fewer.expect("11 keys \"many/10\": 11 held, 0 waiters");
    fewer.expect_head("all of them", |it| !it.contains("partial"));
}

/// The server has forgotten the lock, and the next holder may get it at once. That is the one case in which
/// CMD may live when another has the lock: until the next renewal.
#[test]
fn killed_and_empty() {
    let mut server = RedisServer::start();
    let place = Place::new(&server.url(), "empty");
    let mut started = place.start(&[], STUBBORN);
    server.restart(Data::Lost);
    started.expect_status(70);
    assert_eq!(alive_in(started.group()), [0; 0]);
}

#[test]
fn restarted_with_its_data() {
    let mut server = RedisServer::start();
    let place = Place::new(&server.url(), "restarted");
    let mut started = place.start(&[], "sleep 7; exit 5");
    server.restart(Data::Kept);
    started.expect_status(5);
    place.client().expect_free(started.group());
}

/// Frozen for longer than the lease.
#[test]
fn frozen() {
    let server = RedisServer::start();
    let place = Place::new(&server.url(), "frozen");
    let mut started = place.start(&[], STUBBORN);
    server.pause();
    let frozen = started.expect_dead_before_the_lease_ends();
    #[expect(clippy::disallowed_methods, reason = "the lease passes")]
    std::thread::sleep((LEASE + Duration::from_millis(500)).saturating_sub(frozen));
    server.resume();
    started.expect_status(70);
    place.client().expect_free(started.group());
}

/// The same while the command is stopped: the keeper kills.
#[test]
fn frozen_while_the_command_is_stopped() {
    let server = RedisServer::start();
    let place = Place::new(&server.url(), "frozen");
    let mut started = place.start(&[], STUBBORN);
    started.signal(Signal::STOP);
    server.pause();
    started.expect_dead_before_the_lease_ends();
    server.resume();
    started.signal(Signal::CONT);
    started.expect_status(70);
}

/// A job ends while the server is away. That it is done is recorded when the server is back.
#[test]
fn restarted_when_a_job_ends() {
    let mut server = ServerOptions::default().with_append_only().start();
    let place = Place::new(&server.url(), "recorded");
    let mut started = place.start(&JOB, UNTIL_TOLD);
    server.kill();
    std::fs::write(place.file("end"), "").expect("written");
    let gave_up = within(Duration::from_millis(500), || started.has_ended());
    assert!(!gave_up, "it tries again");
    server.start_again();
    started.expect_status(0);
    Started::new(place.run(&JOB, "exit 5")).expect_status(0);
}

/// The same, and the server doesn't come back.
#[test]
fn killed_when_a_job_ends() {
    let mut server = RedisServer::start();
    let place = Place::new(&server.url(), "unrecorded");
    let mut started = place.start(&JOB, UNTIL_TOLD);
    server.kill();
    std::fs::write(place.file("end"), "").expect("written");
    let text = started.expect_status(0);
    assert!(text.contains("may not be recorded"), "{text}");
}
