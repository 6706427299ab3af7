//! Semaphores: one uncontended permit, and sixteen tasks of four clients that share four permits.

use std::sync::Arc;
use std::time::Duration;

use crate::Result;
use crate::figures::hand_over::close;
use crate::figures::measurement::{Fixture, Reading};
use crate::load::{one_by_one, side_by_side};
use crate::lock::{FloorLock, Permit};
use crate::samples::Samples;

const CLIENTS: usize = 4;
const TASKS: usize = 16;
const PERMITS: u32 = 4;

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let clients = fixture.library.connect_all(&fixture.url(), CLIENTS).await?;
    let alone = Permit(clients[0].semaphore("alone", PERMITS)?);
    let floor = FloorLock::new(&fixture.library.floor(&fixture.url()).await?, "floor");
    let block = fixture.effort.of(20, 250);
    let (mut own, mut least) = (Samples::default(), Samples::default());
    one_by_one(&alone, block).await?;
    for _ in 0..fixture.effort.of(1, 8) {
        least.merge(one_by_one(&floor, block).await?);
        own.merge(one_by_one(&alone, block).await?);
    }
    let mut sharing = Vec::new();
    for task in 0..TASKS {
        let semaphore = clients[task % CLIENTS].semaphore("shared", PERMITS)?;
        sharing.push(Permit(semaphore));
    }
    let time = Duration::from_millis(fixture.effort.of(50, 1_000));
    let rate = side_by_side(&Arc::new(sharing), time).await?;
    close(clients).await?;
    Ok(vec![
        Reading::percentile("semaphore", 50, &own, &least),
        Reading::new("semaphore.contended", rate, "acquisitions/s"),
    ])
}
