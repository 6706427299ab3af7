//! A unit test of a worker that must stop when its lock is lost.
//!
//! The worker is ordinary tokio code. The test runs it on a simulated machine and pauses the
//! machine.
//!
//! ```sh
//! cargo test --example worker_test_with_sim
//! ```

use std::sync::Mutex;
use std::time::Duration;

use leasehold::sim::SimServer;
use leasehold::{Error, LockClient};

/// The letters that were sent: the sender and the number of each.
type Sent = Mutex<Vec<(String, usize)>>;

/// The code under test: sends one letter per second while it holds the lock. Returns the number of
/// letters that it sent.
async fn send_letters(locks: &LockClient, name: &str, sent: &Sent) -> Result<u32, Error> {
    let guard = locks.mutex("letters")?.lock().await?;
    let mut mine = 0;
    loop {
        let letter = sent.lock().expect("no panic while locked").len();
        if letter >= 50 {
            break;
        }
        tokio::select! {
            biased; // without `biased`, tokio polls in random order
            _ = guard.lost() => break,
            () = tokio::time::sleep(Duration::from_secs(1)) => {
                let mut sent = sent.lock().expect("no panic while locked");
                sent.push((name.to_owned(), letter));
                mine += 1;
            }
        }
    }
    drop(guard);
    Ok(mine)
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Error> {
    let (server, sent) = (SimServer::new(1), Sent::default());
    let locks = LockClient::new(server.client("ann"));
    let mine = send_letters(&locks, "ann", &sent).await?;
    println!(
        "ann sent {mine} letters in {:?} of virtual time",
        server.elapsed()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hung_worker_sends_nothing_after_losing_the_lock() {
        let (server, sent) = (SimServer::new(1), Sent::default());
        let machines = ["ann", "bob"].map(|name| server.client(name));
        let [ann, bob] = machines.clone().map(LockClient::new);

        let hang = async {
            server.advance(Duration::from_secs(10)).await;
            machines[0].pause();
            server.advance(Duration::from_secs(60)).await; // her lease is 30 s
            machines[0].resume();
        };
        // `run` pauses the worker's code together with its machine.
        let (anns, bobs, ()) = tokio::join!(
            machines[0].run(send_letters(&ann, "ann", &sent)),
            machines[1].run(send_letters(&bob, "bob", &sent)),
            hang,
        );

        assert_eq!(anns.expect("no failure"), 9, "{}", server.timeline());
        assert_eq!(bobs.expect("no failure"), 41);
        let sent = sent.lock().expect("unpoisoned");
        // Each letter was sent once, and none by Ann after Bob's first.
        assert!(sent.iter().map(|(_, letter)| *letter).eq(0..50), "{sent:?}");
        assert!(sent.is_sorted_by_key(|(name, _)| name.as_str()), "{sent:?}");
    }
}
