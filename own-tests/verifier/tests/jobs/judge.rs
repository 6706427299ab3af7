//! What may not be: how bodies begin, and what calls return.

use std::time::Duration;

use leasehold_api::{Error, FireTime, Job, JobOutcome};

use crate::broken::STEP;
use crate::log::{Call, Known, Log, SLACK, Watch, millis, pause};
use crate::machine::{LONGEST_BODY, Outcome};
use crate::plan::{ATTEMPTS, Form, LEASE, PERIOD, WINDOW};

/// By how much the server's clock may differ from what a machine knows: the clocks of servers that follow each other,
/// and the latency.
const CLOCKS: u64 = 150;

impl Log {
    /// Checks that a body may begin now. A machine that is paused hasn't dropped a body that it has lost, and runs none
    /// of it.
    pub(crate) fn check_start(&mut self, fire: FireTime, now: u64) {
        let known = self.known.get(&fire).copied().unwrap_or_default();
        let starts = known.starts + 1;
        if starts > ATTEMPTS {
            self.problem(format!("attempt {starts} at {fire}"));
        }
        // The pause counts from the moment when the attempt was noted, or failed.
        let pause = pause(known.starts).saturating_sub(LEASE * 2);
        if known.starts > 0 && now < known.started + millis(pause) {
            self.problem(format!(
                "attempt {starts} at {fire} follows without a pause"
            ));
        }
        let is_done = |(at, known): (&FireTime, &Known)| *at >= fire && known.done.is_some();
        if self.known.iter().any(is_done) {
            self.problem(format!("{fire} runs again after it was done"));
        }
        if self.known.keys().next_back() > Some(&fire) {
            self.problem(format!("{fire} begins after a later one"));
        }
        let begins = fire.as_millis();
        let ends = begins + millis(self.form.window() + LEASE);
        if now + CLOCKS < begins || now >= ends + CLOCKS {
            self.problem(format!("{fire} begins at {now} ms, outside of its window"));
        }
        if self.form == Form::Every && !begins.is_multiple_of(millis(PERIOD)) {
            self.problem(format!("{fire} is no multiple of the period"));
        }
        self.check_within(fire);
    }

    /// Checks that no occurrence of `not_within` begins too early after the one before.
    fn check_within(&mut self, fire: FireTime) {
        if self.form != Form::NotWithin {
            return;
        }
        let Some((&before, &known)) = self.known.range(..fire).next_back() else {
            return;
        };
        if fire.as_millis() < before.as_millis() + millis(WINDOW) {
            self.problem(format!("{fire} begins within the window of {before}"));
        }
        if let Some(done) = known.done
            && fire.as_millis() + CLOCKS < done + millis(WINDOW)
        {
            self.problem(format!(
                "{fire} runs again within its time, after {before} was done at {done} ms"
            ));
        }
    }

    /// Checks that somebody ran an occurrence as often as it needed, while machines asked for it from `idle` to `ends`,
    /// and no other body ran.
    fn check_tried(&mut self, fire: Option<FireTime>, idle: Duration, ends: Duration) {
        let known = fire.and_then(|fire| self.known.get(&fire));
        let known = known.copied().unwrap_or_default();
        let done = fire.is_some_and(|fire| self.succeeded.contains_key(&fire));
        let tried = known.starts >= ATTEMPTS || done;
        let idle = idle.max(known.next);
        if !tried && idle + SLACK < ends {
            let text = format!("{fire:?} is never done: nobody ran it from {idle:?} to {ends:?}");
            self.problem(text);
        }
    }

    /// Checks that no occurrence of `every` was left out.
    pub(crate) fn check_all_done(&mut self, watch: &Watch, until: Duration) {
        if self.ahead {
            return;
        }
        let period = millis(PERIOD);
        let first = watch.fire(Duration::ZERO).as_millis();
        let first = first.next_multiple_of(period);
        for fire in (0..).map(|n| FireTime::from_millis(first + n * period)) {
            let due = watch.due(fire);
            let ends = due + PERIOD;
            if ends >= until {
                return;
            }
            if due >= self.quiet {
                // The body of the one before may go on for so long.
                self.check_tried(Some(fire), due + LONGEST_BODY, ends);
            }
        }
    }
}

impl Watch {
    /// At most one body runs while its lock is valid. Others may run that haven't noticed their loss yet.
    pub(crate) fn check_alone(&self) {
        let mut log = self.log();
        let running = log.running.values().map(|body| &body.job);
        let valid = running.filter(|job| job.guard().is_valid());
        let fires: Vec<_> = valid.map(Job::fire_time).collect();
        if log.intact && fires.len() > 1 {
            log.problem(format!("{fires:?} run at once"));
        }
    }

