//! Packing and unpacking, compatible with Lua's `struct` library in little-endian mode.

use std::time::Duration;

use leasehold_api::{ClockId, FencingToken, Kind, Label, LockSpec, Mode, ServerTime, bounds};

/// The server sent bytes that no script of this crate sends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed bytes from the server: {what}")]
pub struct Malformed {
    /// The part that could not be decoded.
    pub what: &'static str,
}

/// Lua can't represent all integers from here on.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The size of the length field before a [piece](Pieces), in bytes.
pub(crate) const LENGTH: usize = 4;
pub(crate) const CLOCK: usize = 8;

// Codes of kinds, in a spec.
const MUTEX: u8 = b'M';
pub(super) const RW_LOCK: u8 = b'R';
pub(super) const SEMAPHORE: u8 = b'S';
// Codes of modes.
pub(super) const EXCLUSIVE: u8 = b'X';
const SHARED: u8 = b'S';
const PERMITS: u8 = b'P';

/// The id of a clock, as the scripts copy it from a call to a message.
pub(crate) const fn clock_bytes(clock: ClockId) -> [u8; CLOCK] {
    clock.get().to_le_bytes()
}

#[derive(Debug)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
        }
    }

    /// Writes a piece, preceded by its length, for [`Pieces`].
    pub(crate) fn piece(&mut self, write: impl FnOnce(&mut Self)) {
        let start = self.bytes.len() + LENGTH;
        self.raw(&[0; LENGTH]);
        write(self);
        let length = u32::try_from(self.bytes.len() - start).expect("a piece is short");
        self.bytes[start - LENGTH..start].copy_from_slice(&length.to_le_bytes());
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// Writes an integer as a double. A number that is too large becomes the largest exact integer:
    /// times never get there, and sequences and tokens are smaller by contract.
    pub(crate) fn number(&mut self, value: u64) -> &mut Self {
        let exact = value.min((1 << 53) - 1);
        // Exact by the line above.
        self.raw(&(exact as f64).to_le_bytes())
    }

    pub(crate) fn duration(&mut self, value: Duration) -> &mut Self {
        self.number(u64::try_from(value.as_micros()).unwrap_or(u64::MAX))
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn label(&mut self, label: &Label) -> &mut Self {
        let text = label.as_str().as_bytes();
        let len = u8::try_from(text.len()).expect("labels are short");
        self.u8(len).raw(text)
    }

    /// Writes a spec. The scripts store and compare these bytes.
    pub(crate) fn spec(&mut self, spec: &LockSpec) -> &mut Self {
        let kind = match spec.kind() {
            Kind::Mutex => MUTEX,
            Kind::RwLock => RW_LOCK,
            Kind::Semaphore => SEMAPHORE,
        };
        self.u8(kind)
            .u32(spec.capacity())
            .duration(spec.waiter_lease())
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Pieces<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk::<LENGTH>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (piece, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(piece)
    }
}

#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.rest.split_at_checked(len).ok_or(Malformed { what })?;
        self.rest = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], Malformed> {
        let (head, tail) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(Malformed { what })?;
        self.rest = tail;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, Malformed> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// Reads the number of elements that follow, each of at least `size` bytes. A number that is
    /// too large for the rest is malformed, so the caller never allocates memory for it.
    pub(crate) fn count(&mut self, size: usize, what: &'static str) -> Result<usize, Malformed> {
        let count = usize::try_from(self.u32(what)?).map_err(|_| Malformed { what })?;
        if count > self.rest.len() / size {
            return Err(Malformed { what });
        }
        Ok(count)
    }

    pub(crate) fn flag(&mut self, what: &'static str) -> Result<bool, Malformed> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed { what }),
        }
    }

    pub(crate) fn number(&mut self, what: &'static str) -> Result<u64, Malformed> {
        let value = f64::from_le_bytes(self.array(what)?);
        if (0.0..EXACT).contains(&value) && value.fract() == 0.0 {
            // Exact by the line above.
            Ok(value as u64)
        } else {
            Err(Malformed { what })
        }
    }

    pub(crate) fn time(&mut self, what: &'static str) -> Result<ServerTime, Malformed> {
        self.number(what).map(ServerTime::from_micros)
    }

    pub(crate) fn clock(&mut self, what: &'static str) -> Result<ClockId, Malformed> {
        self.array(what).map(u64::from_le_bytes).map(ClockId::new)
    }

    pub(crate) fn duration(&mut self, what: &'static str) -> Result<Duration, Malformed> {
        self.number(what).map(Duration::from_micros)
    }

    pub(crate) fn token(&mut self, what: &'static str) -> Result<FencingToken, Malformed> {
        self.number(what).map(FencingToken::new)
    }

    pub(crate) fn label(&mut self, what: &'static str) -> Result<Label, Malformed> {
        let len = usize::from(self.u8(what)?);
        let bytes = self.take(len, what)?;
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed { what })?;
        Label::new(text).map_err(|_| Malformed { what })
    }

    pub(crate) fn mode(&mut self, what: &'static str) -> Result<Mode, Malformed> {
        let (code, permits) = (self.u8(what)?, self.u32(what)?);
        match (code, permits) {
            (PERMITS, 1..=bounds::MAX_PERMITS) => Ok(Mode::Permits(permits)),
            (PERMITS, _) => Err(Malformed { what }),
            (code, _) => mode_of(code).ok_or(Malformed { what }),
        }
    }

    pub(crate) fn spec(&mut self, what: &'static str) -> Result<LockSpec, Malformed> {
        let (kind, capacity) = (self.u8(what)?, self.u32(what)?);
        let waiter_lease = self.duration(what)?;
        let spec = match kind {
            MUTEX => LockSpec::mutex(),
            RW_LOCK => LockSpec::rw_lock(),
            SEMAPHORE => LockSpec::semaphore(capacity).map_err(|_| Malformed { what })?,
            _ => return Err(Malformed { what }),
        };
        spec.with_waiter_lease(waiter_lease)
            .map_err(|_| Malformed { what })
    }
}

/// The mode that has this code and no permits.
const fn mode_of(code: u8) -> Option<Mode> {
    match code {
        EXCLUSIVE => Some(Mode::Exclusive),
        SHARED => Some(Mode::Shared),
        _ => None,
    }
}

/// The code of a mode, and its number of permits.
pub(crate) const fn mode_code(mode: Mode) -> (u8, u32) {
    match mode {
        Mode::Exclusive => (EXCLUSIVE, 0),
        Mode::Shared => (SHARED, 0),
        Mode::Permits(permits) => (PERMITS, permits),
    }
}
