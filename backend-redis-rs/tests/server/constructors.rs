//! The ways to make a backend of this crate.

use std::sync::Arc;

use leasehold_redis_rs::{RedisBackend, RespVersion};

use crate::client;
use crate::shared::support::{Backend, Way};

/// All ways to make a backend.
pub(crate) const WAYS: [Way; 5] = [
    Way {
        name: "URL",
        make: |url, options| {
            Box::pin(async move {
                client::connect_with(&url, options)
                    .await
                    .expect("connected")
            })
        },
        reconnects: true,
        replaces_silent: true,
        push: true,
        told_of_ends: true,
    },
    Way {
        name: "URL with RESP2",
        make: |url, options| {
            Box::pin(async move {
                let options = options.with_resp(RespVersion::Resp2);
                client::connect_with(&url, options)
                    .await
                    .expect("connected")
            })
        },
        reconnects: true,
        replaces_silent: true,
        push: true,
        told_of_ends: false,
    },
    Way {
        name: "Client",
        make: |url, options| {
            Box::pin(async move {
                let client = redis::Client::open(url).expect("a good URL");
                let backend = RedisBackend::from_client(&client, options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        reconnects: true,
        replaces_silent: true,
        push: true,
        told_of_ends: true,
    },
    Way {
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
        told_of_ends: false,
    },
    Way {
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
        told_of_ends: false,
    },
];
