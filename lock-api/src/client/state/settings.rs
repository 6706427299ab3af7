//! The settings of a client and the options of a handle, with their limits.
//!
//! A handle starts from the settings of its client. The setters check nothing.
//! `ClientSettings::check` runs when the client is built, and `ClientSettings::spec` runs when a handle is made and
//! at the start of each acquisition, before any I/O.

use std::time::Duration;

use crate::bounds;
use crate::client::state::loss::Hook;
use crate::error::InvalidInput;
use crate::id::Label;
use crate::request::{Kind, Limits, LockSpec, Policy};

/// Settings of a client, and the defaults of its handles.
#[derive(Clone, Debug)]
pub(crate) struct ClientSettings {
    /// The options of a new handle.
    pub(crate) options: LockOptions,
    pub(crate) policy: Policy,
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
                waiter_lease: bounds::DEFAULT_WAITER_LEASE,
                policy: None,
                fixed_lease: false,
                max_hold: None,
                limits: Limits::default(),
                class: "",
            },
            policy: Policy::Fair,
            label,
            call_timeout: bounds::CALL_TIMEOUT,
            on_loss: None,
        }
    }

    pub(crate) fn check(&self, max_lease: Duration) -> Result<(), InvalidInput> {
        self.options.check()?;
        InvalidInput::check_lease(self.options.lease, bounds::MIN_LEASE..=max_lease)?;
        InvalidInput::check_time_limit("call timeout", self.call_timeout)
    }

    /// Checks the options of a handle and returns the spec that the acquire sends.
    pub(crate) fn spec(
        &self,
        kind: Kind,
        permits: u32,
        options: &LockOptions,
    ) -> Result<LockSpec, InvalidInput> {
        options.check()?;
        let spec = match kind {
            Kind::Mutex => LockSpec::mutex(),
            Kind::RwLock => LockSpec::rw_lock(),
            Kind::Semaphore => LockSpec::semaphore(permits)?,
        };
        let policy = match (options.policy, self.policy) {
            (Some(policy), _) => policy,
            (None, Policy::ReaderPreference | Policy::WriterPreference) if kind != Kind::RwLock => {
                Policy::Fair
            }
            (None, policy) => policy,
        };
        spec.with_policy(policy)?
            .with_waiter_lease(options.waiter_lease)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct LockOptions {
    pub(crate) lease: Duration,
    pub(crate) waiter_lease: Duration,
    /// `None` unless the handle sets one. The client's policy may be a preference among readers and
    /// writers, which a mutex or a semaphore replaces by `Fair`.
    pub(crate) policy: Option<Policy>,
    pub(crate) fixed_lease: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) limits: Limits,
    /// For metrics.
    pub(crate) class: &'static str,
}

impl LockOptions {
    fn check(&self) -> Result<(), InvalidInput> {
        InvalidInput::check_lease(self.lease, bounds::MIN_LEASE..=bounds::MAX_LEASE)?;
        let waiter_leases = bounds::MIN_WAITER_LEASE..=bounds::MAX_WAITER_LEASE;
        InvalidInput::check_waiter_lease(self.waiter_lease, waiter_leases)?;
        let limits = self.limits;
        if [limits.holds, limits.waiters, limits.holders].contains(&0) {
            let problem = "a limit of 0 would refuse everything";
            return Err(InvalidInput::setting("limits", problem));
        }
        if self.max_hold == Some(Duration::ZERO) {
            let problem = "it must be more than zero";
            return Err(InvalidInput::setting("max_hold", problem));
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
        /// [`InvalidInput::Lease`](crate::InvalidInput::Lease). The lock of a crashed holder
        /// becomes free when its lease expires, or 2 s after the grant if it had waited for the
        /// lock and its lease is shorter.
        #[must_use]
        pub const fn lease(mut self, lease: std::time::Duration) -> Self {
            self.$($options).+.lease = lease;
            self
        }

        /// Sets the policy: who gets the key when it becomes free. The policy of the client by
        /// default.
        ///
        /// **All programs that use the key must set the same policy.** While the key is in use, an
        /// acquisition with another one fails with
        /// [`Refused::Mismatch`](crate::Refused::Mismatch), which names the policy in use. The page
        /// docs/deployment.md says how to change it without a stop.
        ///
        /// With a reader or writer preference on another kind than a reader/writer lock, the
        /// acquisition fails with
        /// [`InvalidInput::PolicyForKind`](crate::InvalidInput::PolicyForKind).
        #[must_use]
        pub const fn policy(mut self, policy: crate::request::Policy) -> Self {
            self.$($options).+.policy = Some(policy);
            self
        }

        /// Sets the waiter lease: how long a waiter stays in the queue without a poll.
        ///
        /// 3 s to 60 s, 5 s by default. Outside these limits, the acquisition fails with
        /// [`InvalidInput::WaiterLease`](crate::InvalidInput::WaiterLease). **All programs that use the
        /// key must set the same waiter lease**, as with the [policy](Self::policy).
        #[must_use]
        pub const fn waiter_lease(mut self, lease: std::time::Duration) -> Self {
            self.$($options).+.waiter_lease = lease;
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
        /// acquisition fail with [`InvalidInput::Setting`](crate::InvalidInput::Setting).
        #[must_use]
        pub const fn max_hold(mut self, max: std::time::Duration) -> Self {
            self.$($options).+.max_hold = Some(max);
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
