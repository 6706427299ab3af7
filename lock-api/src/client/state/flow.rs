//! How many renewals may be in flight to one server.
//!
//! A busy server answers the last of many renewals after their time limit, when they are on their way a second time, and
//! gets ever further behind. So the others wait while a *window* of them is in flight. It grows while they are
//! answered, and is halved when a call fails (RFC 5681).

use crate::bounds::MAX_BATCH;

const BATCH: u64 = MAX_BATCH as u64;
const FIRST: u64 = 4 * BATCH;
/// With 200 ms to the server and back, 20,000 a second.
const MOST: u64 = 32 * BATCH;

#[derive(Debug)]
pub(crate) struct Flow {
    sent: u64,
    /// The number of the latest renewal whose call has ended. Older ones may never be answered, because they wait for a
    /// row, so they hold up no others.
    ended: u64,
    window: u64,
    /// What answers add to the window, in parts of it. Without batches, each call has one renewal.
    credit: u64,
}

/// A call with renewals, by the number of the last one.
#[derive(Debug)]
pub(crate) struct Sent {
    last: u64,
    renewals: u64,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            sent: 0,
            ended: 0,
            window: FIRST,
            credit: 0,
        }
    }
}

impl Flow {
    pub(crate) const fn has_room(&self) -> bool {
        self.sent - self.ended < self.window
    }

    /// Notes a call that is sent.
    pub(crate) const fn begin(&mut self, renewals: usize) -> Sent {
        let renewals = renewals as u64;
        self.sent += renewals;
        Sent {
            last: self.sent,
            renewals,
        }
    }

    /// Notes the end of a call.
    pub(crate) fn end(&mut self, call: &Sent, answered: bool) {
        if call.last <= self.ended {
            return;
        }
        self.ended = call.last;
        // Answers to a whole window make it a batch larger.
        let window = match answered {
            true => {
                self.credit += call.renewals * BATCH;
                let grown = self.credit / self.window;
                self.credit %= self.window;
                self.window + grown
            }
            false => {
                self.credit = 0;
                self.window / 2
            }
        };
        self.window = window.clamp(BATCH, MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends what there is room for.
    fn fill(flow: &mut Flow) -> Vec<Sent> {
        let mut calls = Vec::new();
        while flow.has_room() {
            calls.push(flow.begin(MAX_BATCH));
        }
        calls
    }

    #[test]
    fn window_grows_with_answers_and_shrinks_with_failures() {
        let mut flow = Flow::default();
        let calls = |flow: &mut Flow, answered| {
            let calls = fill(flow);
            calls.iter().for_each(|call| flow.end(call, answered));
            calls.len()
        };
        let rounds: Vec<usize> = [true, true, true, false, false, true, true]
            .map(|answered| calls(&mut flow, answered))
            .into();
        assert_eq!(rounds, [4, 5, 6, 7, 1, 1, 2]);
        for _ in 0..100 {
            assert!(calls(&mut flow, true) as u64 <= MOST / BATCH);
        }
    }

    #[test]
    fn window_grows_as_fast_without_batches() {
        let mut flow = Flow::default();
        let calls: Vec<Sent> = (0..FIRST).map(|_| flow.begin(1)).collect();
        calls.iter().for_each(|call| flow.end(call, true));
        let grown = flow.window - FIRST;
        assert!((BATCH * 8 / 10..=BATCH).contains(&grown), "{grown}");
    }

    #[test]
    fn call_that_later_ones_overtake_holds_up_none() {
        let mut flow = Flow::default();
        let calls = fill(&mut flow);
        flow.end(&calls[3], true);
        assert!(flow.has_room());
        let before = flow.window;
        flow.end(&calls[0], false);
        assert_eq!(flow.window, before);
    }
}
