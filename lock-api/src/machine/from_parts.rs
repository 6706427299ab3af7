//! A state to plain data and back.

use crate::id::Operation;
use crate::machine::parts::{HolderParts, Inconsistent, StateParts, require};
use crate::machine::state::{Hold, Holder, HolderId, State};

impl State {
    /// Converts the state to plain data, including what has expired.
    pub fn to_parts(&self) -> StateParts {
        let mut parts = StateParts::default();
        self.write_parts(&mut parts);
        parts
    }

    /// Like [`to_parts`](Self::to_parts), but overwrites `parts` and reuses their memory.
    pub fn write_parts(&self, parts: &mut StateParts) {
        parts.clear();
        let holders = self.holders.iter();
        parts
            .holders
            .extend(holders.map(|(holder_id, holder)| HolderParts {
                session: holder_id.session,
                id: holder_id.id,
                holds: holder.holds.iter().map(|h| (h.sequence, h.mode)).collect(),
                end: holder.end,
                token: self.token_of(holder),
                label: holder.label.clone(),
                revoked: holder.revoked,
                upgraded: holder.upgraded,
            }));
        parts.waiters.extend(self.waiters.values().cloned());
        parts.watermarks.extend(self.watermarks.values());
        parts.note.clone_from(&self.note);
        (parts.spec, parts.token) = (self.spec, self.token);
        (parts.stored_end, parts.next_ticket) = (self.stored_end, self.next_ticket);
        (parts.earliest, parts.last_scan) = (self.earliest, self.last_scan);
    }

    /// Converts plain data to a state. Holders, waiters and watermarks may be in any order.
    ///
    /// # Errors
    /// [`Inconsistent`] if the parts break an invariant: for example, they exceed the capacity, list
    /// a holder twice, or have an end past the stored end.
    pub fn from_parts(parts: StateParts) -> Result<Self, Inconsistent> {
        parts.check()?;
        let (holders, waiters) = (parts.holders.len(), parts.waiters.len());
        let watermarks = parts.watermarks.len();
        let mut state = Self {
            spec: parts.spec,
            token: parts.token,
            stored_end: parts.stored_end,
            earliest: parts.earliest,
            last_scan: parts.last_scan,
            next_ticket: parts.next_ticket,
            note: parts.note,
            ..Self::default()
        };
        for holder in parts.holders {
            state.put_holder(holder);
        }
        for waiter in parts.waiters {
            state.insert_waiter(waiter);
        }
        let by_session = parts.watermarks.into_iter().map(|it| (it.session, it));
        state.watermarks.extend(by_session);
        require("no holder is listed twice", state.holders.len() == holders)?;
        require("no ticket is listed twice", state.waiters.len() == waiters)?;
        let distinct = state.watermarks.len() == watermarks;
        require("no session has two watermarks", distinct)?;
        let mut waiters = state.waiters.values();
        let only_wait = waiters.all(|waiter| !state.has_hold(waiter.operation));
        require("no operation holds and waits", only_wait)?;
        state.check()?;
        Ok(state)
    }

    fn has_hold(&self, operation: Operation) -> bool {
        let holder = self.holders.get(&self.holder_id(operation));
        holder.is_some_and(|holder| holder.has(operation.sequence))
    }

    fn put_holder(&mut self, parts: HolderParts) {
        let holder_id = HolderId {
            session: parts.session,
            id: parts.id,
        };
        let holds = parts.holds.iter();
        let holder = Holder {
            holds: holds
                .map(|&(sequence, mode)| Hold { sequence, mode })
                .collect(),
            end: parts.end,
            token: self.own_token(parts.token.get()),
            label: parts.label,
            revoked: parts.revoked,
            upgraded: parts.upgraded,
        };
        self.used = self.used.saturating_add(self.weight(holder.mode()));
        self.holders.insert(holder_id, holder);
    }
}
