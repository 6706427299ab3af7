//! The constructors of this crate.

use std::sync::Arc;

use fred::interfaces::ClientLike;
use fred::types::Builder;
use fred::types::config::{Config, ReconnectPolicy};
use leasehold_fred::FredBackend;

use crate::shared::support::{Backend, Constructor};

pub(crate) const CONSTRUCTORS: [Constructor; 6] = [
    Constructor::URL,
    Constructor::URL_RESP2,
    Constructor {
        name: "Builder",
        make: |url, options| {
            Box::pin(async move {
                let backend = FredBackend::from_builder(&reconnecting(&url), options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        ..Constructor::URL
    },
    Constructor {
        name: "Client with default attempts",
        make: |url, options| {
            Box::pin(async move {
                let client = reconnecting(&url).build().expect("a client");
                client.init().await.expect("connected");
                let backend = FredBackend::from_client(client, options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        reconnects: true,
        replaces_silent: true,
        push: false,
        notices_disconnect: false,
    },
    Constructor {
        name: "Pool",
        make: |url, options| {
            Box::pin(async move {
                let mut builder = reconnecting(&url);
                builder.with_connection_config(|config| config.max_command_attempts = 1);
                let pool = builder.build_pool(3).expect("a pool");
                pool.init().await.expect("connected");
                let backend = FredBackend::from_pool(pool, options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        reconnects: true,
        replaces_silent: true,
        push: false,
        notices_disconnect: false,
    },
    Constructor {
        name: "Client without a policy",
        make: |url, options| {
            Box::pin(async move {
                let config = Config::from_url(&url).expect("a good URL");
                let client = Builder::from_config(config).build().expect("a client");
                client.init().await.expect("connected");
                let backend = FredBackend::from_client(client, options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        reconnects: false,
        replaces_silent: false,
        push: false,
        notices_disconnect: false,
    },
];

/// A user's configuration that reconnects quickly, without limit. The rest is the default.
pub(crate) fn reconnecting(url: &str) -> Builder {
    let mut builder = Builder::from_config(Config::from_url(url).expect("a good URL"));
    let mut policy = ReconnectPolicy::new_constant(0, 1);
    policy.set_jitter(1);
    builder.set_policy(policy);
    builder
}
