//! Mutants of the Lua scripts. The state machine stays correct.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The index of the planted mutant in [`ALL`], then [`MESSAGES`], plus one. 0 for none.
static PLANTED: AtomicUsize = AtomicUsize::new(0);

/// A fault in the scripts, made by replacing pieces of their text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LuaMutant {
    /// The name that tests print.
    pub name: &'static str,
    /// The rule that it breaks.
    pub rule: &'static str,
    changes: &'static [(&'static str, &'static str)],
}

/// Mutants that the conformance suite detects.
pub const ALL: &[LuaMutant] = &[
    LuaMutant {
        name: "lua-remaining-is-doubled",
        rule: "rule 2",
        changes: &[("'A', token, 1, lease)", "'A', token, 1, lease * 2)")],
    },
    LuaMutant {
        name: "lua-bound-of-expiry-too-late",
        rule: "rule 4",
        changes: &[(
            "S.earliest, S.last_scan, S.dirty = least or 0,",
            "S.earliest, S.last_scan, S.dirty = S.now + 1e12,",
        )],
    },
    LuaMutant {
        name: "lua-conversion-ignores-the-epoch",
        rule: "rule 6",
        changes: &[("if expected ~= S.token then", "if expected == nil then")],
    },
    LuaMutant {
        name: "lua-older-note-reverts-a-newer-one",
        rule: "rule 16",
        changes: &[(
            "note.token == token and note.version < version then",
            "note.token == token then",
        )],
    },
    LuaMutant {
        name: "lua-note-ends-with-its-epoch",
        rule: "rule 16",
        changes: &[(
            "if note and (note.token == S.token or note.ends > S.now) then",
            "if note and note.token == S.token then",
        )],
    },
    LuaMutant {
        name: "lua-note-outlives-its-epoch",
        rule: "rule 16",
        changes: &[(
            "if note and (note.token == S.token or note.ends > S.now) then",
            "if note then",
        )],
    },
    LuaMutant {
        name: "lua-wrong-channel",
        rule: "rule 8",
        changes: &[(
            "string.sub(redis.sha1hex(to), 1, 16)",
            "string.sub(redis.sha1hex(to), 1, 15)",
        )],
    },
    LuaMutant {
        name: "lua-no-listener-counts-as-one",
        rule: "rule 9",
        changes: &[(
            "channel)[2] ~= 0",
            // A common mistake: in Lua, 0 is true.
            "channel)[2] and true",
        )],
    },
    LuaMutant {
        name: "lua-full-lease-for-offer",
        rule: "rule 10",
        changes: &[
            (
                "watermarks, skip, to, to_owner, offer_end,",
                "watermarks, skip, to, to_owner, now + 30000000,",
            ),
            (
                "waiter.floor, S:offer_end(waiter))\n",
                "waiter.floor, S.now + 30000000)\n",
            ),
        ],
    },
    LuaMutant {
        name: "lua-offer-ignores-the-lease",
        rule: "rule 10",
        changes: &[
            ("local offer_end =", "local offer_end = waiter_end or"),
            ("S.now, waiter.lease,", "S.now, 3600000000,"),
        ],
    },
    LuaMutant {
        name: "lua-polls-together-revive-a-waiter",
        rule: "rule 10",
        changes: &[(
            "if waiter_end <= now then\n          break",
            "if false then\n          break",
        )],
    },
    LuaMutant {
        name: "lua-polls-together-refresh-one-waiter",
        rule: "rule 10",
        changes: &[("set[2 * n - 1] = names[n]", "set[2 * n - 1] = names[1]")],
    },
    LuaMutant {
        name: "lua-poll-revives-a-waiter",
        rule: "rule 10",
        changes: &[
            (
                "if at == found - 8 and waiter_end > now then",
                "if at == found - 8 then",
            ),
            ("#holds == 9 and waiter_end > now", "#holds == 9"),
        ],
    },
    LuaMutant {
        name: "lua-neighbouring-holes-are-not-joined",
        rule: "rule 7",
        changes: &[("if near[2] and #near[2] == 8 then", "if false then")],
    },
    LuaMutant {
        name: "lua-released-permit-is-kept",
        rule: "S3",
        changes: &[(
            "if permit and type(written) == 'number' then",
            "if false then",
        )],
    },
    LuaMutant {
        name: "lua-leaving-writer-lets-nobody-in",
        rule: "rule 8",
        changes: &[("if is_first and not full then", "if false then")],
    },
    LuaMutant {
        name: "lua-writer-takes-the-room-of-a-reader",
        rule: "S1",
        changes: &[("if not full then", "if false then")],
    },
    LuaMutant {
        name: "lua-error-after-a-write",
        rule: "rule 13",
        changes: &[(
            "if S.form == 'packed' and not S.moved then",
            "redis.call('SET', S.key, S.stored or 'x') redis.call('HGET', S.key, 'x')\n    \
             if S.form == 'packed' and not S.moved then",
        )],
    },
    LuaMutant {
        name: "lua-expired-waiter-stays",
        rule: "rule 10",
        changes: &[(
            "ticket = S:remove_waiter(ticket, waiter)\n      elseif waiter.unreachable",
            "return false\n      elseif waiter.unreachable",
        )],
    },
    LuaMutant {
        name: "lua-polls-together-keep-the-first-waiter",
        rule: "rule 10",
        changes: &[(
            "if #set > 0 and",
            "local first = struct.pack('<c1d', 'w', first_ticket)\n\
             local waiter = redis.call('HGET', KEYS[1], first)\n\
             set[#set + 1] = first\n\
             set[#set + 1] = string.sub(waiter, 1, 53)\n\
               .. struct.pack('<d', now + waiter_lease) .. string.sub(waiter, 62)\n\
             if #set > 0 and",
        )],
    },
    LuaMutant {
        name: "lua-polls-together-outlast-a-deadline",
        rule: "rule 10",
        changes: &[(
            "waiter_end = math.min(now + waiter_lease, wait_until)\n        set",
            "waiter_end = now + waiter_lease\n        set",
        )],
    },
];

