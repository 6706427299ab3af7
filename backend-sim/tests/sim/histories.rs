//! Histories as text and as an HTML page.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_api::bounds::DELIVERY_WINDOW;
use leasehold_api::{
    Acquire, Key, LockBackend as _, LockClient, LockSpec, Mode, Mutex, Outcome, Release,
};
use leasehold_sim::tools::History;
use leasehold_sim::{Call, Data, Fault, Latency, SimBackend, SimOptions, SimServer};

use crate::drivers::options;
use crate::support::{Raw, ms, secs};

fn stock(locks: &LockClient) -> Mutex {
    locks.mutex("stock").expect("a valid key").lease(secs(3))
}

/// Acquires the lock once, works, and writes a note to the log.
async fn work(machine: &SimBackend, locks: &LockClient, time: Duration) {
    let Ok(Outcome::Acquired(guard)) = stock(locks).try_lock_for(secs(30)).await else {
        return;
    };
    machine.runtime().sleep(time).await;
    if guard.is_valid() {
        machine.note("writes");
    } else {
        machine.note("does not write: the lock is lost");
    }
    // The result doesn't matter.
    let _ = guard.release().await;
}

/// A run with each kind of event that a history shows. It sends single commands, so that it doesn't
/// change with the lock client.
async fn run() -> History {
    let server = SimServer::new(4);
    let (ann, bob) = (Raw::new(&server, "ann"), Raw::new(&server, "bob"));
    let cy = Raw::new(&server, "<i>cy & co</i>");
    for (raw, latency) in [(&ann, 1), (&bob, 2), (&cy, 4)] {
        raw.backend.set_latency(Latency::fixed(ms(latency)));
    }
    // A client that listens gets a notification of its grant.
    let _subscribers = ann.backend.listen(ann.session).await.expect("it listens");
    let (anns, _) = ann.acquire(secs(3)).await;
    bob.backend.inject_into(Call::Acquire, Fault::LoseReply);
    let (bobs, cys) = tokio::join!(bob.try_queue(secs(3)), cy.queue(secs(3)));
    ann.backend.note("writes");
    cy.backend.inject_into(Call::Poll, Fault::LoseRequest);
    let _ = tokio::join!(cy.poll(cys.0), bob.poll(bobs));
    ann.backend
        .inject_into(Call::Release, Fault::DuplicateRequest(ms(40)));
    let _ = ann.release(anns).await;
    let _ = bob.poll(bobs).await;
    bob.backend.pause();
    let (again, _) = ann.queue(secs(3)).await;
    server.advance(ms(1_200)).await;
    let _ = tokio::join!(cy.poll(cys.0), ann.poll(again));
    cy.backend.isolate();
    server.advance(secs(4)).await;
    bob.backend.resume();
    let _ = bob.renew(bobs, secs(3)).await;
    let _ = ann.renew(again, secs(3)).await;
    server.stop();
    server.advance(ms(300)).await;
    server.start(Data::Kept);
    cy.backend.rejoin();
    let _ = tokio::join!(cy.renew(cys.0, secs(3)), ann.release(again));
    read_together(&ann, &bob).await;
    server
        .history()
        .with_title("One of everything")
        .with_verdict("bob wrote after cy:\n<token> 1000000001056000 after 1000000002272000")
        .with_replay("LEASEHOLD_SIM_REPLAY=4.l4:1.A12 cargo test one_of_everything")
}

/// Two readers of another key.
async fn read_together(ann: &Raw, bob: &Raw) {
    let mut holds = Vec::new();
    for raw in [ann, bob] {
        let operation = raw.operation();
        let stamp = raw.backend.hello().await.expect("the server answers");
        let before = stamp.at.saturating_add(DELIVERY_WINDOW);
        let (key, spec) = (Key::new("catalog").expect("valid"), LockSpec::rw_lock());
        let request = Acquire::new(key.clone(), spec, Mode::Shared, operation, secs(3), before);
        let request = request.expect("a valid request");
        raw.send(&request).await.expect("an answer");
        holds.push((raw, Release::new(key, operation)));
    }
    for (raw, release) in holds {
        let result = raw.backend.release(&[release]).await.remove(0);
        result.expect("an answer");
    }
}

