//! Several clients' ways to one lock, each over connections of its own.

use leasehold::{LockClient, Mutex};

use crate::Result;
use crate::blpop::{Line, SignalLock, TokenLock};
use crate::library::Library;

/// leasehold's clients, and each one's mutex.
///
/// # Errors
/// Those of connecting.
pub async fn mutexes(
    library: Library,
    url: &str,
    key: &str,
    count: usize,
) -> Result<(Vec<LockClient>, Vec<Mutex>)> {
    let (mut clients, mut mutexes) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let locks = library.connect(url).await?;
        mutexes.push(locks.mutex(key)?);
        clients.push(locks);
    }
    Ok((clients, mutexes))
}

async fn line(library: Library, url: &str) -> Result<Line> {
    match library {
        Library::RedisRs => Line::through_redis_rs(url).await,
        Library::Fred => Line::through_fred(url).await,
    }
}

/// Locks on `BLPOP` that signal.
///
/// # Errors
/// Those of connecting.
pub async fn signal_locks(
    library: Library,
    url: &str,
    key: &str,
    count: usize,
) -> Result<Vec<SignalLock>> {
    let mut locks = Vec::new();
    for number in 0..count {
        locks.push(SignalLock::new(line(library, url).await?, key, number).await?);
    }
    Ok(locks)
}

/// Locks on `BLPOP` that pass a token.
///
/// # Errors
/// Those of connecting.
pub async fn token_locks(
    library: Library,
    url: &str,
    key: &str,
    count: usize,
) -> Result<Vec<TokenLock>> {
    let mut locks = Vec::new();
    for number in 0..count {
        locks.push(TokenLock::new(line(library, url).await?, key, number).await?);
    }
    Ok(locks)
}
