//! Each fault at exact times: its effect on the server, and the reply to the client.

use futures_util::future::join;
use futures_util::{FutureExt as _, StreamExt as _};
use leasehold_api::{
    AcquireReply, BackendError, ForceRelease, LockBackend as _, Notification, Operation, PollReply,
    ReleaseReply, RenewReply,
};
use leasehold_sim::{Call, Fault, Latency, SimServer};

use crate::support::{MISSED, Raw, assert_is, key, ms, secs, unknown};

#[tokio::test(start_paused = true)]
async fn lost_request_is_not_executed() {
    let (server, a) = Raw::alone();
    let (_, request) = a.ask(secs(10)).await;
    a.backend.inject(Fault::LoseRequest);
    let sent = server.elapsed();
    assert!(unknown(&a.send(&request).await));
    assert_eq!(server.elapsed() - sent, secs(1));
    assert_eq!(a.backend.pending_faults(), 0);
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn retry_after_a_lost_reply_reports_the_grant() {
    let (server, a) = Raw::alone();
    let (operation, request) = a.ask(secs(10)).await;
    a.backend.inject(Fault::LoseReply);
    assert!(unknown(&a.send(&request).await));
    assert_eq!(server.elapsed(), ms(1_002));
    insta::assert_snapshot!(server.left_behind(), @r#"  mutex "job": "a" holds it (exclusive), 9.001s left"#);
    let again = a.send(&request).await.expect("an answer").reply;
    let AcquireReply::Acquired(acquired) = again else {
        panic!("{again:?}");
    };
    // Executed at 3 ms, and again at 1.003 s.
    assert_eq!((acquired.holds, acquired.remaining), (1, secs(9)));
    assert_is!(a.release(operation).await => Ok(ReleaseReply::Released { holds_left: 0, .. }));
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn late_request_is_overtaken() {
    let (server, a) = Raw::alone();
    let (operation, request) = a.ask(secs(10)).await;
    a.backend.inject(Fault::DelayRequest(ms(500)));
    let (late, end) = join(a.send(&request), a.release(operation)).await;
    assert_is!(end => Ok(ReleaseReply::NotHeld(_)));
    let reply = late.expect("an answer").reply;
    assert_eq!(reply, AcquireReply::Stale);
    assert_eq!(server.elapsed(), ms(2 + 500 + 2));
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn request_later_than_the_timeout_is_executed() {
    let (server, a) = Raw::alone();
    let (_, request) = a.ask(secs(10)).await;
    a.backend.inject(Fault::DelayRequest(secs(3)));
    assert!(unknown(&a.send(&request).await));
    server.assert_idle();
    server.advance(secs(3)).await;
    assert_ne!(server.left_behind(), "");
}

#[tokio::test(start_paused = true)]
async fn late_reply_arrives_late() {
    let (server, a) = Raw::alone();
    a.backend.inject(Fault::DelayReply(ms(300)));
    a.backend.hello().await.expect("an answer");
    assert_eq!(server.elapsed(), ms(302));
    a.backend.inject(Fault::DelayReply(ms(1_000)));
    assert!(unknown(&a.backend.hello().await));
    assert_eq!(server.elapsed(), ms(1_302));
}

#[tokio::test(start_paused = true)]
async fn a_second_delivery_has_no_second_effect() {
    let (server, a) = Raw::alone();
    a.backend
        .inject_into(Call::Acquire, Fault::DuplicateRequest(ms(50)));
    let (operation, _) = a.acquire(secs(10)).await;
    a.release(operation).await.expect("an answer");
    server.advance(ms(100)).await;
    server.assert_idle();
    insta::assert_snapshot!(server.timeline());
}

#[tokio::test(start_paused = true)]
async fn fault_waits_for_its_call() {
    let (_server, a) = Raw::alone();
    a.backend.inject_into(Call::Renew, Fault::LoseReply);
    let (operation, reply) = a.acquire(secs(10)).await;
    assert_is!(reply => AcquireReply::Acquired(_));
    assert_eq!(a.backend.pending_faults(), 1);
    assert!(unknown(&a.renew(operation, secs(20)).await));
    assert_eq!(a.backend.pending_faults(), 0);
    // At 5 ms the lease was extended to 20.005 s. The next renewal is executed at 1.005 s.
    let renewed = a.renew(operation, secs(1)).await.expect("an answer");
    assert_is!(renewed => RenewReply::Renewed { remaining, .. } if *remaining == secs(19));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "LosePush affects pushes, not calls")]
async fn push_fault_is_refused_for_a_call() {
    SimServer::new(1)
        .client("a")
        .inject_into(Call::Renew, Fault::LosePush);
}

/// Two clients: one holds the lock, and the other waits for it.
async fn holder_and_waiter(server: &SimServer) -> (Raw, Operation, Raw, Operation) {
    let (a, b) = (Raw::new(server, "a"), Raw::new(server, "b"));
    let (held, _) = a.acquire(secs(10)).await;
    let (queued, reply) = b.queue(secs(10)).await;
    assert_is!(reply => AcquireReply::Queued(_));
    (a, held, b, queued)
}

#[tokio::test(start_paused = true)]
async fn push_is_lost_doubled_or_late() {
    for (fault, expected) in [
        (None, vec![ms(2)]),
        (Some(Fault::LosePush), vec![]),
        (Some(Fault::DuplicatePush), vec![ms(2), ms(2)]),
        (Some(Fault::DelayPush(ms(30))), vec![ms(32)]),
    ] {
        let server = SimServer::new(1);
        let (a, held, b, queued) = holder_and_waiter(&server).await;
        let mut notifications = b.backend.listen(b.session).await.expect("listening");
        assert_is!(b.poll(queued).await => Ok(PollReply::Queued(_)));
        if let Some(fault) = fault {
            b.backend.inject(fault);
        }
        let released = server.elapsed();
        let receive = async {
            let mut times = Vec::new();
            let timer = b.backend.runtime().sleep(ms(100));
            let mut notifications = notifications.by_ref().take_until(timer);
            while let Some(notification) = notifications.next().await {
                assert_is!(notification => Notification::Granted { sequence: 1, .. });
                times.push(server.elapsed() - released);
            }
            times
        };
        let (times, end) = join(receive, a.release(held)).await;
        assert_is!(end => Ok(ReleaseReply::Released { .. }));
        assert_eq!(times, expected, "with {fault:?}");
        assert_is!(b.poll(queued).await => Ok(PollReply::Acquired(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn isolated_client_gets_no_reply() {
    let (_server, a) = Raw::alone();
    let (operation, _) = a.acquire(secs(10)).await;
    a.backend.isolate();
    assert!(unknown(&a.renew(operation, secs(10)).await));
    assert!(unknown(&a.backend.hello().await));
    a.backend.rejoin();
    // Executed at 2.005 s. The lease of 3 ms was not renewed meanwhile.
    let renewed = a.renew(operation, ms(1)).await.expect("an answer");
    assert_is!(renewed => RenewReply::Renewed { remaining, .. } if *remaining == ms(7_998));
}

#[tokio::test(start_paused = true)]
async fn isolated_client_misses_the_reply_in_flight() {
    let (server, a) = Raw::alone();
    let isolate = async {
        server.advance(ms(1)).await;
        a.backend.isolate();
    };
    let (stamp, ()) = join(a.backend.hello(), isolate).await;
    assert!(unknown(&stamp));
    assert_eq!(server.elapsed(), secs(1));
}

#[tokio::test(start_paused = true)]
async fn push_is_lost_with_its_connection() {
    let server = SimServer::new(1);
    let (a, held, b, _) = holder_and_waiter(&server).await;
    let notifications = b.backend.listen(b.session).await.expect("listening");
    let break_connection = async {
        // The release arrives after 1 ms. The push would take another 1 ms.
        server.advance(ms(1)).await;
        b.backend.drop_connection();
    };
    let (end, ()) = join(a.release(held), break_connection).await;
    assert!(end.is_ok());
    let timer = b.backend.runtime().sleep(ms(100));
    let received: Vec<_> = notifications.take_until(timer).collect().await;
    assert_eq!(received, MISSED);
}

#[tokio::test(start_paused = true)]
async fn push_without_a_subscription_is_lost() {
    let (_server, a, b) = Raw::pair();
    let notifications = b.backend.listen(b.session).await.expect("listening");
    let (_, reply) = b.acquire(secs(10)).await;
    let AcquireReply::Acquired(acquired) = reply else {
        panic!("{reply:?}");
    };
    b.backend.set_latency(Latency::fixed(ms(10)));
    b.backend.drop_connection();
    let revoke = ForceRelease::new(key(), vec![acquired.token]);
    a.backend.force_release(&revoke).await.expect("an answer");
    let timer = b.backend.runtime().sleep(ms(100));
    let received: Vec<_> = notifications.take_until(timer).collect().await;
    assert_eq!(received, MISSED);
}

#[tokio::test(start_paused = true)]
async fn broken_connection_leaves_the_outcome_unknown() {
    let (server, a) = Raw::alone();
    let mut notifications = a.backend.listen(a.session).await.expect("listening");
    assert_eq!(server.listeners(a.session), 1);
    let (_, request) = a.ask(secs(10)).await;
    let sent = server.elapsed();
    let cut = async {
        server.advance(ms(1)).await;
        a.backend.drop_connection();
        assert_eq!(server.listeners(a.session), 0);
    };
    let (result, ()) = join(a.send(&request), cut).await;
    assert!(unknown(&result));
    let noticed = server.elapsed() - sent;
    assert_eq!(noticed, ms(1), "the client did not notice at once");
    assert_ne!(server.left_behind(), "", "the request was not executed");
    let missed: Vec<_> = notifications.by_ref().take(2).collect().await;
    assert_eq!(missed, MISSED);
    // One round trip later.
    assert_eq!(server.elapsed() - sent, ms(3));
    assert_eq!(server.listeners(a.session), 1);
}

#[tokio::test(start_paused = true)]
async fn dropped_call_is_executed_if_it_was_sent() {
    let (server, a) = Raw::alone();
    let (first, second) = (a.operation(), a.operation());
    let unsent = a.request(first, secs(10)).await;
    drop(a.send(&unsent));
    server.advance(secs(1)).await;
    server.assert_idle();
    let sent = a.request(second, secs(10)).await;
    assert!(a.send(&sent).now_or_never().is_none());
    server.advance(secs(1)).await;
    assert_ne!(server.left_behind(), "");
}

#[tokio::test(start_paused = true)]
async fn messages_of_one_client_keep_their_order() {
    let server = SimServer::new(3);
    let a = Raw::new(&server, "a");
    a.backend.set_latency(Latency::between(ms(0), ms(20)));
    for _ in 0..50 {
        let (operation, request) = a.ask(secs(10)).await;
        let (acquired, ended) = join(a.send(&request), a.release(operation)).await;
        assert_is!(acquired.map(|r| r.reply) => Ok(AcquireReply::Acquired(_)));
        assert_is!(ended => Ok(ReleaseReply::Released { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn closing_ends_streams_and_calls() {
    let (server, a) = Raw::alone();
    let notifications = a.backend.listen(a.session).await.expect("listening");
    a.backend.close().await.expect("closed");
    a.backend.close().await.expect("closed again");
    assert_is!(a.backend.hello().await => Err(BackendError::Closed));
    assert_eq!(server.listeners(a.session), 0);
    let rest: Vec<_> = notifications.collect().await;
    assert_eq!(rest, [Notification::Missed { listening: false }]);
}
