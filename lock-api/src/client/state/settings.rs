//! What can be set: for a client, and for one handle.

use std::time::Duration;

use crate::bounds;
use crate::client::state::loss::Hook;
use crate::error::InvalidInput;
use crate::id::Label;
use crate::request::{Kind, Limits, LockSpec, Policy};

/// Settings of a client; a handle starts from them.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) lease: Duration,
    pub(crate) waiter_lease: Duration,
    pub(crate) policy: Policy,
    pub(crate) label: Label,
    pub(crate) call_timeout: Duration,
    pub(crate) limits: Limits,
    pub(crate) on_loss: Option<Hook>,
}

impl Settings {
    pub(crate) const fn new(label: Label) -> Self {
        Self {
            lease: bounds::DEFAULT_LEASE,
            waiter_lease: bounds::DEFAULT_WAITER_LEASE,
            policy: Policy::Fair,
            label,
            call_timeout: bounds::CALL_TIMEOUT,
            limits: Limits {
                holds: bounds::DEFAULT_HOLD_LIMIT,
                waiters: bounds::DEFAULT_WAITER_LIMIT,
                holders: bounds::DEFAULT_HOLDER_LIMIT,
            },
            on_loss: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), InvalidInput> {
        check_lease(self.lease)?;
        check_waiter_lease(self.waiter_lease)?;
        InvalidInput::check_time_limit("call time-out", self.call_timeout)?;
        let limits = self.limits;
        if limits.holds == 0 || limits.waiters == 0 || limits.holders == 0 {
            return Err(InvalidInput::Setting {
                what: "limits",
                problem: "a limit of 0 would refuse everything".into(),
            });
        }
        Ok(())
    }
}

/// Settings of one handle.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) waiter_lease: Duration,
    /// `None` until somebody names one, so that a client-wide preference among readers and
    /// writers is no error for a mutex.
    pub(crate) policy: Option<Policy>,
    pub(crate) fixed_lease: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) limits: Limits,
}

impl Options {
    pub(crate) const fn from_settings(settings: &Settings) -> Self {
        Self {
            lease: settings.lease,
            waiter_lease: settings.waiter_lease,
            policy: None,
            fixed_lease: false,
            max_hold: None,
            limits: settings.limits,
        }
    }

    /// Checks everything and says what the key is taken for.
    pub(crate) fn spec(
        &self,
        kind: Kind,
        permits: u32,
        settings: &Settings,
    ) -> Result<LockSpec, InvalidInput> {
        check_lease(self.lease)?;
        check_waiter_lease(self.waiter_lease)?;
        if self.max_hold.is_some_and(|most| most.is_zero()) {
            return Err(InvalidInput::Setting {
                what: "max_hold",
                problem: "it must be more than zero".into(),
            });
        }
        let spec = match kind {
            Kind::Mutex => LockSpec::mutex(),
            Kind::RwLock => LockSpec::rw_lock(),
            Kind::Semaphore => LockSpec::semaphore(permits)?,
        };
        let prefers = matches!(
            settings.policy,
            Policy::ReaderPreference | Policy::WriterPreference
        );
        let policy = match self.policy {
            Some(policy) => policy,
            None if prefers && kind != Kind::RwLock => Policy::Fair,
            None => settings.policy,
        };
        spec.with_policy(policy)?
            .with_waiter_lease(self.waiter_lease)
    }
}

fn check_lease(lease: Duration) -> Result<(), InvalidInput> {
    if lease < bounds::MIN_LEASE || lease > bounds::MAX_LEASE {
        return Err(InvalidInput::Lease { asked: lease });
    }
    Ok(())
}

fn check_waiter_lease(lease: Duration) -> Result<(), InvalidInput> {
    if lease < bounds::MIN_WAITER_LEASE || lease > bounds::MAX_WAITER_LEASE {
        return Err(InvalidInput::WaiterLease { asked: lease });
    }
    Ok(())
}

/// The setters that all handles share. They check nothing: the call that takes the lock does,
/// before any I/O.
macro_rules! option_setters {
    () => {
        option_setters!(lock.options);

        /// The key.
        pub const fn key(&self) -> &crate::id::Key {
            &self.lock.key
        }
    };
    ($($options:ident).+) => {
        /// The same with another lease: how long a hold lasts without renewal.
        ///
        /// 100 ms to 1 h, 30 s by default. The lock of a crashed holder is free after it.
        #[must_use]
        pub const fn lease(mut self, lease: std::time::Duration) -> Self {
            self.$($options).+.lease = lease;
            self
        }

        /// The same with another rule for who gets the key when it becomes free.
        #[must_use]
        pub const fn policy(mut self, policy: crate::request::Policy) -> Self {
            self.$($options).+.policy = Some(policy);
            self
        }

        /// The same with another waiter lease: how long a place in the queue outlives its
        /// waiter's last sign of life.
        ///
        /// 3 s to 60 s, 5 s by default.
        #[must_use]
        pub const fn waiter_lease(mut self, lease: std::time::Duration) -> Self {
            self.$($options).+.waiter_lease = lease;
            self
        }

        /// The same without automatic renewal: a guard lasts for at most one lease.
        #[must_use]
        pub const fn fixed_lease(mut self) -> Self {
            self.$($options).+.fixed_lease = true;
            self
        }

        /// The same with a limit to how long a guard stays valid, however healthy its renewal
        /// is: the guard is lost after it, and its lease is no longer renewed. It ends a holder
        /// that is stuck.
        #[must_use]
        pub const fn max_hold(mut self, most: std::time::Duration) -> Self {
            self.$($options).+.max_hold = Some(most);
            self
        }

        /// The same with other limits on holds, waiters and holders of the key; they bind the
        /// attempts of this handle only.
        #[must_use]
        pub const fn limits(mut self, limits: crate::request::Limits) -> Self {
            self.$($options).+.limits = limits;
            self
        }
    };
}
pub(crate) use option_setters;
