//! The blocking API, in real time.

use std::path::Path;
use std::thread;
use std::time::Duration;

use leasehold::blocking::{self, LockClient, block_on};
use leasehold::{ConnectError, ConnectOptions, Error, InvalidInput, RedisLibrary};
use leasehold_test_servers::{RedisServer, block_until};

use crate::shared::{assert_works, connect};

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

#[test]
fn end_of_a_program_on_redis() {
    let start = || {
        let server = RedisServer::start();
        let url = server.url();
        (server, url)
    };
    crate::shared::end_of_a_program("blocking::end_of_a_program_on_redis", start);
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
