//! The floor on the `redis` crate's multiplexed connection.

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Script};

use crate::{COMPARE_AND_DELETE, LEASE_MS};

/// A connection and the script.
#[derive(Clone, Debug)]
pub struct RedisRsFloor {
    connection: MultiplexedConnection,
    release: Script,
}

impl RedisRsFloor {
    /// Connects.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn connect(url: &str) -> Result<Self, RedisError> {
        let connection = redis::Client::open(url)?
            .get_multiplexed_async_connection()
            .await?;
        Ok(Self {
            connection,
            release: Script::new(COMPARE_AND_DELETE),
        })
    }

    /// Takes the lock and gives it back; whether both succeeded.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn pair(&self, key: &str, owner: u64) -> Result<bool, RedisError> {
        let mut connection = self.connection.clone();
        let taken: Option<String> = redis::cmd("SET")
            .arg(key)
            .arg(owner)
            .arg("NX")
            .arg("PX")
            .arg(LEASE_MS)
            .query_async(&mut connection)
            .await?;
        let mut release = self.release.key(key);
        let deleted: i64 = release.arg(owner).invoke_async(&mut connection).await?;
        Ok(taken.is_some() && deleted == 1)
    }
}
