//! Settings of both Redis backends.

use std::time::Duration;

use leasehold_api::{Certificates, InvalidInput, bounds};

/// The version of the Redis protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespVersion {
    /// For servers and proxies without `HELLO 3`.
    Resp2,
    /// The default. Commands and messages share one connection.
    #[default]
    Resp3,
}

/// What to do about settings of the server that endanger locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerChecks {
    /// Use the server.
    Ignore,
    /// The default. Use the server, and warn of each setting once, by the event `server setting`.
    #[default]
    Warn,
    /// Refuse the server, with an error that names the settings.
    Reject,
}

/// Settings of a Redis backend.
///
/// # Examples
/// A distant server behind TLS, which starts together with this program:
/// ```no_run
/// use std::fs::read;
/// use std::time::Duration;
///
/// use leasehold_redis_common::{Options, ServerChecks};
///
/// # fn example() -> std::io::Result<()> {
/// let options = Options::new()
///     .key_prefix("billing:locks:")
///     .call_timeout(Duration::from_secs(3))
///     .connect_timeout(Duration::from_secs(2))
///     .initial_connect_timeout(Duration::from_secs(30))
///     // Don't start with a server that may lose locks.
///     .server_checks(ServerChecks::Reject)
///     .root_certificates(read("/etc/redis/ca.pem")?)
///     .client_certificate(read("client.pem")?, read("client.key")?);
/// # Ok(())
/// # }
/// ```
/// A proxy that doesn't know `HELLO 3`:
/// ```
/// use leasehold_redis_common::{Options, RespVersion};
///
/// let options = Options::new().resp(RespVersion::Resp2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The prefix of all keys and channels; see [`key_prefix`](Self::key_prefix()).
    pub key_prefix: String,
    /// The time limit of a call; see [`call_timeout`](Self::call_timeout()).
    pub call_timeout: Duration,
    /// The limit of an attempt to connect; see [`connect_timeout`](Self::connect_timeout()).
    pub connect_timeout: Duration,
    /// How long a constructor tries to connect; see
    /// [`initial_connect_timeout`](Self::initial_connect_timeout()).
    pub initial_connect_timeout: Duration,
    /// The protocol version; see [`resp`](Self::resp()).
    pub resp: RespVersion,
    /// What to do about dangerous settings of the server; see
    /// [`server_checks`](Self::server_checks()).
    pub server_checks: ServerChecks,
    /// The certificates for TLS; see [`root_certificates`](Self::root_certificates) and
    /// [`client_certificate`](Self::client_certificate).
    pub certificates: Certificates,
}

/// Several attempts, or the start of a server.
const DEFAULT_INITIAL_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_INITIAL_CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

impl Default for Options {
    fn default() -> Self {
        Self {
            key_prefix: bounds::DEFAULT_KEY_PREFIX.into(),
            call_timeout: bounds::CALL_TIMEOUT,
            connect_timeout: bounds::CONNECT_TIMEOUT,
            initial_connect_timeout: DEFAULT_INITIAL_CONNECT_TIMEOUT,
            resp: RespVersion::default(),
            server_checks: ServerChecks::default(),
            certificates: Certificates::new(),
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
    #[must_use]
    pub const fn call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }

    /// Sets the time limit of one attempt to connect. It includes authentication and the checks of
    /// the server.
    ///
    /// A call that has to connect first ends with its [`call_timeout`](Self::call_timeout()). The attempt goes on, and a
    /// later call uses the connection. A shorter limit leaves a silent server sooner, for example an old primary
    /// behind the same name. It must be longer than the round trips that connecting takes: three with redis-rs, five
    /// with fred, one more with TLS or a database other than 0, and twice as many through sentinels.
    ///
    /// The default is [`bounds::CONNECT_TIMEOUT`](leasehold_api::bounds::CONNECT_TIMEOUT), 2 s. A limit outside 10 ms
    /// to 5 s is refused when you create the backend.
    #[must_use]
    pub const fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets how long the constructors `connect` and `connect_with` try to connect.
    ///
    /// An attempt that fails with a transient error, such as a refused connection or silence for
    /// the [`connect_timeout`](Self::connect_timeout), is repeated after a short pause. A permanent
    /// error, such as a wrong password, ends the constructor at once.
    ///
    /// The default is 5 s. A limit outside 10 ms to 60 s is refused.
    #[must_use]
    pub const fn initial_connect_timeout(mut self, limit: Duration) -> Self {
        self.initial_connect_timeout = limit;
        self
    }

    /// Sets the protocol version of the connections that the backend opens. It overrides the
    /// version that the URL or your client asks for.
    ///
    /// The default is [`RespVersion::Resp3`].
    #[must_use]
    pub const fn resp(mut self, resp: RespVersion) -> Self {
        self.resp = resp;
        self
    }

    /// Sets what to do about settings of the server that endanger locks.
    ///
    /// The backend checks each server that it connects to. It warns of, or rejects,
    /// - an eviction policy other than `noeviction`, if the memory is limited;
    /// - no append-only file (`appendonly no`);
    /// - replicas without `min-replicas-to-write`;
    /// - a replica. This error is transient, because the replica may be promoted;
    /// - missing rights of the user, on Redis 7.0 and later.
    ///
    /// The server tells all but the rights in its answer to `INFO`. What it doesn't tell is not
    /// judged. A server that loads its data is not judged either: it is unavailable until it has. The settings are checked for each connection, the rights until they were complete once, in a
    /// cluster at each node.
    ///
    /// The default is [`ServerChecks::Warn`].
    #[must_use]
    pub const fn server_checks(mut self, checks: ServerChecks) -> Self {
        self.server_checks = checks;
        self
    }

    /// Sets the authorities that may issue the server's certificate: one or more certificates as
    /// PEM. They replace those of the machine.
    ///
    /// Needs a URL with `rediss://` or `valkeys://`. A text without certificates is refused when you
    /// create the backend.
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates = self.certificates.root_certificates(pem);
        self
    }

    /// Sets the certificate that the backend shows to the server, and its private key, both as PEM.
    /// If the certificate was not issued by an authority that the server knows, `chain` also has
    /// the certificates between the two.
    ///
    /// Needs a URL with `rediss://` or `valkeys://`. A key that doesn't fit the certificate is
    /// refused when you create the backend.
    #[must_use]
    pub fn client_certificate(
        mut self,
        chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates = self.certificates.client_certificate(chain, key);
        self
    }

    /// Checks the time limits. [`Protocol::new`](crate::script::Protocol::new) checks the prefix.
    ///
    /// # Errors
    /// [`InvalidInput`] that names the setting.
    pub fn check(&self) -> Result<(), InvalidInput> {
        bounds::check_time_limit("call timeout", self.call_timeout)?;
        bounds::check_time_limit("connect timeout", self.connect_timeout)?;
        bounds::check_time(
            "initial connect timeout",
            self.initial_connect_timeout,
            bounds::MIN_CALL_TIMEOUT..=MAX_INITIAL_CONNECT_TIMEOUT,
        )
    }
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
            (
                Options::new().initial_connect_timeout(ms(60_001)),
                "initial connect timeout",
            ),
        ] {
            let error = options.check().expect_err("out of range");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
