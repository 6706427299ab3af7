//! What is compiled into the scripts.

use std::time::Duration;

use leasehold_api::bounds;

/// In a forced release: the holders are removed at once.
pub(super) const FORCE_NOW: u8 = b'N';

/// Settings that are compiled into the scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScriptSettings {
    /// W, the delivery window. Must be the same for all clients of a server.
    pub delivery_window: Duration,
    /// How long the server remembers the last token of a key. Must be the same for all clients of a
    /// server.
    pub token_retention: Duration,
    /// Whether scripts publish on shard channels, as in a cluster. The channel is then in the slot of
    /// the key.
    pub shard_channels: bool,
}

impl Default for ScriptSettings {
    fn default() -> Self {
        Self {
            delivery_window: bounds::DELIVERY_WINDOW,
            token_retention: bounds::TOKEN_RETENTION,
            shard_channels: false,
        }
    }
}

impl ScriptSettings {
    /// Sets whether scripts publish on shard channels.
    #[must_use]
    pub const fn with_shard_channels(mut self, shard_channels: bool) -> Self {
        self.shard_channels = shard_channels;
        self
    }

    /// Sets the delivery window, rounded down to whole microseconds.
    #[must_use]
    pub const fn with_delivery_window(mut self, delivery_window: Duration) -> Self {
        self.delivery_window = delivery_window;
        self
    }

    /// Sets how long tokens are remembered, rounded down to whole microseconds.
    #[must_use]
    pub const fn with_token_retention(mut self, retention: Duration) -> Self {
        self.token_retention = retention;
        self
    }
}
