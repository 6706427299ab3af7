//! The conformance suite on a real server, through the `fred` crate.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fred::interfaces::ClientLike;
use fred::types::config::Config;
use fred::types::{Builder, ClusterHash, CustomCommand, FromValue, Value};
use leasehold_api::{Capabilities, Key, LockBackend};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError};
use leasehold_fred::{FredBackend, Options};
use leasehold_redis_protocol::{Protocol, Settings};
use leasehold_test_servers::RedisServer;

const FOREIGN: &str = "another program's value";

/// One server for all cases; each case has a key prefix of its own.
#[derive(Debug)]
struct Redis {
    server: RedisServer,
}

#[async_trait]
impl Harness for Redis {
    fn name(&self) -> &'static str {
        "fred"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::full()
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().with_plant_foreign(true)
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        let prefix = format!("{namespace}:");
        Ok(Arc::new(Place {
            url: self.server.url(),
            protocol: Protocol::new(&prefix, Settings::default())?,
            options: Options::new().with_key_prefix(prefix),
        }))
    }
}

#[derive(Debug)]
struct Place {
    url: String,
    protocol: Protocol,
    options: Options,
}

impl Place {
    async fn query<T: FromValue>(
        &self,
        command: &'static str,
        arguments: Vec<Value>,
    ) -> Result<T, SetupError> {
        let client = Builder::from_config(Config::from_url(&self.url)?).build()?;
        client.init().await?;
        let command = CustomCommand::new_static(command, ClusterHash::Random, false);
        let answer = client.custom(command, arguments).await;
        client.quit().await?;
        Ok(answer?)
    }
}

#[async_trait]
impl Environment for Place {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let backend = FredBackend::connect_with(&self.url, self.options.clone()).await?;
        Ok(Arc::new(backend))
    }

    async fn let_time_pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        let key = Value::Bytes(self.protocol.key(key).into());
        self.query("SET", vec![key, FOREIGN.into()]).await
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let key = Value::Bytes(self.protocol.key(key).into());
        let found: Option<String> = self.query("GET", vec![key]).await?;
        Ok(found.as_deref() == Some(FOREIGN))
    }
}

/// Cases that need virtual time: they would take minutes here.
const CANNOT_RUN: &[&str] = &[
    "long_spans::token_is_remembered",
    "long_spans::token_outlives_an_expired_tenure",
    "long_spans::longest_lease",
    "long_spans::no_copy_outlives_its_mark",
];

fn main() -> ExitCode {
    let server = RedisServer::start();
    leasehold_conformance::run(Redis { server }, CANNOT_RUN)
}
