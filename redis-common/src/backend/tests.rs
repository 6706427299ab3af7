//! A backend on a cluster that a test drives.

use std::sync::atomic::Ordering;

use leasehold_api::{Operation, OwnerId};

use super::*;
use crate::connection::fake::{self, Node, ToNode};

/// One call after the other took a round trip each, all within one time limit.
#[tokio::test]
async fn elements_of_a_key_are_one_call() {
    let node = Arc::new(Node::default());
    let url = ServerUrl::parse(fake::URL, false).expect("a URL");
    let backend = Backend::connect(ToNode::new(&node), &url, Options::new()).await;
    let backend = backend.expect("the node answers");
    let release = |sequence: u64| {
        let name = if sequence.is_multiple_of(64) {
            "b"
        } else {
            "a"
        };
        let operation = Operation {
            session: SessionId::from_bytes([1; 16]),
            sequence,
            owner: OwnerId::from_u64(sequence),
        };
        Release::new(Key::new(name).expect("valid"), operation)
    };
    let batch: Vec<_> = (1..=128).map(release).collect();
    let before = node.scripts.load(Ordering::SeqCst);
    assert_eq!(backend.release(&batch).await.len(), batch.len());
    let calls = node.scripts.load(Ordering::SeqCst) - before;
    assert_eq!(calls, 2, "one for each key");
}
