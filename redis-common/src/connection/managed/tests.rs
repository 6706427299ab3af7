//! A connection to a node that a test drives.

use leasehold_api::{Key, List};

use super::*;
use crate::connection::fake::{self, LIMIT, Node};
use crate::script::{Protocol, ScriptSettings};

/// The clock of a server without a `run_id` is watched by the times that it tells. A page of keys tells none.
#[tokio::test]
async fn listed_keys_are_never_read_as_a_time() {
    let node = Arc::new(Node::default());
    node.unnamed.store(true, Ordering::SeqCst);
    let connection = ManagedConnection::new(fake::shared(&node, LIMIT));
    let before = connection.time().await.expect("the node answers").clock;
    // In an answer about a key, this is a time far from that of the node.
    let like_a_time = [b"=".as_slice(), &9e15_f64.to_le_bytes()].concat();
    *node.script_answer.lock().expect("no panic") = like_a_time;
    let protocol = Protocol::new("p:", ScriptSettings::default()).expect("a good prefix");
    let listing = protocol.list(&List::new(""), "0");
    let listed = connection.script(&listing).await.expect("an answer");
    assert_eq!((listed.clock, connection.clock()), (before, Some(before)));
    let inspecting = protocol.inspect(&Key::new("k").expect("a good key"));
    let inspected = connection.script(&inspecting).await.expect("an answer");
    assert_ne!(inspected.clock, before);
}
