//! A state as bytes, for a store that keeps them.
//!
//! # Layout
//! Integers are little-endian. Times and durations are `u64` in µs. Version 4 has a note, and version 3 has
//! none. The other parts are the same:
//!
//! | part | bytes |
//! |---|---|
//! | magic | `LHS` |
//! | version | `u8` |
//! | spec | kind: `M`, `R`, `S`, or 0 for none; then capacity `u32`, waiter lease |
//! | key | token `u64`, stored end, earliest end, last scan, next ticket `u64` |
//! | holders | count `u32`, then each: session (16), id `u64`, end, token `u64` if the kind is `S`, flags `u8`, label, holds |
//! | holds | count `u32`, then each: sequence `u64`, mode |
//! | waiters | count `u32`, then each: ticket `u64`, session (16), sequence `u64`, owner `u64`, mode, label, lease, end, marks `u8`, flags `u8`, floor `u64` if flagged, wait-until if flagged |
//! | watermarks | count `u32`, then each: session (16), sequence `u64`, end, reason: 0, `E`, `F`, `R`, `U` |
//! | note | token `u64`, version `u32`, end, length `u8`, bytes |
//!
//! A watermark is the highest sequence of a session. A mode is `X`, `S`, or `P` and the number of permits as
//! `u32`. A label is its length as `u8` and its text. Flags of a holder: 1 revoked, 2 upgraded. Flags of a
//! waiter: 1 listening, 2 unreachable, 4 has a floor, 8 has a wait-until. The other bits are reserved. A set
//! reserved bit is refused: its writer knows a rule that this version would break.

use std::time::Duration;

use crate::error::BackendError;
use crate::id::{FencingToken, Label, Operation, OwnerId, SessionId};
use crate::machine::state::{Holder, HolderId, State};
use crate::machine::{
    HolderParts, Inconsistent, NoteParts, StateParts, WaiterParts, WatermarkParts,
};
use crate::reply::EndReason;
use crate::request::{Kind, LockSpec, Mode};
use crate::time::{ServerTime, micros};

const MAGIC: &[u8; 3] = b"LHS";
const VERSION: u8 = 3;
/// The version of a state with a note.
const WITH_NOTE: u8 = 4;

/// In a watermark: no reason. Otherwise, `reason_letter`.
const NO_REASON: u8 = 0;

const REVOKED: u8 = 1;
const UPGRADED: u8 = 2;

const LISTENING: u8 = 1;
const UNREACHABLE: u8 = 2;
const HAS_FLOOR: u8 = 4;
const HAS_WAIT_UNTIL: u8 = 8;

const fn reason_letter(reason: EndReason) -> u8 {
    match reason {
        EndReason::Expired => b'E',
        EndReason::Forced => b'F',
        EndReason::Released => b'R',
        EndReason::Unknown => b'U',
    }
}

fn reason_of(letter: u8) -> Option<EndReason> {
    let mut all = EndReason::ALL.iter().copied();
    all.find(|reason| reason_letter(*reason) == letter)
}

/// The fewest bytes of an entry. They bound the memory that a count can make the decoder allocate.
const MIN_HOLDER: usize = 38;
const MIN_HOLD: usize = 9;
const MIN_WAITER: usize = 60;
const MIN_WATERMARK: usize = 33;

/// The error for bytes that are not the state of a lock, or that this version cannot read.
///
/// It converts to [`BackendError::ForeignValue`]. Leave the stored value as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes don't begin like a state.
    #[error("not the state of a lock")]
    NotAState,
    /// Another version has written the state.
    #[error("format version {version}")]
    #[non_exhaustive]
    UnknownVersion {
        /// The version.
        version: u8,
    },
    /// The bytes are damaged, or have a reserved bit set.
    #[error("a malformed state: {what}")]
    #[non_exhaustive]
    Malformed {
        /// The part that cannot be read.
        what: &'static str,
    },
    /// The bytes describe a state that cannot exist.
    #[error(transparent)]
    Inconsistent(#[from] Inconsistent),
}

impl From<DecodeError> for BackendError {
    fn from(error: DecodeError) -> Self {
        Self::foreign_value(error.to_string())
    }
}

