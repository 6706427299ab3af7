//! The simulator: the cost of a pair and of a whole run, without a server and a network.

use std::time::Instant;

use leasehold::LockClient;
use leasehold::sim::{Ending, SimOptions, SimServer, Simulation};

use crate::Result;
use crate::figures::measurement::{Fixture, Reading, micros};

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let effort = fixture.effort;
    let measured = tokio::task::spawn_blocking(move || {
        let pairs = effort.of(10, 2_000);
        let alone = time_of(1, pairs)? / f64::from(pairs);
        let contended = time_of(8, pairs / 8)? / f64::from(pairs / 8 * 8);
        let runs = effort.of(2, 200);
        let begun = Instant::now();
        for _ in 0..runs {
            time_of(3, 4)?;
        }
        let run = micros(begun.elapsed()) / f64::from(runs);
        Result::Ok([alone, contended, run])
    });
    let [alone, contended, run] = measured.await??;
    Ok(vec![
        Reading::new("sim.pair", alone, "µs"),
        Reading::new("sim.contended_pair", contended, "µs"),
        Reading::new("sim.run", run, "µs for 3 clients that lock 4 times each"),
    ])
}

/// The real time of [`play`], in microseconds.
fn time_of(clients: u32, rounds: u32) -> Result<f64> {
    let begun = Instant::now();
    play(clients, rounds)?;
    Ok(micros(begun.elapsed()))
}

/// Runs `clients` clients that acquire and release one lock `rounds` times each.
pub fn play(clients: u32, rounds: u32) -> Result<()> {
    let options = SimOptions::new(1).log_limit(0).recording(false);
    let report = Simulation::new(options)
        .step_limit(u64::MAX)
        .run(|sim| contend(sim, clients, rounds));
    match report.ending {
        Ending::Completed(Ok(())) => Ok(()),
        Ending::Completed(Err(error)) => Err(error.into()),
        other => Err(format!("the simulation did not complete: {other:?}").into()),
    }
}

async fn contend(
    sim: SimServer,
    clients: u32,
    rounds: u32,
) -> std::result::Result<(), leasehold::Error> {
    let tasks: Vec<_> = (0..clients)
        .map(|number| {
            let locks = LockClient::new(sim.client(&format!("client-{number}")));
            sim.spawn(async move {
                let mutex = locks.mutex("job")?;
                for _ in 0..rounds {
                    mutex.lock().await?.release().await?;
                }
                Ok::<_, leasehold::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    Ok(())
}
