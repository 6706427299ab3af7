//! The blocking API, in real time.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::blocking::{self, LockClient, block_on};
use leasehold::{
    ConnectError, ConnectOptions, Error, InvalidInput, JobOutcome, Loss, RedisLibrary,
};
use leasehold_test_servers::{RedisServer, block_until};

fn connect(url: &str, library: RedisLibrary) -> LockClient {
    let options = ConnectOptions::new().redis_library(library);
    blocking::connect_with(url, options).expect("the server runs")
}

fn two_clients(url: &str, library: RedisLibrary) -> [LockClient; 2] {
    [connect(url, library), connect(url, library)]
}

#[test]
fn locks_work_on_redis() {
    let server = RedisServer::start();
    for library in [RedisLibrary::RedisRs, RedisLibrary::Fred] {
        assert_works(&two_clients(&server.url(), library));
        server.run(&["FLUSHALL"]);
    }
}

#[test]
fn locks_work_on_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = |folder: &Path| format!("sqlite:{}", folder.join("locks.db").display());
    let url = url(folder.path());
    let clients = [(); 2].map(|()| blocking::connect(&url).expect("a new file"));
    assert_works(&clients);
}

/// Uses each kind of lock with two clients.
fn assert_works(clients: &[LockClient; 2]) {
    let [a, b] = clients;
    threads_exclude_one_another(clients);

    let (reading, also_reading) = (a.rw_lock("rw"), b.rw_lock("rw"));
    let (reading, also_reading) = (reading.expect("valid"), also_reading.expect("valid"));
    let reader = reading.read().expect("free");
    let second = also_reading.try_read().expect("answered").into_guard();
    second.expect("shared").release().expect("held");
    let writer = also_reading.try_write_for(Duration::from_millis(20));
    assert!(!writer.expect("answered").is_acquired());
    drop(reader); // released in the background
    let writer = also_reading.write().expect("free");
    let reader = block_on(writer.into_async().downgrade()).expect("a thread");
    block_on(reader.expect("held").release())
        .expect("a thread")
        .expect("held");

    let permits = a.semaphore("s", 2).expect("valid");
    let both = permits.clone().permits(2).acquire().expect("free");
    assert!(!permits.try_acquire().expect("answered").is_acquired());
    assert!(both.renew().expect("held") > Duration::ZERO);
    both.release().expect("held");

    // A call within a body is nested in the call that runs the body.
    let job = a.once("job").expect("supported");
    let fire = std::time::SystemTime::now();
    let done = job.at(fire).run(|job| -> Result<u32, Error> {
        let guard = b.mutex("inner").expect("valid").lock()?;
        guard.release()?;
        block_on(job.guard().renew())?.map(|_| job.attempt())
    });
    assert_eq!(done.expect("answered").into_output(), Some(1));
    let again = b.once("job").expect("supported").at(fire);
    let again = again.run(|_job| Ok::<_, Error>(()));
    assert!(
        matches!(again, Ok(JobOutcome::AlreadyDone { .. })),
        "{again:?}"
    );

    let hangs = a.once("hangs").expect("supported");
    let hangs = hangs.max_hold(Duration::from_millis(100)).at(fire);
    let ended = hangs.try_run(|job| {
        block_until("its time is over", || !job.guard().is_valid());
        assert_eq!(job.guard().loss_reason(), Some(Loss::MaxHold));
        Err::<(), _>("hung")
    });
    assert!(matches!(ended, Ok(JobOutcome::Failed { .. })), "{ended:?}");

    let kept = a.mutex("kept").expect("valid").lock().expect("free");
    assert!(a.ping().is_ok());
    a.shutdown().expect("answered");
    assert!(!kept.is_valid());
    let free = b.mutex("kept").expect("valid").try_lock();
    assert!(free.expect("answered").is_acquired(), "shutdown releases");
    let closed = a.mutex("kept").map(drop);
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
}

/// Each thread reads and writes a number that is not protected otherwise.
fn threads_exclude_one_another(clients: &[LockClient; 2]) {
    let number = AtomicU32::new(0);
    thread::scope(|scope| {
        for locks in [&clients[0], &clients[1], &clients[0], &clients[1]] {
            let number = &number;
            scope.spawn(move || {
                for _ in 0..25 {
                    let guard = locks.mutex("number").expect("valid").lock();
                    let guard = guard.expect("the server runs");
                    let seen = number.load(Ordering::Relaxed);
                    thread::yield_now();
                    number.store(seen + 1, Ordering::Relaxed);
                    guard.release().expect("held");
                }
            });
        }
    });
    assert_eq!(number.into_inner(), 100);
}

