//! Candidates that lead for a while and stand again, and followers that look who leads.

mod follow;
mod office;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use leasehold_api::{Election, LockClient, Term};
use leasehold_sim::{Data, SimBackend, SimServer};

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
        let work = self.backend.run(async {
            for _ in 0..TERMS {
                match self.office.sim.draw(2) {
                    0 => self.campaign(&election).await,
                    _ => self.stand(&election).await,
                }
            }
        });
        let Some(dies) = dies else {
            return work.await;
        };
        let death = async {
            self.office.sim.sleep(dies).await;
            self.backend.kill();
        };
        select(pin!(work), pin!(death)).await;
    }

    /// Leads for one term, which may be over before it resigns.
    async fn campaign(&self, election: &Election) {
        let term = match election.campaign().await {
            Ok(term) => Arc::new(term),
            Err(error) => return self.office.problem(format!("a campaign ends: {error}")),
        };
        let _leading = self.office.begin(self.number, Arc::clone(&term));
        let until = self.until();
        while self.office.sim.elapsed() < until {
            self.office.check_alone();
            self.office.sim.sleep(Duration::from_millis(200)).await;
        }
    }

    /// Stands until a body has led to its end.
    async fn stand(&self, election: &Election) {
        if let Err(error) = election.run(|term| self.lead(term)).await {
            self.office
                .problem(format!("a candidate doesn't stand again: {error}"));
        }
    }

    async fn lead(&self, term: Arc<Term>) {
        let _leading = self.office.begin(self.number, Arc::clone(&term));
        let until = self.until();
        while self.office.sim.elapsed() < until {
            self.office.check_alone();
            if !term.is_leader() {
                let text = format!("the leader acts after its term {}", term.number());
                self.office.problem(text);
            }
            self.office.sim.sleep(Duration::from_millis(200)).await;
        }
    }

    fn until(&self) -> Duration {
        let time = self.office.sim.draw(12_000);
        self.office.sim.elapsed() + Duration::from_millis(time.into())
    }
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
