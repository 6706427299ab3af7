//! The floor on one `fred` client.

use fred::error::Error;
use fred::prelude::{
    Client, ClientLike, Config, Expiration, KeysInterface, LuaInterface, SetOptions,
};
use fred::util::sha1_hash;

use crate::{COMPARE_AND_DELETE, LEASE_MS};

/// A connected client and the hash of the script.
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
        let _: String = client.script_load(COMPARE_AND_DELETE).await?;
        Ok(Self {
            client,
            release: sha1_hash(COMPARE_AND_DELETE),
        })
    }

    /// Takes the lock and gives it back; whether both succeeded.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn pair(&self, key: &str, owner: u64) -> Result<bool, Error> {
        let owner = owner.to_string();
        let lease = Some(Expiration::PX(LEASE_MS));
        let taken: Option<String> = self
            .client
            .set(key, owner.clone(), lease, Some(SetOptions::NX), false)
            .await?;
        let deleted: i64 = self
            .client
            .evalsha(&self.release, vec![key], vec![owner])
            .await?;
        Ok(taken.is_some() && deleted == 1)
    }
}
