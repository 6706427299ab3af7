//! Operations that travel together, each from a thread of its own.

use std::time::Duration;

use futures_util::FutureExt;
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

/// Sends an end with whoever else is ready, and checks that it was executed.
async fn releases(core: Arc<Core>, sequence: u64, tasks: Arc<Tasks>) {
    let answer = send_batched(&core, LIMIT, release(&core, sequence)).await;
    let released = ReleaseReply::Released {
        holds_left: 0,
        holder: None,
    };
    assert_eq!(answer.expect("an answer").reply, released);
    tasks.end();
}

#[test]
fn loom_two_that_come_together_are_both_sent() {
    explore(|| {
        let (fixture, tasks) = Fixture::with_tasks(2);
        let core = fixture.core();
        let other = releases(fixture.core(), 1, Arc::clone(&tasks));
        let first = spawn(move || block_on(other));
        let second = releases(fixture.core(), 2, Arc::clone(&tasks));
        block_on(join(second, tasks.run()));
        first.join().expect("it ends");
        assert_eq!((fixture.server.ends(1), fixture.server.ends(2)), (1, 1));
        assert!(core.batcher.is_idle());
    });
}

#[test]
fn loom_who_goes_away_harms_nobody_who_travels_with_it() {
    explore(|| {
        let (fixture, tasks) = Fixture::with_tasks(1);
        let core = fixture.core();
        let staying = releases(fixture.core(), 1, Arc::clone(&tasks));
        let staying = spawn(move || block_on(staying));
        // It may be the one that had the others sent.
        let gone = send_batched(&core, LIMIT, release(&core, 2)).now_or_never();
        assert!(gone.is_none());
        block_on(tasks.run());
        staying.join().expect("it ends");
        assert_eq!(fixture.server.ends(1), 1);
        assert!(fixture.server.ends(2) <= 1);
        assert!(core.batcher.is_idle());
    });
}
