//! The server's clock steps while locks are held.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_api::{LockBackend, Loss, MutexGuard, bounds};
use leasehold_processes::Library;
use leasehold_test_servers::{FaultProxy, RedisServer, ServerOptions};

use crate::support::{client, run};

/// Far above the allowed clock difference, but too short for a lease to expire.
const STEP_US: i64 = 2_000_000;
const LEASE: Duration = Duration::from_secs(9);
/// An allowance for a busy machine.
const MARGIN: Duration = Duration::from_millis(1_500);

#[test]
fn stepped_server_clock_ends_validity_through_redis_rs() {
    run(stepped_server_clock_ends_validity(Library::RedisRs));
}

#[test]
fn stepped_server_clock_ends_validity_through_fred() {
    run(stepped_server_clock_ends_validity(Library::Fred));
}

#[test]
fn step_without_run_id_is_a_new_clock_through_redis_rs() {
    run(step_without_run_id_is_a_new_clock(Library::RedisRs));
}

#[test]
fn step_without_run_id_is_a_new_clock_through_fred() {
    run(step_without_run_id_is_a_new_clock(Library::Fred));
}

/// The connection may lead to another server, so a step looks like one.
async fn step_without_run_id_is_a_new_clock(library: Library) {
    let (server, clock) = server_with_a_clock();
    let proxy = FaultProxy::start(server.address()).await;
    proxy.rename_in_replies("\nrun_id:", "\nxxx_id:");
    let backend = library.connect(&proxy.url()).await.expect("connected");
    let clock_id = async || backend.hello().await.expect("an answer").clock;
    let mut seen = vec![clock_id().await];
    for offset in [STEP_US, 0] {
        assert_eq!(clock_id().await, seen[seen.len() - 1]);
        clock.set(offset);
        let stepped = clock_id().await;
        assert!(!seen.contains(&stepped), "{stepped:?} in {seen:?}");
        seen.push(stepped);
    }
}

async fn stepped_server_clock_ends_validity(library: Library) {
    let (server, clock) = server_with_a_clock();
    let mut offset = 0;
    for step in [STEP_US, -STEP_US] {
        let locks = client(
            library.connect(&server.url()).await.expect("connected"),
            "test",
        );
        let mutex = |key| locks.mutex(key).expect("a good key").lease(LEASE);
        let guard = mutex("stepped").lock().await.expect("acquired");
        offset += step;
        clock.set(offset);
        let began = Instant::now();
        let loss = tokio::time::timeout(LEASE, guard.lost()).await;
        let noticed = began.elapsed();
        println!("{}: {step} µs, noticed after {noticed:?}", library.name());
        assert_eq!(loss, Ok(Loss::ClockStepped), "{step} µs");
        // The next renewal notices it, long before the deadline.
        assert!(
            noticed <= LEASE / bounds::RENEWALS_PER_LEASE + MARGIN,
            "{noticed:?}"
        );
        assert!(!guard.is_valid(), "a loss is final");
        guard.release().await.expect("an answer");

        let next: MutexGuard = mutex("stepped").lock().await.expect("acquired");
        tokio::time::sleep(LEASE / 2).await;
        assert!(next.is_valid(), "a later guard is not affected");
        next.release().await.expect("released");
        locks.shutdown().await.expect("shut down");
    }
}

/// The offset of a server's clock.
struct Clock {
    file: File,
    _folder: tempfile::TempDir,
}

impl Clock {
    fn set(&self, micros: i64) {
        let written = self.file.write_all_at(&micros.to_ne_bytes(), 0);
        written.expect("a writable file");
    }
}

/// A server whose wall clock differs from the machine's.
fn server_with_a_clock() -> (RedisServer, Clock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let offset = folder.path().join("offset");
    let file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .open(&offset);
    let clock = Clock {
        file: file.expect("a new file"),
        _folder: folder,
    };
    clock.set(0);
    let folder = offset.parent().expect("a file in a folder");
    let library = compile_shim(folder);
    let program = std::env::var("LEASEHOLD_REDIS_SERVER");
    let program = program.unwrap_or_else(|_| "redis-server".into());
    let script = format!(
        "#!/bin/sh\nSTEPPED_CLOCK='{}' LD_PRELOAD='{}' exec '{program}' \"$@\"\n",
        offset.display(),
        library.display()
    );
    let path = folder.join("server");
    std::fs::write(&path, script).expect("it can be written");
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("a file of this process");
    (ServerOptions::default().with_program(path).start(), clock)
}

/// Compiles the shim with the compiler that Rust links with.
fn compile_shim(folder: &Path) -> PathBuf {
    let library = folder.join("stepped_clock.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/stepped_clock.c");
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
    let status = compiler.arg(&library).arg(source).status();
    assert!(status.expect("a C compiler").success(), "{source} compiles");
    library
}
