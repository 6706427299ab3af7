//! What an exploration has tried.

use std::fmt;
use std::time::Duration;

use crate::network::tally::Counts;

/// What the runs of an [`Exploration`](crate::Exploration) have tried. [`check`](crate::Exploration::check) returns it.
///
/// A run that passes says little if nothing has happened to its locks. So assert the numbers that your scenario is
/// about, unless `runs` is 1: a failure is repeated in one run.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use leasehold_api::LockClient;
/// use leasehold_sim::{Exploration, FaultMix};
///
/// let faults = FaultMix::none().pauses(true);
/// let explored = Exploration::new().seeds(0..200).fault_mix(faults).check(|sim| async move {
///     let workers = ["a", "b"].map(|name| {
///         let (machine, sim) = (sim.client(name), sim.clone());
///         let locks = LockClient::new(machine.clone());
///         sim.clone().spawn(async move {
///             for _ in 0..5 {
///                 let mutex = locks.mutex("job").unwrap();
///                 let work = mutex.with(async |_| sim.sleep(Duration::from_secs(1)).await);
///                 let _may_be_lost = machine.run(work).await;
///             }
///         })
///     });
///     for worker in workers {
///         worker.await;
///     }
/// });
/// assert!(explored.second_holders > 0, "{explored}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explored {
    /// The runs that were made.
    pub runs: u64,
    /// Leases that ended although no client had released them.
    pub expired_leases: u64,
    /// Of these, those of a client that was paused at the time, so that another client got the lock before it knew.
    pub second_holders: u64,
    /// Commands that were executed, and whose reply was [lost](crate::Fault::LoseReply).
    pub lost_replies: u64,
    /// Failovers to a replica.
    pub failovers: u64,
    /// Attempts of jobs after the first.
    pub retried_jobs: u64,
    untried: Option<String>,
}

impl Explored {
    pub(super) fn new(runs: u64, counts: &Counts) -> Self {
        Self {
            runs,
            expired_leases: counts.expired,
            second_holders: counts.second_holders,
            lost_replies: counts.lost_replies,
            failovers: counts.failovers,
            retried_jobs: counts.retried_jobs,
            untried: untried(counts),
        }
    }

    /// Returns which of the first two numbers is 0, and why. Then nothing has tried whether the code bears the
    /// loss of a lock.
    pub fn untried(&self) -> Option<&str> {
        self.untried.as_deref()
    }
}

fn untried(counts: &Counts) -> Option<String> {
    let what = match counts {
        Counts { expired: 0, .. } => "no lease expired under a holder",
        Counts {
            second_holders: 0, ..
        } => "nobody got a lock while its holder was paused",
        _ => return None,
    };
    let why = match counts.shortest_lease {
        None => "nobody asked for a lock".to_owned(),
        Some(_) if counts.pauses == 0 => "no client was paused (FaultMix::pauses)".to_owned(),
        Some(_) if counts.expired == 0 => {
            "no pause met a holder, or the code under test runs outside of SimBackend::run"
                .to_owned()
        }
        Some(lease) if counts.longest_wait < lease => {
            // Without the latency of the messages.
            let tenths = (counts.longest_wait.as_secs_f64() * 10.0).round();
            let wait = Duration::from_secs_f64(tenths / 10.0);
            format!(
                "the longest wait was about {wait:?}, under a lease of {lease:?}, and nobody came later"
            )
        }
        Some(_) => "nobody else wanted it".to_owned(),
    };
    Some(format!("{what}: {why}"))
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} runs: {} leases expired under a holder, {} second holders after a pause, {} replies lost after execution, \
             {} failovers, {} jobs retried",
            self.runs,
            self.expired_leases,
            self.second_holders,
            self.lost_replies,
            self.failovers,
            self.retried_jobs
        )?;
        match &self.untried {
            Some(untried) => write!(f, "\nnot tried: {untried}"),
            None => Ok(()),
        }
    }
}
