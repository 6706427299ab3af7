//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};
use leasehold::Key;
use leasehold_api::LockSpec;
use leasehold_api::bounds::{
    MAX_INFO_BYTES, MAX_LEASE, MAX_START_WINDOW, MIN_LEASE, MIN_START_WINDOW,
};

use crate::connection::Connection;
use crate::ending::{self, CONTENDED, Ending, USAGE};
use crate::protocol::{Kind, Request, Wait};

/// The variable with the URL.
pub(crate) const URL: &str = "LEASEHOLD_URL";
/// CMD is killed so long before the lease ends.
pub(crate) const MARGIN: Duration = Duration::from_millis(500);

/// The longest time on the command line.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The heading of the options of an election.
const ELECT: &str = "Elect a leader";

/// Distributed locks on Redis, Valkey, Postgres, MySQL, NATS, SQLite, etcd or S3
#[derive(Debug, Parser)]
#[command(name = "leasehold", version)]
pub(crate) enum Subcommand {
    Run(Run),
    Ls(Ls),
    Show(Show),
    Leader(Leader),
    Top(Top),
    Revoke(Revoke),
    #[command(subcommand)]
    Once(Once),
    Doctor(Doctor),
    Schema(Schema),
    Completions(Completions),
    #[command(name = "man")]
    ManPage(ManPage),
}

/// Shows the keys in use, those with the most waiters first, every two seconds, until `q` is typed.
///
/// It asks for at most 500 keys, and says `partial` if there are more, or if a round takes longer than 5 s. As `ls`, it
/// needs the right `+scan` on Redis.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// What the keys begin with
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) service: Service,
}

/// Prints what a shell needs to complete this command: source <(leasehold completions bash)
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Prints the manual page of this command or of a sub-command, for `man -l -` or a folder of pages
#[derive(Debug, Args)]
pub(crate) struct ManPage {
    /// The sub-command, such as `run`, or `once show`
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Prints the statements that create the tables of a database. Their owner executes them once.
#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// The database
    pub(crate) of: Database,
}

/// A database that needs tables.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Database {
    Postgres,
    /// MariaDB or MySQL
    #[cfg(feature = "mysql")]
    Mysql,
}

/// Lists the keys that are in use, or were some minutes ago.
///
/// It is no snapshot. On Redis it walks over all keys of the server, or of all primaries of a cluster, and needs
/// the right `+scan`.
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// What the keys begin with
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// Show the state of each key too, and only keys with a holder or a waiter. Asks the server for each key
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Write the state of each key as a JSON object. Asks the server for each key
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) service: Service,
}

/// Shows who holds a key, and who waits for it. Exit status 1: nobody holds it.
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The name of the lock
    pub(crate) key: String,
    /// Write a JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) service: Service,
}

/// Shows who leads an election: `leasehold run --info`, or a program. Exit status 1: nobody.
#[derive(Debug, Args)]
pub(crate) struct Leader {
    /// The name of the election
    pub(crate) key: String,
    /// Write a JSON object, with the candidates that wait
    #[arg(long)]
    pub(crate) json: bool,
    /// Write each leader that follows too, until this command is ended. A leader of less than a second may be missed
    #[arg(short, long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) service: Service,
}

/// Takes a lock away from its holder. Without --now, the holder can't renew it any more, and its lease runs out.
#[derive(Debug, Args)]
pub(crate) struct Revoke {
    /// The name of the lock
    pub(crate) key: String,
    /// The token of the holder, as `show` shows it. A later holder is spared
    #[arg(long, value_name = "N")]
    pub(crate) token: u64,
    /// Give the lock to others at once, although the holder may still be working
    #[arg(long)]
    pub(crate) now: bool,
    #[command(flatten)]
    pub(crate) service: Service,
}

/// Looks at jobs that `leasehold run --not-within` runs, and resets them.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Once {
    /// Shows what a job is doing, its last success, its last attempt and the machine that made it, and when it may run next
    Show(ShowJob),
    /// Forgets when a job was done and how often it was tried, so that it can run again
    Reset(Reset),
}

/// Shows what is known of a job.
#[derive(Debug, Args)]
pub(crate) struct ShowJob {
    /// The name of the lock
    pub(crate) key: String,
    /// Write a JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) service: Service,
}

/// Forgets what is known of a job.
#[derive(Debug, Args)]
pub(crate) struct Reset {
    /// The name of the lock
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) service: Service,
}

/// Checks a lock service: settings, rights, clocks, round trips, and whether waiters are told of their turn.
///
/// It locks a key of its own for a moment. The exit status is 1 if something should be changed.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) service: Service,
}

