//! Histories by hand: one that keeps all promises, and one for each way to break one.

use super::*;
use crate::history::{About, Form};
use crate::workload::PROBE;

/// Times are in ms here.
const MS: u64 = 1_000;
const LEASE_MS: u64 = 1_000;

/// A history under construction, and the key of what comes next.
struct Story(History, String);

impl Story {
    fn new() -> Self {
        let about = About {
            lease_ms: LEASE_MS,
            lasts_asleep_ms: LEASE_MS,
            progress_within_ms: 5_000,
            ..About::default()
        };
        let entries = Vec::new();
        Self(History { about, entries }, "one".into())
    }

    fn operation(
        mut self,
        (client, hold): (usize, u64),
        call: Call,
        times: (u64, u64),
        answer: Answer,
    ) -> Self {
        self.0.entries.push(Entry::Operation(Operation {
            client,
            hold,
            key: self.1.clone(),
            call,
            invoked: times.0 * MS,
            completed: Some(times.1 * MS),
            answer,
        }));
        self
    }

    /// Goes on with another key.
    fn on(mut self, key: &str) -> Self {
        self.1 = key.into();
        self
    }

    fn acquires_as(self, mode: Mode, who: (usize, u64), times: (u64, u64), token: u64) -> Self {
        let call = Call::Acquire {
            mode,
            wait_ms: 1_000,
            form: Form::Plain,
        };
        self.operation(who, call, times, Answer::Held { token: Some(token) })
    }

    /// The last acquire was asked for in this form.
    fn in_form(mut self, form: Form) -> Self {
        if let Some(Entry::Operation(it)) = self.0.entries.last_mut()
            && let Call::Acquire { form: before, .. } = &mut it.call
        {
            *before = form;
        }
        self
    }

    fn converts(self, to: Mode, who: (usize, u64), times: (u64, u64), token: u64) -> Self {
        let held = Answer::Held { token: Some(token) };
        self.operation(who, Call::Convert { to }, times, held)
    }

    /// Waits for a mutex for this time at most.
    fn asks(self, who: (usize, u64), wait_ms: u64, times: (u64, u64), answer: Answer) -> Self {
        let call = Call::Acquire {
            mode: Mode::Mutex,
            wait_ms,
            form: Form::Plain,
        };
        self.operation(who, call, times, answer)
    }

    fn acquires(self, who: (usize, u64), times: (u64, u64), token: u64) -> Self {
        self.acquires_as(Mode::Mutex, who, times, token)
    }

    fn still_holds(self, who: (usize, u64), at: u64) -> Self {
        let held = Answer::Held { token: None };
        self.operation(who, Call::Check, (at, at + 1), held)
    }

    fn has_lost(self, who: (usize, u64), at: u64) -> Self {
        self.operation(who, Call::Check, (at, at + 1), Answer::Free)
    }

    fn releases(self, who: (usize, u64), times: (u64, u64)) -> Self {
        let held = Answer::Held { token: None };
        self.operation(who, Call::Release, times, held)
    }

    fn claims(self, who: (usize, u64), at: u64, token: u64) -> Self {
        let accepted = Answer::Accepted { value: Some(0) };
        self.operation(who, Call::Claim { token }, (at, at), accepted)
    }

    fn writes(self, who: (usize, u64), at: u64, token: u64, value: u64) -> Self {
        let accepted = Answer::Accepted { value: None };
        self.operation(who, Call::Write { token, value }, (at, at), accepted)
    }

    fn suffers(
        mut self,
        kind: &str,
        client: Option<usize>,
        times: (u64, u64),
        breaks: Option<Assumption>,
    ) -> Self {
        self.0.entries.push(Entry::Fault(Fault {
            kind: kind.into(),
            client,
            from: times.0 * MS,
            until: times.1 * MS,
            delays: kind.starts_with("lose"),
            breaks,
        }));
        self
    }

    fn lasts(mut self, until: u64) -> Self {
        self.0.about.lasted_us = until * MS;
        self
    }

    /// The broken promises, and the assumption that excuses each.
    fn broken(&self) -> Vec<(Promise, Option<Assumption>)> {
        let violations = check(&self.0).violations;
        for violation in &violations {
            assert_convicts_again(&self.0.about, violation);
        }
        violations
            .iter()
            .map(|it| (it.promise, it.outside))
            .collect()
    }

