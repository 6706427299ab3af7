//! Defaults and limits of settings, requests and stored data. Short pauses inside the client are
//! constants next to their loops.
//!
//! The client checks input against these limits before any I/O. The state machine accepts shorter
//! leases and waiter leases, down to [`MACHINE_MIN_LEASE`], so that tests reach every outcome
//! quickly.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::InvalidInput;

/// Default lease of a hold.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// Shortest lease that the client accepts.
pub const MIN_LEASE: Duration = Duration::from_millis(100);
/// The client logs a warning for a lease shorter than this: a pause of the program or of the
/// network easily outlasts it.
pub const SHORT_LEASE: Duration = Duration::from_secs(1);
/// Longest lease that the client accepts.
pub const MAX_LEASE: Duration = Duration::from_secs(60 * 60);
/// Shortest lease or waiter lease that the state machine accepts.
pub const MACHINE_MIN_LEASE: Duration = Duration::from_millis(1);

/// A renewal is sent after each lease / `RENEWALS_PER_LEASE`.
pub const RENEWALS_PER_LEASE: u32 = 3;
/// Longest wait for the answer to a renewal before it is sent again, after a random pause. For a lease
/// below 10 s the wait is a tenth of the lease. The pause is a quarter to a half of the wait.
pub const MAX_RENEW_TRY: Duration = Duration::from_secs(1);

/// The drift allowance of a duration is duration / `DRIFT_PARTS` + [`DRIFT_FLOOR`].
pub const DRIFT_PARTS: u32 = 100;
/// Constant part of the drift allowance.
pub const DRIFT_FLOOR: Duration = Duration::from_millis(10);

/// Waiter lease of all clients, and the default of a spec: how long a waiter lasts without a poll.
pub const DEFAULT_WAITER_LEASE: Duration = Duration::from_secs(5);
/// Longest waiter lease that the state machine accepts.
pub const MAX_WAITER_LEASE: Duration = Duration::from_secs(60);
/// A waiter polls at least each waiter lease / `POLLS_PER_WAITER_LEASE`.
pub const POLLS_PER_WAITER_LEASE: u32 = 3;
/// Longest poll interval, however long the waiter lease is. `poll_after` in a reply says when the waiter polls
/// (rule 3).
pub const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// An offer, a grant to a waiter that has not confirmed it yet, lasts for the lease that the waiter asked for,
/// and at least this many poll intervals, but never longer than the waiter would have (rule 10). A waiter that
/// misses the notification learns of the offer by its next poll, and needs time to confirm it then.
pub const OFFER_POLLS: u32 = 2;

/// Default timeout of one call to a backend, and the time in which a backend must answer.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Shortest call timeout that the client accepts.
pub const MIN_CALL_TIMEOUT: Duration = Duration::from_millis(10);
/// Longest call timeout that the client accepts. Two of them fit into [`DELIVERY_WINDOW`].
pub const MAX_CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Default timeout of an attempt to connect. A new connection takes up to ten round trips, so this is enough for a
/// server at a distance of 200 ms there and back. Calls give up earlier, and the attempt goes on without them.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time that the shutdown of a client takes.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Delivery window, W: how far ahead of the server's clock the deliver-before of an acquire may be.
/// A watermark, the highest sequence of a session on a key, outlives the session's last acquire or release by 2 W.
pub const DELIVERY_WINDOW: Duration = Duration::from_secs(10);

/// A lease is at least this many times the error of the backend's clock. Three quarters of it are left for the holder,
/// and so two renewals.
pub const LEASE_PER_CLOCK_ERROR: u32 = 4;
/// Largest [error of a clock](crate::Capabilities::clock_error): a waiter lease is four times as long. Twice the error and
/// [`MAX_CALL_TIMEOUT`] fit into [`DELIVERY_WINDOW`].
pub const MAX_CLOCK_ERROR: Duration = Duration::from_millis(1_250);

/// Default limit of the holds of one owner on one key.
pub const DEFAULT_HOLD_LIMIT: u32 = 32;
/// Default limit of the waiters of one key.
pub const DEFAULT_WAITER_LIMIT: u32 = 10_000;
/// Default limit of the holders of one key.
pub const DEFAULT_HOLDER_LIMIT: u32 = 100_000;

/// Token retention, T: how long a key keeps its last token after its last holder.
pub const TOKEN_RETENTION: Duration = Duration::from_secs(10 * 60);
/// How long a store keeps a state past its stored end, when the state counts as empty already (rule 14).
pub const DELETED_AFTER: Duration = Duration::from_secs(1);
/// Largest fencing token that a client may send as a floor. Tokens have room to grow above it and
/// stay below 2^53, where Lua's doubles are exact.
pub const MAX_FLOOR: u64 = (1 << 53) - (1 << 32);
/// How far a floor may be ahead of the later of the server's time and the stored token.
pub const MAX_FLOOR_AHEAD: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest key, in bytes of UTF-8.
pub const MAX_KEY_BYTES: usize = 256;
/// Longest label, in bytes of UTF-8.
pub const MAX_LABEL_BYTES: usize = 32;
/// Largest capacity of a semaphore.
pub const MAX_PERMITS: u32 = 1 << 20;
/// Capacity of a reader/writer lock. A reader takes 1, a writer takes all of it.
pub const RW_CAPACITY: u32 = 1 << 30;

