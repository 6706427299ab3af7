//! Faults planted in the Lua text alone: what the state machine does right, the port does wrong.
//!
//! Compiled only under `--cfg leasehold_mutants`; see the mutants of `leasehold-api`.

use std::sync::atomic::{AtomicUsize, Ordering};

/// 0, or one more than the place in [`ALL`] of the one that is planted.
static PLANTED: AtomicUsize = AtomicUsize::new(0);

/// A fault in the scripts: pieces of text instead of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LuaMutant {
    /// What tests call it.
    pub name: &'static str,
    /// The rule that it breaks.
    pub rule: &'static str,
    changes: &'static [(&'static str, &'static str)],
}

/// All of them.
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
        name: "lua-wrong-channel",
        rule: "rule 8",
        changes: &[(
            "string.sub(redis.sha1hex(to), 1, 16)",
            "string.sub(redis.sha1hex(to), 1, 15)",
        )],
    },
    LuaMutant {
        name: "lua-nobody-counts-as-somebody",
        rule: "rule 9",
        changes: &[(
            "type(listeners) == 'table' or listeners > 0",
            // The tutorials' mistake: in Lua 0 is true.
            "listeners and true or false",
        )],
    },
    LuaMutant {
        name: "lua-full-lease-for-offer",
        rule: "rule 10",
        changes: &[
            (
                "watermarks, skip, to, to_owner, offer_ends,",
                "watermarks, skip, to, to_owner, now + 30000000,",
            ),
            (
                "place.floor, place.ends)\n",
                "place.floor, S.now + 30000000)\n",
            ),
        ],
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
];

impl LuaMutant {
    /// Plants this one, instead of any other, in the protocols that are made from now on.
    pub fn plant(&self) {
        let index = ALL.iter().position(|mutant| mutant == self);
        PLANTED.store(index.map_or(0, |index| index + 1), Ordering::SeqCst);
    }
}

/// The text with the planted fault in it, if it is one that the fault is for.
pub(crate) fn spoil(text: String) -> String {
    match PLANTED.load(Ordering::SeqCst).checked_sub(1) {
        Some(index) => ALL[index]
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

    #[test]
    fn each_fault_has_its_place_in_the_scripts() {
        let right = Scripts::new(&ScriptSettings::default()).all_text();
        for mutant in ALL {
            for (text, _) in mutant.changes {
                assert!(right.contains(text), "{}: {text}", mutant.name);
            }
            mutant.plant();
            let wrong = Scripts::new(&ScriptSettings::default()).all_text();
            PLANTED.store(0, Ordering::SeqCst);
            assert_ne!(right, wrong, "{}", mutant.name);
        }
    }
}