    fn keeps_everything(&self) {
        assert_eq!(self.broken(), []);
    }

    fn breaks_only(&self, promise: Promise) {
        assert_eq!(self.broken(), [(promise, None)]);
    }
}

/// The minimal history of a violation shows that violation alone, also once it was saved and loaded.
fn assert_convicts_again(about: &About, violation: &Violation) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("history");
    let minimal = crate::verdict::minimal(about, violation);
    minimal.save(&path).expect("saved");
    let loaded = History::load(&path).expect("loaded");
    assert_eq!(loaded.entries, minimal.entries);
    let again = check(&loaded).violations;
    let is_same =
        |it: &Violation| it.promise == violation.promise && it.outside == violation.outside;
    assert!(again.iter().any(is_same), "{violation}: {again:?}");
}

const ANN: (usize, u64) = (0, 10);
const BOB: (usize, u64) = (1, 20);

#[test]
fn holders_in_turn_break_nothing() {
    Story::new()
        .acquires(ANN, (0, 10), 33)
        .claims(ANN, 11, 33)
        .still_holds(ANN, 20)
        .writes(ANN, 21, 33, 1)
        .acquires(BOB, (5, 32), 34)
        .releases(ANN, (30, 31))
        .claims(BOB, 33, 34)
        .still_holds(BOB, 40)
        .writes(BOB, 41, 34, 2)
        .releases(BOB, (50, 51))
        .keeps_everything();
}

#[test]
fn overlap_counts_only_while_both_certainly_hold() {
    // Ann was asked before Bob's grant had arrived: her answer may be from before the grant.
    let story = |asked| {
        Story::new()
            .acquires(ANN, (0, 10), 33)
            .still_holds(ANN, asked)
            .has_lost(ANN, 60)
            .acquires(BOB, (5, 30), 34)
            .still_holds(BOB, 40)
    };
    story(30).keeps_everything();
    story(31).breaks_only(Promise::Exclusion);
}

#[test]
fn overlap_is_excused_by_a_broken_assumption_before_it() {
    let story = |fault| {
        Story::new()
            .acquires(ANN, (100, 110), 33)
            .still_holds(ANN, 150)
            .acquires(BOB, (105, 130), 34)
            .still_holds(BOB, 140)
            .suffers("failover", None, fault, Some(Assumption::A1))
            .broken()
    };
    let during = [(Promise::Exclusion, Some(Assumption::A1))];
    assert_eq!(story((115, 120)), during);
    assert_eq!(story((50, 101)), during);
    let without = [(Promise::Exclusion, None)];
    assert_eq!(story((50, 99)), without, "it was over before both");
    assert_eq!(story((131, 135)), without, "it began after the overlap");
}

#[test]
fn readers_share_and_writers_do_not() {
    let story = |mode| {
        Story::new()
            .acquires_as(Mode::Read, ANN, (0, 10), 33)
            .still_holds(ANN, 50)
            .acquires_as(mode, BOB, (5, 20), 33)
            .still_holds(BOB, 30)
    };
    story(Mode::Read).keeps_everything();
    let broken = [(Promise::Exclusion, None), (Promise::Tokens, None)];
    assert_eq!(story(Mode::Write).broken(), broken);
}

#[test]
fn hold_on_several_keys_is_a_hold_on_each() {
    let story = |other: &str| {
        let both = Story::new().acquires(ANN, (0, 10), 33);
        let both = both.in_form(Form::Several).still_holds(ANN, 50);
        let both = both.on("two").acquires(ANN, (0, 10), 40);
        let both = both.in_form(Form::Several).on(other);
        both.acquires(BOB, (5, 20), 50).still_holds(BOB, 30)
    };
    story("one").breaks_only(Promise::Exclusion);
    story("two").breaks_only(Promise::Exclusion);
    story("three").keeps_everything();
}

