//! Scenarios of a store with a clock whose readings differ: it is read from several machines, or moves in steps.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_api::bounds::{LEASE_PER_CLOCK_ERROR, MAX_CLOCK_ERROR, SHORT_LEASE};
use leasehold_api::{LockClient, Outcome};

use crate::plan::{Registry, Seen, Verdict};
use crate::support::{Fault, Faults, Server, block_on};

const CLIENTS: u64 = 3;
const ROUNDS: u64 = 5;

/// A program that uses the lock for as long as it has it, with half of its leases fixed.
struct Program {
    server: Arc<Server>,
    registry: Arc<Registry>,
    lease: Duration,
    /// Whether calls fail, or a renewal may be late: a lease is so short that the calls of others delay it for too long,
    /// or the store refuses what comes from a reading that is ahead.
    may_lose: bool,
}

impl Program {
    async fn run(self) -> Verdict {
        let locks = LockClient::new(self.server.client());
        for _ in 0..ROUNDS {
            self.hold(&locks).await?;
            tokio::time::sleep(self.server.up_to(self.lease / 4)).await;
        }
        let _ = locks.shutdown().await;
        Ok(())
    }

    async fn hold(&self, locks: &LockClient) -> Verdict {
        let Self { server, lease, .. } = self;
        let mutex = locks.mutex("a").expect("valid").lease(*lease);
        let is_fixed = server.random().is_multiple_of(2);
        let mutex = if is_fixed { mutex.fixed_lease() } else { mutex };
        // Each of the others has the lock for two leases, and leaves it for one more.
        let longest = *lease * 4 * u32::try_from(CLIENTS).expect("few");
        let guard = mutex.try_lock_for(longest + 10 * MAX_CLOCK_ERROR).await;
        let Some(guard) = guard.ok().and_then(Outcome::into_guard) else {
            return self.may_be("the lock was not granted");
        };
        let guard = Arc::new(guard);
        self.registry.enter(&guard);
        tokio::time::sleep(server.up_to(*lease * 2)).await;
        if !is_fixed && !guard.is_valid() {
            self.may_be(&format!(
                "a guard that is renewed was lost: {:?} of {lease:?}",
                guard.loss_reason()
            ))?;
        }
        // A fixed lease may end by itself.
        if !is_fixed || server.random().is_multiple_of(2) {
            self.registry.leave(&guard);
            let _ = guard.release().await;
        }
        Ok(())
    }

    fn may_be(&self, problem: &str) -> Verdict {
        match self.may_lose {
            true => Ok(()),
            false => Err(problem.to_owned()),
        }
    }
}

/// No two clients hold the lock at once, and without other faults nobody misses the lock or loses it.
pub(crate) fn safety(seed: u64, all: &mut Seen) -> Verdict {
    block_on(async {
        let server = Server::new(seed, Duration::from_millis(3));
        let error = MAX_CLOCK_ERROR / [1, 5, 25][(seed / 8 % 3) as usize];
        let tells_time = seed % 8 >= 4;
        let lease = error * LEASE_PER_CLOCK_ERROR;
        let is_faulty = seed.is_multiple_of(2);
        server.set_clock_error(error, seed % 4 < 2, tells_time);
        if is_faulty {
            server.set_faults(
                Faults::default()
                    .share(Fault::Conflict, 5)
                    .share(Fault::LostReply, 5)
                    .share(Fault::Late, 5)
                    .share(Fault::Copied, 10)
                    .share(Fault::Unavailable, 3)
                    .share(Fault::Hangs, 1),
            );
        }
        let registry = Arc::new(Registry::default());
        let programs = (0..CLIENTS).map(|_| {
            let program = Program {
                server: Arc::clone(&server),
                registry: Arc::clone(&registry),
                lease,
                may_lose: is_faulty || tells_time || lease < SHORT_LEASE,
            };
            tokio::spawn(program.run())
        });
        for ended in join_all(programs.collect::<Vec<_>>()).await {
            ended.map_err(|error| error.to_string())??;
        }
        all.entered += registry.with(|held| held.entered);
        registry.verdict()
    })
}
