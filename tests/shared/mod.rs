//! What holds for the blocking API on every lock service.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, exit};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::blocking::{self, LockClient, MutexGuard, block_on};
use leasehold::{ConnectOptions, Error, JobOutcome, Loss, RedisLibrary};
use leasehold_test_servers::{Forks, Stopwatch, block_until};

/// Tells the program of [`end_of_a_program`] what to do, on which lock service and in which folder.
const HOW: &str = "LEASEHOLD_PROGRAM_ENDS";
const URL: &str = "LEASEHOLD_PROGRAM_URL";
const FOLDER: &str = "LEASEHOLD_PROGRAM_FOLDER";

pub(crate) fn connect(url: &str, library: RedisLibrary) -> LockClient {
    let options = ConnectOptions::new().redis_library(library);
    blocking::connect_with(url, options).expect("the server runs")
}

/// Uses each kind of lock with two clients.
pub(crate) fn assert_works(clients: &[LockClient; 2]) {
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
    let hangs = hangs.max_hold(Duration::from_secs(2)).at(fire);
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

/// Runs a test of this name as a program, which locks a mutex and ends in several ways, and looks at what is left.
pub(crate) fn end_of_a_program<S>(test: &str, start: impl Fn() -> (S, String)) {
    if let Ok(how) = std::env::var(HOW) {
        return program(&how);
    }
    let (_server, url) = start();
    let folder = tempfile::tempdir().expect("a folder");
    let forks = Forks::at_parent_id();
    let locks = connect(&url, RedisLibrary::RedisRs);
    let mutex = locks.mutex("k").expect("valid");
    for (how, is_free) in [
        ("shuts down", true),
        ("releases", true),
        ("forks", true),
        ("exits", false),
    ] {
        let mut program = Command::new(std::env::current_exe().expect("a test"));
        program.args([test, "--exact"]).envs(forks.environment());
        program.env(HOW, how).env(URL, &url);
        program.env(FOLDER, folder.path());
        let output = program.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{how}: {text}");
        let at_once = mutex.try_lock().expect("answered");
        assert_eq!(at_once.is_acquired(), is_free, "{how}");
        // One that was not released is free when its lease has ended.
        drop(at_once);
        mutex.lock().expect("free").release().expect("held");
    }
}

fn program(how: &str) {
    let [url, folder] = [URL, FOLDER].map(|name| std::env::var(name).expect("set"));
    let locks = connect(&url, RedisLibrary::RedisRs);
    let mutex = locks.mutex("k").expect("valid");
    let guard = mutex.lease(Duration::from_secs(10));
    let guard = guard.lock().expect("free");
    match how {
        "shuts down" => {
            drop(guard);
            locks.shutdown().expect("answered");
        }
        "releases" => guard.release().expect("held"),
        "forks" => fork(guard, &url, &Path::new(&folder).join("told")),
        _ => {}
    }
    exit(0);
}

/// The child has a copy of the guard.
fn fork(guard: MutexGuard, url: &str, told: &Path) {
    // See `Forks`.
    if std::os::unix::process::parent_id() == 0 {
        let ended = catch_unwind(AssertUnwindSafe(|| in_the_child(guard, url)));
        let text = if ended.is_ok() { "works" } else { "panics" };
        std::fs::write(told, text).expect("a folder");
        exit(0);
    }
    let told = || std::fs::read_to_string(told).unwrap_or_default();
    block_until("the child tells", || !told().is_empty());
    assert_eq!(told(), "works");
    let other = connect(url, RedisLibrary::RedisRs);
    let other = other.mutex("k").expect("valid").try_lock();
    assert!(!other.expect("answered").is_acquired(), "the parent has it");
    assert!(guard.is_valid());
    guard.release().expect("held");
}

fn in_the_child(guard: MutexGuard, url: &str) {
    assert!(!guard.is_valid(), "it is the parent's");
    drop(guard);
    let locks = connect(url, RedisLibrary::RedisRs);
    let mutex = locks.mutex("of the child").expect("valid");
    let lease = Duration::from_secs(1);
    let guard = mutex.lease(lease).lock().expect("free");
    // Its renewals need a thread of the child.
    let began = Stopwatch::start();
    block_until("two leases pass", || began.elapsed() > lease * 2);
    assert!(guard.is_valid(), "{:?}", guard.loss_reason());
    guard.release().expect("held");
    locks.shutdown().expect("answered");
}