/// With more holders than this, the machine scans for expired ones at most every
/// [`SCAN_INTERVAL`] (rule 4).
pub const SCAN_FREELY: usize = 128;
/// Shortest time between two scans of more than [`SCAN_FREELY`] holders. An expired holder among
/// them may count this much longer.
pub const SCAN_INTERVAL: Duration = Duration::from_millis(250);
/// Limit of the grants and unreachable marks of one settling. The next command continues with the
/// rest.
pub const SETTLE_BUDGET: u32 = 256;
/// How often a waiter may be marked unreachable. After that it is granted like any other.
pub const MAX_UNREACHABLE_MARKS: u8 = 2;
/// The first `FIRST_WAITERS` waiters poll at the time of the earliest change. The other waiters of a
/// session poll together, and the sessions are spread over the last quarter of the poll interval.
pub const FIRST_WAITERS: u32 = 4;
/// Number of steps over which the sessions are spread.
pub const STAGGER_STEPS: u32 = 64;

/// Largest number of elements in one batch.
pub const MAX_BATCH: usize = 128;
/// Largest number of acquires, or of releases, of different callers in one call. They take less
/// than a millisecond of a server's time.
pub const MAX_BATCHED_CALLERS: usize = 64;
/// What a leader tells about itself, in bytes at most. A byte of the note says that it is an election's.
pub const MAX_INFO_BYTES: usize = MAX_NOTE_BYTES - 1;
/// Largest number of keys that can be locked at once. Their release fits into one batch.
pub const MAX_KEYS_AT_ONCE: usize = 64;
/// Longest note of a key, in bytes.
pub const MAX_NOTE_BYTES: usize = 128;
/// Longest time that a note is kept after the epoch (the holder, or the overlapping readers) in which it was
/// written.
pub const MAX_NOTE_KEEP: Duration = Duration::from_secs(2 * 24 * 60 * 60);
/// Default time from the fire time of a job until the last moment to start it.
pub const DEFAULT_START_WINDOW: Duration = Duration::from_secs(60 * 60);
/// Shortest time from a fire time until the last moment to start, and shortest period of a job.
pub const MIN_START_WINDOW: Duration = Duration::from_secs(10);
/// Longest time from a fire time until the last moment to start, and longest period of a job. The note of
/// the job outlives it.
pub const MAX_START_WINDOW: Duration = Duration::from_secs(47 * 60 * 60);
/// How far ahead of the server's clock a fire time may be that a caller waits for. One that is further ahead is in
/// the wrong unit, or of a wrong clock.
pub const MAX_FIRE_AHEAD: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// Largest number of holders, and of waiters, that an inspection lists. Its counts are complete.
pub const INSPECT_LIST: usize = 1_000;

/// Default prefix of every key and channel in the backend.
pub const DEFAULT_KEY_PREFIX: &str = "leasehold:";

/// Checks a timeout of a call, or of a part of a call. Clients and backends accept the same range: 10 ms to 5 s.
///
/// # Errors
/// [`InvalidInput`] with the name `what` if `asked` is outside the range.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use leasehold_api::bounds;
///
/// let timeout = Duration::from_secs(60);
/// let error = bounds::check_time_limit("connect_timeout", timeout).unwrap_err();
/// assert_eq!(error.to_string(), "connect_timeout: 60s is outside the limits (10ms to 5s)");
/// ```
pub fn check_time_limit(what: &'static str, asked: Duration) -> Result<(), InvalidInput> {
    check_time(what, asked, MIN_CALL_TIMEOUT..=MAX_CALL_TIMEOUT)
}

/// Checks a time against its limits.
///
/// # Errors
/// [`InvalidInput`] with the name `what` if `asked` is outside the limits.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use leasehold_api::bounds;
///
/// let limits = Duration::from_millis(10)..=Duration::from_secs(60);
/// let error = bounds::check_time("pause", Duration::ZERO, limits).unwrap_err();
/// assert_eq!(error.to_string(), "pause: 0ns is outside the limits (10ms to 60s)");
/// ```
pub fn check_time(
    what: &'static str,
    asked: Duration,
    limits: RangeInclusive<Duration>,
) -> Result<(), InvalidInput> {
    outside(asked, &limits).map_or(Ok(()), |text| Err(InvalidInput::setting(what, text)))
}

pub(crate) fn check_lease(
    what: &str,
    asked: Duration,
    limits: RangeInclusive<Duration>,
) -> Result<(), InvalidInput> {
    let text = |text| InvalidInput::new(format!("a {what} of {text}"));
    outside(asked, &limits).map_or(Ok(()), |it| Err(text(it)))
}

fn outside(asked: Duration, limits: &RangeInclusive<Duration>) -> Option<String> {
    let (least, most) = (limits.start(), limits.end());
    (!limits.contains(&asked))
        .then(|| format!("{asked:?} is outside the limits ({least:?} to {most:?})"))
}
