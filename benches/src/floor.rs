//! The floor on either client library.

use crate::Result;
use crate::fred_floor::FredFloor;
use crate::redis_rs_floor::RedisRsFloor;

/// `SET NX PX` and a compare-and-delete script, over one connection that clones share.
#[derive(Clone, Debug)]
pub enum Floor {
    /// On the `redis` crate.
    RedisRs(RedisRsFloor),
    /// On the `fred` crate.
    Fred(FredFloor),
}

impl Floor {
    /// Takes the lock, if it is free; whether it was.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn take(&self, key: &str, owner: u64) -> Result<bool> {
        Ok(match self {
            Self::RedisRs(floor) => floor.take(key, owner).await?,
            Self::Fred(floor) => floor.take(key, owner).await?,
        })
    }

    /// Gives the lock back, if it is the owner's; whether it was.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn give_back(&self, key: &str, owner: u64) -> Result<bool> {
        Ok(match self {
            Self::RedisRs(floor) => floor.give_back(key, owner).await?,
            Self::Fred(floor) => floor.give_back(key, owner).await?,
        })
    }
}
