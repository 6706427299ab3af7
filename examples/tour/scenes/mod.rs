//! The scenes, in order.

mod contention;
mod expiry;
mod loss;
mod readers;
mod reentrancy;
mod semaphore;

use crate::stage::{Result, Stage};

/// Plays all of them.
pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    contention::play(stage).await?;
    expiry::play(stage).await?;
    reentrancy::play(stage).await?;
    readers::play(stage).await?;
    semaphore::play(stage).await?;
    loss::play(stage).await?;
    loss::play_fencing(stage).await?;
    stage.end()
}
