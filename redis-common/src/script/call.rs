//! Encoding of requests as script calls.

use std::fmt;
use std::sync::Arc;

use leasehold_api::{
    Acquire, BackendError, ClockId, Convert, ForceMode, ForceRelease, InvalidInput, Key, List,
    Note, Operation, Poll, Release, Renew, SessionId, bounds,
};

use super::encoding::{CLOCK, LENGTH, Pieces, Writer, clock_bytes, mode_code};
use super::settings::{FORCE_NOW, ScriptSettings};
use super::source::{self, Script, Scripts};

/// How many keys one step of a listing looks at, at most. The server does nothing else meanwhile: it takes
/// half a millisecond or less.
const MAX_SCAN: u32 = 200;
/// The usual size of an argument in bytes: an operation and a few more fields.
const USUAL: usize = 48;
/// The size of an acquire in bytes, with a label of 32 bytes.
const ACQUIRE: usize = 128;

/// One call of a script, for any server.
#[derive(Clone)]
pub struct Call {
    /// The script.
    pub script: Arc<Script>,
    elements: usize,
    /// The number of keys and arguments.
    pieces: usize,
    /// The key and the argument of each element in one buffer, each preceded by its length. Without elements,
    /// only arguments.
    packed: Vec<u8>,
}

/// Shows no arguments: they contain sessions, which authorize releases.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("script", &self.script)
            .field("elements", &self.elements)
            .finish_non_exhaustive()
    }
}

impl Call {
    /// The number of elements. Each has a key and an argument.
    pub const fn elements(&self) -> usize {
        self.elements
    }

    /// The Redis key of each element.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> + Clone {
        Pieces(&self.packed).step_by(2).take(self.elements)
    }

    /// Addresses the call to the server with this clock. The clock of a server that may be another one
    /// by then is 0. A client then renews before it returns a guard.
    pub const fn to_server(&self, clock: ClockId) -> AddressedCall<'_> {
        AddressedCall {
            call: self,
            clock: clock_bytes(clock),
        }
    }
}

/// One call of a script for one server: `EVALSHA sha1 numkeys keys... args... clock`.
///
/// The script puts the id of the server's clock into its messages. Without it, a subscriber of a
/// replica would read the message with the replica's clock.
#[derive(Clone, Copy, Debug)]
pub struct AddressedCall<'a> {
    call: &'a Call,
    clock: [u8; CLOCK],
}

impl AddressedCall<'_> {
    /// The script.
    pub fn script(&self) -> &Script {
        &self.call.script
    }

    /// The number of keys.
    pub const fn key_count(&self) -> usize {
        self.call.elements
    }

    /// The keys, then the arguments: one for each key, and the clock.
    pub fn words(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let has_keys = usize::from(self.call.elements > 0);
        let arguments = Pieces(&self.call.packed)
            .skip(has_keys)
            .step_by(1 + has_keys);
        let clock = std::iter::once(&self.clock[..]);
        self.call.keys().chain(arguments).chain(clock)
    }

    /// The number of keys and arguments, with the clock.
    pub const fn word_count(&self) -> usize {
        self.call.pieces + 1
    }

    /// The size of all keys and arguments, in bytes, with the clock.
    pub const fn bytes(&self) -> usize {
        self.call.packed.len() - self.call.pieces * LENGTH + CLOCK
    }
}

/// Turns requests into script calls.
///
/// A batch becomes one call with several keys. A standalone server accepts it. In a cluster, all
/// keys of a call must be in one slot. Make a separate call for each key there, and pipeline the
/// calls.
#[derive(Debug)]
pub struct Protocol {
    pub(super) prefix: String,
    scripts: Arc<Scripts>,
    shard_channels: bool,
}