/// A downgrade, and Bob gets the lock while it is asked for, or before.
#[test]
fn writer_is_a_reader_from_when_it_asks_for_that() {
    let story = |mode, bobs| {
        Story::new()
            .acquires_as(Mode::Write, ANN, (0, 10), 33)
            .converts(Mode::Read, ANN, (30, 40), 34)
            .still_holds(ANN, 60)
            .acquires_as(
                mode,
                BOB,
                (5, bobs),
                if mode == Mode::Read { 34 } else { 35 },
            )
            .still_holds(BOB, 70)
    };
    story(Mode::Read, 29).breaks_only(Promise::Exclusion);
    story(Mode::Read, 30).keeps_everything();
    story(Mode::Write, 30).breaks_only(Promise::Exclusion);
    story(Mode::Write, 59).breaks_only(Promise::Exclusion);
    story(Mode::Write, 60).keeps_everything();
}

/// Ann is upgraded, although Bob reads, or writes by then.
#[test]
fn reader_is_a_writer_from_the_answer_on() {
    let story = |mode, (got, asked), anns: Option<u64>| {
        let story = Story::new()
            .acquires_as(Mode::Read, ANN, (0, 10), 33)
            .converts(Mode::Write, ANN, (30, 40), 35)
            .acquires_as(
                mode,
                BOB,
                (5, got),
                if mode == Mode::Read { 33 } else { 34 },
            )
            .still_holds(BOB, asked);
        match anns {
            Some(at) => story.still_holds(ANN, at),
            None => story,
        }
    };
    story(Mode::Read, (20, 40), Some(60)).keeps_everything();
    story(Mode::Read, (20, 41), Some(60)).breaks_only(Promise::Exclusion);
    // Nobody asked Ann since then.
    story(Mode::Read, (20, 41), None).keeps_everything();
    story(Mode::Write, (35, 50), None).keeps_everything();
    // She is a reader at least, while it is asked for.
    story(Mode::Write, (35, 38), Some(60)).breaks_only(Promise::Exclusion);
    let refused = Story::new().acquires_as(Mode::Read, ANN, (0, 10), 33);
    let to = Mode::Write;
    let refused = refused.operation(ANN, Call::Convert { to }, (30, 40), Answer::Free);
    let both = refused.acquires_as(Mode::Read, BOB, (5, 20), 33);
    let both = both.still_holds(ANN, 60).still_holds(BOB, 60);
    both.keeps_everything();
}

#[test]
fn conversion_begins_an_epoch() {
    let story = |token| {
        Story::new()
            .acquires_as(Mode::Write, ANN, (0, 10), 33)
            .claims(ANN, 11, 33)
            .writes(ANN, 12, 33, 1)
            .converts(Mode::Read, ANN, (20, 30), 34)
            .converts(Mode::Write, ANN, (40, 50), token)
            .claims(ANN, 51, token)
            .writes(ANN, 52, token, 2)
    };
    story(35).keeps_everything();
    story(34).breaks_only(Promise::Tokens);
    story(32).breaks_only(Promise::Tokens);
    // What Ann writes as a later writer is no stale write of the earlier one.
    let bob = |asked| {
        let story = story(40).acquires_as(Mode::Write, BOB, (asked, 62), 41);
        story.claims(BOB, 63, 41).writes(ANN, 64, 41, 3)
    };
    bob(45).keeps_everything();
    bob(55).breaks_only(Promise::Fencing);
}

#[test]
fn holds_of_a_handle_exclude_everybody_else() {
    let story = |inner: (usize, u64), bobs| {
        Story::new()
            .acquires(ANN, (0, 10), 33)
            .in_form(Form::Reentrant)
            .claims(ANN, 11, 33)
            .acquires(inner, (20, 30), 33)
            .in_form(Form::Reentry)
            .claims(inner, 31, 33)
            .writes(inner, 32, 33, 1)
            .writes(ANN, 33, 33, 2)
            .releases(ANN, (40, 50))
            .still_holds(inner, 70)
            .acquires(BOB, (15, bobs), 34)
            .still_holds(BOB, 80)
    };
    story((ANN.0, 11), 70).keeps_everything();
    // The release of the outer hold frees nothing.
    story((ANN.0, 11), 60).breaks_only(Promise::Exclusion);
    // Another client has another handle.
    let other = story((2, 30), 70).broken();
    assert!(other.contains(&(Promise::Tokens, None)), "{other:?}");
}

