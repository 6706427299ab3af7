//! Settings that both Redis backends take.

use std::time::Duration;

use leasehold_api::{InvalidInput, bounds};

/// A version of the protocol between a client library and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespVersion {
    /// The old one, for servers and proxies without `HELLO 3`.
    Resp2,
    /// Messages come over a connection that also takes commands.
    #[default]
    Resp3,
}

/// Settings of a Redis backend.
///
/// ```
/// use std::time::Duration;
/// use leasehold_redis_common::Options;
///
/// let options = Options::new()
///     .with_key_prefix("billing:locks:")
///     .with_call_timeout(Duration::from_millis(500));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// What all keys and channels start with; see [`with_key_prefix`](Self::with_key_prefix).
    pub key_prefix: String,
    /// Longest single call; see [`with_call_timeout`](Self::with_call_timeout).
    pub call_timeout: Duration,
    /// Longest attempt to connect; see [`with_connect_timeout`](Self::with_connect_timeout).
    pub connect_timeout: Duration,
    /// What connections speak; see [`with_resp`](Self::with_resp).
    pub resp: RespVersion,
}

/// Half a call, so that a call that finds the connection lost can still be answered.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

impl Default for Options {
    fn default() -> Self {
        Self {
            key_prefix: bounds::DEFAULT_KEY_PREFIX.into(),
            call_timeout: bounds::CALL_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            resp: RespVersion::default(),
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// What all keys and channels start with; by default
    /// [`bounds::DEFAULT_KEY_PREFIX`](leasehold_api::bounds::DEFAULT_KEY_PREFIX). All clients
    /// that share locks must use the same. Braces are not allowed.
    #[must_use]
    pub fn with_key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// How long a single call may take, connecting included; by default
    /// [`bounds::CALL_TIMEOUT`](leasehold_api::bounds::CALL_TIMEOUT), 10 ms to 5 s, as the
    /// client's own. The shorter of the two counts.
    #[must_use]
    pub const fn with_call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }

    /// How long one attempt to connect may take, with authentication and the checks that
    /// follow; by default 500 ms, 10 ms to 5 s. What is longer than a call is cut to it.
    #[must_use]
    pub const fn with_connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Which protocol the connections speak that the backend opens; by default RESP3, whatever
    /// the URL or the user's client says.
    #[must_use]
    pub const fn with_resp(mut self, resp: RespVersion) -> Self {
        self.resp = resp;
        self
    }

    /// Checks the times; the prefix is checked by [`Protocol::new`](crate::script::Protocol::new).
    ///
    /// # Errors
    /// [`InvalidInput::Setting`] that names the setting.
    pub fn check(&self) -> Result<(), InvalidInput> {
        InvalidInput::check_time_limit("call time-out", self.call_timeout)?;
        InvalidInput::check_time_limit("connect time-out", self.connect_timeout)
    }
}

/// Checks what a URL of a server must have before a client library parses it: theirs say little
/// about the mistake that is made most.
///
/// # Errors
/// [`InvalidInput::Setting`] that says what is missing.
pub fn check_url(url: &str) -> Result<(), InvalidInput> {
    if url.contains("://") {
        return Ok(());
    }
    // What has an at sign may have a password.
    let example = match url {
        "" => "redis://localhost".into(),
        _ if url.contains('@') => "redis://user:password@host".into(),
        _ => format!("redis://{url}"),
    };
    Err(InvalidInput::Setting {
        what: "URL",
        problem: format!("it has no scheme; write {example}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_the_limits_are_named() {
        let ms = Duration::from_millis;
        assert_eq!(Options::new().check(), Ok(()));
        for (options, name) in [
            (Options::new().with_call_timeout(ms(9)), "call time-out"),
            (Options::new().with_call_timeout(ms(5_001)), "call time-out"),
            (
                Options::new().with_connect_timeout(ms(0)),
                "connect time-out",
            ),
        ] {
            let error = options.check().expect_err("outside");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn a_url_without_a_scheme_is_told_what_it_should_be_and_shows_no_password() {
        let told = |url| check_url(url).expect_err("no scheme").to_string();
        assert_eq!(
            told("localhost:6379"),
            "URL: it has no scheme; write redis://localhost:6379"
        );
        assert!(told("").ends_with("redis://localhost"));
        assert!(!told("me:hunter2@localhost").contains("hunter2"));
        assert_eq!(check_url("rediss://localhost"), Ok(()));
    }
}
