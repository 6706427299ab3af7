//! The stored string of a key with at most one hold, one watermark and no waiter, both ways.
//!
//! The scripts define the string; the head of `script/lua/general/core.lua` lists its positions.

use leasehold_api::machine::{HoldParts, HolderParts, State, StateParts, WatermarkParts};
use leasehold_api::{EndReason, FencingToken, Kind, SessionId};

use crate::script::encoding::{Malformed, Reader, Writer, mode_code, mode_of};
use crate::script::reply::{NO_REASON, reason_code, reason_of};
use crate::script::source::MAGIC;

/// The length of a string with a label of 32 bytes.
const LONGEST: usize = 165;
/// The length of the record of one hold: its mode and its sequence.
const ONE_HOLD: u32 = 9;

/// The string that the scripts store for this state. `None` for a state with more records, or one of a
/// semaphore.
pub fn encode(state: &State) -> Option<Vec<u8>> {
    let bytes = Vec::with_capacity(LONGEST);
    encode_into(state, &mut StateParts::default(), bytes)
}

/// The same in the memory of `bytes`. Uses `parts` on the way.
pub(super) fn encode_into(
    state: &State,
    parts: &mut StateParts,
    bytes: Vec<u8>,
) -> Option<Vec<u8>> {
    state.write_parts(parts);
    let spec = parts.spec.filter(|spec| spec.kind() != Kind::Semaphore)?;
    let (holders, watermarks) = (&parts.holders, &parts.watermarks);
    let is_small = parts.waiters.is_empty() && holders.len() <= 1 && watermarks.len() <= 1;
    if !is_small || parts.note.is_some() {
        return None;
    }
    let mut out = Writer::over(bytes);
    out.raw(MAGIC).spec(&spec).number(parts.token);
    for time in [parts.stored_end, parts.earliest, parts.last_scan] {
        out.number(time.as_micros());
    }
    // Counts of one byte: holders, waiters, watermarks. Then the length of the gap before the waiters.
    let count = |records: usize| u8::from(records > 0);
    out.raw(&[count(holders.len()), 0, count(watermarks.len()), 0, 0]);
    if let Some(holder) = holders.first() {
        write_holder(&mut out, holder)?;
    }
    if let Some(watermark) = watermarks.first() {
        out.raw(watermark.session.as_bytes())
            .number(watermark.sequence)
            .number(watermark.end.as_micros())
            .u8(match watermark.reason {
                None => NO_REASON,
                Some(reason @ (EndReason::Forced | EndReason::Released)) => reason_code(reason).1,
                Some(EndReason::Expired | EndReason::Unknown) => return None,
            });
    }
    Some(out.finish())
}

fn write_holder(out: &mut Writer, holder: &HolderParts) -> Option<()> {
    let &[(sequence, mode)] = &*holder.holds else {
        return None;
    };
    if holder.revoked || holder.upgraded {
        return None;
    }
    out.raw(holder.session.as_bytes())
        .raw(&holder.id.to_le_bytes())
        .number(holder.end.as_micros())
        .u8(0)
        .label(&holder.label)
        .u32(ONE_HOLD)
        .u8(mode_code(mode).0)
        .number(sequence);
    Some(())
}

/// The state in a string of [`encode`]. `None` for any other string.
pub fn decode(bytes: &[u8]) -> Option<State> {
    let parts = read(&mut Reader::new(bytes)).ok()?;
    let state = State::from_parts(parts).ok()?;
    // So the client never predicts what the scripts would write for a string that it misread.
    (encode(&state)? == bytes).then_some(state)
}

fn read(from: &mut Reader<'_>) -> Result<StateParts, Malformed> {
    const WHAT: &str = "stored state";
    from.take(MAGIC.len(), WHAT)?;
    let mut parts = StateParts {
        spec: Some(from.spec(WHAT)?),
        token: from.number(WHAT)?,
        stored_end: from.time(WHAT)?,
        earliest: from.time(WHAT)?,
        last_scan: from.time(WHAT)?,
        ..StateParts::default()
    };
    let counts = from.take(5, WHAT)?;
    if counts[0] > 0 {
        parts.holders.push(read_holder(from, parts.token)?);
    }
    if counts[2] > 0 {
        parts.watermarks.push(WatermarkParts {
            session: SessionId::from_bytes(from.array(WHAT)?),
            sequence: from.number(WHAT)?,
            end: from.time(WHAT)?,
            reason: reason_of(from.u8(WHAT)?),
        });
    }
    Ok(parts)
}

fn read_holder(from: &mut Reader<'_>, token: u64) -> Result<HolderParts, Malformed> {
    const WHAT: &str = "stored holder";
    let session = SessionId::from_bytes(from.array(WHAT)?);
    let owner = u64::from_le_bytes(from.array(WHAT)?);
    let end = from.time(WHAT)?;
    from.u8(WHAT)?;
    let label = from.label(WHAT)?;
    from.u32(WHAT)?;
    let mode = mode_of(from.u8(WHAT)?).ok_or(Malformed { what: WHAT })?;
    let holds: HoldParts = std::iter::once((from.number(WHAT)?, mode)).collect();
    Ok(HolderParts {
        session,
        id: owner,
        holds,
        end,
        token: FencingToken::new(token),
        label,
        revoked: false,
        upgraded: false,
    })
}