/// Runs CMD while it holds a lock. CMD is dead before the lease ends.
///
/// The exit status is that of CMD, or: 75 somebody else has the lock, 69 the lock service is out of reach,
/// 70 the lock was lost, 71 this machine can't run the command, 73 CMD has failed too often, 77 the lock service refuses,
/// 64 the command line can't be used, 124 the time of --max-hold was over, 126 and 127 CMD can't be executed or found. If a signal ended CMD, the same signal ends this command.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Take one of this many permits, instead of a mutex
    #[arg(short = 'n', long, value_name = "PERMITS", conflicts_with_all = ["shared", "exclusive"])]
    permits: Option<u32>,
    /// Share the lock with other readers. It excludes `--exclusive`
    #[arg(short, long)]
    shared: bool,
    /// Be the only one, also among readers (`--shared`)
    #[arg(short = 'x', long, conflicts_with = "shared")]
    exclusive: bool,
    /// Run CMD only if it has not succeeded within this time, on any machine: 12h for a nightly job. If it has,
    /// the exit status is 0
    #[arg(
        long,
        value_name = "TIME",
        value_parser = time,
        conflicts_with_all = ["permits", "shared", "exclusive"]
    )]
    not_within: Option<Duration>,
    /// With --not-within: how often CMD is tried if it fails, on all machines together
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..),
        requires = "not_within"
    )]
    attempts: u32,
    /// Stand for election: CMD runs while this machine leads, and `leasehold leader` shows this text, such as its
    /// address
    #[arg(
        long,
        value_name = "TEXT",
        help_heading = ELECT,
        conflicts_with_all = ["permits", "shared", "exclusive", "not_within", "no_wait"]
    )]
    info: Option<String>,
    /// If the lock is lost and CMD was ended, stand again, instead of exit status 70
    #[arg(long, help_heading = ELECT, requires = "info")]
    pub(crate) again: bool,
    /// Wait at most this long for the lock [default: without limit]
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,
    /// Don't wait for the lock
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    /// How long the lock lasts if this machine dies
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    lease: Duration,
    /// End CMD when it has run for this time: SIGTERM, and SIGKILL after --kill-after [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = time)]
    max_hold: Option<Duration>,
    /// How long CMD may take to end after SIGTERM, before SIGKILL
    #[arg(short, long, value_name = "TIME", default_value = "5s", value_parser = time)]
    kill_after: Duration,
    /// The exit status if somebody else has the lock. With 0, nothing is printed then
    #[arg(short = 'E', long, value_name = "N", default_value_t = CONTENDED)]
    pub(crate) conflict_exit_code: u8,
    #[command(flatten)]
    service: Service,
    /// The name of the lock
    #[arg(value_name = "KEY", required_unless_present = "key_option")]
    key: Option<String>,
    /// The name of the lock, also if it begins with `-`: --key=-x
    #[arg(
        id = "key_option",
        long = "key",
        value_name = "KEY",
        conflicts_with = "key",
        allow_hyphen_values = true
    )]
    key_option: Option<String>,
    /// The command to run, and its arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// Which lock service.
#[derive(Debug, Args)]
pub(crate) struct Service {
    /// The URL of the lock service, without a password [default: the variable LEASEHOLD_URL]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// A file with the URL of the lock service
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    url_file: Option<PathBuf>,
    /// The prefix of all keys, as in the programs that share the locks
    #[arg(
        long,
        value_name = "PREFIX",
        env = "LEASEHOLD_KEY_PREFIX",
        hide_env_values = true
    )]
    key_prefix: Option<String>,
    /// How long an attempt to connect may take [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    connect_timeout: Option<Duration>,
}

/// A time on the command line. Sums of such times must not overflow.
fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match time <= LONGEST {
        true => Ok(time),
        false => Err("at most 36500 days".into()),
    }
}

/// Parses the command line. Prints what is wrong with it.
pub(crate) fn parse() -> Result<Subcommand, Ending> {
    Subcommand::try_parse().map_err(|error| match (error.use_stderr(), error.print()) {
        (true, _) => Ending::Status(USAGE),
        (false, Ok(())) => Ending::Status(0),
        (false, Err(error)) => ending::of_output(&error),
    })
}

