//! The scripts. Each is assembled once from a fast path, the general part and its command.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_api::{EndReason, bounds};

use super::settings::{FORCE_NOW, ScriptSettings};
use super::{encoding, reply};

/// The first bytes of a stored string or of the head of a hash. The last one is the version of the format.
const MAGIC: &[u8; 3] = b"LH\x0a";

/// The text of these files of a folder.
macro_rules! lua {
    ($folder:literal: $($name:literal),*) => {
        concat!($(include_str!(concat!("lua/", $folder, "/", $name, ".lua"))),*)
    };
}

/// A script with its source and hash.
#[derive(Debug)]
pub struct Script {
    source: String,
    sha1: String,
}

impl Script {
    fn new(text: &str) -> Arc<Self> {
        let source = stripped(text);
        let sha1 = sha1_smol::Sha1::from(&source).digest().to_string();
        Arc::new(Self { source, sha1 })
    }

    /// The Lua text, for `EVAL`.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The SHA-1 of the text as 40 lower-case hexadecimal digits, for `EVALSHA`.
    pub fn sha1(&self) -> &str {
        &self.sha1
    }
}

/// Returns the script that names missing rights on a key and its channels. It reads and writes no lock, so it
/// needs no other part. `shard_push` says whether the client subscribes to the shard channel.
pub(crate) fn rights(
    key: &[u8],
    channel: &str,
    shard_channel: Option<&str>,
    shard_push: bool,
) -> Arc<Script> {
    let (key, channel) = (quoted(key), quoted(channel.as_bytes()));
    let shard_channel = shard_channel.map_or("nil".into(), |it| quoted(it.as_bytes()));
    let names = format!(
        "local key, channel, shard_channel, shard_push = \
         {key}, {channel}, {shard_channel}, {shard_push}\n"
    );
    Script::new(&(names + lua!("commands": "rights")))
}

fn quoted(bytes: &[u8]) -> String {
    let escaped = bytes.iter().map(|byte| format!("\\{byte:03}"));
    format!("\"{}\"", escaped.collect::<String>())
}

#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: Arc<Script>,
    pub(crate) poll: Arc<Script>,
    pub(crate) renew: Arc<Script>,
    pub(crate) release: Arc<Script>,
    pub(crate) convert: Arc<Script>,
    pub(crate) inspect: Arc<Script>,
    pub(crate) force_release: Arc<Script>,
    pub(crate) list: Arc<Script>,
    pub(crate) note: Arc<Script>,
}

impl Scripts {
    /// The scripts for these settings. Those of backends are made once in a process: they take some 300 kB.
    pub(crate) fn for_settings(settings: &ScriptSettings) -> Arc<Self> {
        static OF_BACKENDS: [OnceLock<Arc<Scripts>>; 2] = [const { OnceLock::new() }; 2];
        let new = || Arc::new(Self::new(settings));
        let shard_channels = settings.shard_channels;
        if *settings != ScriptSettings::default().with_shard_channels(shard_channels) {
            return new();
        }
        Arc::clone(OF_BACKENDS[usize::from(shard_channels)].get_or_init(new))
    }

    fn new(settings: &ScriptSettings) -> Self {
        let (general, values) = (general(), values(settings));
        let script = |fast_path: &str, command: &str| {
            let text = [include_str!("lua/start.lua"), fast_path, &general, command].concat();
            let mut source = String::with_capacity(2 * text.len());
            expand(&text, &values, &mut source);
            Script::new(&source)
        };
        // Each element of a batch by itself.
        let singly = "local try_together = nil\n";
        Self {
            acquire: script(
                &tries(
                    lua!("fast_path": "acquire", "contended", "acquire_in_hash"),
                    singly,
                ),
                lua!("commands": "acquire"),
            ),
            poll: script(
                &tries(
                    lua!("fast_path": "poll"),
                    lua!("fast_path": "polls_together"),
                ),
                lua!("commands": "poll"),
            ),
            renew: script(
                &tries(lua!("fast_path": "renew", "renew_in_hash"), singly),
                lua!("commands": "renew"),
            ),
            release: script(
                &tries(lua!("fast_path": "release", "release_in_hash"), singly),
                lua!("commands": "release"),
            ),
            convert: script("", lua!("commands": "convert")),
            inspect: script("", lua!("commands": "inspect")),
            force_release: script("", lua!("commands": "force_release")),
            list: Script::new(lua!("commands": "list")),
            note: script("", lua!("commands": "note")),
        }
    }
}