impl State {
    /// Converts the state to bytes, including what has expired.
    ///
    /// The layout is stable: a later version of this crate reads what this one wrote. The bytes
    /// contain sessions and owners, which are secret.
    ///
    /// ```
    /// use leasehold_api::machine::State;
    ///
    /// let bytes = State::default().to_bytes();
    /// assert_eq!(State::from_bytes(&bytes), Ok(State::default()));
    /// ```
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer(Vec::new());
        let version = self.note.as_ref().map_or(VERSION, |_| WITH_NOTE);
        writer.raw(MAGIC).u8(version).spec(self.spec);
        writer.u64(self.token).time(self.stored_end);
        writer.time(self.earliest).time(self.last_scan);
        writer.u64(self.next_ticket);
        let with_token = self.spec.is_some_and(|spec| spec.kind() == Kind::Semaphore);
        writer.count(self.holders.len());
        for (holder_id, holder) in &self.holders {
            writer.holder(*holder_id, holder, with_token);
        }
        writer.count(self.waiters.len());
        for waiter in self.waiters.values() {
            writer.waiter(waiter);
        }
        writer.count(self.watermarks.len());
        for watermark in self.watermarks.values() {
            writer.watermark(watermark);
        }
        if let Some(note) = &self.note {
            writer.note(note);
        }
        writer.0
    }

    /// Converts bytes of [`to_bytes`](Self::to_bytes) to a state.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are something else, were written by another version, or are
    /// damaged. Damaged bytes that describe a consistent state are not noticed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        if reader.take(MAGIC.len(), "magic").ok() != Some(MAGIC) {
            return Err(DecodeError::NotAState);
        }
        let version = reader.u8("version")?;
        if version != VERSION && version != WITH_NOTE {
            return Err(DecodeError::UnknownVersion { version });
        }
        let spec = reader.spec()?;
        let token = reader.u64("token")?;
        let mut parts = StateParts {
            spec,
            token,
            stored_end: reader.time("stored end")?,
            earliest: reader.time("earliest end")?,
            last_scan: reader.time("last scan")?,
            next_ticket: reader.u64("next ticket")?,
            ..StateParts::default()
        };
        let has_token = spec.is_some_and(|spec| spec.kind() == Kind::Semaphore);
        for _ in 0..reader.count(MIN_HOLDER, "holders")? {
            let key_token = (!has_token).then_some(token);
            parts.holders.push(reader.holder(key_token)?);
        }
        for _ in 0..reader.count(MIN_WAITER, "waiters")? {
            parts.waiters.push(reader.waiter()?);
        }
        for _ in 0..reader.count(MIN_WATERMARK, "watermarks")? {
            parts.watermarks.push(reader.watermark()?);
        }
        if version == WITH_NOTE {
            parts.note = Some(reader.note()?);
        }
        if !reader.0.is_empty() {
            return Err(malformed("bytes behind the end"));
        }
        Ok(Self::from_parts(parts)?)
    }
}

const fn malformed(what: &'static str) -> DecodeError {
    DecodeError::Malformed { what }
}

struct Writer(Vec<u8>);

impl Writer {
    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn time(&mut self, time: ServerTime) -> &mut Self {
        self.u64(time.as_micros())
    }

    fn duration(&mut self, duration: Duration) -> &mut Self {
        self.u64(micros(duration))
    }

    fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).expect("memory holds fewer entries"))
    }

    fn flags<const N: usize>(&mut self, flags: [(bool, u8); N]) -> &mut Self {
        let set = flags.iter().filter(|(is_set, _)| *is_set);
        self.u8(set.map(|(_, bit)| bit).sum())
    }

    fn label(&mut self, label: &Label) -> &mut Self {
        let text = label.as_str().as_bytes();
        let length = u8::try_from(text.len()).expect("a label is short");
        self.u8(length).raw(text)
    }

    fn spec(&mut self, spec: Option<LockSpec>) -> &mut Self {
        let Some(spec) = spec else {
            return self.u8(0);
        };
        let kind = match spec.kind() {
            Kind::Mutex => b'M',
            Kind::RwLock => b'R',
            Kind::Semaphore => b'S',
        };
        self.u8(kind).u32(spec.capacity());
        self.duration(spec.waiter_lease())
    }

    fn mode(&mut self, mode: Mode) -> &mut Self {
        match mode {
            Mode::Exclusive => self.u8(b'X'),
            Mode::Shared => self.u8(b'S'),
            Mode::Permits(permits) => self.u8(b'P').u32(permits),
        }
    }

    fn holder(&mut self, holder_id: HolderId, holder: &Holder, with_token: bool) {
        self.raw(holder_id.session.as_bytes()).u64(holder_id.id);
        self.time(holder.end);
        if with_token {
            self.u64(holder.token);
        }
        self.flags([(holder.revoked, REVOKED), (holder.upgraded, UPGRADED)]);
        self.label(&holder.label);
        self.count(holder.holds.len());
        for hold in &holder.holds {
            self.u64(hold.sequence).mode(hold.mode);
        }
    }

    fn waiter(&mut self, waiter: &WaiterParts) {
        let operation = waiter.operation;
        self.u64(waiter.ticket).raw(operation.session.as_bytes());
        self.u64(operation.sequence).u64(operation.owner.as_u64());
        self.mode(waiter.mode).label(&waiter.label);
        self.duration(waiter.lease).time(waiter.end);
        self.u8(waiter.unreachable_marks);
        self.flags([
            (waiter.listening, LISTENING),
            (waiter.unreachable, UNREACHABLE),
            (waiter.floor.is_some(), HAS_FLOOR),
            (waiter.wait_until.is_some(), HAS_WAIT_UNTIL),
        ]);
        if let Some(floor) = waiter.floor {
            self.u64(floor.get());
        }
        if let Some(until) = waiter.wait_until {
            self.time(until);
        }
    }

    fn watermark(&mut self, watermark: &WatermarkParts) {
        self.raw(watermark.session.as_bytes());
        self.u64(watermark.sequence);
        self.time(watermark.end)
            .u8(watermark.reason.map_or(NO_REASON, reason_letter));
    }

    fn note(&mut self, note: &NoteParts) {
        self.u64(note.token.get()).u32(note.version).time(note.end);
        let length = u8::try_from(note.bytes.len()).expect("a note is short");
        self.u8(length).raw(&note.bytes);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(malformed(what))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(malformed(what))?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(what)?[0])
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn time(&mut self, what: &'static str) -> Result<ServerTime, DecodeError> {
        self.u64(what).map(ServerTime::from_micros)
    }

    fn duration(&mut self, what: &'static str) -> Result<Duration, DecodeError> {
        self.u64(what).map(Duration::from_micros)
    }

    fn session(&mut self, what: &'static str) -> Result<SessionId, DecodeError> {
        self.array(what).map(SessionId::from_bytes)
    }

    /// Reads a number of entries of at least `size` bytes each.
    fn count(&mut self, size: usize, what: &'static str) -> Result<usize, DecodeError> {
        let count = usize::try_from(self.u32(what)?).map_err(|_| malformed(what))?;
        if count > self.0.len() / size {
            return Err(malformed(what));
        }
        Ok(count)
    }

    /// Reads flags, and refuses bits other than `known`.
    fn flags(&mut self, known: u8, what: &'static str) -> Result<u8, DecodeError> {
        let flags = self.u8(what)?;
        if flags & !known != 0 {
            return Err(malformed(what));
        }
        Ok(flags)
    }

    fn label(&mut self) -> Result<Label, DecodeError> {
        const WHAT: &str = "label";
        let length = usize::from(self.u8(WHAT)?);
        let text = std::str::from_utf8(self.take(length, WHAT)?);
        let text = text.map_err(|_| malformed(WHAT))?;
        Label::new(text).map_err(|_| malformed(WHAT))
    }

    fn spec(&mut self) -> Result<Option<LockSpec>, DecodeError> {
        const WHAT: &str = "spec";
        let kind = self.u8(WHAT)?;
        if kind == 0 {
            return Ok(None);
        }
        let (capacity, waiter_lease) = (self.u32(WHAT)?, self.duration(WHAT)?);
        let spec = match kind {
            b'M' => Ok(LockSpec::mutex()),
            b'R' => Ok(LockSpec::rw_lock()),
            b'S' => LockSpec::semaphore(capacity),
            _ => return Err(malformed(WHAT)),
        };
        let spec = spec
            .and_then(|spec| spec.with_waiter_lease(waiter_lease))
            .map_err(|_| malformed(WHAT))?;
        if spec.capacity() != capacity {
            return Err(malformed(WHAT));
        }
        Ok(Some(spec))
    }

    fn mode(&mut self) -> Result<Mode, DecodeError> {
        const WHAT: &str = "mode";
        match self.u8(WHAT)? {
            b'X' => Ok(Mode::Exclusive),
            b'S' => Ok(Mode::Shared),
            b'P' => self.u32(WHAT).map(Mode::Permits),
            _ => Err(malformed(WHAT)),
        }
    }

    /// Reads a holder. `key_token` is its token unless the key is a semaphore.
    fn holder(&mut self, key_token: Option<u64>) -> Result<HolderParts, DecodeError> {
        const WHAT: &str = "holder";
        let (session, id) = (self.session(WHAT)?, self.u64(WHAT)?);
        let end = self.time(WHAT)?;
        let token = match key_token {
            Some(token) => token,
            None => self.u64(WHAT)?,
        };
        let flags = self.flags(REVOKED | UPGRADED, "flags of a holder")?;
        let label = self.label()?;
        let holds = self.count(MIN_HOLD, "holds")?;
        let holds: Result<_, DecodeError> = (0..holds)
            .map(|_| Ok((self.u64("sequence")?, self.mode()?)))
            .collect();
        Ok(HolderParts {
            session,
            id,
            holds: holds?,
            end,
            token: FencingToken::new(token),
            label,
            revoked: flags & REVOKED != 0,
            upgraded: flags & UPGRADED != 0,
        })
    }

    fn waiter(&mut self) -> Result<WaiterParts, DecodeError> {
        const WHAT: &str = "waiter";
        const FLAGS: u8 = LISTENING | UNREACHABLE | HAS_FLOOR | HAS_WAIT_UNTIL;
        let ticket = self.u64(WHAT)?;
        let operation = Operation {
            session: self.session(WHAT)?,
            sequence: self.u64(WHAT)?,
            owner: OwnerId::from_u64(self.u64(WHAT)?),
        };
        let (mode, label) = (self.mode()?, self.label()?);
        let (lease, end) = (self.duration(WHAT)?, self.time(WHAT)?);
        let unreachable_marks = self.u8(WHAT)?;
        let flags = self.flags(FLAGS, "flags of a waiter")?;
        let floor = (flags & HAS_FLOOR != 0).then(|| self.u64("floor"));
        let floor = floor.transpose()?.map(FencingToken::new);
        let wait_until = (flags & HAS_WAIT_UNTIL != 0).then(|| self.time("wait-until"));
        Ok(WaiterParts {
            ticket,
            operation,
            mode,
            label,
            floor,
            lease,
            end,
            wait_until: wait_until.transpose()?,
            listening: flags & LISTENING != 0,
            unreachable: flags & UNREACHABLE != 0,
            unreachable_marks,
        })
    }

    fn watermark(&mut self) -> Result<WatermarkParts, DecodeError> {
        const WHAT: &str = "watermark";
        Ok(WatermarkParts {
            session: self.session(WHAT)?,
            sequence: self.u64(WHAT)?,
            end: self.time(WHAT)?,
            reason: match self.u8(WHAT)? {
                NO_REASON => None,
                letter => Some(reason_of(letter).ok_or_else(|| malformed(WHAT))?),
            },
        })
    }

    fn note(&mut self) -> Result<NoteParts, DecodeError> {
        const WHAT: &str = "note";
        let token = FencingToken::new(self.u64(WHAT)?);
        let (version, end) = (self.u32(WHAT)?, self.time(WHAT)?);
        let length = usize::from(self.u8(WHAT)?);
        let bytes = self.take(length, WHAT)?.to_vec();
        Ok(NoteParts {
            token,
            version,
            bytes,
            end,
        })
    }
}
