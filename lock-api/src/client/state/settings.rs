//! The settings of a client and the options of a handle, with their limits.
//!
//! A handle starts from the settings of its client. The setters check nothing.
//! `ClientSettings::check` runs when the client is built, and `LockOptions::check` at the start of each acquisition,
//! before any I/O.

use std::time::Duration;

use crate::backend::Capabilities;
use crate::bounds;
use crate::client::state::loss::Hook;
use crate::error::InvalidInput;
use crate::id::Label;
use crate::request::Limits;

/// Settings of a client, and the defaults of its handles.
#[derive(Clone, Debug)]
pub(crate) struct ClientSettings {
    /// The options of a new handle.
    pub(crate) options: LockOptions,
    pub(crate) label: Label,
    pub(crate) call_timeout: Duration,
    pub(crate) on_loss: Option<Hook>,
}

impl ClientSettings {
    /// The defaults, on a backend that grants leases up to `max_lease`.
    pub(crate) fn new(label: Label, max_lease: Duration) -> Self {
        Self {
            options: LockOptions {
                lease: bounds::DEFAULT_LEASE.min(max_lease),
                fixed_lease: false,
                max_hold: None,
                outage_limit: None,
                limits: Limits::default(),
                class: "",
            },
            label,
            call_timeout: bounds::CALL_TIMEOUT,
            on_loss: None,
        }
    }

    pub(crate) fn check(&self, capabilities: Capabilities) -> Result<(), InvalidInput> {
        self.options.check(capabilities)?;
        bounds::check_time_limit("call timeout", self.call_timeout)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct LockOptions {
    pub(crate) lease: Duration,
    pub(crate) fixed_lease: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) outage_limit: Option<Duration>,
    pub(crate) limits: Limits,
    /// For metrics.
    pub(crate) class: &'static str,
}

impl LockOptions {
    /// Checks the options, for a backend with these limits of leases.
    pub(crate) fn check(&self, capabilities: Capabilities) -> Result<(), InvalidInput> {
        let error = capabilities.clock_error;
        bounds::check_time(
            "clock_error",
            error,
            Duration::ZERO..=bounds::MAX_CLOCK_ERROR,
        )?;
        let (lease, factor) = (self.lease, bounds::LEASE_PER_CLOCK_ERROR);
        if lease < error * factor {
            return Err(InvalidInput::new(format!(
                "a lease of {lease:?} is less than {factor} times the error of the backend's clock, {error:?}"
            )));
        }
        let longest = capabilities.max_lease.min(bounds::MAX_LEASE);
        bounds::check_lease("lease", self.lease, bounds::MIN_LEASE..=longest)?;
        let limits = self.limits;
        if [limits.holds, limits.waiters, limits.holders].contains(&0) {
            let reason = "a limit of 0 would refuse everything";
            return Err(InvalidInput::setting("limits", reason));
        }
        if self.max_hold == Some(Duration::ZERO) {
            let reason = "it must be more than zero";
            return Err(InvalidInput::setting("max_hold", reason));
        }
        Ok(())
    }
}

/// The setters that all handles share. They check nothing: see the top of this file.
macro_rules! option_setters {
    () => {
        option_setters!(lock.options);

        /// The key.
        pub const fn key(&self) -> &crate::id::Key {
            &self.lock.key
        }
    };
    ($($options:ident).+) => {
        /// Sets the lease: how long a hold lasts without a renewal.
        ///
        /// 100 ms to 1 h, 30 s by default, or less if the backend
        /// [grants less](crate::Capabilities::max_lease). Outside these limits, the acquisition fails with
        /// [`InvalidInput`](crate::InvalidInput). The lock of a crashed holder
        /// becomes free when its lease expires, or 2 s after the grant if it had waited for the
        /// lock and its lease is shorter.
        #[must_use]
        pub const fn lease(mut self, lease: std::time::Duration) -> Self {
            self.$($options).+.lease = lease;
            self
        }

        /// Turns off automatic renewal: a guard lasts for one lease, unless you
        /// [renew](crate::Guard::renew) it. Use it for work that must not last longer. By default a guard
        /// is renewed until you release it, however long the work takes.
        ///
        /// The nested guards of a reentrant handle end together. If one of them is renewed
        /// automatically, all of them are.
        #[must_use]
        pub const fn fixed_lease(mut self) -> Self {
            self.$($options).+.fixed_lease = true;
            self
        }

        /// Limits how long a guard stays valid, even if its renewals succeed.
        ///
        /// After this time the guard is lost and its lease is no longer renewed, so a stuck holder
        /// does not keep the lock. There is no limit by default. A limit of zero makes the
        /// acquisition fail with [`InvalidInput`](crate::InvalidInput).
        #[must_use]
        pub const fn max_hold(mut self, max: std::time::Duration) -> Self {
            self.$($options).+.max_hold = Some(max);
            self
        }

        /// Limits how long an acquisition waits for a lock service that gives no answer, apart from how long it waits
        /// for its turn.
        ///
        /// Without a limit, which is the default, a call rides out an outage until its own deadline, and
        /// [`lock`](crate::Mutex::lock) for as long as it lasts. A request of a web service needs its answer sooner.
        ///
        /// - The time counts from the sending of the client's first call that failed since its last answer, whichever
        ///   of its tasks made these calls, or from the first failure of this call. Within a known outage that is older, a
        ///   call fails at once.
        /// - [`Duration::ZERO`](std::time::Duration::ZERO) fails at once when the service is known to be away. That a
        ///   server hangs is known after one [call timeout](crate::LockClientBuilder::call_timeout) without an answer.
        /// - The error is [`Error::Unavailable`](crate::Error::Unavailable) or
        ///   [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown), never a contended outcome. The call leaves the
        ///   queue, and what it may have taken is released in the background. In the queue, a call learns by its polls that the
        ///   server is silent. In the last second of its turn, and half a call timeout more, it doesn't.
        /// - Renewals, releases, jobs and elections go on through an outage.
        #[must_use]
        pub const fn outage_limit(mut self, limit: std::time::Duration) -> Self {
            self.$($options).+.outage_limit = Some(limit);
            self
        }

        /// Limits the holds of one owner, the waiters and the holders of the key. The limits bind
        /// the acquisitions of this handle only.
        #[must_use]
        pub const fn limits(mut self, limits: crate::request::Limits) -> Self {
            self.$($options).+.limits = limits;
            self
        }

        /// Sets the class of the handle: the value of the label `class` in the metrics of its calls and guards. Empty
        /// by default.
        ///
        /// Name what you lock, such as `"invoice"` for the keys `invoice:1`, `invoice:2` and so on. It is a
        /// part of your program's text, so that there are few classes.
        #[must_use]
        pub const fn class(mut self, class: &'static str) -> Self {
            self.$($options).+.class = class;
            self
        }
    };
}
pub(crate) use option_setters;
