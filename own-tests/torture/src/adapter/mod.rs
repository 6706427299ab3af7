//! The client process of a subject that is written in Rust: reads commands, asks the library, and
//! writes replies.

pub(crate) mod by_hand;
pub(crate) mod coordination;
pub(crate) mod leasehold;
#[cfg(feature = "peers")]
pub(crate) mod peers;
mod planted;
pub(crate) mod specimens;

use std::io::{BufRead, Write};

use crate::Failure;
use crate::protocol::{Acquire, Command, Reply};

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
}

/// Serves commands until the input closes.
pub(crate) async fn serve<A: Adapter>(adapter: A) -> Result<(), Failure> {
    let mut held = None;
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
    held: &mut Option<A::Held>,
    command: Command,
) -> Result<Reply, Failure> {
    Ok(match command {
        Command::Acquire(ask) => {
            *held = adapter.acquire(&ask).await?;
            let token = held.as_ref().map(|held| adapter.token(held));
            token.map_or(Reply::Free, |token| Reply::Held { token })
        }
        Command::Check => match held {
            Some(held) if adapter.check(held).await? => Reply::Held { token: None },
            _ => Reply::Free,
        },
        Command::Pass => Reply::Ready,
        Command::Release => match held.take() {
            Some(held) => match adapter.release(held).await? {
                true => Reply::Held { token: None },
                false => Reply::Free,
            },
            None => Reply::Free,
        },
    })
}

fn write(reply: &Reply) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, reply)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
