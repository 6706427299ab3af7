//! A lease that passes from one client to the next, by single commands at exact times.

use leasehold_api::{AcquireReply, PollReply, ReleaseReply, RenewReply};

use crate::support::{Raw, assert_is, ms, secs};

#[tokio::test(start_paused = true)]
async fn a_lease_passes_on() {
    let (server, a, b) = Raw::pair();
    let (first, reply) = a.acquire(secs(10)).await;
    assert_is!(reply => AcquireReply::Acquired(_));
    let (second, reply) = b.queue(secs(10)).await;
    assert_is!(reply => AcquireReply::Queued(_));
    server.advance(secs(4)).await;
    assert_is!(b.poll(second).await => Ok(PollReply::Queued(_)));
    assert_is!(a.renew(first, secs(5)).await => Ok(RenewReply::Renewed { .. }));
    server.advance(secs(4)).await;
    assert_is!(b.poll(second).await => Ok(PollReply::Queued(_)));
    server.advance(secs(2)).await;
    assert_is!(b.poll(second).await => Ok(PollReply::Acquired(_)));
    assert_is!(b.release(second).await => Ok(ReleaseReply::Released { .. }));
    assert_eq!(server.elapsed(), ms(10_018));
    server.assert_idle();
    insta::assert_snapshot!(server.timeline());
}