#[test]
fn permits_are_counted() {
    let story = |permits| {
        let mut story = Story::new();
        for client in 0..3 {
            let who = (client, client as u64);
            let token = 30 + client as u64;
            story = story
                .acquires_as(Mode::Permit(permits), who, (token, token), token)
                .still_holds(who, 50);
        }
        story
    };
    story(3).keeps_everything();
    story(2).breaks_only(Promise::Exclusion);
}

#[test]
fn tokens_must_grow() {
    let story = |bobs, asked| {
        Story::new()
            .acquires(ANN, (0, 10), 33)
            .acquires(BOB, (asked, 30), bobs)
    };
    story(34, 11).keeps_everything();
    story(32, 11).breaks_only(Promise::Tokens);
    // Bob may have been granted before Ann.
    story(32, 9).keeps_everything();
    // But not with the same token.
    story(33, 9).breaks_only(Promise::Tokens);
}

#[test]
fn tokens_may_go_back_only_if_lost_while_a_clock_was_stepped() {
    let story = |stepped: bool| {
        let story = Story::new()
            .acquires(ANN, (0, 10), 33)
            .suffers("lose data", None, (11, 12), Some(Assumption::A1))
            .acquires(BOB, (20, 30), 32);
        let clock = |story: Story| story.suffers("step", None, (1, 2), Some(Assumption::A3));
        if stepped { clock(story) } else { story }.broken()
    };
    assert_eq!(story(false), [(Promise::Tokens, None)]);
    assert_eq!(story(true), [(Promise::Tokens, Some(Assumption::A1))]);
}

/// A new primary has readers of an epoch that it began, while the old one grants a later epoch to a writer.
#[test]
fn reader_may_join_an_epoch_that_is_older_than_a_lost_grant() {
    let story = |mode, first, lost: Option<u64>| {
        let story = Story::new()
            .acquires_as(mode, (2, 30), first, 32)
            .acquires_as(Mode::Write, ANN, (5, 10), 33)
            .acquires_as(mode, BOB, (20, 30), 32);
        match lost {
            Some(at) => story.suffers("failover", None, (at, 40), Some(Assumption::A1)),
            None => story,
        }
        .broken()
    };
    let (before, after) = ((1, 2), (11, 12));
    let outside = (Promise::Tokens, Some(Assumption::A1));
    assert!(story(Mode::Read, before, Some(3)).contains(&outside));
    let convicted = (Promise::Tokens, None);
    assert!(story(Mode::Read, before, None).contains(&convicted));
    assert!(story(Mode::Read, before, Some(31)).contains(&convicted));
    assert!(story(Mode::Read, after, Some(3)).contains(&convicted));
    assert!(story(Mode::Write, before, Some(3)).contains(&convicted));
}

#[test]
fn stale_write_behind_the_fence() {
    // Ann was granted before Bob asked, and writes after his claim: her token can't be right.
    Story::new()
        .acquires(ANN, (0, 10), 35)
        .claims(ANN, 11, 35)
        .acquires(BOB, (20, 30), 36)
        .claims(BOB, 31, 36)
        .writes(ANN, 32, 36, 1)
        .breaks_only(Promise::Fencing);
}

#[test]
fn lost_addition_behind_the_fence() {
    let story = |bobs| {
        Story::new()
            .acquires(ANN, (0, 30), 33)
            .acquires(BOB, (5, 20), bobs)
            .claims(ANN, 31, 33)
            .claims(BOB, 32, bobs)
            .writes(ANN, 33, 33, 1)
            .writes(BOB, 34, bobs, 1)
            .broken()
    };
    assert_eq!(story(34), [(Promise::Counter, None)]);
    let same = [(Promise::Tokens, None), (Promise::Counter, None)];
    assert_eq!(story(33), same);
}

#[test]
fn additions_without_a_fence_are_only_counted() {
    let accepted = Answer::Accepted { value: None };
    let writes = |story: Story, who, at, value| {
        story.operation(who, Call::PlainWrite { value }, (at, at), accepted.clone())
    };
    let story = writes(writes(Story::new(), ANN, 1, 1), BOB, 2, 1);
    let verdict = check(&writes(story, BOB, 3, 2).0);
    assert_eq!(verdict.violations, []);
    assert_eq!(verdict.figures.plain_writes, 3);
    assert_eq!(verdict.figures.plain_lost, 1);
}

