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

/// The calls of a command and the server's time for them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) calls: u64,
    pub(crate) micros: u64,
}

impl Usage {
    /// The mean time of a call, in microseconds; NaN without calls.
    pub(crate) fn micros_each(self) -> f64 {
        self.micros as f64 / self.calls as f64
    }

    const fn since(self, earlier: Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            micros: self.micros - earlier.micros,
        }
    }
}

/// The usage of all commands, at one moment or between two. A command that a script calls is
/// counted too, and its time is part of the script's time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands(BTreeMap<String, Usage>);

impl Commands {
    pub(crate) fn of(&self, command: &str) -> Usage {
        self.0.get(command).copied().unwrap_or_default()
    }

    /// The usage of `EVAL` and `EVALSHA`.
    pub(crate) fn scripts(&self) -> Usage {
        let (hashed, whole) = (self.of("evalsha"), self.of("eval"));
        Usage {
            calls: hashed.calls + whole.calls,
            micros: hashed.micros + whole.micros,
        }
    }

    /// The calls of commands that scan a whole collection or the keyspace.
    pub(crate) fn scans(&self) -> u64 {
        let scans = [
            "scan", "hscan", "sscan", "zscan", "keys", "hgetall", "hkeys", "hvals",
        ];
        scans.map(|command| self.of(command).calls).iter().sum()
    }

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let used = |(name, usage): (&String, &Usage)| (name.clone(), usage.since(earlier.of(name)));
        Self(self.0.iter().map(used).collect())
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

    /// Reads the usage of all commands so far.
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

    /// Starts to log every command that takes 0.1 ms or longer.
    pub(crate) async fn log_slow_commands(&mut self) -> Result<()> {
        for (name, value) in [
            ("slowlog-log-slower-than", 100),
            ("slowlog-max-len", 100_000),
        ] {
            let mut command = redis::cmd("CONFIG");
            command.arg("SET").arg(name).arg(value);
            command.exec_async(&mut self.0).await?;
        }
        let mut command = redis::cmd("SLOWLOG");
        Ok(command.arg("RESET").exec_async(&mut self.0).await?)
    }

    /// The longest logged script, in microseconds; 0 if none was logged.
    pub(crate) async fn longest_script(&mut self) -> Result<u64> {
        type Bytes = Vec<u8>;
        type Entry = (u64, u64, u64, Vec<Bytes>, Bytes, Bytes);
        let mut command = redis::cmd("SLOWLOG");
        let logged: Vec<Entry> = command.arg("GET").arg(-1).query_async(&mut self.0).await?;
        let scripts = logged.iter().filter(|(_, _, _, words, ..)| {
            words.first().is_some_and(|word| word.starts_with(b"EVAL"))
        });
        Ok(scripts.map(|(_, _, micros, ..)| *micros).max().unwrap_or(0))
    }
}

fn parse_commands(text: &str) -> Commands {
    let usage = |line: &str| {
        let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let usage = Usage {
            calls: field(fields, "calls")?,
            micros: field(fields, "usec")?,
        };
        Some((name.to_owned(), usage))
    };
    Commands(text.lines().filter_map(usage).collect())
}

/// Reads a number from `name=1,other=2`.
fn field(fields: &str, wanted: &str) -> Option<u64> {
    let mut named = fields.split(',').filter_map(|field| field.split_once('='));
    let (_, number) = named.find(|(name, _)| *name == wanted)?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_stats_are_parsed() {
        let text = "# Commandstats\r\n\
            cmdstat_evalsha:calls=3,usec=40,usec_per_call=13.33,rejected_calls=0\r\n\
            cmdstat_eval:calls=1,usec=20,usec_per_call=20.00,rejected_calls=0\r\n\
            cmdstat_config|set:calls=2,usec=9,usec_per_call=4.50,rejected_calls=0\r\n\
            cmdstat_hscan:calls=5,usec=9,usec_per_call=1.80,rejected_calls=0\r\n";
        let all = parse_commands(text);
        let scripts = Usage {
            calls: 4,
            micros: 60,
        };
        assert_eq!(all.scripts(), scripts);
        assert_eq!(scripts.micros_each(), 15.0);
        assert_eq!(all.scans(), 5);
        assert_eq!(all.of("set"), Usage::default());
        assert_eq!(all.since(&all).scripts().calls, 0);
    }
}
