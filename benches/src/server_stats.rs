//! The server's own counters.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use crate::Result;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection for queries, separate from the measured ones.
#[derive(Debug)]
pub struct ServerStats(MultiplexedConnection);

/// The calls of a command and the server's time for them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// The number of calls.
    pub calls: u64,
    /// The total time, in microseconds.
    pub micros: u64,
}

impl Usage {
    /// The mean time of a call, in microseconds; NaN without calls.
    #[must_use]
    pub fn micros_each(self) -> f64 {
        self.micros as f64 / self.calls as f64
    }

    const fn and(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            micros: self.micros + other.micros,
        }
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
pub struct Commands(BTreeMap<String, Usage>);

impl Commands {
    /// The usage of one command.
    #[must_use]
    pub fn of(&self, command: &str) -> Usage {
        self.0.get(command).copied().unwrap_or_default()
    }

    /// The usage of `EVAL` and `EVALSHA`.
    #[must_use]
    pub fn scripts(&self) -> Usage {
        self.of("evalsha").and(self.of("eval"))
    }

    /// The calls of commands that scan a whole collection or the keyspace.
    #[must_use]
    pub fn scans(&self) -> u64 {
        let scans = [
            "scan", "hscan", "sscan", "zscan", "keys", "hgetall", "hkeys", "hvals",
        ];
        scans.map(|command| self.of(command).calls).iter().sum()
    }

    /// The usage since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let used = |(name, usage): (&String, &Usage)| (name.clone(), usage.since(earlier.of(name)));
        Self(self.0.iter().map(used).collect())
    }
}

impl ServerStats {
    /// Connects.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn connect(url: &str) -> Result<Self> {
        // Replies may be long and the server busy.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT));
        let client = redis::Client::open(url)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        Ok(Self(connection.await?))
    }

    async fn info(&mut self, section: &str) -> Result<String> {
        let mut command = redis::cmd("INFO");
        Ok(command.arg(section).query_async(&mut self.0).await?)
    }

    /// Reads the usage of all commands so far.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn commands(&mut self) -> Result<Commands> {
        Ok(parse_commands(&self.info("commandstats").await?))
    }

    /// Reads one number of `INFO`.
    ///
    /// # Errors
    /// Those of the client library, or if `INFO` has no such number.
    pub async fn number(&mut self, section: &str, name: &str) -> Result<f64> {
        let text = self.info(section).await?;
        let value = line(&text, name).ok_or_else(|| format!("INFO {section} has no {name}"))?;
        Ok(value.parse()?)
    }

    /// Reads the processor time of the main thread, in seconds.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn processor_seconds(&mut self) -> Result<f64> {
        let user = self.number("cpu", "used_cpu_user_main_thread").await?;
        Ok(user + self.number("cpu", "used_cpu_sys_main_thread").await?)
    }

    /// Reads the server's version.
    ///
    /// # Errors
    /// Those of the client library, or if `INFO` has no version.
    pub async fn version(&mut self) -> Result<String> {
        let text = self.info("server").await?;
        let version = line(&text, "redis_version").ok_or("INFO has no version")?;
        Ok(version.to_owned())
    }

    /// Starts to log every command that takes 0.1 ms or longer.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn log_slow_commands(&mut self) -> Result<()> {
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
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn longest_script(&mut self) -> Result<u64> {
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

fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut named = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = named.find(|(found, _)| *found == name)?;
    Some(value.trim())
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

    #[test]
    fn info_lines_match_by_whole_name() {
        let text = "used_cpu_user_children:1\r\nused_cpu_user:0.5\r\n";
        assert_eq!(line(text, "used_cpu_user"), Some("0.5"));
        assert_eq!(line(text, "used"), None);
    }
}