#[tokio::test(start_paused = true)]
async fn as_text() {
    insta::assert_snapshot!(run().await.text());
}

/// The elements of a page without their positions: the class and the tooltip of each.
fn outline(page: &str) -> String {
    let attribute = |line: &str, name: &str| {
        let value = line.split(&format!("{name}=\"")).nth(1)?;
        Some(value.split('"').next()?.to_owned())
    };
    let groups = page.lines().filter(|line| line.starts_with("<g "));
    let elements = groups.filter_map(|line| {
        let class = attribute(line, "class")?;
        let tooltip = attribute(line, "data-t")?.replace("&#10;", " | ");
        Some(format!("{class:<14} {tooltip}\n"))
    });
    elements.collect()
}

#[tokio::test(start_paused = true)]
async fn as_a_page() {
    insta::assert_snapshot!(outline(&run().await.html()));
}

/// A name with markup and control characters doesn't break the page.
#[tokio::test(start_paused = true)]
async fn names_do_not_break_a_page() {
    let nasty = "\"><script>alert(1)</script>'&\u{202e}\n\0";
    let server = SimServer::new(1);
    let machine = server.client(nasty);
    let locks = LockClient::new(machine.clone());
    machine.note(nasty);
    let mutex = locks.mutex(nasty).expect("a valid key");
    let guard = mutex.lock().await.expect("free");
    guard.release().await.expect("held");
    let trace = server.history().with_title(nasty);
    let trace = trace.with_verdict(nasty).with_replay(nasty);
    let page = trace.html();
    assert_eq!(page.matches("<script").count(), 1, "{page}");
    assert_eq!(page.matches("</script").count(), 1, "{page}");
    assert!(!page.contains(['\u{202e}', '\0']), "{page}");
    let escaped = "&lt;script&gt;alert(1)&lt;/script&gt;&#39;&amp;";
    assert!(page.contains(escaped), "{page}");
    // A name of several lines does not break the lines of the text.
    let text = trace.text();
    let odd = text.lines().find(|line| line.len() < 20);
    assert_eq!(odd, None, "{text}");
}

/// A page loads nothing, and its policy forbids it.
#[tokio::test(start_paused = true)]
async fn page_is_self_contained() {
    let page = run().await.html();
    assert!(page.contains("default-src 'none'"));
    for way_out in ["http:", "https:", "src=", "href=", "@import"] {
        assert!(!page.contains(way_out), "{way_out}");
    }
}

/// Each line shows one holder, even if several clients hold the lock one after the other at the same
/// instant.
#[tokio::test(start_paused = true)]
async fn grants_at_one_instant_are_shown_in_order() {
    let server = SimServer::with_options(SimOptions::new(1).latency(Latency::ZERO));
    let rounds = ["a", "b", "c"].map(|name| {
        let locks = LockClient::new(server.client(name));
        async move {
            for _ in 0..3 {
                let mutex = locks.mutex("job").expect("a valid name");
                let guard = mutex.lock().await.expect("the server serves");
                guard.release().await.expect("the server serves");
            }
        }
    });
    futures_util::future::join_all(rounds).await;
    let (text, html) = (server.history().text(), server.history().html());
    assert!(text.matches("granted").count() > 2, "{text}");
    for line in text.lines().skip(1) {
        let holders = line.get(..24).map(|it| it.matches('#').count());
        assert!(holders.is_some_and(|it| it < 2), "{line}\n{text}");
        // A wait without duration is shown too, as `?*`.
        for (reply, shown) in [("-> released", ".*"), ("-> queued", "?*")] {
            let right = !line.contains(reply) || line.contains(shown);
            assert!(right, "{reply} without {shown}: {line}\n{text}");
        }
    }
    // No push arrives before it was sent, so no arrow points upwards.
    for arrow in html.split("class=\"msg push").skip(1) {
        let path = arrow.split("<path d=\"M").nth(1).expect("an arrow");
        let ends: Vec<i32> = path
            .split(|c: char| !c.is_ascii_digit() && c != '-')
            .filter_map(|number| number.parse().ok())
            .take(4)
            .collect();
        assert!(ends[1] <= ends[3] + 3, "{ends:?}");
    }
}

