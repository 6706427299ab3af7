//! The client process of a subject that is written in Rust: reads commands, asks the library, and
//! writes replies.

pub(crate) mod by_hand;
pub(crate) mod coordination;
pub(crate) mod leasehold;
#[cfg(feature = "peers")]
pub(crate) mod peers;
mod planted;
pub(crate) mod specimens;

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use tokio::time::timeout;

use crate::Failure;
use crate::protocol::{Acquire, Command, Mode, Reply};

/// What an adapter asks its library. Everything else is the same for all.
pub(crate) trait Adapter {
    /// A lock that the client holds.
    type Held;

    /// Acquires the lock, as the library's documentation shows.
    async fn acquire(&self, ask: &Acquire) -> Result<Option<Self::Held>, Failure>;

    /// The fencing token, if the library has them.
    fn token(&self, _: &Self::Held) -> Option<u64> {
        None
    }

    /// Whether the client still holds the lock, as far as the library tells. If it can't tell, whether
    /// the time that the documentation promises isn't over.
    async fn check(&self, held: &Self::Held) -> Result<bool, Failure>;

    /// Releases the lock. Returns whether it was still held.
    async fn release(&self, held: Self::Held) -> Result<bool, Failure>;

    /// Converts it. Returns it, and whether it was converted. With an error, it is released.
    async fn convert(&self, _: Self::Held, _: Mode) -> Result<(Self::Held, bool), Failure> {
        Err("there are no conversions".into())
    }
}

/// Serves commands until the input closes.
pub(crate) async fn serve<A: Adapter>(adapter: A) -> Result<(), Failure> {
    let mut held = BTreeMap::new();
    write(&Reply::Ready)?;
    // The runtime has more than one thread, so tasks of the library go on while this one waits.
    for line in std::io::stdin().lock().lines() {
        let command = serde_json::from_str(&line?)?;
        let reply = answer(&adapter, &mut held, command).await;
        write(&reply.unwrap_or_else(|error| Reply::Error {
            text: error.to_string(),
        }))?;
    }
    Ok(())
}

async fn answer<A: Adapter>(
    adapter: &A,
    held: &mut BTreeMap<Option<u64>, A::Held>,
    command: Command,
) -> Result<Reply, Failure> {
    let held_if = |it, token| {
        if it {
            Reply::Held { token }
        } else {
            Reply::Free
        }
    };
    Ok(match command {
        Command::Acquire(ask) => {
            let limit = ask.drop_ms.map_or(Duration::MAX, Duration::from_millis);
            let taken = timeout(limit, adapter.acquire(&ask)).await;
            let Some(taken) = taken.unwrap_or(Ok(None))? else {
                return Ok(Reply::Free);
            };
            let token = adapter.token(&taken);
            held.insert(ask.hold, taken);
            Reply::Held { token }
        }
        Command::Check { hold } => match held.get(&hold) {
            Some(held) => held_if(adapter.check(held).await?, None),
            None => Reply::Free,
        },
        Command::Pass => Reply::Ready,
        Command::Release { hold } => match held.remove(&hold) {
            Some(held) => held_if(adapter.release(held).await?, None),
            None => Reply::Free,
        },
        Command::Convert { hold, to } => {
            let before = held.remove(&hold).ok_or("nothing to convert")?;
            let (after, converted) = adapter.convert(before, to).await?;
            let token = adapter.token(&after);
            held.insert(hold, after);
            held_if(converted, token)
        }
    })
}

fn write(reply: &Reply) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, reply)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