#[test]
fn sleeper_must_notice_its_loss() {
    let story = |slept: u64, wakes_up: fn(Story) -> Story| {
        let slept = Story::new()
            .acquires(ANN, (0, 10), 33)
            .still_holds(ANN, 100)
            .suffers(STOPPED, Some(ANN.0), (200, 200 + slept), None);
        wakes_up(slept)
    };
    let believes = |story: Story| story.still_holds(ANN, 4_000);
    story(3_000, believes).breaks_only(Promise::Loss);
    story(3_000, |story| story.has_lost(ANN, 4_000)).keeps_everything();
    story(900, believes).keeps_everything();
    // The question was asked before the process went on; so perhaps was the answer.
    story(3_000, |story| story.still_holds(ANN, 3_199)).keeps_everything();
    // A renewal on its way may have arrived in the meantime.
    let during = |kind, client, times, breaks| {
        story(3_000, |story| story)
            .suffers(kind, client, times, breaks)
            .still_holds(ANN, 4_000)
    };
    during("lose requests", Some(ANN.0), (150, 2_000), None).keeps_everything();
    // A grant from leasehold's queue is an offer, which lasts longer than a short lease (rule 10).
    let mut offer = story(1_400, |story| story.still_holds(ANN, 1_800));
    offer.breaks_only(Promise::Loss);
    offer.0.about.lasts_asleep_ms = 2_000;
    offer.keeps_everything();
    // A clock that was set back lets leases last.
    let stepped = during("step", None, (300, 400), Some(Assumption::A3));
    assert_eq!(stepped.broken(), [(Promise::Loss, Some(Assumption::A3))]);
    // Not if connections end with the fault.
    during("kill server", None, (150, 2_000), None).breaks_only(Promise::Loss);
}

#[test]
fn occurrence_that_is_done_runs_no_more() {
    let story = |again: &str, asked| {
        let first = Story::new().on("one@2000").acquires(ANN, (0, 10), 33);
        let first = first.releases(ANN, (20, 30)).on(again);
        first.acquires(BOB, (asked, asked + 10), 34)
    };
    story("one@2000", 31).breaks_only(Promise::Once);
    story("one@1999", 31).breaks_only(Promise::Once);
    story("one@2001", 31).keeps_everything();
    story("two@2000", 31).keeps_everything();
    // Bob may have started before Ann's was recorded.
    story("one@2000", 29).keeps_everything();
    let lost = story("one@2000", 31).suffers("lose data", None, (30, 31), Some(Assumption::A1));
    assert_eq!(lost.broken(), [(Promise::Once, Some(Assumption::A1))]);
    // It failed.
    let failed = Story::new().on("one@2000").acquires(ANN, (0, 10), 33);
    let failed = failed.operation(ANN, Call::Release, (20, 30), Answer::Free);
    failed.acquires(BOB, (40, 50), 34).keeps_everything();
}

/// An attempt dies with its machine. Others ask for the occurrence, after the pause.
#[test]
fn occurrence_whose_attempt_died_is_started_again() {
    let asks = |story: Story, from: u64, times: u64| {
        (0..times).fold(story, |story, number| {
            let at = from + number * 1_500;
            story.asks((1, 100 + number), 1_000, (at, at + 1_000), Answer::Free)
        })
    };
    let died = || {
        let begun = Story::new().on("one@2000").acquires(ANN, (0, 10), 33);
        begun.still_holds(ANN, 100)
    };
    asks(died(), 40_000, 4).breaks_only(Promise::Once);
    asks(died(), 40_000, 3).keeps_everything();
    // Its pause isn't over.
    asks(died(), 20_000, 4).keeps_everything();
    let again = died().acquires(BOB, (35_000, 35_010), 34);
    let again = again.releases(BOB, (36_000, 36_010));
    asks(again, 40_000, 4).keeps_everything();
    // The answer to the note may be lost.
    let error = Answer::Error("no answer".into());
    let unknown = died().operation(ANN, Call::Release, (200, 300), error);
    asks(unknown, 40_000, 4).keeps_everything();
    let down = died().suffers("stop server", None, (39_000, 60_000), None);
    asks(down, 40_000, 4).keeps_everything();
}

