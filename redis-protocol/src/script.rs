//! The scripts: a common part and one part for each command, put together once.

use std::sync::Arc;

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
        let head = format!(
            "local HORIZON, RETENTION, PUSH = {}, {}, {}\n{}{}",
            settings.horizon.as_micros(),
            settings.token_retention.as_micros(),
            settings.push,
            include_str!("lua/common.lua"),
            include_str!("lua/crowd.lua"),
        );
        let with = |command: &str| Script::new(format!("{head}{command}"));
        Self {
            acquire: with(include_str!("lua/acquire.lua")),
            poll: with(include_str!("lua/poll.lua")),
            renew: with(include_str!("lua/renew.lua")),
            end: with(include_str!("lua/end.lua")),
            convert: with(include_str!("lua/convert.lua")),
            inspect: with(include_str!("lua/inspect.lua")),
            force_release: with(include_str!("lua/force_release.lua")),
        }
    }
}