impl Protocol {
    /// Creates a protocol whose keys and channels start with `prefix`.
    ///
    /// # Errors
    /// [`InvalidInput`] if the prefix contains braces, which would move the cluster
    /// hash tag.
    pub fn new(prefix: &str, settings: ScriptSettings) -> Result<Self, InvalidInput> {
        // The scripts also take the part of a key before its first brace as the prefix.
        if prefix.contains(['{', '}']) {
            let problem = "must not contain braces";
            return Err(InvalidInput::setting("key prefix", problem));
        }
        Ok(Self {
            prefix: prefix.into(),
            scripts: Scripts::for_settings(&settings),
            shard_channels: settings.shard_channels,
        })
    }

    /// Encodes a batch of acquires. Decode the answer with
    /// [`reply::acquires`](super::reply::acquires).
    pub fn acquire(&self, batch: &[Acquire]) -> Call {
        let elements = batch.iter().map(|request| (&request.key, request));
        self.call(&self.scripts.acquire, ACQUIRE, elements, acquire)
    }

    /// Encodes a batch of polls. Decode the answer with [`reply::polls`](super::reply::polls).
    pub fn poll(&self, batch: &[Poll]) -> Call {
        let elements = batch.iter().map(|poll| (&poll.key, poll));
        self.call(&self.scripts.poll, USUAL, elements, |out, poll| {
            operation(out, &poll.operation).u8(u8::from(poll.listening));
        })
    }

    /// Encodes a batch of renewals. Decode the answer with
    /// [`reply::renewals`](super::reply::renewals).
    pub fn renew(&self, batch: &[Renew]) -> Call {
        let elements = batch.iter().map(|renew| (&renew.key, renew));
        self.call(&self.scripts.renew, USUAL, elements, |out, renew| {
            operation(out, &renew.operation).duration(renew.lease);
        })
    }

    /// Encodes a batch of releases. Decode the answer with [`reply::releases`](super::reply::releases).
    pub fn release(&self, batch: &[Release]) -> Call {
        let elements = batch.iter().map(|release| (&release.key, release));
        self.call(&self.scripts.release, USUAL, elements, |out, release| {
            operation(out, &release.operation);
        })
    }

    /// Encodes a conversion. Decode the answer with [`reply::convert`](super::reply::convert).
    pub fn convert(&self, request: &Convert) -> Call {
        let element = std::iter::once((&request.key, request));
        self.call(&self.scripts.convert, USUAL, element, |out, request| {
            operation(out, &request.operation)
                .number(request.expected.get())
                .u8(mode_code(request.to).0);
        })
    }

    /// Encodes an inspection. Decode the answer with [`reply::inspect`](super::reply::inspect). The
    /// script writes nothing.
    pub fn inspect(&self, key: &Key) -> Call {
        let element = std::iter::once((key, ()));
        self.call(&self.scripts.inspect, 0, element, |_, ()| {})
    }

    /// Encodes a check of the user's rights. The answer names those that are missing, as ACL rules,
    /// with a space between two. The script has no keys, so any node of a cluster runs it, and it
    /// writes nothing.
    ///
    /// `shard_push` says whether the client subscribes to shard channels.
    pub fn rights(&self, shard_push: bool) -> Call {
        let key = Key::new("rights").expect("a good key");
        let session = SessionId::from_bytes([0; 16]);
        let shard_channel = self.shard_channel(&key, &session);
        let shard_channel = self.shard_channels.then_some(&*shard_channel);
        let (key, channel) = (self.key(&key), self.channel(&session));
        Call {
            script: source::rights(&key, &channel, shard_channel, shard_push),
            elements: 0,
            pieces: 0,
            packed: Vec::new(),
        }
    }

    /// Encodes a page of a listing, from a cursor of the server; `0` is the first. Decode the answer with
    /// [`listed`](Self::listed). The script has no keys, so any node of a cluster runs it, and it writes
    /// nothing.
    pub fn list(&self, request: &List, cursor: &str) -> Call {
        let pattern = self.pattern(&request.prefix);
        let limit = request.limit.min(MAX_SCAN).to_string();
        let mut out = Writer::with_capacity(64 + request.prefix.len());
        for word in [cursor.as_bytes(), &pattern, limit.as_bytes()] {
            out.piece(|out| {
                out.raw(word);
            });
        }
        Call {
            script: Arc::clone(&self.scripts.list),
            elements: 0,
            pieces: 3,
            packed: out.finish(),
        }
    }

