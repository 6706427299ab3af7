//! The floor on one `fred` client.

use fred::error::Error;
use fred::prelude::{
    Client, ClientLike, Config, Expiration, KeysInterface, LuaInterface, SetOptions,
};

use crate::{COMPARE_AND_DELETE, LEASE_MS};

/// A connected client and the hash of the script, which the server has.
#[derive(Clone, Debug)]
pub struct FredFloor {
    client: Client,
    release: String,
}

impl FredFloor {
    /// Connects and loads the script.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let client = Client::new(Config::from_url(url)?, None, None, None);
        client.init().await?;
        let release = client.script_load(COMPARE_AND_DELETE).await?;
        Ok(Self { client, release })
    }

    /// Takes the lock, if it is free; whether it was.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn take(&self, key: &str, owner: u64) -> Result<bool, Error> {
        let lease = Some(Expiration::PX(LEASE_MS));
        let taken: Option<String> = self
            .client
            .set(key, owner.to_string(), lease, Some(SetOptions::NX), false)
            .await?;
        Ok(taken.is_some())
    }

    /// Gives the lock back, if it is the owner's; whether it was.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn give_back(&self, key: &str, owner: u64) -> Result<bool, Error> {
        let deleted: i64 = self
            .client
            .evalsha(&*self.release, key, owner.to_string())
            .await?;
        Ok(deleted == 1)
    }
}
