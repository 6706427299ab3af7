//! Settings that both Redis backends take.

use std::time::Duration;

use leasehold_api::{InvalidInput, bounds};

/// Settings of a Redis backend.
///
/// ```
/// use std::time::Duration;
/// use leasehold_redis_protocol::Options;
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
}

/// Half a call, so that a call that finds the connection lost can still be answered.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(60);

impl Default for Options {
    fn default() -> Self {
        Self {
            key_prefix: bounds::DEFAULT_KEY_PREFIX.into(),
            call_timeout: bounds::CALL_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
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
    /// [`bounds::CALL_TIMEOUT`](leasehold_api::bounds::CALL_TIMEOUT), 10 ms to 60 s.
    #[must_use]
    pub const fn with_call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }

    /// How long one attempt to connect may take, with authentication and the checks that
    /// follow; by default 500 ms, 10 ms to 60 s. What is longer than a call is cut to it.
    #[must_use]
    pub const fn with_connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Checks the times; the prefix is checked by [`Protocol::new`](crate::Protocol::new).
    ///
    /// # Errors
    /// [`InvalidInput::Setting`] that names the setting.
    pub fn check(&self) -> Result<(), InvalidInput> {
        for (what, value) in [
            ("call time-out", self.call_timeout),
            ("connect time-out", self.connect_timeout),
        ] {
            if value < SHORTEST || value > LONGEST {
                return Err(InvalidInput::Setting {
                    what,
                    problem: format!("{value:?} is outside the limits (10 ms to 60 s)"),
                });
            }
        }
        Ok(())
    }
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
            (
                Options::new().with_call_timeout(ms(60_001)),
                "call time-out",
            ),
            (
                Options::new().with_connect_timeout(ms(0)),
                "connect time-out",
            ),
        ] {
            let error = options.check().expect_err("outside");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