/// How a call in this place ends.
fn lock(locks: &LockClient) -> Result<(), Error> {
    locks.mutex("k")?.lock()?.release()
}

fn assert_refused(locks: &LockClient) {
    let is_refused = |reason: &InvalidInput| {
        let text = reason.to_string();
        text.starts_with("a blocking call in an async task")
    };
    match lock(locks) {
        Err(Error::InvalidInput { reason, .. }) if is_refused(&reason) => {}
        other => panic!("it would block an async task: {other:?}"),
    }
    match blocking::connect("sqlite:/nowhere/at/all") {
        Err(ConnectError::Invalid(reason)) if is_refused(&reason) => {}
        other => panic!("it would block an async task: {other:?}"),
    }
}

#[test]
fn async_tasks_are_refused_and_blocking_ones_are_not() {
    let server = RedisServer::start();
    let locks = connect(&server.url(), RedisLibrary::RedisRs);
    let one = tokio::runtime::Builder::new_current_thread().build();
    let many = tokio::runtime::Builder::new_multi_thread().build();
    for runtime in [one.expect("a runtime"), many.expect("a runtime")] {
        runtime.block_on(async {
            assert_refused(&locks);
            let in_a_task = locks.clone();
            let task = tokio::spawn(async move { assert_refused(&in_a_task) });
            task.await.expect("no panic");
            let local = tokio::task::LocalSet::new();
            local.run_until(async { assert_refused(&locks) }).await;

            let in_a_thread = locks.clone();
            let thread = tokio::task::spawn_blocking(move || lock(&in_a_thread));
            thread.await.expect("no panic").expect("a thread may block");
        });
    }
    let many = tokio::runtime::Builder::new_multi_thread().build();
    many.expect("a runtime").block_on(async {
        let in_place = tokio::task::block_in_place(|| lock(&locks));
        in_place.expect("tokio lets this task block");
        tokio::task::yield_now().await;
        assert_refused(&locks);
    });
    lock(&locks).expect("a thread may block");
}

#[test]
fn body_of_a_job_sees_the_runtime_of_its_caller() {
    let server = RedisServer::start();
    let locks = connect(&server.url(), RedisLibrary::RedisRs);
    let runtime = tokio::runtime::Builder::new_multi_thread().build();
    runtime.expect("a runtime").block_on(async {
        let caller = tokio::runtime::Handle::current().id();
        let job = locks.once("job").expect("supported");
        let job = job.not_within(Duration::from_secs(60));
        let run = move || job.run(|_job| Ok::<_, Error>(tokio::runtime::Handle::current().id()));
        let seen = tokio::task::spawn_blocking(run).await.expect("no panic");
        assert_eq!(seen.expect("answered").into_output(), Some(caller));
    });
}

#[test]
fn waiting_thread_gets_the_lock_of_a_guard_that_is_dropped_in_a_task() {
    let server = RedisServer::start();
    let [a, b] = two_clients(&server.url(), RedisLibrary::RedisRs);
    let guard = a.mutex("k").expect("valid").lock().expect("free");
    let waiting = thread::spawn(move || lock(&b));
    let is_queued = || {
        let seen = block_on(a.as_async().inspect("k")).expect("a thread");
        seen.expect("answered").waiter_count() == 1
    };
    block_until("the thread waits", is_queued);
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(async { drop(guard) });
    waiting.join().expect("no panic").expect("granted");
}

/// The only thread of the runtime is blocked until the token is cancelled.
#[tokio::test]
async fn token_of_a_guard_is_cancelled_while_the_program_blocks_its_runtime() {
    let server = RedisServer::start();
    let options = ConnectOptions::new().redis_library(RedisLibrary::RedisRs);
    let locks = options
        .connect(&server.url())
        .await
        .expect("the server runs");
    let mutex = locks.mutex("k").expect("valid");
    let mutex = mutex.lease(Duration::from_secs(1)).fixed_lease();
    let guard = mutex.lock().await.expect("free");
    let token = guard.cancellation();
    block_until("the token is cancelled", || token.is_cancelled());
    assert!(!guard.is_valid());
}
