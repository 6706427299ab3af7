//! Elections, with exact times.

use std::cell::{Cell, RefCell};
use std::pin::pin;

use futures_util::future::join_all;
use futures_util::{FutureExt as _, StreamExt};
use leasehold_api::machine::Command;
use leasehold_api::{Election, LockClient, Loss, Role};
use leasehold_sim::{Data, Latency};

use crate::support::{assert_error, clients, connected, ms, secs};
use crate::wrapped::Wrapped;

fn election(locks: &LockClient, info: &str) -> Election {
    let election = locks.election("leader").expect("valid").lease(secs(9));
    election.info(info).expect("short")
}

#[tokio::test(start_paused = true)]
async fn followers_find_the_leader_and_its_latest_info() {
    let (_server, [a, b]) = clients();
    let follower = election(&b, "");
    let term = election(&a, "a:80").campaign().await.expect("free");
    for info in ["a:80", "a:81", "a:82"] {
        if info != "a:80" {
            term.set_info(info).await.expect("answered");
        }
        let leader = follower.leader().await.expect("answered").expect("leads");
        assert_eq!(leader.label.as_str(), "a", "{info}");
        assert_eq!(leader.info, info.as_bytes());
        assert_eq!(leader.term, term.number(), "{info}");
        let inspection = b.inspect("leader").await.expect("answered");
        assert_eq!(inspection.role(), Some(Role::Election));
        assert_eq!(inspection.leader(), Some(leader));
    }
}

#[tokio::test(start_paused = true)]
async fn isolated_leader_ends_before_the_next_one_begins() {
    let (server, [(a, network), (b, _)]) = connected();
    let term = election(&a, "a").campaign().await.expect("free");
    let standing = election(&b, "b");
    let next = tokio::spawn(async move { standing.campaign().await });
    server.advance(secs(5)).await;
    let seen = election(&b, "").look().await.expect("answered");
    let candidates: Vec<_> = seen.candidates.iter().map(|it| it.as_str()).collect();
    assert_eq!(candidates, ["b"]);
    network.isolate();
    let isolated = server.elapsed();
    let left = term.expiring(secs(2)).await;
    assert_eq!(left, secs(2));
    assert!(term.is_leader() && !next.is_finished());
    assert_eq!(term.lost().await, Loss::Deadline);
    assert!(!term.is_leader() && !next.is_finished());
    server.advance(secs(2)).await;
    assert!(next.is_finished());
    assert!(server.elapsed() - isolated < secs(12));
}

#[tokio::test(start_paused = true)]
async fn paused_leader_is_none_at_once_when_it_wakes() {
    let (server, [(a, network)]) = connected();
    let term = election(&a, "a").campaign().await.expect("free");
    network.pause();
    server.advance(secs(10)).await;
    network.resume();
    assert!(!term.is_leader());
    assert_eq!(term.lost().now_or_never(), Some(Loss::Deadline));
}

#[tokio::test(start_paused = true)]
async fn run_stands_again_after_a_loss_and_resigns_at_the_end() {
    let (server, [a, b]) = clients();
    let (terms, dropped) = (RefCell::new(Vec::new()), Cell::new(0));
    let standing = election(&a, "a");
    struct Count<'a>(&'a Cell<u32>);
    impl Drop for Count<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let led = standing.run(async |term| {
        let _body = Count(&dropped);
        terms.borrow_mut().push(term.number());
        if terms.borrow().len() < 3 {
            server.restart(Data::Lost);
            std::future::pending::<()>().await;
        }
        "led"
    });
    assert_eq!(led.await.expect("elected"), "led");
    let terms = terms.into_inner();
    assert_eq!(terms.len(), 3, "{terms:?}");
    assert!(terms.is_sorted_by(|a, b| a < b), "{terms:?}");
    assert_eq!(dropped.get(), 3);
    assert_eq!(election(&b, "").leader().await.expect("answered"), None);
}

/// A task that the body has spawned may keep the term.
#[tokio::test(start_paused = true)]
async fn run_resigns_whoever_keeps_the_term() {
    let (server, [a, b]) = clients();
    for panics in [false, true] {
        let (standing, (send, kept)) = (election(&a, "a"), std::sync::mpsc::channel());
        let leading = tokio::spawn(async move {
            let led = standing.run(async |term| {
                send.send(term).expect("the test waits for it");
                assert!(!panics, "a body that panics");
                std::future::pending::<()>().await;
            });
            tokio::time::timeout(secs(1), led).await
        });
        let ended = leading.await;
        assert_eq!(ended.is_err(), panics);
        let term = kept.recv().expect("elected");
        assert!(!term.is_leader(), "panics: {panics}");
        server.advance(ms(10)).await;
        let standing = election(&b, "b");
        let next = tokio::time::timeout(ms(100), standing.campaign()).await;
        next.expect("nobody leads")
            .expect("free")
            .resign()
            .await
            .expect("answered");
    }
}

