//! How to reach the lock service.

use std::time::Duration;

use leasehold::{ConnectError, ConnectOptions, LockClient, RedisLibrary};
use leasehold_api::bounds::CALL_TIMEOUT;
use serde::{Deserialize, Serialize};

/// What the user said about the lock service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Connection {
    /// May contain a password, so it never goes through an argument.
    pub(crate) url: String,
    pub(crate) key_prefix: Option<String>,
    pub(crate) connect_timeout: Option<Duration>,
}

impl Connection {
    /// The options. They name the Redis library, because a build of a whole workspace may enable the other one too.
    pub(crate) fn options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new().redis_library(RedisLibrary::RedisRs);
        if let Some(prefix) = &self.key_prefix {
            options = options.key_prefix(prefix);
        }
        if let Some(limit) = self.connect_timeout {
            options = options.connect_timeout(limit);
        }
        options.call_timeout(self.call_timeout())
    }

    /// A call may have to connect first.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.connect_timeout.unwrap_or_default().max(CALL_TIMEOUT)
    }

    pub(crate) async fn client(&self, options: ConnectOptions) -> Result<LockClient, ConnectError> {
        let backend = options.backend(&self.url).await?;
        let client = LockClient::builder(backend).call_timeout(self.call_timeout());
        Ok(client
            .build()
            .expect("the limits of call_timeout are those of connect_timeout"))
    }
}