#[test]
fn occurrence_is_tried_three_times() {
    let story = |attempts: u32| {
        (0..attempts).fold(Story::new().on("one@2000"), |story, n| {
            let at = u64::from(n) * 100;
            let who = (n as usize, u64::from(n));
            story.acquires(who, (at, at + 10), 33 + u64::from(n))
        })
    };
    story(3).keeps_everything();
    story(4).breaks_only(Promise::Once);
}

#[test]
fn occurrences_of_a_job_do_not_overlap() {
    let story = |other: &str| {
        let first = Story::new().on("one@2000").acquires(ANN, (0, 10), 33);
        let second = first.still_holds(ANN, 100).on(other);
        second.acquires(BOB, (50, 60), 34).still_holds(BOB, 70)
    };
    story("one@4000").breaks_only(Promise::Exclusion);
    story("two@4000").keeps_everything();
}

#[test]
fn first_who_asks_is_first_who_gets() {
    let story = |asked| {
        Story::new()
            .acquires(BOB, (asked, asked + 100), 33)
            .still_holds(BOB, asked + 110)
            .releases(BOB, (asked + 120, asked + 130))
            .asks(ANN, 9_000, (5_000, 7_000), Answer::Held { token: Some(34) })
    };
    story(6_000).breaks_only(Promise::Order);
    // Nobody knows when Ann's request arrived.
    story(5_999).keeps_everything();
    // Bob's answer may be late.
    story(6_800).keeps_everything();
    let stopped = |client| story(6_000).suffers("stop client", Some(client), (3_500, 3_600), None);
    stopped(ANN.0).keeps_everything();
    stopped(BOB.0).breaks_only(Promise::Order);
}

#[test]
fn order_is_judged_only_where_it_is_promised() {
    let story = |bobs: Form, anns: Form| {
        let bob = Story::new().acquires(BOB, (6_000, 6_100), 33).in_form(bobs);
        let held = Answer::Held { token: Some(34) };
        bob.asks(ANN, 9_000, (5_000, 7_000), held).in_form(anns)
    };
    story(Form::Several, Form::Beside).breaks_only(Promise::Order);
    story(Form::Reentry, Form::Plain).keeps_everything();
    // She may have waited for another of the keys.
    story(Form::Plain, Form::Several).keeps_everything();
    story(Form::Plain, Form::Dropped).keeps_everything();
}

#[test]
fn dropped_acquire_leaves_nothing() {
    let own = || Story::new().on("probe-0");
    let drops = |story: Story, form, answer| {
        let dropped = story.asks(ANN, 1_000, (20, 30), Answer::Free).in_form(form);
        move |until| dropped.asks((0, 11), 3_000, (100, until), answer)
    };
    let vain = || drops(own(), Form::Dropped, Answer::Free);
    vain()(1_900).breaks_only(Promise::Cleanup);
    vain()(1_890).keeps_everything();
    let held = Answer::Held { token: Some(33) };
    drops(own(), Form::Dropped, held)(1_900).breaks_only(Promise::Cleanup);
    drops(own(), Form::Plain, Answer::Free)(1_900).keeps_everything();
    // A hold before it was released, or not.
    let before = || own().acquires((0, 9), (0, 10), 33);
    let released = before().releases((0, 9), (40, 50));
    drops(released, Form::Dropped, Answer::Free)(1_900).breaks_only(Promise::Cleanup);
    drops(before(), Form::Dropped, Answer::Free)(1_900).keeps_everything();
    // Its release may have been lost.
    let suffers = vain()(1_900).suffers("lose requests", Some(ANN.0), (10, 15), None);
    suffers.keeps_everything();
}

#[test]
fn waits_end_by_their_limit() {
    let story = |until| Story::new().asks(ANN, 500, (0, until), Answer::Free);
    story(1_400).keeps_everything();
    story(1_600).breaks_only(Promise::Limit);
    let suffers = |kind, client| story(1_600).suffers(kind, client, (100, 300), None);
    suffers(STOPPED, Some(ANN.0)).keeps_everything();
    suffers(STOPPED, Some(BOB.0)).breaks_only(Promise::Limit);
    suffers(STALL, None).keeps_everything();
    let read = Story::new().acquires_as(Mode::Read, ANN, (0, 10), 33);
    let converts = |until| read.converts(Mode::Write, ANN, (20, until), 34);
    converts(6_030).breaks_only(Promise::Limit);
}

