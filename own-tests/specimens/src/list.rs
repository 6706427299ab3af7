//! The list of specimens: what each one is, and which cases must reject it.

use crate::counting::{CountInLua, CounterKey, HashUnderTheString};
use crate::mutexes::{
    AutoRelease, Basic, CompareAndDelete, CompareThenDelete, CompareThenExtend, GetSet, GetThenSet,
    NilInLua, RenewingTask, SetnxThenExpire,
};
use crate::readers_writers::{ReadersInHash, SortedSet};
use crate::specimen::{Clocks, Extras, Fault, Specimen};

const MUTEX: Extras = Extras {
    queue: false,
    rw_locks: false,
    reentrancy: false,
    watermarks: true,
    clocks: Clocks::Agree,
};
const REENTRANT: Extras = Extras {
    reentrancy: true,
    ..MUTEX
};
const RW_LOCK: Extras = Extras {
    rw_locks: true,
    ..MUTEX
};

const NEVER_FREE: &str = "its holder is gone, its lease is over, and the key is still taken";

/// All specimens.
pub const SPECIMENS: &[Specimen] = &[
    Specimen {
        name: "basic",
        how: "`SET key \"\" NX`; `DEL key`",
        faults: &[
            Fault {
                case: "ownership::another_session_cannot_release",
                rule: "S3",
                shows: "Released",
                did: "anybody releases it: the key names no owner",
            },
            Fault {
                case: "expiry::unattended_lease_frees_the_key",
                rule: "L1",
                shows: "Contended",
                did: NEVER_FREE,
            },
        ],
        passes: &[
            "exclusion::held_key_is_refused_to_others",
            "exclusion::one_of_many_at_once_wins",
            "exclusion::release_frees_the_key",
        ],
        make: || Box::new(Basic),
        extras: MUTEX,
    },
    Specimen {
        name: "auto_release",
        how: "`SET key \"\" NX PX lease`; `DEL key`",
        faults: &[Fault {
            case: "ownership::late_release_after_another_holder",
            rule: "S3",
            shows: "Released",
            did: "a holder whose lease is over releases the next holder's lock",
        }],
        passes: &[
            "exclusion::one_of_many_at_once_wins",
            "exclusion::release_frees_the_key",
            "expiry::not_a_moment_early",
            "expiry::unattended_lease_frees_the_key",
            "stalls::crash_in_an_acquire_costs_one_lease",
        ],
        make: || Box::new(AutoRelease),
        extras: MUTEX,
    },
    Specimen {
        name: "setnx_then_expire",
        how: "`SETNX key id`, then `EXPIRE key lease`; `WATCH`, `GET`, compare, `MULTI`, `DEL key`, `EXEC`",
        faults: &[Fault {
            case: "stalls::crash_in_an_acquire_costs_one_lease",
            rule: "L1",
            shows: "Contended",
            did: "a crash between the two commands leaves a key without expiry",
        }],
        passes: &[
            "exclusion::one_of_many_at_once_wins",
            "exclusion::release_frees_the_key",
            "expiry::unattended_lease_frees_the_key",
            "ownership::another_session_cannot_release",
            "ownership::second_release_spares_the_next_holder",
            "stalls::stalled_release_spares_the_next_holder",
        ],
        make: || Box::new(SetnxThenExpire),
        extras: MUTEX,
    },
    Specimen {
        name: "get_then_set",
        how: "`GET key`; if there is no value, `SET key id PX lease`; compare and delete in a script",
        faults: &[Fault {
            case: "stalls::stalled_acquire_takes_no_held_key",
            rule: "S1",
            shows: "both were granted",
            did: "a client that stalls between `GET` and `SET` takes a lock that somebody else has by then",
        }],
        passes: &[
            "exclusion::release_frees_the_key",
            "expiry::unattended_lease_frees_the_key",
            "ownership::second_release_spares_the_next_holder",
            "stalls::crash_in_an_acquire_costs_one_lease",
            "stalls::stalled_release_spares_the_next_holder",
        ],
        make: || Box::new(GetThenSet),
        extras: MUTEX,
    },
    Specimen {
        name: "getset",
        how: "`SETNX key end` by the client's clock; past `end`, `GET` and `GETSET`; `GET`, compare with the clock, `DEL`; on machines whose clocks differ",
        faults: &[
            Fault {
                case: "exclusion::held_key_is_refused_to_others",
                rule: "S1",
                shows: "Acquired",
                did: "a client whose clock is ahead takes a lock that is held",
            },
            Fault {
                case: "ownership::another_attempt_of_the_owner_cannot_release",
                rule: "S3",
                shows: "Released",
                did: "a release asks for the time, and never for the holder",
            },
        ],
        passes: &[
            "exclusion::free_key_is_granted",
            "exclusion::keys_are_independent",
            "ownership::release_of_a_free_key",
        ],
        make: || Box::new(GetSet),
        extras: Extras {
            clocks: Clocks::EachAhead,
            ..MUTEX
        },
    },
    Specimen {
        name: "compare_then_delete",
        how: "`SET key id NX PX lease`; `GET key`, compare, `DEL key`",
        faults: &[Fault {
            case: "stalls::stalled_release_spares_the_next_holder",
            rule: "S3",
            shows: "Acquired",
            did: "a holder that stalls between `GET` and `DEL` deletes the next holder's lock",
        }],
        passes: &[
            "exclusion::one_of_many_at_once_wins",
            "expiry::not_a_moment_early",
            "ownership::another_session_cannot_release",
            "ownership::second_release_spares_the_next_holder",
            "stalls::crash_in_an_acquire_costs_one_lease",
        ],
        make: || Box::new(CompareThenDelete),
        extras: MUTEX,
    },
    Specimen {
        name: "polling",
        how: "`SET key id NX PX lease`, again every 100 ms; compare and delete in a script",
        faults: &[Fault {
            case: "waiting::nobody_overtakes_a_waiter",
            rule: "rule 7",
            shows: "Acquired",
            did: "a newcomer overtakes a caller that already waits",
        }],
        passes: &[
            "exclusion::one_of_many_at_once_wins",
            "expiry::holder_expires_while_another_waits",
            "ownership::late_release_after_another_holder",
            "stalls::stalled_release_spares_the_next_holder",
            "stalls::stalled_renewal_spares_the_next_holder",
        ],
        make: || Box::new(CompareAndDelete),
        extras: Extras {
            queue: true,
            ..MUTEX
        },
    },
    Specimen {
        name: "counter_key",
        how: "`INCR key:count`, then `SETNX key id` with a new id; `GET`, compare, `DECR`, `DEL` at 0",
        faults: &[
            Fault {
                case: "reentrancy::nested_holds_are_counted",
                rule: "rule 5",
                shows: "Contended",
                did: "the owner cannot acquire again, because each call has a new identifier",
            },
            Fault {
                case: "exclusion::release_frees_the_key",
                rule: "S3",
                shows: "holds_left: 1",
                did: "an attempt that failed was counted, so the release leaves the key taken",
            },
            Fault {
                case: "expiry::unattended_lease_frees_the_key",
                rule: "L1",
                shows: "Contended",
                did: NEVER_FREE,
            },
        ],
        passes: &[
            "exclusion::free_key_is_granted",
            "exclusion::one_of_many_at_once_wins",
            "ownership::release_of_a_free_key",
        ],
        make: || Box::new(CounterKey),
        extras: REENTRANT,
    },
    Specimen {
        name: "hash_under_the_string",
        how: "`SETNX key owner`, then `HSET key counter 1`; `HINCRBY key counter -1`, `DEL` at 0",
        faults: &[
            Fault {
                case: "exclusion::free_key_is_granted",
                rule: "L4",
                shows: "WRONGTYPE",
                did: "the key is a string, so the second command fails, and the key stays taken",
            },
            Fault {
                case: "ownership::release_of_a_free_key",
                rule: "S3",
                shows: "Released",
                did: "a release never asks who holds the key",
            },
        ],
        passes: &["exclusion::capabilities_are_as_declared"],
        make: || Box::new(HashUnderTheString),
        extras: REENTRANT,
    },
    Specimen {
        name: "count_in_lua",
        how: "a script: `GET`, compare, `INCRBY key:count`, `SET key owner NX PX lease`; a script that counts down",
        faults: &[
            Fault {
                case: "reentrancy::inner_lease_may_lengthen",
                rule: "rule 5",
                shows: "Acquired",
                did: "the owner's second `SET … NX` fails silently, so the lease is not extended",
            },
            Fault {
                case: "ownership::late_release_after_another_holder",
                rule: "S3",
                shows: "holds_left: 1",
                did: "the counter outlives an expired holder, so the next one cannot free the key",
            },
        ],
        passes: &[
            "exclusion::one_of_many_at_once_wins",
            "exclusion::release_frees_the_key",
            "reentrancy::nested_holds_are_counted",
            "reentrancy::never_across_sessions",
            "stalls::stalled_release_spares_the_next_holder",
        ],
        make: || Box::new(CountInLua::SET_NX),
        extras: REENTRANT,
    },
    Specimen {
        name: "release_as_bool",
        how: "a script that counts; a script that answers 1, 0 (still held) or −1 (not the caller's), read as a boolean",
        faults: &[Fault {
            case: "reentrancy::nested_holds_are_counted",
            rule: "rule 5",
            shows: "NotHeld",
            did: "the release of an inner hold looks like a lock that was lost",
        }],
        passes: &[
            "exclusion::release_frees_the_key",
            "ownership::late_release_after_another_holder",
            "reentrancy::never_across_sessions",
        ],
        make: || Box::new(CountInLua::RELEASE_AS_BOOL),
        extras: REENTRANT,
    },
    Specimen {
        name: "compare_then_extend",
        how: "renewal by `GET key`, compare, `EXPIRE key lease`",
        faults: &[Fault {
            case: "stalls::stalled_renewal_spares_the_next_holder",
            rule: "S3",
            shows: "Contended",
            did: "a holder that stalls between `GET` and `EXPIRE` extends the next holder's lease",
        }],
        passes: &[
            "expiry::expired_holder_cannot_renew",
            "expiry::renewal_moves_the_end",
            "ownership::late_release_after_another_holder",
            "stalls::stalled_release_spares_the_next_holder",
        ],
        make: || Box::new(CompareThenExtend),
        extras: MUTEX,
    },
    Specimen {
        name: "renewing_task",
        how: "the same renewal in a background task, until the release",
        faults: &[Fault {
            case: "expiry::unattended_lease_frees_the_key",
            rule: "L1",
            shows: "Contended",
            did: "the task outlives the work, and the key is never free",
        }],
        passes: &[
            "exclusion::one_of_many_at_once_wins",
            "exclusion::release_frees_the_key",
            "ownership::another_session_cannot_release",
        ],
        make: || Box::new(RenewingTask::default()),
        extras: MUTEX,
    },
    Specimen {
        name: "nil_in_lua",
        how: "a script: `if redis.call('GET', key) == nil then` `SETNX`, `EXPIRE`",
        faults: &[Fault {
            case: "exclusion::free_key_is_granted",
            rule: "S1",
            shows: "Contended",
            did: "nobody ever gets the lock: in Lua a missing key is `false`, not `nil`",
        }],
        passes: &["exclusion::capabilities_are_as_declared"],
        make: || Box::new(NilInLua),
        extras: MUTEX,
    },
    Specimen {
        name: "compare_and_delete",
        how: "`SET key id NX PX lease`; compare and delete in a script; renewal in a script; watermarks",
        faults: &[],
        passes: &[],
        make: || Box::new(CompareAndDelete),
        extras: MUTEX,
    },
    Specimen {
        name: "compare_and_delete_alone",
        how: "the same without watermarks",
        faults: &[Fault {
            case: "redelivery::acquire_after_its_release_is_stale",
            rule: "rule 12",
            shows: "Acquired",
            did: "an acquire that is delivered again after the release takes the key, and nobody knows",
        }],
        passes: &[
            "exclusion::one_of_many_at_once_wins",
            "expiry::not_a_moment_early",
            "ownership::late_release_after_another_holder",
            "stalls::crash_in_an_acquire_costs_one_lease",
            "stalls::stalled_release_spares_the_next_holder",
            "stalls::stalled_renewal_spares_the_next_holder",
        ],
        make: || Box::new(CompareAndDelete),
        extras: Extras {
            watermarks: false,
            ..MUTEX
        },
    },
    Specimen {
        name: "sorted_set",
        how: "an inner lock; readers in a sorted set, by the time of the client; a writer's key; blocked callers try again",
        faults: &[
            Fault {
                case: "expiry::short_reader_never_cuts_a_long_one",
                rule: "L1",
                shows: "Contended",
                did: "all readers have one maximum time, so a crashed reader keeps writers out beyond its lease",
            },
            Fault {
                case: "starvation::writer_against_endless_readers",
                rule: "rule 7",
                shows: "15",
                did: "new readers keep overtaking a waiting writer",
            },
            Fault {
                case: "stalls::stalled_writer_takes_no_read_key",
                rule: "S1",
                shows: "both were granted",
                did: "the inner lock expires while a writer stalls inside it; a reader gets in, then the writer",
            },
        ],
        passes: RW_PASSES,
        make: || Box::new(SortedSet),
        extras: Extras {
            queue: true,
            ..RW_LOCK
        },
    },
    Specimen {
        name: "sorted_set_on_two_clocks",
        how: "the same, on machines whose clocks differ",
        faults: &[Fault {
            case: "readers_writers::readers_keep_a_writer_out",
            rule: "S1",
            shows: "Acquired",
            did: "a writer whose clock is ahead takes the readers for crashed, and gets in",
        }],
        passes: &[
            "readers_writers::writer_keeps_readers_out",
            "readers_writers::writers_exclude_each_other",
        ],
        make: || Box::new(SortedSet),
        extras: Extras {
            queue: true,
            clocks: Clocks::EachBehind,
            ..RW_LOCK
        },
    },
    Specimen {
        name: "readers_in_hash",
        how: "scripts: a writer's key, readers in a hash, `if redis.call('HLEN', readers) then return 0 end`",
        faults: &[Fault {
            case: "readers_writers::writers_exclude_each_other",
            rule: "S1",
            shows: "Contended",
            did: "a writer never gets in: in Lua 0 is true",
        }],
        passes: &["exclusion::capabilities_are_as_declared"],
        make: || Box::new(ReadersInHash::AS_PUBLISHED),
        extras: RW_LOCK,
    },
    Specimen {
        name: "readers_in_hash_compared",
        how: "the same with `HLEN … > 0`",
        faults: &[
            Fault {
                case: "expiry::short_reader_never_cuts_a_long_one",
                rule: "L1",
                shows: "Contended",
                did: "a crashed reader keeps writers out forever",
            },
            Fault {
                case: "expiry::unattended_lease_frees_the_key",
                rule: "L1",
                shows: "Contended",
                did: "a crashed writer keeps everybody out forever",
            },
        ],
        passes: RW_PASSES,
        make: || Box::new(ReadersInHash::WITH_COMPARISON),
        extras: RW_LOCK,
    },
];

const RW_PASSES: &[&str] = &[
    "readers_writers::readers_keep_a_writer_out",
    "readers_writers::readers_release_in_any_order",
    "readers_writers::writer_keeps_readers_out",
    "readers_writers::writers_exclude_each_other",
];
