//! Models of batched requests. Each request comes from its own thread.
//!
//! The flush task is not spawned; the model runs it as one of its threads.

use std::time::Duration;

use futures_util::future::join;
use loom::future::block_on;

use crate::client::core::Core;
use crate::client::loom_models::fixture::{Fixture, Tasks};
use crate::client::loom_models::{explore, spawn};
use crate::client::task::batch::send_batched;
use crate::id::{Key, Operation, OwnerId};
use crate::reply::ReleaseReply;
use crate::request::Release;
use crate::sync::Arc;

const LIMIT: Duration = Duration::from_secs(1);

fn release(core: &Core, sequence: u64) -> Release {
    let operation = Operation {
        session: core.session().id,
        sequence,
        owner: OwnerId::from_u64(1),
    };
    Release::new(Key::new("k").expect("a valid key"), operation)
}

/// Sends a release through the batcher and checks that it was executed.
async fn send_release(core: Arc<Core>, sequence: u64, tasks: Arc<Tasks>) {
    let answer = send_batched(&core, LIMIT, release(&core, sequence)).await;
    let released = ReleaseReply::Released {
        holds_left: 0,
        holder: None,
    };
    assert_eq!(answer.expect("an answer").reply, released);
    tasks.user_done();
}

#[test]
fn loom_concurrent_requests_are_both_sent() {
    explore(|| {
        let (fixture, tasks) = Fixture::with_tasks(2);
        let core = fixture.core();
        let other = send_release(fixture.core(), 1, Arc::clone(&tasks));
        let first = spawn(move || block_on(other));
        let second = send_release(fixture.core(), 2, Arc::clone(&tasks));
        block_on(join(second, tasks.run()));
        first.join().expect("the thread returns");
        assert_eq!(
            (fixture.server.releases(1), fixture.server.releases(2)),
            (1, 1)
        );
        assert!(core.batcher.is_idle());
    });
}