#[test]
fn silence_is_too_long() {
    let mut story = Story::new().releases(ANN, (0, 1));
    if let Some(Entry::Operation(release)) = story.0.entries.last_mut() {
        (release.completed, release.answer) = (None, Answer::Silence);
    }
    story.breaks_only(Promise::Limit);
    if let Some(Entry::Operation(release)) = story.0.entries.last_mut() {
        release.answer = Answer::Killed;
    }
    story.keeps_everything();
}

#[test]
fn probe_shows_when_the_servers_can_be_used_again() {
    let mut story = Story::new()
        .suffers("kill server", None, (100, 200), None)
        .acquires(BOB, (190, 250), 31)
        .lasts(1_000);
    let shown = |story: &Story| {
        let figures = check(&story.0).figures;
        (figures.answers_ms, figures.recoveries_ms)
    };
    assert_eq!(shown(&story), (vec![], vec![50]));
    if let Some(Entry::Operation(acquire)) = story.0.entries.last_mut() {
        acquire.key = PROBE.into();
    }
    assert_eq!(shown(&story), (vec![50], vec![]));
    // Its locks don't show that others get theirs.
    story.lasts(10_000).breaks_only(Promise::Progress);
}

#[test]
fn healed_servers_serve_again() {
    let killed = || Story::new().suffers("kill server", None, (100, 200), None);
    let served = killed().acquires(ANN, (150, 300), 33).lasts(10_000);
    served.keeps_everything();
    assert_eq!(check(&served.0).figures.recoveries_ms, [100]);
    // Nobody can tell whether it would have gone on.
    killed().lasts(5_000).keeps_everything();
    killed().lasts(5_300).breaks_only(Promise::Progress);
    let next = killed().suffers("stop server", None, (3_000, 3_100), None);
    next.lasts(5_300).keeps_everything();
}

#[test]
fn nothing_may_be_left() {
    let mut story = Story::new();
    story.0.entries.push(Entry::Left {
        what: "one is still taken".into(),
    });
    story.breaks_only(Promise::Cleanup);
}

#[test]
fn errors_are_counted_by_kind() {
    let errors = [
        "no answer within 12 ms",
        "no answer within 8.7 ms",
        "no answer within 1.0s",
        "no answer within 7 µs",
        "127.0.0.1:40621: starting up (57P03)",
        "127.0.0.1:40145: starting up (57P03)",
        "2 of 3 servers failed",
    ];
    let story = errors.into_iter().fold(Story::new(), |story, text| {
        let error = Answer::Error(text.into());
        story.operation(ANN, Call::Check, (1, 2), error)
    });
    let counted = check(&story.0).figures.errors;
    let counted: Vec<_> = counted
        .iter()
        .map(|(text, n)| (text.as_str(), *n))
        .collect();
    let expected = [
        ("127.0.0.1:…: starting up (57P03)", 2),
        ("2 of 3 servers failed", 1),
        ("no answer within …", 4),
    ];
    assert_eq!(counted, expected);
}

#[test]
fn what_clients_do_beside_plain_locks_must_be_seen() {
    let story = |times: u64, contended: bool| {
        let bob = Story::new().acquires_as(Mode::Read, BOB, (0, 10), 33);
        let bob = if contended {
            bob.still_holds(BOB, 1_000)
        } else {
            bob
        };
        let mut story = (0..times).fold(bob, |story, number| {
            let (who, at) = ((ANN.0, 100 + number), 20 + number * 100);
            let read = story.acquires_as(Mode::Read, who, (at, at + 10), 33);
            let to = Mode::Write;
            read.operation(who, Call::Convert { to }, (at + 20, at + 30), Answer::Free)
        });
        story.0.about.more = vec![NO_UPGRADE.into()];
        missing(story, &[], &[])
    };
    assert_eq!(story(3, true), [""; 0]);
    let too_few = ["refused upgrade: 2 while others wanted the lock, not 3"];
    assert_eq!(story(2, true), too_few);
    let alone = ["refused upgrade: 0 while others wanted the lock, not 3"];
    assert_eq!(story(3, false), alone);
}