/// The fast path as a function, the one for neighbours with the same key if there is one, and the text that calls them.
fn tries(fast_path: &str, together: &str) -> String {
    let each_element = lua!("fast_path": "batch");
    format!(
        "local function fast_path(key, argument, first, now, clock_id)
{fast_path}end
{together}{each_element}"
    )
}

/// The general part: the table `S` with the methods that every step needs, and two more tables of
/// methods. A metatable creates each of them at the first call of one of its methods.
fn general() -> String {
    let core = lua!("general": "core");
    let (queue, rare) = (lua!("general": "queue"), lua!("general": "rare"));
    format!(
        "{core}
setmetatable(S, {{ __index = function(_, name)
local queue =
{queue}
setmetatable(queue, {{ __index = function(_, wanted)
local rare =
{rare}
setmetatable(queue, {{ __index = rare }})
return rare[wanted]
end }})
setmetatable(S, {{ __index = queue }})
return queue[name]
end }})

"
    )
}

/// A text without comments, indentation and empty lines. No string of the scripts contains the beginning of a comment.
fn stripped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let code = line.split("--").next().unwrap_or_default().trim();
        if !code.is_empty() {
            out.push_str(code);
            out.push('\n');
        }
    }
    out
}

/// Functions that several parts of a script use. Each is an expression without outer variables.
const FUNCTIONS: [(&str, &str); 5] = [
    ("FIND_HEAD", lua!("shared": "find_head")),
    ("LEAVE_QUEUE", lua!("shared": "leave_queue")),
    ("RELEASE_READER", lua!("shared": "release_reader")),
    ("POLL_AFTER", lua!("shared": "poll_after")),
    ("OFFER_END", lua!("shared": "offer_end")),
];

/// The status of an answer, and why an operation is gone. Each is a string of one character.
const CODES: [(&str, u8); 5] = [
    ("DONE", reply::DONE),
    ("FOREIGN", reply::FOREIGN),
    ("REFUSED", reply::REFUSED),
    ("BROKEN", reply::BROKEN),
    ("REASON_NONE", reply::NO_REASON),
];

/// Replaces each `@NAME@` by its value, which may contain further names.
///
/// # Panics
/// Panics if a script has an at sign that is not around a known name.
fn expand(text: &str, values: &HashMap<&str, String>, out: &mut String) {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('@') {
        let (name, next) = after.split_once('@').expect("@ on both sides of a name");
        out.push_str(before);
        expand(&values[name], values, out);
        rest = next;
    }
    out.push_str(rest);
}

