//! The constructors of this crate.

use std::error::Error;
use std::sync::Arc;

use fred::interfaces::ClientLike;
use fred::types::Builder;
use fred::types::config::{Config, ReconnectPolicy};
use leasehold_fred::FredBackend;

use crate::shared::support::{Backend, Constructor};

/// Whether an error is the client library's.
pub(crate) fn is_of_the_library(error: &(dyn Error + 'static)) -> bool {
    error.is::<fred::error::Error>()
}

/// They don't lead to a cluster.
pub(crate) const ON_CLUSTER: bool = false;

pub(crate) const CONSTRUCTORS: [Constructor; 5] = [
    Constructor::URL,
    Constructor {
        notices_demotion: false,
        ..Constructor::URL_RESP2
    },
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
    // The user's client is used without `init`, and after it.
    Constructor {
        name: "Client",
        make: |url, options| {
            Box::pin(async move {
                let config = Config::from_url(&url).expect("a good URL");
                let client = Builder::from_config(config).build().expect("a client");
                let backend = FredBackend::from_client(&client, options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        ..Constructor::URL
    },
    Constructor {
        name: "Pool",
        make: |url, options| {
            Box::pin(async move {
                let pool = reconnecting(&url).build_pool(3).expect("a pool");
                pool.init().await.expect("connected");
                let backend = FredBackend::from_pool(&pool, options);
                pool.quit().await.expect("an answer");
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        ..Constructor::URL
    },
];

/// A user's configuration that reconnects quickly, without limit. The rest is the default.
fn reconnecting(url: &str) -> Builder {
    let mut builder = Builder::from_config(Config::from_url(url).expect("a good URL"));
    let mut policy = ReconnectPolicy::new_constant(0, 1);
    policy.set_jitter(1);
    builder.set_policy(policy);
    builder
}
