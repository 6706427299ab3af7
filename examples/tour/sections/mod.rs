//! The sections of the tour, in order.

mod contention;
mod expiry;
mod loss;
mod readers;
mod reentrancy;
mod semaphore;

use crate::tour::{Result, Tour};

/// Runs all sections.
pub(crate) async fn run(tour: &mut Tour<'_>) -> Result<()> {
    contention::run(tour).await?;
    expiry::run(tour).await?;
    reentrancy::run(tour).await?;
    readers::run(tour).await?;
    semaphore::run(tour).await?;
    loss::run(tour).await?;
    loss::run_fencing(tour).await?;
    tour.finish()
}