/// Three clients with more than 200 events each.
async fn large() -> History {
    let server = SimServer::with_options(options(4));
    let machines = ["worker-1", "worker-2", "worker-3"].map(|name| server.client(name));
    let locks = machines.clone().map(LockClient::new);
    let rounds = |n: usize| {
        let (machine, locks) = (&machines[n], &locks[n]);
        async move {
            for round in 0..35_u32 {
                if round % 7 == n as u32 {
                    machine.inject_into(Call::Acquire, Fault::LoseReply);
                }
                let time = ms(100) + ms(800) * (round % 3);
                machine.run(work(machine, locks, time)).await;
            }
        }
    };
    tokio::join!(rounds(0), rounds(1), rounds(2));
    server.history().with_title("Three clients, many events")
}

/// A browser draws the whole page, without an error and without a network.
///
/// The screenshots stay in `target/tmp`.
#[tokio::test(start_paused = true)]
#[ignore = "needs Chromium: apt-get install chromium, or set LEASEHOLD_CHROMIUM; ./test full runs it"]
async fn in_a_browser() {
    for (name, trace) in [("run", run().await), ("large", large().await)] {
        let page = folder().join(format!("{name}.html"));
        trace.save(&page).expect("a folder to write to");
        let html = trace.html();
        let drawn = |class: &str| html.matches(&format!("<g class=\"{class}")).count();
        let legend = |class: &str| {
            include_str!("../../src/history/legend.html")
                .matches(&format!("<g class=\"{class}"))
                .count()
        };
        let expected = format!(
            "data-drawn=\"rows {} arrows {} bars {} absences {}\"",
            trace.entries.len(),
            trace.messages.len() + legend("msg"),
            drawn("bar"),
            drawn("gone"),
        );
        for theme in ["light", "dark"] {
            let picture = folder().join(format!("{name}-{theme}.png"));
            let shown = chromium(&page, &picture, theme);
            let right = shown.contains(&expected);
            assert!(right, "{expected} is not what was drawn:\n{shown}");
            // The screenshot of an empty page has 10 kB.
            let size = std::fs::metadata(&picture).expect("a picture").len();
            assert!(size > 60_000, "{} has {size} bytes", picture.display());
        }
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Draws a page into a file. Returns the rendered document.
fn chromium(page: &Path, picture: &Path, theme: &str) -> String {
    let program = std::env::var_os("LEASEHOLD_CHROMIUM").unwrap_or_else(|| "chromium".into());
    let home = picture.with_extension("home");
    let run = |mode: String| {
        let mut command = std::process::Command::new(&program);
        command.args(["--headless", "--no-sandbox", "--disable-gpu"]);
        command.args(["--hide-scrollbars", "--window-size=1500,1300"]);
        command.arg("--enable-logging=stderr");
        command.arg("--host-resolver-rules=MAP * ~NOTFOUND");
        command.arg(format!("--user-data-dir={}", home.display()));
        if theme == "dark" {
            command.arg("--blink-settings=preferredColorScheme=0");
        }
        command.arg(mode).arg(format!("file://{}", page.display()));
        let output = command
            .output()
            .unwrap_or_else(|error| panic!("{program:?}: {error}"));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        let complaint = errors.lines().find(|line| line.contains("CONSOLE"));
        assert_eq!(complaint, None);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(format!("--screenshot={}", picture.display()));
    let shown = run("--dump-dom".to_owned());
    std::fs::remove_dir_all(&home).expect("its own folder");
    shown
}