    /// Decodes the answer to [`list`](Self::list): the next cursor, and the keys. Leaves out what no lock is
    /// called.
    ///
    /// # Errors
    /// [`BackendError::OutcomeUnknown`] if the bytes come from no script of this crate.
    pub fn listed(&self, bytes: &[u8]) -> Result<(String, Vec<Key>), BackendError> {
        let mut pieces = Pieces(bytes);
        let cursor = pieces.next().map(<[u8]>::to_vec);
        let cursor = cursor.and_then(|cursor| String::from_utf8(cursor).ok());
        let cursor = cursor.ok_or_else(|| BackendError::outcome_unknown("not a page of keys"))?;
        Ok((
            cursor,
            pieces.filter_map(|name| self.key_of(name)).collect(),
        ))
    }

    /// Encodes a forced release. Decode the answer with
    /// [`reply::force_release`](super::reply::force_release).
    pub fn force_release(&self, request: &ForceRelease) -> Call {
        let element = std::iter::once((&request.key, request));
        let script = &self.scripts.force_release;
        self.call(script, USUAL, element, |out, request| {
            out.u8(match request.how {
                ForceMode::Revoke => b'R',
                ForceMode::Now => FORCE_NOW,
            });
            for token in &request.tokens {
                out.number(token.get());
            }
        })
    }

    /// Encodes a note. Decode the answer with [`reply::note`](super::reply::note).
    pub fn note(&self, request: &Note) -> Call {
        let element = std::iter::once((&request.key, request));
        let usual = USUAL + bounds::MAX_NOTE_BYTES;
        self.call(&self.scripts.note, usual, element, |out, request| {
            let length = u8::try_from(request.bytes.len()).expect("a note is short");
            operation(out, &request.operation)
                .u32(request.version)
                .duration(request.keep)
                .u8(length)
                .raw(&request.bytes);
        })
    }

    /// `usual` is the usual size of an argument in bytes.
    fn call<'a, T>(
        &self,
        script: &Arc<Script>,
        usual: usize,
        elements: impl ExactSizeIterator<Item = (&'a Key, T)> + Clone,
        pack: impl Fn(&mut Writer, T),
    ) -> Call {
        let lengths = elements.clone().map(|(key, _)| self.usual_length(key));
        let room = lengths.sum::<usize>() + elements.len() * (usual + 2 * LENGTH);
        let mut out = Writer::with_capacity(room);
        let count = elements.len();
        for (key, element) in elements {
            out.piece(|out| self.write_key(out, key));
            out.piece(|out| pack(out, element));
        }
        Call {
            script: Arc::clone(script),
            elements: count,
            pieces: 2 * count,
            packed: out.finish(),
        }
    }
}

fn operation<'a>(out: &'a mut Writer, operation: &Operation) -> &'a mut Writer {
    out.raw(operation.session.as_bytes())
        .number(operation.sequence)
        .raw(&operation.owner.as_u64().to_le_bytes())
}

fn acquire(out: &mut Writer, request: &Acquire) {
    let (mode, permits) = mode_code(request.mode);
    let (wait, until) = match &request.wait {
        None => (0, None),
        Some(wait) => (if wait.listening { 2 } else { 1 }, wait.wait_until),
    };
    operation(out, &request.operation)
        .spec(&request.spec)
        .u8(mode)
        .u32(permits)
        .duration(request.lease)
        .u8(wait)
        // The largest number means "no limit": the scripts take the minimum with it.
        .number(until.map_or(u64::MAX, |until| until.as_micros()))
        .number(request.deliver_before.as_micros())
        .number(request.floor.map_or(0, |floor| floor.get()))
        .u32(request.limits.holds)
        .u32(request.limits.waiters)
        .u32(request.limits.holders)
        .label(&request.label);
}