    /// Judges what a call has returned. `waits`: it was [`run`](leasehold_api::Occurrence::run).
    pub(crate) fn judge(&self, call: Call, outcome: &Outcome, waits: bool) {
        let elapsed = self.sim.elapsed();
        let mut log = self.log();
        log.calls_now -= 1;
        let quiet = call.began >= log.quiet && !log.ahead;
        let about = format!("{:?} of {:?}", call.fire.map(|(fire, _)| fire), call.began);
        match outcome {
            Ok(JobOutcome::Done(())) => log.judge_done(call.machine),
            Ok(JobOutcome::AlreadyDone { fire }) => log.judge_already(self, call, *fire),
            Ok(JobOutcome::Missed { .. }) => log.judge_missed(call, elapsed),
            Ok(JobOutcome::GaveUp { attempts, .. }) => {
                let starts = log.known.values().map(|known| known.starts).max();
                let few = quiet && call.fire.is_none_or(|(_, due)| due >= log.quiet);
                if *attempts < ATTEMPTS || few && starts < Some(ATTEMPTS) {
                    log.problem(format!("{about} gave up after {starts:?} starts"));
                }
            }
            Ok(JobOutcome::Running { .. }) => {
                let alone = !call.others && call.calls == log.calls;
                if waits || quiet && alone {
                    log.problem(format!("{about} is run by nobody"));
                }
            }
            Ok(JobOutcome::Failed { retry_after, .. }) => {
                if waits || *retry_after > pause(ATTEMPTS - 1) {
                    log.problem(format!("{about} may be tried again after {retry_after:?}"));
                }
            }
            Ok(JobOutcome::RanUnrecorded(())) if !quiet => {}
            Err(Error::FireTimeAhead { .. }) if !log.intact => {}
            Err(Error::Lost { .. }) if !waits && !quiet => {}
            Err(error) if error.is_transient() && !quiet && !(waits && log.intact) => {}
            other => log.problem(format!("{about}: {other:?}")),
        }
    }

    /// Judges what an occurrence of `every` has returned.
    pub(crate) fn judge_next(&self, machine: usize, outcome: &Outcome) {
        let mut log = self.log();
        match outcome {
            Ok(JobOutcome::Done(())) => log.judge_done(machine),
            Ok(JobOutcome::Running { .. } | JobOutcome::Failed { .. }) => {
                log.problem(format!("{outcome:?} of a call that waits"));
            }
            Ok(JobOutcome::AlreadyDone { fire })
                if log.intact && !log.succeeded.contains_key(fire) =>
            {
                log.problem(format!("{fire} counts as done, but no body has succeeded"));
            }
            Ok(_) => {}
            Err(Error::FireTimeAhead { .. }) if !log.intact => {}
            Err(error) if error.is_transient() && !log.intact => {}
            Err(error) => log.problem(format!("an occurrence of the loop: {error}")),
        }
    }
}

impl Log {
    fn judge_done(&mut self, machine: usize) {
        let Some(&(fire, ended, forgotten)) = self.last.get(&machine) else {
            self.problem("done without a body");
            return;
        };
        // The call of a machine that was paused may have begun before the record was lost or reset.
        if forgotten != self.forgotten {
            return;
        }
        let known = self.known.entry(fire).or_default();
        if known.done.replace(ended).is_some() && self.intact {
            self.problem(format!("{fire} was done twice"));
        }
        if self.intact
            && let Some((&next, _)) = self.known.range(fire..).nth(1)
        {
            self.check_within(next);
        }
    }

    fn judge_already(&mut self, watch: &Watch, call: Call, done: FireTime) {
        let reset = call.forgotten != self.forgotten;
        let fire = call.fire.map(|(fire, _)| fire);
        let earlier = self.form == Form::At && Some(done) < fire;
        let success = self.succeeded.get(&done).copied();
        if earlier || !reset && success.is_none() {
            self.problem(format!(
                "{fire:?} counts as done with {done}, but no body has succeeded"
            ));
        }
        // The clock may be stepped once more between the answer and this check.
        let ahead = Duration::from_millis(done.as_millis().saturating_sub(watch.now()));
        if ahead > PERIOD + 2 * STEP {
            self.problem(format!(
                "{done}, which is {ahead:?} ahead, silences {fire:?}"
            ));
        }
        // A machine that was paused may have noted its success later.
        let success = success.map(FireTime::from_millis);
        if let Some(success) = success.filter(|it| watch.due(*it) >= self.quiet)
            && self.form == Form::NotWithin
            && call.began > watch.due(success) + WINDOW + Duration::from_millis(CLOCKS)
        {
            self.problem(format!("{done} silences the next one, in {call:?}"));
        }
    }

    fn judge_missed(&mut self, call: Call, elapsed: Duration) {
        let last = self.known.keys().next_back().copied();
        let (fire, due) = call.fire.unzip();
        let (fire, due) = (fire.or(last), due.unwrap_or(call.began));
        let later = call.fire.is_some() && last > fire;
        // What was forgotten may be what the call has met.
        let knows = self.intact && self.forgotten == 0;
        if knows && elapsed + Duration::from_millis(CLOCKS) < call.ends && !later {
            self.problem(format!("{fire:?} was missed too early, in {call:?}"));
        }
        let undisturbed =
            due.min(elapsed) >= self.quiet && !self.ahead && call.forgotten == self.forgotten;
        // Else its machine was paused: until the end of a lease, when the clock was set back.
        let awake = elapsed <= call.ends + SLACK;
        if undisturbed && awake && !later && self.running.is_empty() {
            let idle = due.max(call.began).max(self.last_end);
            self.check_tried(fire, idle, call.ends.min(elapsed));
        }
    }
}
