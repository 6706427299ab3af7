//! Opening the file, and what SQLite's errors mean.

use std::cell::Cell;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use leasehold_api::{BackendError, TokioRuntime};
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use rustix::fs::{Access, access};

use crate::clock::{self, Clock};
use crate::host;

/// A removal of expired rows must not read all rows, because nobody else writes meanwhile.
const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS leasehold_locks (
    prefix TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL,
    state BLOB NOT NULL,
    keep_until INTEGER NOT NULL,
    PRIMARY KEY (prefix, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS leasehold_locks_keep_until ON leasehold_locks (keep_until)";

/// How long opening waits for other programs, which may be creating the file.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// How often a program that waits for another one's write looks again. It is always the same, so that none is preferred.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// For how long. The call timeout is several times as long, so the call can say that nothing was written.
const LOOK_FOR: Duration = Duration::from_millis(250);

thread_local! {
    /// When this thread began to wait.
    static WAITS_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// An open file.
#[derive(Debug)]
pub(crate) struct LockFile {
    pub(crate) connection: Connection,
    pub(crate) clock: Clock,
    /// The file, its log and the index of that.
    paths: [PathBuf; 3],
    /// What they led to when the file was opened.
    inodes: Vec<Inode>,
}

/// The device and the number of a file.
type Inode = (u64, u64);

impl LockFile {
    /// Opens the file, or creates it.
    pub(crate) fn open(path: &Path, runtime: &TokioRuntime) -> Result<Self, BackendError> {
        // It may not exist yet.
        let folder = path.parent().unwrap_or(path);
        let existing = if path.exists() { path } else { folder };
        if let Some(name) = host::network_file_system(existing).map_err(not_found)? {
            let reason = format!("locks of SQLite are not safe on {name}: use a local file system");
            return Err(BackendError::rejected(reason));
        }
        check_names(path)?;
        let boot = host::boot().map_err(not_found)?;
        let until = Instant::now() + OPEN_WITHIN;
        let (connection, clock) = loop {
            match connect(path, &boot, runtime) {
                Ok(opened) => break opened,
                // Some steps fail at once if another program is at them.
                Err(error) if is_busy(&error) && Instant::now() < until => sleep(LOOK_EVERY),
                Err(error) => return Err(not_opened(existing, error)),
            }
        };
        let paths = paths_of(path).map_err(not_found)?;
        Ok(Self {
            connection,
            clock,
            inodes: inodes_of(&paths).map_err(not_found)?,
            paths,
        })
    }

    /// Fails if a path leads to another file by now: other programs would take its locks.
    pub(crate) fn check_paths(&self) -> Result<(), BackendError> {
        match inodes_of(&self.paths) {
            Ok(found) if found == self.inodes => Ok(()),
            _ => Err(BackendError::rejected(
                "the file, or its -wal or -shm, was removed or replaced: open it again",
            )),
        }
    }
}

/// SQLite has the log and its index where symbolic links lead.
fn paths_of(path: &Path) -> std::io::Result<[PathBuf; 3]> {
    let real = fs::canonicalize(path)?;
    let beside = |suffix| {
        let mut name = real.clone().into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    };
    Ok([path.to_path_buf(), beside("-wal"), beside("-shm")])
}

fn inodes_of(paths: &[PathBuf]) -> std::io::Result<Vec<Inode>> {
    let found = paths.iter().map(fs::metadata);
    found.map(|it| it.map(|it| (it.dev(), it.ino()))).collect()
}

/// Fails if an existing file has several names. Beside each, SQLite would have a log of its own, with locks of its own.
fn check_names(path: &Path) -> Result<(), BackendError> {
    let problem = match fs::metadata(path) {
        Ok(found) if found.nlink() > 1 => "the file has several names (hard links)",
        Ok(_) if host::is_mounted(path) => "the file itself is mounted: mount its folder",
        _ => return Ok(()),
    };
    Err(BackendError::rejected(problem))
}

fn connect(
    path: &Path,
    boot: &str,
    runtime: &TokioRuntime,
) -> rusqlite::Result<(Connection, Clock)> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_handler(Some(look_again))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // Else a loss of power would lose locks: this mode syncs each commit.
    connection.pragma_update(None, "synchronous", "FULL")?;
    let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    step.execute_batch(SCHEMA)?;
    step.execute_batch(clock::SCHEMA)?;
    let clock = Clock::of(&step, boot, runtime.clone())?;
    step.commit()?;
    Ok((connection, clock))
}

fn look_again(looked: i32) -> bool {
    let now = Instant::now();
    if looked == 0 {
        WAITS_SINCE.set(Some(now));
    }
    sleep(LOOK_EVERY);
    WAITS_SINCE
        .get()
        .is_some_and(|since| now - since < LOOK_FOR)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(
        code,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// An error of the operating system, before SQLite has opened the file.
fn not_found(error: std::io::Error) -> BackendError {
    let reason = "the file, or the boot of this machine, can't be found";
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::Unsupported => {
            BackendError::rejected(reason).with_source(error)
        }
        // Such as too many open files.
        _ => BackendError::unavailable(reason).with_source(error),
    }
}

/// An error of SQLite when it opens a file, which exists or will be in an existing folder.
fn not_opened(existing: &Path, error: rusqlite::Error) -> BackendError {
    let may_write = || access(existing, Access::READ_OK | Access::WRITE_OK).is_ok();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => not_written(error),
        _ if is_busy(&error) => not_written(error),
        // SQLite doesn't say why.
        Some(ErrorCode::CannotOpen) if may_write() => {
            let reason = "SQLite can't open the file: is it a folder, or has this process too many open files?";
            BackendError::unavailable(reason).with_source(error)
        }
        _ => BackendError::rejected("SQLite can't use the file").with_source(error),
    }
}

/// An error before the commit. Nothing was written.
pub(crate) fn not_written(error: rusqlite::Error) -> BackendError {
    let reason = match error.sqlite_error_code() {
        _ if is_busy(&error) => "other programs are writing to the file",
        Some(ErrorCode::ReadOnly | ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            return BackendError::rejected("SQLite can't use the file").with_source(error);
        }
        _ => "SQLite failed, and wrote nothing",
    };
    BackendError::unavailable(reason).with_source(error)
}

/// An error of the commit.
pub(crate) fn perhaps_written(error: rusqlite::Error) -> BackendError {
    match is_busy(&error) {
        true => not_written(error),
        false => BackendError::outcome_unknown("SQLite failed").with_source(error),
    }
}
