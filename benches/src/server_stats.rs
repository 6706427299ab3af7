//! The server's own counters.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, InfoDict};

use crate::Result;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection for queries, separate from the measured ones.
#[derive(Debug)]
pub(crate) struct ServerStats(MultiplexedConnection);

/// How often each command was called, up to a moment or between two. A command that a script calls is
/// counted too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands(BTreeMap<String, u64>);

impl Commands {
    pub(crate) fn of(&self, command: &str) -> u64 {
        self.0.get(command).copied().unwrap_or_default()
    }

    /// The calls of `EVAL` and `EVALSHA`.
    pub(crate) fn scripts(&self) -> u64 {
        self.of("evalsha") + self.of("eval")
    }

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let calls = |(name, calls): (&String, &u64)| (name.clone(), calls - earlier.of(name));
        Self(self.0.iter().map(calls).collect())
    }
}

impl ServerStats {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        // Replies may be long and the server busy.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT));
        let client = redis::Client::open(url)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        Ok(Self(connection.await?))
    }

    /// Counts the calls of all commands so far.
    pub(crate) async fn commands(&mut self) -> Result<Commands> {
        let mut command = redis::cmd("INFO");
        let text: String = command.arg("commandstats").query_async(&mut self.0).await?;
        Ok(parse_commands(&text))
    }

    pub(crate) async fn number(&mut self, section: &str, name: &str) -> Result<f64> {
        let mut command = redis::cmd("INFO");
        let info: InfoDict = command.arg(section).query_async(&mut self.0).await?;
        let number = info.get(name);
        Ok(number.ok_or_else(|| format!("INFO {section} has no {name}"))?)
    }

    /// Reads the processor time of the main thread, in seconds.
    pub(crate) async fn processor_seconds(&mut self) -> Result<f64> {
        let user = self.number("cpu", "used_cpu_user_main_thread").await?;
        Ok(user + self.number("cpu", "used_cpu_sys_main_thread").await?)
    }
}

fn parse_commands(text: &str) -> Commands {
    let calls = |line: &str| {
        let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let (calls, _) = fields.strip_prefix("calls=")?.split_once(',')?;
        Some((name.to_owned(), calls.parse().ok()?))
    };
    Commands(text.lines().filter_map(calls).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_stats_are_parsed() {
        let text = "# Commandstats\r\n\
            cmdstat_evalsha:calls=3,usec=40,usec_per_call=13.33,rejected_calls=0\r\n\
            cmdstat_eval:calls=1,usec=20,usec_per_call=20.00,rejected_calls=0\r\n\
            cmdstat_config|set:calls=2,usec=9,usec_per_call=4.50,rejected_calls=0\r\n";
        let all = parse_commands(text);
        assert_eq!(
            (all.scripts(), all.of("config|set"), all.of("set")),
            (4, 2, 0)
        );
        assert_eq!(all.since(&all).scripts(), 0);
    }
}