/// Mutants that send wrong messages, or send them to nobody. A client on the same server doesn't notice,
/// so the test that compares all messages with the state machine's detects them.
pub const MESSAGES: &[LuaMutant] = &[
    LuaMutant {
        name: "lua-grant-is-published-and-taken-back",
        rule: "rule 9",
        changes: &[(
            "S:is_reachable(waiter.session) then\n      waiter.unreachable,",
            "S:is_reachable(waiter.session) then\n      \
             S:notify(waiter.session, 'G' .. waiter.raw\n        \
             .. struct.pack('<dd', S:token_after(waiter.floor), waiter.lease))\n      \
             waiter.unreachable,",
        )],
    },
    LuaMutant {
        name: "lua-message-names-no-clock",
        rule: "the client side",
        changes: &[(
            "struct.pack('<dc8', S.now, S.clock_id)",
            "struct.pack('<dd', S.now, 0)",
        )],
    },
    LuaMutant {
        name: "lua-pushed-grant-names-no-clock",
        rule: "the client side",
        changes: &[("'<dc8c1c8dd', now, clock_id,", "'<ddc1c8dd', now, 0,")],
    },
];

impl LuaMutant {
    /// Plants this mutant in the protocols that are created from now on, instead of any other.
    pub fn plant(&self) {
        let index = everything().position(|mutant| mutant == self);
        PLANTED.store(index.map_or(0, |index| index + 1), Ordering::SeqCst);
    }
}

/// All mutants, in the order of their indices.
fn everything() -> impl Iterator<Item = &'static LuaMutant> {
    ALL.iter().chain(MESSAGES)
}

/// Applies the planted mutant to the text of a script.
pub(crate) fn spoil(text: String) -> String {
    let planted = PLANTED.load(Ordering::SeqCst).checked_sub(1);
    match planted.and_then(|index| everything().nth(index)) {
        Some(mutant) => mutant
            .changes
            .iter()
            .fold(text, |text, (right, wrong)| text.replace(right, wrong)),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::ScriptSettings;
    use crate::script::source::Scripts;

    /// The texts of all scripts that mutants may change.
    fn all_text() -> String {
        let scripts = Scripts::for_settings(&ScriptSettings::default());
        let all = [
            &scripts.acquire,
            &scripts.poll,
            &scripts.renew,
            &scripts.release,
            &scripts.convert,
            &scripts.inspect,
            &scripts.force_release,
            &scripts.note,
        ];
        all.map(|script| script.source()).concat()
    }

    #[test]
    fn every_mutant_changes_the_scripts() {
        let right = all_text();
        for mutant in everything() {
            for (text, _) in mutant.changes {
                assert!(right.contains(text), "{}: {text}", mutant.name);
            }
            mutant.plant();
            let wrong = all_text();
            PLANTED.store(0, Ordering::SeqCst);
            assert_ne!(right, wrong, "{}", mutant.name);
        }
    }
}
