//! Every default and every limit, in one place.
//!
//! The limits are the client's: input is checked against them before any I/O. The state machine
//! itself takes any lease or waiter lease of at least [`MACHINE_MIN_LEASE`], so that tests reach
//! every outcome in little time.

use std::time::Duration;

/// Lease of a hold when the user names none.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// Shortest lease a client asks for.
pub const MIN_LEASE: Duration = Duration::from_millis(100);
/// A lease shorter than this is asked for with a warning: a pause of the program or of the network
/// easily outlasts it.
pub const SHORT_LEASE: Duration = Duration::from_secs(1);
/// Longest lease a client asks for.
pub const MAX_LEASE: Duration = Duration::from_secs(60 * 60);
/// Shortest lease or waiter lease that the state machine takes.
pub const MACHINE_MIN_LEASE: Duration = Duration::from_millis(1);

/// A lease is renewed each time this fraction of it has passed (lease / 3).
pub const RENEWALS_PER_LEASE: u32 = 3;
/// Longest single renewal attempt; a short lease allows a tenth of itself.
pub const MAX_RENEW_ATTEMPT: Duration = Duration::from_secs(1);

/// Drift allowance: this fraction of a duration (one part in `DRIFT_PARTS`), plus [`DRIFT_FLOOR`].
pub const DRIFT_PARTS: u32 = 100;
/// Constant part of the drift allowance.
pub const DRIFT_FLOOR: Duration = Duration::from_millis(10);

/// How long a place in the queue lasts without a poll, when the user names none.
pub const DEFAULT_WAITER_LEASE: Duration = Duration::from_secs(5);
/// Shortest waiter lease a client asks for.
pub const MIN_WAITER_LEASE: Duration = Duration::from_secs(3);
/// Longest waiter lease a client asks for.
pub const MAX_WAITER_LEASE: Duration = Duration::from_secs(60);
/// Longest time between two polls of a place; a waiter lease of less than three of these polls
/// three times in its length.
pub const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Longest single call to a backend.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Shortest call time-out that a client takes.
pub const MIN_CALL_TIMEOUT: Duration = Duration::from_millis(10);
/// Longest call time-out that a client takes; two of them fit into [`DELIVERY_WINDOW`].
pub const MAX_CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest that shutting a client down takes.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Deliver-before delivery window, H: how far ahead of the server's clock an acquire may still be
/// deliverable. Watermarks outlive the last operation of a session by twice this.
pub const DELIVERY_WINDOW: Duration = Duration::from_secs(10);

/// Holds that one owner may nest on one key.
pub const DEFAULT_HOLD_LIMIT: u32 = 32;
/// Waiters that one key may have.
pub const DEFAULT_WAITER_LIMIT: u32 = 10_000;
/// Holders that one key may have at a time.
pub const DEFAULT_HOLDER_LIMIT: u32 = 100_000;

/// T: how long the last token of a key is remembered after its last holder.
pub const TOKEN_RETENTION: Duration = Duration::from_secs(10 * 60);
/// Largest fencing token that a client may bring as a floor: leaves room to count on while every
/// token stays an integer that Lua's doubles hold exactly.
pub const MAX_FLOOR: u64 = (1 << 53) - (1 << 32);
/// How far a floor may be ahead of both the server's time and the stored token.
pub const MAX_FLOOR_AHEAD: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest key, in bytes of UTF-8.
pub const MAX_KEY_BYTES: usize = 256;
/// Longest label, in bytes of UTF-8.
pub const MAX_LABEL_BYTES: usize = 32;
/// Largest capacity of a semaphore.
pub const MAX_PERMITS: u32 = 1 << 20;
/// Capacity of a reader/writer lock: a reader weighs 1, a writer all of it.
pub const RW_CAPACITY: u32 = 1 << 30;

/// With more holders than this, expired ones are searched for at most every [`SCAN_INTERVAL`].
pub const SCAN_FREELY: usize = 128;
/// See [`SCAN_FREELY`]; a dead holder of so large a group may count this much longer.
pub const SCAN_INTERVAL: Duration = Duration::from_millis(250);
/// Grants made and places marked unreachable in one settling; what is left over, the next command does.
pub const SETTLE_BUDGET: u32 = 256;
/// Times that a place may be marked unreachable in its life; after that it is granted like any other.
pub const MAX_UNREACHABLE_MARKS: u8 = 2;
/// Waiters this close to the head are told the time to the earliest change; those behind them
/// are staggered over the second half of the poll interval.
pub const CHECK_EARLY: u32 = 4;
/// Number of steps over which the waiters behind the first few are staggered.
pub const STAGGER_STEPS: u32 = 64;

/// Elements that one batch may carry to a backend.
pub const MAX_BATCH: usize = 128;
/// Acquires, or ends, of different callers that travel in one call: less than a millisecond of a
/// server's time.
pub const MAX_BATCHED_CALLERS: usize = 64;
/// Keys that can be taken at once, all or nothing; their release fits one batch.
pub const MAX_KEYS_AT_ONCE: usize = 64;
/// Longest text of a hand-off, in bytes.
pub const MAX_HANDOFF_TEXT: usize = 1_024;
/// Holders, and waiters, listed by one inspection; the counts are always complete.
pub const INSPECT_LIST: usize = 1_000;

/// Prefix of every key and channel in the backend.
pub const DEFAULT_KEY_PREFIX: &str = "leasehold:";
