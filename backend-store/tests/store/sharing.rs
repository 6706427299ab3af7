//! Commands at the same time, of one client and of several.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use leasehold_api::{AcquireReply, BackendError, LockBackend, Release, Renew};
use leasehold_store::Written;

use crate::steps::{LEASE, ask, enter, key, operation, release, send, session, waiting};
use crate::support::{Server, block_on};

const LATENCY: Duration = Duration::from_millis(1);

fn conflicts(server: &Server) -> usize {
    let refused = |(_, written): &(_, Written)| *written == Written::NotApplied;
    server.arrived().iter().filter(|it| refused(it)).count()
}

#[test]
fn commands_of_one_client_do_not_conflict() {
    block_on(async {
        let server = Server::new(1, LATENCY);
        let client = server.client();
        let sent = (1..=16).map(|number| send(&client, ask(&server, operation(1, number), LEASE)));
        let replies = join_all(sent).await;
        let acquired = replies.iter().flatten();
        let acquired = acquired.filter(|reply| matches!(reply, AcquireReply::Acquired(_)));
        assert_eq!(acquired.count(), 1);
        assert_eq!((server.arrived().len(), conflicts(&server)), (16, 0));
    });
}

#[test]
fn clients_that_conflict_try_again() {
    block_on(async {
        let server = Server::new(1, LATENCY);
        let clients: Vec<_> = (0..8).map(|_| server.client()).collect();
        let sent = clients.iter().zip(1..).map(|(client, number)| {
            let request = ask(&server, operation(number, 1), LEASE);
            send(client, request)
        });
        let replies = join_all(sent).await;
        let acquired = replies.iter().flatten();
        let acquired = acquired.filter(|reply| matches!(reply, AcquireReply::Acquired(_)));
        assert_eq!(acquired.count(), 1, "{replies:?}");
        assert!(replies.iter().all(Result::is_ok), "{replies:?}");
        assert!(conflicts(&server) > 0);
    });
}

#[test]
fn commands_of_a_batch_on_one_key_share_a_write() {
    block_on(async {
        let server = Server::new(1, LATENCY);
        let client = server.client();
        for number in 1..=3 {
            send(&client, waiting(&server, operation(1, number)))
                .await
                .expect("a reply");
        }
        let before = server.arrived().len();
        let batch: Vec<_> = (1..=3)
            .map(|number| Release::new(key(), operation(1, number)))
            .collect();
        let replies = client.release(&batch).await;
        let stamps: BTreeSet<_> = replies
            .into_iter()
            .map(|it| it.expect("a reply").stamp.at)
            .collect();
        assert_eq!(stamps.len(), 1);
        assert_eq!(server.arrived().len(), before + 1);
    });
}

#[test]
fn store_is_asked_who_listens_before_a_grant() {
    block_on(async {
        let server = Server::new(1, LATENCY);
        let client = server.client();
        enter(&client, ask(&server, operation(1, 1), LEASE)).await;
        for number in 2..=3 {
            send(&client, waiting(&server, operation(number, 1)))
                .await
                .expect("a reply");
        }
        let _third = client.listen(session(3)).await.expect("a stream");
        assert!(server.asked().is_empty(), "nothing was to be granted");
        release(&client, operation(1, 1)).await;
        assert_eq!(server.asked(), [session(2), session(3)]);
        let inspection = client.inspect(&key()).await.expect("a reply").reply;
        assert_eq!((inspection.holder_count, inspection.waiter_count), (1, 1));
        assert!(inspection.waiters[0].unreachable);
    });
}

/// A renewal with a store of its own does not wait for a command whose task is blocked.
#[test]
fn renewals_pass_a_blocked_command() {
    block_on(async {
        let server = Server::new(1, LATENCY);
        let client = server.client().renewals(server.store());
        assert!(client.capabilities().independent_renewal);
        enter(&client, ask(&server, operation(1, 1), LEASE)).await;
        let other = operation(2, 1);
        let mut blocked = Box::pin(send(&client, ask(&server, other, LEASE)));
        // The command has its turn, and is not polled any more.
        assert!(blocked.as_mut().now_or_never().is_none());
        let renew = Renew::new(key(), operation(1, 1), LEASE).expect("valid");
        let renewed = client.renew(&[renew]).await.remove(0);
        assert!(renewed.is_ok(), "{renewed:?}");
        assert!(blocked.await.is_ok());
    });
}

#[test]
fn command_waits_no_longer_than_its_call() {
    block_on(async {
        let server = Server::new(1, LATENCY);
        let client = server.client();
        let mut blocked = Box::pin(send(&client, ask(&server, operation(1, 1), LEASE)));
        assert!(blocked.as_mut().now_or_never().is_none());
        let begun = tokio::time::Instant::now();
        let second = send(&client, ask(&server, operation(1, 2), LEASE)).await;
        assert!(
            matches!(second, Err(BackendError::Unavailable { .. })),
            "{second:?}"
        );
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
        drop(blocked);
        assert!(
            send(&client, ask(&server, operation(1, 3), LEASE))
                .await
                .is_ok()
        );
    });
}