impl Run {
    /// The lock to acquire, if all options can be used together.
    pub(crate) fn request(&self) -> Result<Request, String> {
        let reserved = self.kill_after.saturating_add(MARGIN);
        if reserved > self.lease / 3 {
            return Err(format!(
                "--kill-after and half a second must be at most a third of the lease: \
                 {reserved:?} is more than {:?}; set --kill-after",
                self.lease / 3
            ));
        }
        if self.max_hold == Some(Duration::ZERO) {
            return Err("--max-hold must be longer than 0 s".into());
        }
        // All that can be checked before anything is sent.
        let key = self.key.as_ref().or(self.key_option.as_ref());
        let key = Key::new(key.map_or("", String::as_str)).map_err(|error| error.to_string())?;
        if !(MIN_LEASE..=MAX_LEASE).contains(&self.lease) {
            return Err(format!("--lease must be {MIN_LEASE:?} to {MAX_LEASE:?}"));
        }
        let windows = MIN_START_WINDOW..=MAX_START_WINDOW;
        if self.not_within.is_some_and(|it| !windows.contains(&it)) {
            return Err(format!(
                "--not-within must be {MIN_START_WINDOW:?} to {} hours",
                MAX_START_WINDOW.as_secs() / 3_600
            ));
        }
        if self
            .info
            .as_ref()
            .is_some_and(|it| it.len() > MAX_INFO_BYTES)
        {
            return Err(format!("--info has at most {MAX_INFO_BYTES} bytes"));
        }
        if let Some(permits) = self.permits {
            LockSpec::semaphore(permits).map_err(|error| error.to_string())?;
        }
        Ok(Request {
            connection: self.service.connection()?,
            key: key.as_str().to_owned(),
            kind: self.kind(),
            wait: match (self.no_wait, self.wait) {
                (true, _) => Wait::No,
                (false, Some(time)) => Wait::Within(time),
                (false, None) => Wait::Forever,
            },
            lease: self.lease,
            max_hold: self.max_hold,
            kill_after: self.kill_after,
        })
    }

    /// The command line has at most one of these options.
    fn kind(&self) -> Kind {
        if let Some(info) = &self.info {
            let info = info.clone();
            return Kind::Election { info };
        }
        match (self.not_within, self.permits, self.shared, self.exclusive) {
            (Some(window), ..) => Kind::Job {
                window,
                attempts: self.attempts,
            },
            (None, Some(permits), ..) => Kind::Permit(permits),
            (None, None, true, _) => Kind::Read,
            (None, None, false, true) => Kind::Write,
            (None, None, false, false) => Kind::Mutex,
        }
    }
}

impl Service {
    pub(crate) fn connection(&self) -> Result<Connection, String> {
        if let Some(limit) = self.connect_timeout {
            let checked = leasehold_api::bounds::check_time_limit("--connect-timeout", limit);
            checked.map_err(|error| error.to_string())?;
        }
        Ok(Connection {
            url: self.url()?,
            key_prefix: self.key_prefix.clone(),
            connect_timeout: self.connect_timeout,
        })
    }

    /// The URL, from the command line, a file or the environment.
    fn url(&self) -> Result<String, String> {
        if let Some(url) = &self.url {
            if has_password(url) {
                return Err(format!(
                    "--url contains a password, which everybody on this machine could read: \
                     use the variable {URL} or --url-file"
                ));
            }
            return Ok(url.clone());
        }
        if let Some(file) = &self.url_file {
            let text = std::fs::read_to_string(file)
                .map_err(|error| format!("--url-file {}: {error}", file.display()))?;
            return Ok(text.trim().to_owned());
        }
        std::env::var(URL).map_err(|_| format!("set the variable {URL}, --url-file or --url"))
    }
}

/// Whether a URL may contain a password: after a user, or in its query. In doubt, it does. To NATS, a user alone is a token.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let in_front = rest.rsplit_once('@').map_or("", |(user, _)| user);
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let query = query.to_ascii_lowercase();
    let is_nats = ["nats:", "tls:"].iter().any(|it| url.starts_with(it));
    in_front.contains(':')
        || is_nats && !in_front.is_empty()
        || ["pass", "secret", "token"]
            .iter()
            .any(|name| query.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found() {
        for url in [
            "redis://:secret@host",
            "redis://user:secret@host:6379/0",
            "redis://user:se@cr/et@host",
            "user:secret@host",
            "postgres://host/db?user=a&password=secret",
            "postgres://host/db?PassWord=secret",
            "redis+sentinel://host/name?sentinel_password=secret",
            "s3://bucket/locks?access_key_id=a&SECRET_ACCESS_KEY=b",
            "s3://bucket/locks?session_token=a",
            "nats://token@host/bucket",
            "tls://token@host",
        ] {
            assert!(has_password(url), "{url}");
        }
        for url in [
            "redis://host:6379/0",
            "redis://user@host:6379",
            "postgres://user@host:5432/db?sslmode=require",
            "redis+unix:///run/redis.sock",
            "sqlite:/var/lib/locks.db",
            "s3://bucket/locks?region=eu-central-1&access_key_id=a",
            "nats://host:4222,host2/bucket",
        ] {
            assert!(!has_password(url), "{url}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Subcommand::command().debug_assert();
    }
}
