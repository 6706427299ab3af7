//! Correct backends that lack one capability or tokens that increase, or are slow, pass the suite. What they can't do is
//! ignored.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::support::Reference;
use async_trait::async_trait;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, Convert, ConvertReply, ForceRelease,
    ForceReply, InspectReply, Key, List, Listed, LockBackend, Note, NoteReply, Notifications, Poll,
    PollReply, Release, ReleaseReply, Renew, RenewReply, SessionId, Stamp, Stamped,
    forward_lock_backend,
};
use leasehold_conformance::{Case, Harness, cases, run_case};

/// The number of cases that run at the same time.
const THREADS: usize = 4;

/// Runs every case that the harness can run. Returns the names of the ignored cases.
pub(crate) fn passes(harness: impl Harness) -> Vec<String> {
    let harness: Arc<dyn Harness> = Arc::new(harness);
    let (run, ignored): (Vec<&Case>, Vec<&Case>) =
        cases().partition(|case| case.ignored_because(&*harness).is_none());
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(case) = run.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(failure) = run_case(&harness, case) {
                        let mut failed = failed.lock().expect("no panic");
                        failed.push(format!("{}: {failure}", case.name()));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    ignored.into_iter().map(Case::name).collect()
}

fn without(remove: fn(&mut Capabilities)) -> Reference {
    let mut harness = Reference::plain();
    remove(&mut harness.capabilities);
    harness
}

#[test]
fn backend_that_cannot_tell_who_listens_passes() {
    let ignored = passes(without(|it| it.reachability = false));
    assert_eq!(
        ignored,
        [
            "unreachable::unreachable_waiter_is_passed_over",
            "unreachable::its_ticket_is_kept",
            "unreachable::all_unreachable_counts_as_free",
            "unreachable::marked_unreachable_at_most_twice",
            "unreachable::unreachable_is_shown",
        ]
    );
}

#[test]
fn backend_without_push_passes() {
    let ignored = passes(without(|it| it.push = false));
    let families = ["notifications::", "unreachable::", "client_push::"];
    for name in &ignored {
        let expected = families.iter().any(|family| name.starts_with(family))
            || name == "client_renewal::revoked_before_the_subscription_is_noticed"
            || name == "outages::cut_subscription_reports_the_gap"
            || name == "outages::pushes_arrive_again_after_a_cut";
        assert!(expected, "{name} is ignored");
    }
    assert!(ignored.len() > 20, "{ignored:?}");
}

#[test]
fn backend_without_tokens_passes() {
    let mut harness = Reference::plain();
    harness.fencing_tokens = false;
    let ignored = passes(harness);
    for name in [
        "client_locks::inspection_answers_is_it_held",
        "client_renewal::forced_now_is_noticed",
        "client_renewal::revoked_guard_is_lost",
        "client_renewal::forced_release_stops_a_body",
    ] {
        assert!(ignored.iter().any(|it| it == name), "{name} has run");
    }
    assert!(ignored.len() < 70, "{ignored:?}");
}

/// The time of one way of a message.
const ONE_WAY: Duration = Duration::from_millis(25);

/// A backend whose calls take 50 ms.
#[derive(Debug)]
struct Slow(Arc<dyn LockBackend>);

impl Slow {
    async fn travel(&self) {
        self.0.runtime().sleep(ONE_WAY).await;
    }
}

/// Writes methods that forward to the inner backend, and take time before and after.
macro_rules! slow {
    ($($method:ident($($name:ident: $type:ty)?) -> $output:ty;)+) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl LockBackend for Slow {
            forward_lock_backend!(|it| it.0; capabilities runtime clock close);

            $(async fn $method(&self, $($name: $type)?) -> $output {
                self.travel().await;
                let output = self.0.$method($($name)?).await;
                self.travel().await;
                output
            })+
        }
    };
}

slow! {
    hello() -> Result<Stamp, BackendError>;
    read_clock(key: &Key) -> Result<Stamp, BackendError>;
    self_check(key: &Key) -> Result<(), BackendError>;
    listen(session: SessionId) -> Result<Notifications, BackendError>;
    acquire(batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>>;
    poll(batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>>;
    renew(batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>>;
    release(batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>>;
    convert(request: &Convert) -> Result<Stamped<ConvertReply>, BackendError>;
    inspect(key: &Key) -> Result<Stamped<InspectReply>, BackendError>;
    force_release(request: &ForceRelease) -> Result<Stamped<ForceReply>, BackendError>;
    list(request: &List) -> Result<Listed, BackendError>;
    write_note(request: &Note) -> Result<Stamped<NoteReply>, BackendError>;
}

#[test]
fn slow_backend_passes_with_a_longer_unit() {
    let mut slow = Reference::wrapped(Arc::new(|backend, _| Arc::new(Slow(backend))));
    slow.timing = slow.timing.unit(Duration::from_millis(500));
    let ignored = passes(slow);
    assert_eq!(ignored, [""; 0]);
}
