//! Metrics through the `metrics` facade. Without the feature `metrics`, the macros only evaluate
//! their arguments.
//!
//! `docs/observability.md` lists the names and labels. A key is never a label, because there may be
//! millions of keys. The class of a handle is, because it is a part of the program's text.

/// Adds one to a counter.
macro_rules! count {
    ($name:expr $(, $label:literal => $value:expr)*) => {{
        #[cfg(feature = "metrics")]
        ::metrics::counter!($name $(, $label => $value)*).increment(1);
        #[cfg(not(feature = "metrics"))]
        let _ = ($name, $($value),*);
    }};
}

/// Adds a duration to a histogram of seconds.
macro_rules! record {
    ($name:expr, $duration:expr $(, $label:literal => $value:expr)*) => {{
        #[cfg(feature = "metrics")]
        ::metrics::histogram!($name $(, $label => $value)*).record($duration);
        #[cfg(not(feature = "metrics"))]
        let _ = ($name, $duration, $($value),*);
    }};
}

/// Adds a signed number to a gauge.
macro_rules! adjust {
    ($name:expr, $by:expr $(, $label:literal => $value:expr)*) => {{
        #[cfg(feature = "metrics")]
        ::metrics::gauge!($name $(, $label => $value)*).increment($by);
        #[cfg(not(feature = "metrics"))]
        let _ = ($name, $by, $($value),*);
    }};
}

pub(crate) use {adjust, count, record};

// What each of them counts is in `describe`.
pub(crate) const ACQUISITIONS: &str = "leasehold_acquisitions_total";
pub(crate) const WAIT: &str = "leasehold_wait_seconds";
pub(crate) const WAITING: &str = "leasehold_waiting";
pub(crate) const QUEUED: &str = "leasehold_queued_total";
pub(crate) const ACQUIRE_RETRIES: &str = "leasehold_acquire_retries_total";
pub(crate) const POLLS: &str = "leasehold_polls_total";
pub(crate) const GUARDS: &str = "leasehold_guards";
pub(crate) const HOLD: &str = "leasehold_hold_seconds";
pub(crate) const RENEWALS: &str = "leasehold_renewals_total";
pub(crate) const LOSSES: &str = "leasehold_losses_total";
pub(crate) const RELEASES: &str = "leasehold_releases_total";
pub(crate) const RELEASE_RETRIES: &str = "leasehold_release_retries_total";
pub(crate) const JOBS: &str = "leasehold_jobs_total";
pub(crate) const JOB: &str = "leasehold_job_seconds";
pub(crate) const TERMS: &str = "leasehold_terms_total";
pub(crate) const CLOCK_STEPS: &str = "leasehold_clock_steps_total";
pub(crate) const SUBSCRIPTION_FAILURES: &str = "leasehold_subscription_failures_total";

/// Registers the descriptions of all metrics with the recorder.
#[cfg(feature = "metrics")]
pub(crate) fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

    for (name, description) in [
        (ACQUISITIONS, "Calls that took a lock or tried to"),
        (QUEUED, "Waiters that entered a queue"),
        (
            ACQUIRE_RETRIES,
            "Calls that failed while a caller waited for a lock, and were retried",
        ),
        (POLLS, "Polls for a waiter"),
        (RENEWALS, "Renewals of a holder"),
        (LOSSES, "Guards that were lost"),
        (RELEASES, "Releases that were acknowledged or given up"),
        (RELEASE_RETRIES, "Releases that had to be sent again"),
        (JOBS, "Calls that ran a job or tried to"),
        (TERMS, "Terms of leaders that began"),
        (CLOCK_STEPS, "Steps of the server's clock"),
        (SUBSCRIPTION_FAILURES, "Subscriptions that broke or failed"),
    ] {
        describe_counter!(name, Unit::Count, description);
    }
    describe_gauge!(WAITING, Unit::Count, "Calls that wait for a lock now");
    describe_gauge!(GUARDS, Unit::Count, "Guards in use");
    describe_histogram!(WAIT, Unit::Seconds, "Duration of calls that take a lock");
    describe_histogram!(JOB, Unit::Seconds, "Time for which bodies of jobs ran");
    describe_histogram!(HOLD, Unit::Seconds, "Time for which guards were in use");
}
