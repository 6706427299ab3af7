//! Executing a log again.

use leasehold_api::machine::Settings;

use crate::record::{Answer, Entry, Event};
use crate::server::primaries::Servers;

/// Executes the commands of a complete log on fresh servers, and compares the answers.
///
/// # Errors
/// The first entry whose replay answered otherwise, and that answer.
pub fn replay(settings: Settings, entries: &[Entry]) -> Result<(), Box<(Entry, Answer)>> {
    let mut servers = Servers::new(settings, usize::MAX);
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
