//! The failure of a case: the broken rule, the expected result and the actual one.

use std::fmt;

use leasehold_api::{BackendError, InvalidInput};

use crate::harness::SetupError;

/// Why a case failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    rule: &'static str,
    promise: String,
    expected: String,
    actual: String,
}

/// The result of a case.
pub(crate) type Verdict = Result<(), Failure>;

impl Failure {
    /// A broken rule.
    pub(crate) fn new(
        rule: &'static str,
        promise: impl Into<String>,
        expected: impl Into<String>,
        actual: impl fmt::Debug,
    ) -> Self {
        Self {
            rule,
            promise: promise.into(),
            expected: expected.into(),
            actual: format!("{actual:?}"),
        }
    }

    /// The broken rule of the semantics, such as `rule 4` or `S1`; `set-up` if the case could not
    /// start.
    pub fn rule(&self) -> &str {
        self.rule
    }

    pub(crate) fn setup(error: &SetupError) -> Self {
        Self {
            rule: "set-up",
            promise: "the harness provides an environment and clients for every case".into(),
            expected: "no error".into(),
            actual: error.to_string(),
        }
    }

    pub(crate) fn hung(limit: std::time::Duration) -> Self {
        Self {
            rule: "L4",
            promise: "every call ends by its deadline".into(),
            expected: format!("the case to end within {limit:?} of real time"),
            actual: "it was still running".into(),
        }
    }

    pub(crate) fn panicked(message: &str) -> Self {
        Self {
            rule: "L4",
            promise: "nothing panics".into(),
            expected: "the case to end".into(),
            actual: format!("a panic: {message}"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.rule, self.promise)?;
        writeln!(f, "  expected: {}", self.expected)?;
        write!(f, "  actual:   {}", self.actual)
    }
}

impl std::error::Error for Failure {}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        Self {
            rule: "L4",
            promise: "a healthy backend answers every command that it supports".into(),
            expected: "a reply".into(),
            actual: format!("error: {error}"),
        }
    }
}

impl From<InvalidInput> for Failure {
    fn from(error: InvalidInput) -> Self {
        Self {
            rule: "set-up",
            promise: "the input of the case is valid".into(),
            expected: "no error".into(),
            actual: error.to_string(),
        }
    }
}

/// Expects that a value is at most `limit`.
pub(crate) fn at_most<T: Copy + fmt::Debug + PartialOrd>(
    actual: T,
    limit: T,
    rule: &'static str,
    promise: &str,
) -> Verdict {
    if actual <= limit {
        return Ok(());
    }
    let expected = format!("at most {limit:?}");
    Err(Failure::new(rule, promise, expected, actual))
}

/// Matches a value, or fails the case: `want!(value, pattern => result, rule, promise)`.
macro_rules! want {
    ($value:expr, $pattern:pat $(if $guard:expr)? => $result:expr, $rule:expr, $($promise:tt)+) => {
        match $value {
            $pattern $(if $guard)? => $result,
            other => {
                return Err($crate::failure::Failure::new(
                    $rule,
                    format!($($promise)+),
                    concat!(stringify!($pattern) $(, " if ", stringify!($guard))?),
                    other,
                ));
            }
        }
    };
    ($value:expr, $pattern:pat $(if $guard:expr)?, $rule:expr, $($promise:tt)+) => {
        want!($value, $pattern $(if $guard)? => (), $rule, $($promise)+)
    };
}

/// Fails the case unless two values are equal: `want_eq!(actual, expected, rule, promise)`.
macro_rules! want_eq {
    ($actual:expr, $expected:expr, $rule:expr, $($promise:tt)+) => {{
        let (actual, expected) = (&$actual, &$expected);
        if actual != expected {
            return Err($crate::failure::Failure::new(
                $rule,
                format!($($promise)+),
                format!("{} = {expected:?}", stringify!($actual)),
                actual,
            ));
        }
    }};
}

/// Fails the case unless a condition holds: `ensure!(condition, rule, actual, promise)`.
macro_rules! ensure {
    ($condition:expr, $rule:expr, $actual:expr, $($promise:tt)+) => {
        if !$condition {
            return Err($crate::failure::Failure::new(
                $rule,
                format!($($promise)+),
                stringify!($condition),
                $actual,
            ));
        }
    };
}

pub(crate) use {ensure, want, want_eq};
