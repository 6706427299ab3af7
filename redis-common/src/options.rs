//! Settings of both Redis backends.

use std::time::Duration;

use leasehold_api::{InvalidInput, bounds};

/// The version of the Redis protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespVersion {
    /// For servers and proxies without `HELLO 3`.
    Resp2,
    /// The default. Commands and messages share one connection.
    #[default]
    Resp3,
}

/// Settings of a Redis backend.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use leasehold_redis_common::Options;
///
/// let options = Options::new()
///     .key_prefix("billing:locks:")
///     .call_timeout(Duration::from_millis(500));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The prefix of all keys and channels; see [`key_prefix`](Self::key_prefix()).
    pub key_prefix: String,
    /// The time limit of a call; see [`call_timeout`](Self::call_timeout()).
    pub call_timeout: Duration,
    /// The time limit of an attempt to connect; see
    /// [`connect_timeout`](Self::connect_timeout()).
    pub connect_timeout: Duration,
    /// The protocol version; see [`resp`](Self::resp()).
    pub resp: RespVersion,
}

/// Half of the default call timeout: a call that has to connect first still has time for an answer.
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
    /// Returns the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the prefix of all keys and channels.
    ///
    /// The default is
    /// [`bounds::DEFAULT_KEY_PREFIX`](leasehold_api::bounds::DEFAULT_KEY_PREFIX), `leasehold:`.
    /// Clients that share locks must use the same prefix. A prefix with braces is refused when you
    /// create the backend.
    ///
    /// # Examples
    /// ```
    /// use leasehold_redis_common::Options;
    ///
    /// let options = Options::new().key_prefix("billing:locks:");
    /// assert_eq!(options.key_prefix, "billing:locks:");
    /// ```
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// Sets the time limit of a single call. It includes the time to connect, if necessary.
    ///
    /// The default is [`bounds::CALL_TIMEOUT`](leasehold_api::bounds::CALL_TIMEOUT), 1 s. A limit
    /// outside 10 ms to 5 s is refused when you create the backend. The client has a call timeout
    /// too. The shorter of the two applies.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_redis_common::Options;
    ///
    /// let options = Options::new().call_timeout(Duration::from_millis(500));
    /// assert_eq!(options.call_timeout, Duration::from_millis(500));
    /// ```
    #[must_use]
    pub const fn call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }

    /// Sets the time limit of one attempt to connect. It includes authentication and the checks of
    /// the server.
    ///
    /// The default is 500 ms. A limit outside 10 ms to 5 s is refused when you create the backend.
    /// If [`call_timeout`](Self::call_timeout()) is shorter, it applies instead.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_redis_common::Options;
    ///
    /// // A distant server, behind TLS.
    /// let options = Options::new()
    ///     .call_timeout(Duration::from_secs(3))
    ///     .connect_timeout(Duration::from_secs(2));
    /// ```
    #[must_use]
    pub const fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets the protocol version of the connections that the backend opens. It overrides the
    /// version that the URL or your client asks for.
    ///
    /// The default is [`RespVersion::Resp3`].
    ///
    /// # Examples
    /// ```
    /// use leasehold_redis_common::{Options, RespVersion};
    ///
    /// // For a proxy that doesn't know HELLO 3.
    /// let options = Options::new().resp(RespVersion::Resp2);
    /// ```
    #[must_use]
    pub const fn resp(mut self, resp: RespVersion) -> Self {
        self.resp = resp;
        self
    }

    /// Checks the time limits. [`Protocol::new`](crate::script::Protocol::new) checks the prefix.
    ///
    /// # Errors
    /// [`InvalidInput::Setting`] that names the setting.
    pub fn check(&self) -> Result<(), InvalidInput> {
        InvalidInput::check_time_limit("call timeout", self.call_timeout)?;
        InvalidInput::check_time_limit("connect timeout", self.connect_timeout)
    }
}

/// Checks that a URL has a scheme. The client libraries don't name this common mistake.
///
/// # Errors
/// [`InvalidInput::Setting`] that shows a URL with a scheme.
pub fn check_url(url: &str) -> Result<(), InvalidInput> {
    if url.contains("://") {
        return Ok(());
    }
    // A URL with an `@` may contain a password.
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
    fn timeout_out_of_range_is_named() {
        let ms = Duration::from_millis;
        assert_eq!(Options::new().check(), Ok(()));
        for (options, name) in [
            (Options::new().call_timeout(ms(9)), "call timeout"),
            (Options::new().call_timeout(ms(5_001)), "call timeout"),
            (Options::new().connect_timeout(ms(0)), "connect timeout"),
        ] {
            let error = options.check().expect_err("out of range");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn missing_scheme_is_named_and_password_is_hidden() {
        let message = |url| check_url(url).expect_err("no scheme").to_string();
        assert_eq!(
            message("localhost:6379"),
            "URL: it has no scheme; write redis://localhost:6379"
        );
        assert!(message("").ends_with("redis://localhost"));
        assert!(!message("me:hunter2@localhost").contains("hunter2"));
        assert_eq!(check_url("rediss://localhost"), Ok(()));
    }
}
