//! The floor on the `redis` crate's multiplexed connection.

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Script};

use crate::{COMPARE_AND_DELETE, LEASE_MS};

/// A connection and the hash of the script, which the server has.
#[derive(Clone, Debug)]
pub struct RedisRsFloor {
    connection: MultiplexedConnection,
    release: String,
}

impl RedisRsFloor {
    /// Connects and loads the script.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn connect(url: &str) -> Result<Self, RedisError> {
        let mut connection = redis::Client::open(url)?
            .get_multiplexed_async_connection()
            .await?;
        let release = Script::new(COMPARE_AND_DELETE)
            .prepare_invoke()
            .load_async(&mut connection)
            .await?;
        Ok(Self {
            connection,
            release,
        })
    }

    /// Takes the lock, if it is free; whether it was.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn take(&self, key: &str, owner: u64) -> Result<bool, RedisError> {
        let mut command = redis::cmd("SET");
        command
            .arg(key)
            .arg(owner)
            .arg("NX")
            .arg("PX")
            .arg(LEASE_MS);
        command.query_async(&mut self.connection.clone()).await
    }

    /// Gives the lock back, if it is the owner's; whether it was.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn give_back(&self, key: &str, owner: u64) -> Result<bool, RedisError> {
        // A `Script` would send the same, with an intermediate step for its arguments.
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.release).arg(1).arg(key).arg(owner);
        command.query_async(&mut self.connection.clone()).await
    }
}