/// Ann and Bob take turns. Each lock is taken while the other one waits for it, and some are kept beyond a lease.
fn takes_turns(mut story: Story, turns: u64, lasts: u64) -> Story {
    for turn in 0..turns {
        let (who, at) = (((turn % 2) as usize, turn), turn * lasts);
        let before = at.saturating_sub(50);
        story = story
            .acquires(who, (before, at + 10), 30 + turn)
            .still_holds(who, at + 20)
            .releases(who, (at + lasts - 20, at + lasts - 10));
    }
    story
}

fn missing(story: Story, promises: &[Promise], deck: &[&str]) -> Vec<String> {
    let mut history = story.0;
    history.about.promises = promises.to_vec();
    history.about.deck = deck.iter().map(|kind| (*kind).into()).collect();
    check(&history).missing
}

#[test]
fn promise_that_was_not_in_danger_is_not_shown() {
    use Promise::{Exclusion, Loss};
    let shows = |turns, lasts| missing(takes_turns(Story::new(), turns, lasts), &[Exclusion], &[]);
    assert_eq!(shows(20, 1_200), [""; 0]);
    let too_few = ["exclusion: 19 locks taken, not 20"];
    assert_eq!(shows(19, 1_200), too_few);
    let too_short = ["exclusion: 0 kept for longer than a lease, not 3"];
    assert_eq!(shows(20, 500), too_short);
    let alone = (0..30).fold(Story::new(), |story, turn| {
        let (who, at) = ((0, turn), turn * 2_000);
        let story = story.acquires(who, (at, at + 10), 30 + turn);
        story.releases(who, (at + 1_500, at + 1_510))
    });
    let nobody = [
        "exclusion: 0 taken while others wanted them, not 10",
        "exclusion: 0 times in danger, not 10",
    ];
    assert_eq!(missing(alone, &[Exclusion], &[]), nobody);
    let turns = takes_turns(Story::new(), 20, 1_200);
    let nobody_slept = ["a loss is noticed: 0 times in danger, not 1"];
    assert_eq!(missing(turns, &[Loss], &[]), nobody_slept);
    let turns = takes_turns(Story::new(), 20, 1_200);
    let sleeps = turns.suffers(STOPPED, Some(ANN.0), (2_500, 3_520), None);
    assert_eq!(
        missing(sleeps, &[Loss], &[]),
        nobody_slept[..1],
        "too short"
    );
    let turns = takes_turns(Story::new(), 20, 3_000);
    let sleeps = turns.suffers(STOPPED, Some(ANN.0), (6_100, 8_000), None);
    assert_eq!(missing(sleeps, &[Loss], &[]), [""; 0]);
}

#[test]
fn fault_that_met_nobody_is_not_shown() {
    let shows = |client, times| {
        let turns = takes_turns(Story::new(), 20, 1_200);
        let suffers = turns.suffers("kill client", client, times, None);
        missing(
            suffers,
            &[Promise::Exclusion],
            &["kill client", "stop server"],
        )
    };
    let never = "`stop server` did not happen";
    let nobody = "`kill client` met nobody who had or wanted a lock";
    assert_eq!(shows(Some(ANN.0), (100, 100)), [never]);
    assert_eq!(shows(Some(BOB.0), (100, 100)), [nobody, never]);
    assert_eq!(shows(Some(BOB.0), (1_170, 1_170)), [never], "it waits");
    assert_eq!(shows(None, (90_000, 90_001)), [nobody, never]);
    assert_eq!(shows(None, (100, 100)), [never]);
}

#[test]
fn lock_that_mostly_fails_is_not_shown() {
    let shows = |errors| {
        let turns = takes_turns(Story::new(), 20, 1_200);
        let fails = (0..errors).fold(turns, |story, number| {
            let error = Answer::Error("no".into());
            story.asks((0, 100 + number), 0, (number, number + 1), error)
        });
        missing(fails, &[Promise::Exclusion], &[])
    };
    assert_eq!(shows(60), [""; 0]);
    assert_eq!(shows(61), ["only 20 of 81 acquires ended without an error"]);
}
