//! The constructors of this crate.

use std::error::Error;
use std::sync::Arc;

use leasehold_redis_rs::RedisBackend;

use crate::shared::support::{Backend, Constructor};

/// Whether an error is the client library's.
pub(crate) fn is_of_the_library(error: &(dyn Error + 'static)) -> bool {
    error.is::<redis::RedisError>()
}

/// They don't lead to a cluster.
pub(crate) const ON_CLUSTER: bool = false;

pub(crate) const CONSTRUCTORS: [Constructor; 5] = [
    Constructor::URL,
    Constructor {
        // The library reports the end of a connection only with RESP3.
        notices_disconnect: false,
        ..Constructor::URL_RESP2
    },
    Constructor {
        name: "Client",
        make: |url, options| {
            Box::pin(async move {
                let client = redis::Client::open(url).expect("a good URL");
                let backend = RedisBackend::from_client(&client, options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        ..Constructor::URL
    },
    Constructor {
        name: "ConnectionManager",
        make: |url, options| {
            Box::pin(async move {
                let config = redis::aio::ConnectionManagerConfig::new().set_number_of_retries(0);
                let client = redis::Client::open(url).expect("a good URL");
                let manager = client.get_connection_manager_with_config(config).await;
                let backend = RedisBackend::from_connection(manager.expect("connected"), options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        reconnects: true,
        replaces_silent: false,
        push: false,
        notices_disconnect: false,
        notices_demotion: false,
    },
    Constructor {
        name: "MultiplexedConnection",
        make: |url, options| {
            Box::pin(async move {
                let client = redis::Client::open(url).expect("a good URL");
                let connection = client.get_multiplexed_async_connection().await;
                let connection = connection.expect("connected");
                let backend = RedisBackend::from_connection(connection, options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        reconnects: false,
        replaces_silent: false,
        push: false,
        notices_disconnect: false,
        notices_demotion: false,
    },
];
