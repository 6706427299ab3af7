//! `leasehold run --info`, and `leasehold leader`.

use std::fs::File;
use std::time::Duration;

use leasehold::ForceMode;
use leasehold_test_servers::block_until;
use rustix::process::Signal;

use crate::scenarios::operators::run as ask;
use crate::scenarios::support::{Client, LEASE, Place, STUBBORN, Started, TIMES, alive_in, kill};

const AGAIN: [&str; 3] = ["--info", "10.0.0.7:80", "--again"];
/// Says when it ignores everything.
const IGNORES: &str = "trap '' HUP INT QUIT TERM; echo > ignores; while :; do sleep 0.1; done";
/// Ends orderly when it is asked to.
const ORDERLY: &str = "trap 'exit 7' TERM; echo > traps; while :; do sleep 0.1; done";

fn until_it_traps(place: &Place) {
    block_until("the trap is set", || place.file("traps").exists());
}

fn shown(place: &Place) -> serde_json::Value {
    let (_, text) = ask(place, &["leader", "--json", &place.key]);
    serde_json::from_str(&text).expect("JSON")
}

fn term(place: &Place) -> u64 {
    shown(place)["leader"]["term"].as_u64().expect("a leader")
}

pub(crate) fn leads_and_follows(place: &Place) {
    let key = place.key.as_str();
    let nobody = (Some(1), "nobody leads\n".to_owned());
    assert_eq!(ask(place, &["leader", key]), nobody);
    let mut first = place.start(&["--info", "10.0.0.7:80"], ORDERLY);
    let state = shown(place);
    assert_eq!(state["leader"]["info"], "10.0.0.7:80", "{state}");
    assert_eq!(state["candidates"], serde_json::json!([]), "{state}");
    let before = term(place);

    let script = "echo $LEASEHOLD_TOKEN > second; sleep 60";
    let second = [&TIMES[..], &["--info", "10.0.0.8:80"]].concat();
    let mut second = Started::new(place.run(&second, script));
    block_until("it waits", || {
        shown(place)["candidates"]
            .as_array()
            .is_some_and(|it| it.len() == 1)
    });
    assert!(!place.file("second").exists());
    until_it_traps(place);
    first.signal(Signal::TERM);
    first.expect_status(7);
    block_until("the second leads", || {
        std::fs::read_to_string(place.file("second")).is_ok_and(|it| it.ends_with('\n'))
    });
    let (status, text) = ask(place, &["leader", key]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.ends_with(": 10.0.0.8:80\n"), "{text}");
    let after = term(place);
    assert!(after > before);
    let told = std::fs::read_to_string(place.file("second")).expect("waited for it");
    assert_eq!(told, format!("{after}\n"), "CMD knows its term");
    second.signal(Signal::INT);
    second.expect_signal(Signal::INT);
    assert_eq!(ask(place, &["leader", key]), nobody);
}

