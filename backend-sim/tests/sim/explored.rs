//! What an exploration says that it has tried, and that its pauses find a forgotten claim.

use std::sync::{Arc, Mutex};

use leasehold_api::{Error, FencingToken, JobOutcome, LockClient, Outcome};
use leasehold_sim::{Call, Exploration, Explored, Fault, FaultMix, SimServer};

use crate::support::{ms, secs};

/// A row of a database: a balance, and the highest token that it has seen.
type Row = Arc<Mutex<(u32, FencingToken)>>;

/// A request of a service adds 1 to the row. Returns whether it is answered with success.
async fn add(locks: &LockClient, row: &Row, claims: bool) -> bool {
    let runtime = locks.runtime();
    let mutex = locks.mutex("record:7").expect("valid").lease(secs(10));
    let Ok(Outcome::Acquired(guard)) = mutex.try_lock_for(secs(2)).await else {
        return false;
    };
    let token = guard.fencing_token();
    let balance = {
        let mut row = row.lock().expect("no panic");
        if row.1 > token {
            return false;
        }
        if claims {
            row.1 = token;
        }
        row.0
    };
    runtime.sleep(ms(50)).await;
    if !guard.is_valid() {
        return false;
    }
    runtime.sleep(ms(20)).await; // the write is on its way
    let mut row = row.lock().expect("no panic");
    let is_mine = row.1 == token || (!claims && row.1 < token);
    if is_mine {
        *row = (balance + 1, token);
    }
    is_mine
}

/// Two instances of the service, which answer 32 requests each, one after the other.
async fn service(sim: SimServer, claims: bool) {
    let row = Row::default();
    let instances = ["a", "b"].map(|name| {
        let (machine, row) = (sim.client(name), Arc::clone(&row));
        let locks = LockClient::new(machine.clone());
        sim.spawn(async move {
            let mut done = 0;
            for _ in 0..32 {
                done += u32::from(machine.run(add(&locks, &row, claims)).await);
            }
            done
        })
    });
    let mut done = 0;
    for instance in instances {
        done += instance.await;
    }
    assert_eq!(row.lock().expect("no panic").0, done, "an addition is lost");
}

fn exploration() -> Exploration {
    Exploration::new().seeds(0..500).fault_mix(FaultMix::all())
}

#[test]
fn forgotten_claim_of_a_service_is_found() {
    let failure = exploration().find(|sim| service(sim, false));
    // In eight ranges of seeds, the first failure is that of run 7 to 133.
    let failure = failure.expect("within 500 seeds");
    assert!(failure.reason.contains("an addition is lost"), "{failure}");
}

#[test]
fn service_that_claims_passes_and_has_had_second_holders() {
    let explored = exploration().seeds(0..100).check(|sim| service(sim, true));
    assert_eq!(explored.runs, 100);
    assert!(explored.second_holders >= 10, "{explored}");
    assert!(explored.expired_leases >= explored.second_holders);
    assert_eq!(explored.untried(), None);
}

/// Nobody is left to take the lock when the lease of a paused holder ends.
#[test]
fn short_waits_under_a_long_lease_are_named() {
    let explored = Exploration::new().seeds(0..5).check(|sim| async move {
        let (machine, other) = (sim.client("a"), LockClient::new(sim.client("b")));
        let locks = LockClient::new(machine.clone());
        let guard = locks.mutex("k")?.lease(secs(10)).lock().await?;
        machine.pause();
        let mutex = other.mutex("k")?.lease(secs(10));
        assert!(!mutex.try_lock_for(secs(2)).await?.is_acquired());
        sim.sleep(secs(20)).await;
        machine.resume();
        drop(guard);
        sim.sleep(secs(1)).await;
        Ok::<_, Error>(())
    });
    assert_eq!((explored.expired_leases, explored.second_holders), (5, 0));
    let text = explored.to_string();
    let last = text.lines().last().expect("a line");
    let says =
        "not tried: nobody got a lock while its holder was paused: the longest wait was about 2s";
    assert!(last.starts_with(says), "{text}");
    assert!(last.contains("under a lease of 10s"), "{text}");
}

fn untried(explored: &Explored) -> &str {
    assert_eq!(explored.expired_leases, 0, "{explored}");
    explored.untried().expect("nothing was tried")
}

#[test]
fn exploration_without_pauses_or_locks_says_so() {
    let calm = Exploration::new().seeds(0..5);
    let explored = calm.check(|sim| service(sim, false));
    let says = "no lease expired under a holder: no client was paused (FaultMix::pauses)";
    assert_eq!(untried(&explored), says);
    let explored = calm.check(|sim| async move { sim.sleep(secs(1)).await });
    let says = "no lease expired under a holder: nobody asked for a lock";
    assert_eq!(untried(&explored), says);
}

#[test]
fn lost_replies_failovers_and_retried_jobs_are_counted() {
    let explored = Exploration::new().seeds(0..20).check(|sim| async move {
        let machine = sim.client("a");
        let locks = LockClient::new(machine.clone());
        machine.inject_into(Call::Release, Fault::LoseReply);
        let guard = locks.mutex("k")?.lock().await?;
        guard.release().await?;
        sim.switch_over(ms(0), &[]);
        let job = locks.once("job")?.not_within(secs(600));
        let done = job.run(async |job| match job.attempt() {
            1 => Err("the first attempt fails"),
            attempt => Ok(attempt),
        });
        assert!(matches!(done.await?, JobOutcome::Done(2)));
        Ok::<_, Error>(())
    });
    let counted = (
        explored.lost_replies,
        explored.failovers,
        explored.retried_jobs,
    );
    assert_eq!(counted, (20, 20, 20), "{explored}");
}

#[test]
fn time_budget_ends_an_exploration_after_one_run() {
    let budget = exploration().time_budget(ms(0));
    let explored = budget.check(|sim| async move { sim.sleep(secs(1)).await });
    assert_eq!(explored.runs, 1);
}
