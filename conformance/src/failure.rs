//! The failure of a case: the broken rule, the expected result and the actual one.

use std::fmt;

use leasehold_api::{BackendError, InvalidInput};

use crate::harness::SetupError;

/// Why a case failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The broken rule, a colon, and what the rule promises in this case.
    promise: String,
    expected: String,
    actual: String,
}

/// The result of a case.
pub(crate) type Verdict = Result<(), Failure>;

impl Failure {
    /// A broken promise, which begins with its rule: `S1: one holder at a time`.
    pub(crate) fn new(
        promise: impl Into<String>,
        expected: impl Into<String>,
        actual: impl fmt::Debug,
    ) -> Self {
        Self::said(promise, expected, format!("{actual:?}"))
    }

    fn said(promise: impl Into<String>, expected: impl Into<String>, actual: String) -> Self {
        Self {
            promise: promise.into(),
            expected: expected.into(),
            actual,
        }
    }

    /// The broken rule of the semantics, such as `rule 4` or `S1`; `set-up` if the case could not
    /// start.
    pub fn rule(&self) -> &str {
        let (rule, _) = self.promise.split_once(':').unwrap_or_default();
        rule
    }

    pub(crate) fn hung(limit: std::time::Duration) -> Self {
        let expected = format!("the case to end within {limit:?} of real time");
        let promise = "L4: every call ends by its deadline";
        Self::said(promise, expected, "it was still running".into())
    }

    pub(crate) fn panicked(message: &str) -> Self {
        let actual = format!("a panic: {message}");
        Self::said("L4: nothing panics", "the case to end", actual)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.promise)?;
        writeln!(f, "  expected: {}", self.expected)?;
        write!(f, "  actual:   {}", self.actual)
    }
}

impl std::error::Error for Failure {}

impl From<SetupError> for Failure {
    fn from(error: SetupError) -> Self {
        let promise = "set-up: the harness provides an environment and clients for every case";
        Self::said(promise, "no error", with_sources(&*error))
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        let promise = "L4: a healthy backend answers every command that it supports";
        Self::said(
            promise,
            "a reply",
            format!("error: {}", with_sources(&error)),
        )
    }
}

/// An error, and what has caused it.
fn with_sources(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

impl From<InvalidInput> for Failure {
    fn from(error: InvalidInput) -> Self {
        let promise = "set-up: the input of the case is valid";
        Self::said(promise, "no error", error.to_string())
    }
}

/// The result of a check, which becomes a failure by saying what was [promised](Self::promised).
#[derive(Debug)]
#[must_use = "a check fails no case before it says what was promised"]
pub(crate) struct Checked<T>(Result<T, Unexpected>);

#[derive(Debug)]
struct Unexpected {
    expected: String,
    actual: String,
}

impl<T> Checked<T> {
    pub(crate) const fn passed(value: T) -> Self {
        Self(Ok(value))
    }

    pub(crate) fn failed(expected: impl Into<String>, actual: impl fmt::Debug) -> Self {
        Self(Err(Unexpected {
            expected: expected.into(),
            actual: format!("{actual:?}"),
        }))
    }

    /// The value, or the failure of the case. The promise begins with its rule: `S1: one holder at a time`.
    pub(crate) fn promised(self, promise: impl Into<String>) -> Result<T, Failure> {
        self.0
            .map_err(|it| Failure::said(promise, it.expected, it.actual))
    }
}

/// Checks that a value is at most `limit`.
pub(crate) fn at_most<T: Copy + fmt::Debug + PartialOrd>(actual: T, limit: T) -> Checked<()> {
    match actual <= limit {
        true => Checked::passed(()),
        false => Checked::failed(format!("at most {limit:?}"), actual),
    }
}

/// Matches a value: `want!(value, pattern => result)`.
macro_rules! want {
    ($value:expr, $pattern:pat $(if $guard:expr)? => $result:expr) => {
        match $value {
            $pattern $(if $guard)? => $crate::failure::Checked::passed($result),
            other => $crate::failure::Checked::failed(
                concat!(stringify!($pattern) $(, " if ", stringify!($guard))?),
                other,
            ),
        }
    };
    ($value:expr, $pattern:pat $(if $guard:expr)?) => {
        want!($value, $pattern $(if $guard)? => ())
    };
}

/// Checks that two values are equal: `want_eq!(actual, expected)`.
macro_rules! want_eq {
    ($actual:expr, $expected:expr) => {
        match (&$actual, &$expected) {
            (actual, expected) if actual == expected => $crate::failure::Checked::passed(()),
            (actual, expected) => $crate::failure::Checked::failed(
                format!("{} = {expected:?}", stringify!($actual)),
                actual,
            ),
        }
    };
}

/// Checks that a condition holds: `ensure!(condition, actual)`.
macro_rules! ensure {
    ($condition:expr, $actual:expr) => {
        match $condition {
            true => $crate::failure::Checked::passed(()),
            false => $crate::failure::Checked::failed(stringify!($condition), &$actual),
        }
    };
}

pub(crate) use {ensure, want, want_eq};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_of_a_failed_set_up_is_shown() {
        let cause = std::io::Error::other("no such table");
        let error = BackendError::rejected("not connected").with_source(cause);
        let boxed: SetupError = Box::new(error.clone());
        for failure in [Failure::from(boxed), Failure::from(error)] {
            let text = failure.to_string();
            assert!(text.contains("not connected: no such table"), "{text}");
        }
    }
}