/// The value of each `@NAME@`: a constant or a function. In Lua 5.1, constants and function calls
/// cost time in every call of a script, so they are compiled into the text.
fn values(settings: &ScriptSettings) -> HashMap<&'static str, String> {
    let number = |duration: Duration| duration.as_micros().to_string();
    let (publish, count, channel_start) = if settings.shard_channels {
        ("'SPUBLISH'", "SHARDNUMSUB", "key")
    } else {
        ("'PUBLISH'", "NUMSUB", "string.match(key, '^[^{]*') .. 'c:'")
    };
    let constants = [
        ("MAGIC", quoted(MAGIC)),
        // The same for a state with a note, which is always a hash.
        ("NOTE_MAGIC", r"'LH\11'".into()),
        ("NO_SPEC", format!("'{}'", r"\0".repeat(13))),
        ("DELIVERY_WINDOW", number(settings.delivery_window)),
        ("RETENTION", number(settings.token_retention)),
        // Added to the stored end whenever it moves, so that it moves rarely.
        ("SLACK", number(settings.token_retention / 8)),
        // Redis expires keys at milliseconds.
        (
            "DELETED_AFTER_MS",
            bounds::DELETED_AFTER.as_millis().to_string(),
        ),
        ("SHARD_CHANNELS", settings.shard_channels.to_string()),
        ("REVOCATION", reply::REVOCATION.to_string()),
        ("PUBLISH", publish.into()),
        // The channel of session `to`, for the Redis key `key`.
        (
            "CHANNEL",
            format!("{channel_start} .. string.sub(redis.sha1hex(to), 1, 16)"),
        ),
        // Whether somebody listens on `channel`. After an error the number of listeners is unknown,
        // which counts as listening.
        (
            "LISTENS",
            format!("redis.pcall('PUBSUB', '{count}', channel)[2] ~= 0"),
        ),
        ("MAX_FLOOR", bounds::MAX_FLOOR.to_string()),
        ("MAX_FLOOR_AHEAD", number(bounds::MAX_FLOOR_AHEAD)),
        ("SCAN_FREELY", bounds::SCAN_FREELY.to_string()),
        ("SCAN_INTERVAL", number(bounds::SCAN_INTERVAL)),
        ("SETTLE_BUDGET", bounds::SETTLE_BUDGET.to_string()),
        (
            "MAX_UNREACHABLE_MARKS",
            bounds::MAX_UNREACHABLE_MARKS.to_string(),
        ),
        ("FIRST_WAITERS", bounds::FIRST_WAITERS.to_string()),
        ("STAGGER_STEPS", bounds::STAGGER_STEPS.to_string()),
        (
            "POLLS_PER_WAITER_LEASE",
            bounds::POLLS_PER_WAITER_LEASE.to_string(),
        ),
        ("MAX_POLL_INTERVAL", number(bounds::MAX_POLL_INTERVAL)),
        ("OFFER_POLLS", bounds::OFFER_POLLS.to_string()),
        ("INSPECT_LIST", bounds::INSPECT_LIST.to_string()),
        // Codes of kinds and modes.
        ("SEMAPHORE", encoding::SEMAPHORE.to_string()),
        ("RW_LOCK", encoding::RW_LOCK.to_string()),
        ("EXCLUSIVE", encoding::EXCLUSIVE.to_string()),
        // Flags of a holder.
        ("REVOKED", "1".into()),
        ("UPGRADED", "2".into()),
        ("OWN_TOKEN", "4".into()),
        // Flags of a waiter.
        ("LISTENING", "1".into()),
        ("UNREACHABLE", "2".into()),
        // An acquire makes a hash of a string with more records.
        ("PACKED_RECORDS", "160".into()),
        // The same for locks without a fast path: the general part rewrites the whole string.
        ("FEW_RECORDS", "64".into()),
        // Every step does so beyond this number. Releases of what isn't held leave watermarks too.
        ("MOST_RECORDS", "1000".into()),
        // The size of a string up to its label, whose length is the last byte.
        ("SHORTEST", "116".into()),
        // In a string: nothing in the fixed place.
        ("NO_SESSION", format!("'{}'", r"\0".repeat(16))),
        ("NO_HOLDER_ID", format!("'{}'", r"\0".repeat(24))),
        ("NO_HOLD", format!("'{}'", r"\0".repeat(9))),
        ("NO_WATERMARK", format!("'{}'", r"\0".repeat(17))),
        // In the head of a hash: no holder, no unreachable waiter, no waiter.
        ("NO_COUNTS", format!("'{}'", r"\0".repeat(12))),
        // A placeholder for all holders of a full semaphore, or for several readers if a writer is first
        // in the queue. It has the form of an exclusive hold without an owner, which ends at 2^53.
        (
            "ALL_HOLDERS",
            format!(
                r"'{}\0\0\0\0\0\0\64\67\0\0\9\0\0\0X{}'",
                r"\0".repeat(24),
                r"\0".repeat(8)
            ),
        ),
        // A hash with no more fields becomes a string when nobody has waited for a while.
        ("SMALL_HASH", "16".into()),
        // Means "no ticket": tickets start at 1.
        ("NONE", "0".into()),
        // Beyond 2^53, the next ticket would be the same number.
        ("MAX_TICKET", "9007199254740992".into()),
        ("FORCE_NOW", FORCE_NOW.to_string()),
        // The first bytes of hash fields.
        ("HOLDER", b'h'.to_string()),
        ("WATERMARK", b'm'.to_string()),
        ("SLOT", b's'.to_string()),
        // The maximum number of fields in one command. Lua's stack limits it.
        ("CHUNK", "500".into()),
        // Every 32nd write of the general part, and that of every 128th waiter, scans 256 fields of
        // a hash and removes expired watermarks.
        ("SWEEP_EVERY", "32".into()),
        ("SWEEP_TICKETS", "128".into()),
        ("SWEEP_COUNT", "256".into()),
    ];
    let functions = FUNCTIONS.map(|(name, text)| (name, text.trim_end().to_owned()));
    let reasons = EndReason::ALL.iter().copied().map(reply::reason_code);
    let codes = CODES.into_iter().chain(reasons);
    let letters = codes.map(|(name, letter)| (name, format!("'{}'", char::from(letter))));
    functions
        .into_iter()
        .chain(letters)
        .chain(constants)
        .collect()
}
