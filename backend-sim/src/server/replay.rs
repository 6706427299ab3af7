//! The replay of a log.

use crate::record::{Entry, Event, ServerAnswer};
use crate::server::primaries::Servers;

/// Executes the commands of a complete log again, on new servers, and compares the answers.
///
/// # Errors
/// Returns the first entry that has another answer or stamp in the replay, and the answer of the
/// replay.
///
/// # Examples
/// ```
/// use leasehold_api::LockClient;
/// use leasehold_sim::tools::replay;
/// use leasehold_sim::SimServer;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), leasehold_api::Error> {
/// let server = SimServer::new(1);
/// let locks = LockClient::new(server.client("a"));
/// locks.mutex("job")?.lock().await?.release().await?;
/// assert!(replay(&server.log()).is_ok());
/// # Ok(())
/// # }
/// ```
pub fn replay(entries: &[Entry]) -> Result<(), Box<(Entry, ServerAnswer)>> {
    let mut servers = Servers::new(usize::MAX);
    for entry in entries {
        match &entry.event {
            Event::Executed {
                key,
                command,
                answer,
                stamp,
                ..
            } => {
                let store = servers.by_clock(stamp.clock);
                let executed = store.execute(entry.at, key, command);
                if executed.answer != *answer || executed.stamp != *stamp {
                    return Err(Box::new((entry.clone(), executed.answer)));
                }
            }
            Event::Subscribed { session, clock } => servers.by_clock(*clock).subscribe(*session),
            Event::Unsubscribed { session, clock } => {
                servers.by_clock(*clock).unsubscribe(*session);
            }
            Event::Server(event) => servers.apply(event),
            _ => {}
        }
    }
    Ok(())
}
