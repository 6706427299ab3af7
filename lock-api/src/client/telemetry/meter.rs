//! Metrics through the `metrics` facade: nothing at all without the feature `metrics`.
//!
//! Names and labels are those of `docs/observability.md`. A key is never a label: there may be
//! millions of them.

/// Adds one to a counter.
#[cfg(feature = "metrics")]
macro_rules! count {
    ($name:expr $(, $label:literal => $value:expr)*) => {
        ::metrics::counter!($name $(, $label => $value)*).increment(1)
    };
}

/// Adds a duration to a histogram of seconds.
#[cfg(feature = "metrics")]
macro_rules! record {
    ($name:expr, $duration:expr $(, $label:literal => $value:expr)*) => {
        ::metrics::histogram!($name $(, $label => $value)*).record($duration)
    };
}

/// Moves a gauge, by a signed number.
#[cfg(feature = "metrics")]
macro_rules! shift {
    ($name:expr, $by:expr $(, $label:literal => $value:expr)*) => {
        ::metrics::gauge!($name $(, $label => $value)*).increment($by)
    };
}

#[cfg(not(feature = "metrics"))]
macro_rules! count {
    ($name:expr $(, $label:literal => $value:expr)*) => {{
        _ = $name;
        $(_ = $value;)*
    }};
}

#[cfg(not(feature = "metrics"))]
macro_rules! record {
    ($name:expr, $duration:expr $(, $label:literal => $value:expr)*) => {{
        _ = ($name, $duration);
        $(_ = $value;)*
    }};
}

#[cfg(not(feature = "metrics"))]
macro_rules! shift {
    ($name:expr, $by:expr $(, $label:literal => $value:expr)*) => {{
        _ = ($name, $by);
        $(_ = $value;)*
    }};
}

pub(crate) use {count, record, shift};

/// Calls that took a lock, or tried to.
pub(crate) const ACQUISITIONS: &str = "leasehold_acquisitions_total";
/// How long they took.
pub(crate) const WAIT: &str = "leasehold_wait_seconds";
/// Places taken in a queue.
pub(crate) const QUEUED: &str = "leasehold_queued_total";
/// Looks at a place in a queue.
pub(crate) const POLLS: &str = "leasehold_polls_total";
/// Guards in use.
pub(crate) const GUARDS: &str = "leasehold_guards";
/// How long guards were in use.
pub(crate) const HOLD: &str = "leasehold_hold_seconds";
/// Renewals.
pub(crate) const RENEWALS: &str = "leasehold_renewals_total";
/// Guards that were lost.
pub(crate) const LOSSES: &str = "leasehold_losses_total";
/// Ends that were acknowledged or given up.
pub(crate) const RELEASES: &str = "leasehold_releases_total";
/// Ends that had to be sent again.
pub(crate) const RELEASE_RETRIES: &str = "leasehold_release_retries_total";
/// Steps of the server's clock.
pub(crate) const CLOCK_STEPS: &str = "leasehold_clock_steps_total";
/// Subscriptions that ended or could not be had.
pub(crate) const SUBSCRIPTION_FAILURES: &str = "leasehold_subscription_failures_total";

/// Tells the recorder what the metrics are.
#[cfg(feature = "metrics")]
pub(crate) fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

    for (name, what) in [
        (ACQUISITIONS, "Calls that took a lock, or tried to"),
        (QUEUED, "Waiters taken in a queue"),
        (POLLS, "Looks at a waiter in a queue"),
        (RENEWALS, "Renewals of a holder"),
        (LOSSES, "Guards that were lost"),
        (RELEASES, "Ends that were acknowledged or given up"),
        (RELEASE_RETRIES, "Ends that had to be sent again"),
        (CLOCK_STEPS, "Steps of the server's clock"),
        (
            SUBSCRIPTION_FAILURES,
            "Subscriptions that ended or could not be had",
        ),
    ] {
        describe_counter!(name, Unit::Count, what);
    }
    describe_gauge!(GUARDS, Unit::Count, "Guards in use");
    describe_histogram!(WAIT, Unit::Seconds, "How long calls that take a lock took");
    describe_histogram!(HOLD, Unit::Seconds, "How long guards were in use");
}
