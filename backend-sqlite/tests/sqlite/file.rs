//! The file: what is refused, and what may happen to it.

use std::time::Duration;

use leasehold_api::{
    Acquire, BackendError, Error, Key, LockBackend, LockClient, LockSpec, Mode, Operation, OwnerId,
    SessionId,
};
use leasehold_sqlite::{ConnectError, Options, SqliteBackend};
use leasehold_test_servers::eventually;

use crate::Folder;

#[tokio::test]
async fn what_is_no_file_is_refused() {
    let folder = Folder::new();
    for path in ["", ":memory:", "/", "."] {
        let refused = SqliteBackend::open(path).await.expect_err(path);
        assert!(matches!(refused, ConnectError::Invalid(_)), "{refused:?}");
    }
    let options = Options::new().call_timeout(Duration::ZERO);
    let refused = SqliteBackend::open_with(folder.file(), options).await;
    let refused = refused.expect_err("out of range");
    assert!(matches!(refused, ConnectError::Invalid(_)), "{refused:?}");
    assert!(!folder.file().exists());

    std::fs::write(
        folder.file(),
        "something else, of more than a hundred bytes".repeat(9),
    )
    .expect("written");
    for path in [folder.file(), folder.0.path().join("missing/locks.db")] {
        let refused = SqliteBackend::open(&path).await.expect_err("no database");
        let is_permanent = matches!(
            refused,
            ConnectError::Backend(BackendError::Rejected { .. })
        );
        assert!(is_permanent, "{path:?}: {refused:?}");
    }
}

/// Otherwise the clients of the old file and those of a new one would hold the same locks.
#[tokio::test]
async fn replaced_file_is_noticed() {
    let folder = Folder::new();
    let locks = folder.locks().await;
    let guard = locks.mutex("k").expect("a key").lock().await.expect("free");
    // With its log, which the new file would share otherwise.
    for suffix in ["", "-wal", "-shm"] {
        let mut file = folder.file().into_os_string();
        file.push(suffix);
        std::fs::remove_file(file).expect("removed");
    }
    drop(folder.backend().await);
    let read = locks.inspect("k").await.expect_err("nor is it read");
    assert!(matches!(read, Error::Rejected { .. }), "{read:?}");
    let refused = guard.release().await.expect_err("the file is another one");
    assert!(matches!(refused, Error::Rejected { .. }), "{refused:?}");
}

/// Each name would have a log of its own beside it, and so locks of its own.
#[tokio::test]
async fn file_with_two_names_is_refused() {
    let folder = Folder::new();
    let locks = folder.locks().await;
    let other = folder.0.path().join("other.db");
    std::fs::hard_link(folder.file(), &other).expect("linked");
    let refused = SqliteBackend::open(&other).await.expect_err("two names");
    let text = refused.to_string();
    assert!(text.contains("several names"), "{refused:?}");
    // A symbolic link is no other name.
    std::fs::remove_file(&other).expect("removed");
    std::os::unix::fs::symlink(folder.file(), &other).expect("linked");
    let guard = locks.mutex("k").expect("a key").lock().await.expect("free");
    let others = SqliteBackend::open(&other).await.expect("one name");
    let others = LockClient::new(others).mutex("k").expect("a key");
    let outcome = others.try_lock().await.expect("an answer");
    assert!(!outcome.is_acquired());
    guard.release().await.expect("released");
}

/// The next program would make another one, and find no lock in it.
#[tokio::test]
async fn removed_log_is_noticed() {
    for suffix in ["-wal", "-shm"] {
        let folder = Folder::new();
        let locks = folder.locks().await;
        let guard = locks.mutex("k").expect("a key").lock().await.expect("free");
        let mut file = folder.file().into_os_string();
        file.push(suffix);
        std::fs::remove_file(file).expect("removed");
        let refused = guard.release().await.expect_err(suffix);
        assert!(matches!(refused, Error::Rejected { .. }), "{refused:?}");
    }
}

/// A call ends in time with an error that says that nothing was written, and the next one works.
#[tokio::test]
async fn long_write_of_another_program_is_waited_for_a_moment() {
    let folder = Folder::new();
    let backend = SqliteBackend::open(folder.file())
        .await
        .expect("a new file");
    let sql = folder.sql();
    sql.execute_batch("BEGIN IMMEDIATE").expect("begun");
    let stamp = backend.hello().await.expect("reads go on");
    let request = Acquire::new(
        Key::new("k").expect("a key"),
        LockSpec::mutex(),
        Mode::Exclusive,
        Operation {
            session: SessionId::from_bytes([1; 16]),
            sequence: 1,
            owner: OwnerId::from_u64(1),
        },
        Duration::from_secs(60),
        stamp.at.saturating_add(Duration::from_secs(9)),
    );
    let request = [request.expect("a good request")];
    let busy = backend.acquire(&request).await.remove(0);
    let busy = busy.expect_err("another program writes");
    assert!(matches!(busy, BackendError::Unavailable { .. }), "{busy:?}");
    assert!(busy.to_string().contains("other programs"), "{busy}");
    sql.execute_batch("COMMIT").expect("committed");
    backend.acquire(&request).await.remove(0).expect("free");
}

#[tokio::test]
async fn expired_rows_are_removed() {
    let folder = Folder::new();
    let locks = folder.locks().await;
    let sql = folder.sql();
    for n in 0..450 {
        let row = "INSERT INTO leasehold_locks VALUES ('old', ?1, 0, x'', 1)";
        sql.execute(row, [n.to_string()]).expect("planted");
    }
    // The first command of a client removes them, in the background.
    let guard = locks.mutex("k").expect("a key").lock().await.expect("free");
    let rows = || -> i64 {
        let count = "SELECT count(*) FROM leasehold_locks";
        sql.query_row(count, [], |row| row.get(0)).expect("counted")
    };
    eventually("they are removed", async || rows() <= 1).await;
    assert_eq!(rows(), 1, "the lock that is held");
    guard.release().await.expect("released");
}
