//! The scripts: a common part and one part for each command, put together once.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::bounds;

use crate::call::Settings;

/// A script as it goes to the server.
#[derive(Debug)]
pub struct Script {
    source: String,
    sha1: String,
}

impl Script {
    fn new(source: String) -> Arc<Self> {
        let sha1 = sha1_smol::Sha1::from(&source).digest().to_string();
        Arc::new(Self { source, sha1 })
    }

    /// The Lua text, for `EVAL`.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The SHA-1 of the text in 40 lower-case hexadecimal digits, for `EVALSHA`.
    pub fn sha1(&self) -> &str {
        &self.sha1
    }
}

/// All scripts with one choice of settings.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: Arc<Script>,
    pub(crate) poll: Arc<Script>,
    pub(crate) renew: Arc<Script>,
    pub(crate) end: Arc<Script>,
    pub(crate) convert: Arc<Script>,
    pub(crate) inspect: Arc<Script>,
    pub(crate) force_release: Arc<Script>,
}

impl Scripts {
    pub(crate) fn new(settings: &Settings) -> Self {
        let common = include_str!("lua/common.lua");
        let grant = include_str!("lua/grant.lua");
        let crowd = include_str!("lua/crowd.lua");
        // What a newcomer needs at once stands outside the function that is only run if there is
        // more to do.
        let newcomer = format!("{common}{grant}{}", lazily(crowd));
        let others = format!("{common}{}", lazily(&format!("{grant}{crowd}")));
        let start = include_str!("lua/start.lua");
        let script = |quiet: &str, parts: &str, command: &str| {
            let text = [start, quiet, parts, command].concat();
            #[cfg(leasehold_mutants)]
            let text = crate::mutants::spoil(text);
            Script::new(with_constants(settings, text))
        };
        Self {
            acquire: script(
                include_str!("lua/quiet_acquire.lua"),
                &newcomer,
                include_str!("lua/acquire.lua"),
            ),
            poll: script("", &others, include_str!("lua/poll.lua")),
            renew: script(
                include_str!("lua/quiet_renew.lua"),
                &others,
                include_str!("lua/renew.lua"),
            ),
            end: script(
                include_str!("lua/quiet_end.lua"),
                &others,
                include_str!("lua/end.lua"),
            ),
            convert: script("", &others, include_str!("lua/convert.lua")),
            inspect: script("", &others, include_str!("lua/inspect.lua")),
            force_release: script("", &others, include_str!("lua/force_release.lua")),
        }
    }
}

#[cfg(all(test, leasehold_mutants))]
impl Scripts {
    pub(crate) fn all_text(&self) -> String {
        let all = [
            &self.acquire,
            &self.poll,
            &self.renew,
            &self.end,
            &self.convert,
            &self.inspect,
            &self.force_release,
        ];
        all.map(|script| script.source()).concat()
    }
}

/// Wraps `body`, which returns a table of functions, so that it runs once, when first needed.
fn lazily(body: &str) -> String {
    format!(
        "local function make_crowd()\n{body}end\n\n\
         local made\n\
         crowd = function()\n  made = made or make_crowd()\n  return made\nend\n\n"
    )
}

/// Lua has no constants that cost nothing, so they are written into the text.
fn with_constants(settings: &Settings, text: String) -> String {
    let number = |duration: Duration| duration.as_micros().to_string();
    let constants = [
        // The last byte is the version of the format.
        ("MAGIC", r"'LH\1'".into()),
        ("NO_SPEC", format!("'{}'", r"\0".repeat(14))),
        ("HORIZON", number(settings.horizon)),
        ("RETENTION", number(settings.token_retention)),
        ("PUSH", settings.push.to_string()),
        ("MAX_FLOOR", bounds::MAX_FLOOR.to_string()),
        ("MAX_FLOOR_AHEAD", number(bounds::MAX_FLOOR_AHEAD)),
        ("SCAN_FREELY", bounds::SCAN_FREELY.to_string()),
        ("SCAN_INTERVAL", number(bounds::SCAN_INTERVAL)),
        ("SETTLE_BUDGET", bounds::SETTLE_BUDGET.to_string()),
        ("MAX_AWAY_MARKS", bounds::MAX_AWAY_MARKS.to_string()),
        ("CHECK_EARLY", bounds::CHECK_EARLY.to_string()),
        ("STAGGER_STEPS", bounds::STAGGER_STEPS.to_string()),
        ("MAX_POLL_INTERVAL", number(bounds::MAX_POLL_INTERVAL)),
        ("INSPECT_LIST", bounds::INSPECT_LIST.to_string()),
        // First bytes of what `wire` writes for kinds, policies and modes.
        ("SEMAPHORE", b'S'.to_string()),
        ("RW_LOCK", b'R'.to_string()),
        ("EXCLUSIVE", b'X'.to_string()),
        ("BARGING", b'B'.to_string()),
        ("READERS_FIRST", b'R'.to_string()),
        ("WRITERS_FIRST", b'W'.to_string()),
        // Flags of a tenure.
        ("REVOKED", "1".into()),
        ("UPGRADED", "2".into()),
        ("OWN_TOKEN", "4".into()),
    ];
    constants.iter().fold(text, |text, (name, value)| {
        text.replace(&format!("@{name}@"), value)
    })
}
