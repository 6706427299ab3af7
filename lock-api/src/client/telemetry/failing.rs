//! Which renewals fail. A retry follows a retry, and in a cluster other renewals succeed meanwhile: only the first
//! failure and the end of all of them are worth a line in a log.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::client::state::holder::HolderCell;
use crate::runtime::Moment;
use crate::sync::{Arc, Weak};

#[derive(Debug, Default)]
pub(crate) struct Failing {
    /// The holders whose latest answer was a failure, by their ids.
    holders: BTreeMap<u64, Weak<HolderCell>>,
    since: Moment,
    /// The renewals that have failed since then.
    failures: usize,
}

/// What the end of a call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Renewals fail, and did not before.
    Begun,
    /// All renewals succeed again. This many had failed, the first one this long ago.
    Over { failures: usize, after: Duration },
}

impl Failing {
    /// Notes which renewals of a call have failed.
    pub(crate) fn note<'a>(
        &mut self,
        answers: impl Iterator<Item = (&'a Arc<HolderCell>, bool)>,
        now: Moment,
    ) -> Option<Change> {
        let before = self.failures;
        for (holder, failed) in answers {
            if failed {
                self.failures += 1;
                self.holders.insert(holder.id, Arc::downgrade(holder));
            } else {
                self.holders.remove(&holder.id);
            }
        }
        if before == 0 && self.failures > 0 {
            self.since = now;
            return Some(Change::Begun);
        }
        if before == 0 || before < self.failures {
            return None;
        }
        // Holders that were lost or released meanwhile are not renewed again.
        while let Some(first) = self.holders.first_entry() {
            let holder = first.get().upgrade();
            if holder.is_some_and(|holder| holder.plan(now).is_some()) {
                return None;
            }
            first.remove();
        }
        let failures = std::mem::take(&mut self.failures);
        let after = now.saturating_since(self.since);
        Some(Change::Over { failures, after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::state::holder::tests::{at, hold, holder_of};
    use crate::client::state::renewals::Renewals;

    #[test]
    fn outage_is_over_when_the_last_holder_is_renewed_or_lost() {
        let mut failing = Failing::default();
        let renewals = Arc::new(Renewals::new(0));
        let [one, two, three] = [1, 2, 3].map(|_| holder_of(&renewals, hold(1, 1_000)));
        let mut note = |answers: &[(&Arc<HolderCell>, bool)], ms| {
            failing.note(answers.iter().map(|it| (it.0, it.1)), at(ms))
        };
        assert_eq!(note(&[(&one, false)], 90), None);
        assert_eq!(
            note(&[(&one, true), (&two, true)], 100),
            Some(Change::Begun)
        );
        assert_eq!(note(&[(&one, true)], 200), None);
        // In a cluster, another server answers.
        assert_eq!(note(&[(&three, false)], 250), None);
        assert_eq!(note(&[(&one, false)], 300), None);
        drop(two);
        let over = Change::Over {
            failures: 3,
            after: Duration::from_millis(300),
        };
        assert_eq!(note(&[(&three, false)], 400), Some(over));
        assert_eq!(note(&[(&three, false)], 500), None);
        assert_eq!(note(&[(&one, true)], 600), Some(Change::Begun));
    }
}
