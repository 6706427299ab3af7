//! Candidates that lead for a while and stand again, and followers that look who leads.

mod follow;
mod office;

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{Election, LockClient, Term};
use leasehold_sim::{Data, SimBackend, SimServer};

use crate::work_until;
use office::Office;

const TERMS: u32 = 3;
const LEASE: Duration = Duration::from_secs(5);

struct Candidate {
    number: usize,
    backend: SimBackend,
    office: Arc<Office>,
}

impl Candidate {
    /// Dies at this time, if there is one.
    async fn run(self, dies: Option<Duration>) {
        let locks = LockClient::new(self.backend.clone());
        let election = locks.election("leader").expect("valid").lease(LEASE);
        let election = election.info("here").expect("short");
        let work = async {
            for _ in 0..TERMS {
                match self.office.sim.draw(2) {
                    0 => self.campaign(&election).await,
                    _ => self.stand(&election).await,
                }
            }
        };
        work_until(&self.office.sim, &self.backend, dies, work).await;
    }

    /// Leads for one term, which may be over before it resigns.
    async fn campaign(&self, election: &Election) {
        match election.campaign().await {
            Ok(term) => self.lead(Arc::new(term), Leads::ForSomeTime).await,
            Err(error) => self.office.problem(format!("a campaign ends: {error}")),
        }
    }

    /// Stands until a body has led to its end.
    async fn stand(&self, election: &Election) {
        if let Err(error) = election
            .run(|term| self.lead(term, Leads::WhileItsTermLasts))
            .await
        {
            let text = format!("a candidate doesn't stand again: {error}");
            self.office.problem(text);
        }
    }

    async fn lead(&self, term: Arc<Term>, leads: Leads) {
        let Office { sim, .. } = &*self.office;
        let _leading = self.office.begin(self.number, Arc::clone(&term));
        let until = sim.elapsed() + Duration::from_millis(sim.draw(12_000).into());
        while sim.elapsed() < until {
            self.office.check_alone();
            if leads == Leads::WhileItsTermLasts && !term.is_leader() {
                let text = format!("the leader acts after its term {}", term.number());
                self.office.problem(text);
            }
            sim.sleep(Duration::from_millis(200)).await;
        }
    }
}

/// How long a leader may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leads {
    /// Its term may be over before it resigns.
    ForSomeTime,
    /// It is a body, which is dropped when its term is over.
    WhileItsTermLasts,
}

/// Loses data. A clock that is set back would end the election: see `Error` about the highest fencing token.
async fn lose_data(sim: SimServer) {
    for _ in 0..=sim.draw(2) {
        let time = Duration::from_millis(sim.draw(20_000).into());
        sim.sleep(time).await;
        sim.restart(Data::Lost);
    }
}

pub(crate) async fn scenario(sim: SimServer) -> Result<(), String> {
    let within = sim.draw(4) != 3;
    let office = Arc::new(Office::new(sim.clone(), within));
    let dies = (sim.draw(4) == 1).then(|| Duration::from_millis(sim.draw(40_000).into()));
    let mut tasks = Vec::new();
    for (number, name) in ["ann", "bob", "eve"].into_iter().enumerate() {
        let candidate = Candidate {
            number,
            backend: sim.client(name),
            office: Arc::clone(&office),
        };
        tasks.push(sim.spawn(candidate.run(dies.filter(|_| number == 2))));
    }
    if !within {
        tasks.push(sim.spawn(lose_data(sim.clone())));
    }
    let follows = sim.draw(4) == 1;
    let followers = follows.then(|| follow::Followers::begin(&office));
    for task in tasks {
        task.await;
    }
    if let Some(followers) = followers {
        followers.end().await;
    }
    office.verdict()
}
