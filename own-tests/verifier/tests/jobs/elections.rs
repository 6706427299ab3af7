//! Candidates that lead for a while, resign, and stand again.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold_api::{FencingToken, LockClient, Term};
use leasehold_sim::{SimBackend, SimServer};

const TERMS: u32 = 3;

/// The terms that are in use, of all machines.
type Terms = Arc<Mutex<Vec<Weak<Term>>>>;

fn leaders(terms: &Terms) -> Vec<FencingToken> {
    let mut terms = terms.lock().unwrap_or_else(PoisonError::into_inner);
    terms.retain(|term| term.strong_count() > 0);
    let live = terms.iter().filter_map(Weak::upgrade);
    live.filter(|term| term.is_leader())
        .map(|term| term.number())
        .collect()
}

async fn stand(sim: SimServer, backend: SimBackend, terms: Terms) -> Result<(), String> {
    let locks = LockClient::new(backend.clone());
    let lease = Duration::from_secs(5);
    let election = locks.election("leader").expect("valid").lease(lease);
    let election = election.info("here").expect("short");
    let mut last = FencingToken::NONE;
    for _ in 0..TERMS {
        let term = backend.run(election.campaign()).await;
        let term = Arc::new(term.map_err(|error| error.to_string())?);
        if term.number() <= last {
            return Err(format!("term {} follows {last}", term.number()));
        }
        last = term.number();
        terms
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::downgrade(&term));
        let until = sim.elapsed() + Duration::from_millis(sim.draw(12_000).into());
        while sim.elapsed() < until {
            let found = leaders(&terms);
            if found.len() > 1 {
                return Err(format!("leaders of the terms {found:?} at once"));
            }
            sim.sleep(Duration::from_millis(200)).await;
        }
        drop(term);
    }
    Ok(())
}

pub(crate) async fn scenario(sim: SimServer) -> Result<(), String> {
    let terms = Terms::default();
    let tasks: Vec<_> = ["ann", "bob", "eve"]
        .into_iter()
        .map(|name| {
            let backend = sim.client(name);
            sim.spawn(stand(sim.clone(), backend, Arc::clone(&terms)))
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    Ok(())
}
