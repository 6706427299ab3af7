//! Rules 11, 12, 15 and S4, S5: no operation is live after its release, and tokens number epochs
//! (exclusive holders, and groups of overlapping readers) across all servers.

use std::time::Duration;

use leasehold_api::machine::{Command, Reply};
use leasehold_api::{AcquireReply, Key, RenewReply, SessionId};
use litemap::LiteMap;

use crate::checker::coverage::Situation;
use crate::checker::findings::{Findings, Model};
use crate::checker::holders::lives;
use crate::checker::step::{Name, Set, Step, holder_of, name_of, names, waiter_of};

#[derive(Debug, Default)]
pub(crate) struct History {
    /// When the first release of each operation was sent.
    released: LiteMap<Name, Duration>,
    /// Offers: holds that were granted to waiters, and not confirmed by a renewal yet.
    offers: Set<Name>,
    /// The epochs of each key, on all servers.
    epochs: LiteMap<Key, Epochs>,
}

#[derive(Debug, Default)]
struct Epochs {
    highest: u64,
    /// The number of each token, in the order of grants.
    order: LiteMap<u64, u32>,
    /// The number and the token of the last write that took effect.
    written: Option<(u32, u64)>,
    /// The highest sequence of each session, by the acquires and releases that arrived.
    seen: LiteMap<SessionId, u64>,
    /// Whether the condition of S4 has failed. From then on, tokens promise nothing.
    void: bool,
}

impl History {
    pub(crate) fn step(&mut self, step: &Step<'_>, model: Model, found: &mut Findings) {
        self.releases(step, model, found);
        self.stale(step, found);
        self.epoch(step, found);
        self.offers(step, found);
    }

    fn offers(&mut self, step: &Step<'_>, found: &mut Findings) {
        let expired = step.before.holders.iter().filter(|t| t.end <= step.now);
        for name in expired.flat_map(names) {
            if self.offers.remove(&name).is_some() {
                found.reached(Situation::OfferExpired);
            }
        }
        for waiter in step.waiters_before() {
            let name = name_of(waiter.operation);
            if holder_of(step.after, name).is_some() {
                self.offers.insert(name, ());
            }
        }
        if let (Command::Renew(request), Reply::Renew(RenewReply::Renewed { .. })) =
            (step.command, step.reply)
        {
            self.offers.remove(&name_of(request.operation));
        }
    }

    fn releases(&mut self, step: &Step<'_>, model: Model, found: &mut Findings) {
        let Some(operation) = step.own else {
            return;
        };
        let own = name_of(operation);
        match (step.command, self.released.get(&own).copied()) {
            (Command::Release(_), None) => {
                self.released.insert(own, step.sent);
                if self.offers.remove(&own).is_some() {
                    found.reached(Situation::OfferReleased);
                }
            }
            (Command::Release(_), Some(_)) => found.reached(Situation::ReleasedTwice),
            (Command::Renew(_), Some(sent)) if step.sent > sent => {
                let text = format!("a renewal of {operation:?} was sent after its release");
                found.add("rule 11", text);
            }
            (_, Some(_)) if model == Model::Within && lives(step, operation) => {
                let lived =
                    waiter_of(step.before, own).is_some() || holder_of(step.before, own).is_some();
                let text = format!(
                    "after its release, {} finds {operation:?} live (live before: {lived})",
                    step.by()
                );
                found.add("rule 12", text);
            }
            _ => {}
        }
    }

    /// Rule 12: an acquire is stale only if its key has seen its sequence, or a higher one of its session.
    fn stale(&mut self, step: &Step<'_>, found: &mut Findings) {
        let Some(own) = step.own else { return };
        let key = self.epochs.entry(step.key.clone()).or_default();
        let highest = key.seen.entry(own.session).or_default();
        let stale = Reply::Acquire(AcquireReply::Stale);
        if *step.reply == stale && own.sequence > *highest {
            found.add(
                "rule 12",
                format!("{own:?} is refused as stale after {highest}"),
            );
        }
        let notes = matches!(step.command, Command::Acquire(_) | Command::Release(_));
        if notes && step.settles() {
            *highest = own.sequence.max(*highest);
        }
    }

    /// S4: a new epoch has a greater token than all earlier ones, if the stored token survived, the
    /// time of the granting step is past the highest token, or the floor is at least the highest token.
    fn epoch(&mut self, step: &Step<'_>, found: &mut Findings) {
        let mut before = step.before.token;
        if let Some(token) = step.passing_epoch() {
            self.began(step, before, token, 0, found);
            before = token;
        }
        let token = step.after.token;
        if token != before && token != 0 {
            self.began(step, before, token, step.floor_to_pass(), found);
        }
    }

    fn began(
        &mut self,
        step: &Step<'_>,
        before: u64,
        token: u64,
        floor: u64,
        found: &mut Findings,
    ) {
        let epochs = self.epochs.entry(step.key.clone()).or_default();
        let highest = epochs.highest;
        let survived = before >= highest;
        let condition = survived || step.now.as_micros() > highest || floor >= highest;
        if !survived {
            found.reached(Situation::OlderToken);
        }
        if condition && token <= highest {
            let text = format!("an epoch began with {token}, an earlier one had {highest}");
            found.add("S4", text);
        }
        epochs.void |= !condition;
        epochs.highest = highest.max(token);
        let next = u32::try_from(epochs.order.len()).unwrap_or(u32::MAX);
        epochs.order.insert(token, next);
    }

    /// S5: if each holder claims its token at the resource before it reads, no addition is lost.
    pub(crate) fn added(
        &self,
        key: &Key,
        token: u64,
        (read, replaced): (u32, u32),
        found: &mut Findings,
    ) {
        let void = self.epochs.get(key).is_some_and(|epochs| epochs.void);
        if read != replaced && !void {
            let text = format!("{token} read {read} and overwrote {replaced}: an addition is lost");
            found.add("S5", text);
        }
    }

    /// S5: no write of an epoch takes effect after a write of a later one.
    pub(crate) fn written(&mut self, key: &Key, token: u64, found: &mut Findings) {
        let epochs = self.epochs.entry(key.clone()).or_default();
        let Some(&order) = epochs.order.get(&token) else {
            return found.add("S5", format!("a write of {token}, which nobody granted"));
        };
        match epochs.written {
            Some((last, by)) if order < last && !epochs.void => {
                let text = format!("a write of {token} took effect after one of {by}");
                found.add("S5", text);
            }
            _ => epochs.written = Some((order, token)),
        }
    }
}