/// A line for each change, from the first state on.
pub(crate) fn followers_watch(place: &Place) {
    let follow = |file: &str, options: &[&str]| {
        let mut command = place.leasehold();
        command.args(["leader", "--watch"]).args(options);
        let file = File::create(place.file(file)).expect("a folder");
        Started::new({
            command.arg(&place.key).stdout(file);
            command
        })
    };
    let mut watching = [follow("text", &[]), follow("json", &["--json"])];
    let lines = |file: &str| {
        let text = std::fs::read_to_string(place.file(file)).expect("created");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let until = |count: usize| {
        block_until("both say it", || {
            lines("text").len() == count && lines("json").len() == count
        });
    };
    until(1);
    for (term, info) in [(0, "10.0.0.7:80"), (1, "10.0.0.8:80")] {
        let mut leader = place.start(&["--info", info], ORDERLY);
        until(2 * term + 2);
        until_it_traps(place);
        leader.signal(Signal::TERM);
        leader.expect_status(7);
        until(2 * term + 3);
        for file in ["group", "traps"] {
            std::fs::remove_file(place.file(file)).expect("written by CMD");
        }
    }
    let text = lines("text");
    for nobody in [0, 2, 4] {
        assert_eq!(text[nobody], "nobody leads", "{text:?}");
    }
    assert!(text[1].ends_with(": 10.0.0.7:80"), "{text:?}");
    assert!(text[3].ends_with(": 10.0.0.8:80"), "{text:?}");
    assert!(lines("json")[3].contains("\"10.0.0.8:80\""));
    for watching in &mut watching {
        watching.signal(Signal::TERM);
        watching.expect_signal(Signal::TERM);
    }
}

pub(crate) fn candidates_wait_for_a_while(place: &Place) {
    let _leader = place.start(&["--info", "10.0.0.7:80"], "sleep 60");
    let wait = ["--info", "10.0.0.8:80", "--wait", "300ms"];
    let text = Started::new(place.run(&wait, "touch ran")).expect_status(75);
    assert!(text.contains("is led by"), "{text}");
    let quiet = [&wait[..], &["-E", "0"]].concat();
    assert_eq!(place.status(&quiet, "touch ran"), 0);
    assert!(!place.file("ran").exists());
    let left = |client: &Client| client.waiters() == 0;
    let client = place.client();
    block_until("they have left the queue", || left(&client));
}

/// Each term has another CMD, which begins when nothing is left of the one before.
pub(crate) fn stands_again_after_losses(place: &Place) {
    let mut started = place.start(&AGAIN, STUBBORN);
    let client = place.client();
    let losses: [&dyn Fn(&Started); 4] = [
        &|_| client.force_release(ForceMode::Revoke),
        &|_| client.force_release(ForceMode::Now),
        &|it| kill(it.keeper(), Signal::KILL),
        &|it| kill(it.keeper(), Signal::STOP),
    ];
    for lose in losses {
        let (before, first) = (term(place), started.group());
        lose(&started);
        place.until_cmd_runs(&mut started);
        assert_eq!(alive_in(first), [0; 0], "the CMD of the earlier term");
        assert!(term(place) > before);
    }
    started.signal(Signal::KILL);
    started.expect_signal(Signal::KILL);
    client.expect_free(started.group());
}

/// Somebody takes the lock away again and again. Without a pause, terms would follow one another as fast as they can.
pub(crate) fn terms_that_end_at_once_are_paused(place: &Place) {
    let times = ["--lease", "30s", "--kill-after", "1s"];
    let mut started = place.start_with(&[&AGAIN[..], &times].concat(), STUBBORN);
    let client = place.client();
    let take_away = |started: &Started, pause: &str| {
        client.force_release(ForceMode::Now);
        let told = format!("standing for election again in {pause}\n");
        block_until("it says how long", || started.printed().ends_with(&told));
    };
    for pause in ["100ms", "200ms", "400ms", "800ms", "1.6s"] {
        take_away(&started, pause);
        place.until_cmd_runs(&mut started);
    }
    take_away(&started, "3.2s");
    started.signal(Signal::TERM);
    started.expect_signal(Signal::TERM);
    client.expect_free(started.group());
    assert_eq!(place.group_in_file(), Some(started.group()), "no other CMD");
}

pub(crate) fn without_again(place: &Place) {
    let mut started = place.start(&AGAIN[..2], STUBBORN);
    kill(started.keeper(), Signal::KILL);
    started.expect_status(70);
    assert_eq!(alive_in(started.group()), [0; 0]);
}

/// Somebody wants it to end, and CMD was about to when the lock was lost.
pub(crate) fn asked_to_end_during_a_loss(place: &Place) {
    let leader = || {
        for file in ["group", "ignores"] {
            let _ = std::fs::remove_file(place.file(file));
        }
        let started = place.start(&AGAIN, IGNORES);
        block_until("the trap is set", || place.file("ignores").exists());
        started
    };
    for signal in [Signal::INT, Signal::QUIT, Signal::TERM] {
        let mut started = leader();
        started.signal(signal);
        kill(started.keeper(), Signal::KILL);
        let text = started.expect_status(70);
        assert!(!text.contains("again"), "{text}");
        place.client().expect_free(started.group());
    }
    // This one says something else to most services: CMD goes on, and so does the command.
    let mut started = leader();
    started.signal(Signal::HUP);
    kill(started.keeper(), Signal::KILL);
    place.until_cmd_runs(&mut started);
}

pub(crate) fn command_killed(place: &Place) {
    let mut started = place.start(&AGAIN, STUBBORN);
    started.signal(Signal::KILL);
    started.expect_signal(Signal::KILL);
    place.client().expect_free(started.group());
}

/// It leads for as long as the keeper renews. When the keeper is dead too, another one leads, and the command sees it
/// later.
pub(crate) fn command_stopped(place: &Place) {
    let mut started = place.start(&AGAIN, STUBBORN);
    let (client, before) = (place.client(), term(place));
    started.signal(Signal::STOP);
    #[expect(clippy::disallowed_methods, reason = "the lease passes")]
    std::thread::sleep(LEASE + Duration::from_secs(1));
    assert_eq!(term(place), before, "renewed while the command is stopped");
    client.force_release(ForceMode::Revoke);
    client.expect_free(started.group());
    started.signal(Signal::CONT);
    place.until_cmd_runs(&mut started);
    assert!(term(place) > before);
}

/// Away for longer than the lease: CMD is dead before the lease ends, and the command stands again until the service is
/// back.
pub(crate) fn service_away(place: &Place, goes: impl FnOnce(), comes_back: impl FnOnce()) {
    let mut started = place.start(&AGAIN, STUBBORN);
    let (first, before) = (started.group(), term(place));
    goes();
    started.expect_dead_before_the_lease_ends();
    #[expect(clippy::disallowed_methods, reason = "the lease passes")]
    std::thread::sleep(LEASE);
    assert!(!started.has_ended(), "it stands again: {:?}", started.end());
    comes_back();
    place.until_cmd_runs(&mut started);
    assert_eq!(alive_in(first), [0; 0]);
    assert!(term(place) > before);
    started.signal(Signal::KILL);
    started.expect_signal(Signal::KILL);
    place.client().expect_free(started.group());
}