#[tokio::test(start_paused = true)]
async fn observers_see_each_leader_by_one_inspection_a_second() {
    let (server, [a, b]) = clients();
    // Handles that are not clones of each other share the inspections too.
    let observe = |_| Box::pin(election(&b, "").observe());
    let mut streams: Vec<_> = (0..5).map(observe).collect();
    for stream in &mut streams {
        assert_eq!(stream.next().await, Some(None), "nobody leads yet");
    }
    let term = election(&a, "a:80").campaign().await.expect("free");
    let before = server.elapsed();
    for stream in &mut streams {
        let leader = stream.next().await.expect("open").expect("leads");
        assert_eq!(leader.info, b"a:80");
        assert_eq!(leader.term, term.number());
    }
    let took = server.elapsed() - before;
    assert!(took <= ms(1_100), "{took:?}");
    let mut quiet = pin!(streams[0].next());
    assert_eq!(quiet.as_mut().now_or_never(), None);
    let log = server.log();
    let inspects = |entry: &&leasehold_sim::tools::Entry| {
        matches!(&entry.event, leasehold_sim::tools::Event::Executed { command, .. }
            if matches!(**command, Command::Inspect))
    };
    let inspections = log.iter().filter(inspects).count();
    let seconds = usize::try_from(server.elapsed().as_secs()).expect("short");
    assert!(inspections <= seconds + 2, "{inspections} in {seconds} s");
    drop(term);
    assert_eq!(quiet.await, Some(None));
    b.shutdown().await.expect("nothing held");
    assert_eq!(streams[1].next().await.flatten(), None);
}

/// Also if an inspection falls between the grant of its lock and the note with its info.
#[tokio::test(start_paused = true)]
async fn observers_see_a_new_leader_once_and_with_its_info() {
    for offset in 0..10 {
        let (server, [(a, network), (b, _)]) = connected();
        // The note arrives 0.9 s after the grant.
        network.set_latency(Latency::fixed(ms(450)));
        let mut stream = Box::pin(election(&b, "").observe());
        assert_eq!(stream.next().await, Some(None), "nobody leads yet");
        server.advance(ms(100 * offset)).await;
        let standing = election(&a, "a:80");
        let (term, seen) = tokio::join!(standing.campaign(), stream.next());
        let term = term.expect("free");
        let leader = seen.expect("open").expect("leads");
        assert_eq!((&*leader.info, leader.term), (&b"a:80"[..], term.number()));
        assert_eq!(stream.next().now_or_never(), None);
    }
}

/// A failover may lose the note of a term that goes on.
#[tokio::test(start_paused = true)]
async fn observers_see_a_leader_without_info_after_a_second() {
    let (server, [a, b]) = clients();
    let mut stream = Box::pin(election(&b, "").observe());
    assert_eq!(stream.next().await, Some(None), "nobody leads yet");
    let guard = a
        .mutex("leader")
        .expect("valid")
        .lock()
        .await
        .expect("free");
    let before = server.elapsed();
    let leader = stream.next().await.expect("open").expect("leads");
    assert_eq!(
        (&*leader.info, leader.term),
        (&b""[..], guard.fencing_token())
    );
    let took = server.elapsed() - before;
    assert!((secs(1)..ms(2_200)).contains(&took), "{took:?}");
}

/// A second stream asks while the answer for the first one is on its way, and that one while the second one's is.
#[tokio::test(start_paused = true)]
async fn observers_see_the_leader_also_if_each_answer_takes_longer_than_a_second() {
    let (server, [a]) = clients();
    let slow = Wrapped {
        inspections_take: ms(1_600),
        ..Wrapped::new(server.client("b"))
    };
    let b = LockClient::builder(slow).call_timeout(secs(5)).build();
    let b = b.expect("valid");
    let observe = |_| Box::pin(election(&b, "").observe());
    let mut streams: Vec<_> = (0..3).map(observe).collect();
    let term = election(&a, "a:80").campaign().await.expect("free");
    let all = join_all(streams.iter_mut().map(|stream| async {
        let leader = stream.next().await.expect("open").expect("leads");
        assert_eq!(leader.term, term.number());
    }));
    let seen = tokio::time::timeout(secs(5), all).await;
    seen.expect("seen by all");
    term.resign().await.expect("answered");
    let all = join_all(streams.iter_mut().map(StreamExt::next));
    let all = tokio::time::timeout(secs(5), all).await;
    assert_eq!(all.expect("seen by all"), [const { Some(None) }; 3]);
}

#[tokio::test(start_paused = true)]
async fn bad_info_is_refused_before_any_io() {
    let (server, [a]) = clients();
    let begun = server.elapsed();
    let refused = a.election("leader").expect("valid").info(vec![0; 128]);
    assert_error!(refused, InvalidInput);
    assert!(a.election("").is_err());
    assert_eq!(server.elapsed(), begun);
    let term = election(&a, &"x".repeat(127)).campaign().await;
    let term = term.expect("free");
    let refused = term.set_info(vec![0; 128]).await;
    assert_error!(refused, InvalidInput);
}
