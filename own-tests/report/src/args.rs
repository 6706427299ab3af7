//! The command line. No message shows the password of a URL.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use url::Url;

/// Runs leasehold's conformance suite on a server, and reports which cases passed.
///
/// The server may be in use. All keys begin with a prefix of this run, and are removed at its end.
/// Nothing is flushed, and no setting is changed. Cases that need virtual time, a cut network or a
/// foreign value are ignored.
///
/// The exit status is 0 if no case failed, 1 if a case failed, and 2 if the suite could not run.
#[derive(Debug, Parser)]
#[command(name = "conformance_report")]
#[command(group(clap::ArgGroup::new("server").required(true).args(["redis", "postgres"])))]
pub(crate) struct Args {
    /// URL of a Redis or Valkey server, of sentinels or of a cluster, such as redis://127.0.0.1:6379
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// Client library for Redis
    #[arg(
        long,
        value_enum,
        default_value = "redis-rs",
        conflicts_with = "postgres"
    )]
    pub(crate) client: Client,

    /// URL of a PostgreSQL database that has leasehold's schema, such as postgres://locks@127.0.0.1/shop
    #[arg(long, value_name = "URL")]
    pub(crate) postgres: Option<String>,

    /// Writes the report as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Writes the report as one HTML page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Runs only the cases whose name contains this text, such as a family
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,

    /// The unit of time in cases, in ms: at least ten times as long as a command takes
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    pub(crate) unit: u64,

    /// The number of cases that run at the same time. A case opens up to 30 connections
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) threads: u8,
}

/// A client library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Client {
    RedisRs,
    Fred,
}

/// Parses the command line of this process. Prints what is wrong with it.
pub(crate) fn parse() -> Result<Args, ExitCode> {
    Args::try_parse().map_err(|error| {
        let mut text = error.render().to_string();
        for argument in std::env::args() {
            text = without_passwords(&text, &argument);
        }
        if error.use_stderr() {
            eprint!("{text}");
            ExitCode::from(2)
        } else {
            print!("{text}");
            ExitCode::SUCCESS
        }
    })
}

/// Replaces an argument that contains a URL by the URL's address.
fn without_passwords(text: &str, argument: &str) -> String {
    if !argument.contains("://") {
        return text.to_string();
    }
    let url = argument.split_once('=').map_or(argument, |(flag, value)| {
        if flag.starts_with("--") {
            value
        } else {
            argument
        }
    });
    text.replace(argument, &address(url))
        .replace(url, &address(url))
}

/// What a URL names, without user, password and parameters.
pub(crate) fn address(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else {
        return "a URL that can't be read".to_string();
    };
    // These fail for URLs without a host, which have no user either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn addresses_have_no_secrets() {
        for (url, shown) in [
            ("redis://me:sesame@db:7000/1", "redis://db:7000/1"),
            (
                "redis+unix:///run/redis?pass=sesame",
                "redis+unix:///run/redis",
            ),
            (
                "postgres://me@db/shop?password=sesame",
                "postgres://db/shop",
            ),
            ("host=db password=sesame", "a URL that can't be read"),
        ] {
            assert_eq!(address(url), shown);
        }
    }

    #[test]
    fn messages_have_no_passwords() {
        for argument in ["redis://:sesame@db", "--redsi=redis://:sesame@db"] {
            let text = format!("error: unexpected argument '{argument}' found");
            let shown = without_passwords(&text, argument);
            assert!(!shown.contains("sesame"), "{shown}");
        }
    }
}
