//! A `CancellationToken` that ends with a guard.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use crate::client::hold::one::Hold;

/// Returns a token that is cancelled when one of the holds is lost, is being released, or ends within `margin`.
///
/// The task runs where renewals run, so the token is cancelled in time even if the program blocks its own runtime.
/// If that thread dies or the runtime ends, the task is dropped, which cancels the token too.
pub(crate) fn cancellation(holds: &[Hold], margin: Duration) -> CancellationToken {
    let token = CancellationToken::new();
    let Some(Hold { client, .. }) = holds.first() else {
        return token;
    };
    if holds.iter().any(|hold| hold.is_ending(margin)) {
        token.cancel();
        return token;
    }
    let mut ends: FuturesUnordered<_> = holds.iter().map(|hold| hold.ending(margin)).collect();
    let cancel = token.clone().drop_guard();
    client.runtime.spawn_on_renewal_thread(Box::pin(async move {
        let _cancel = cancel;
        ends.next().await;
    }));
    token
}
