//! The code of docs/migration.md: what to write instead of a hand-written lock, or of another
//! library's. It runs on the simulator.

mod common;

use std::time::Duration;

use common::Result as AnyResult;
use leasehold::{Error, FencingToken, LockClient, Mutex, MutexGuard, Outcome};

async fn yes_or_no(locks: &LockClient) -> Result<bool, Error> {
    let Some(guard) = locks.mutex("job")?.try_lock().await?.into_guard() else {
        return Ok(false); // somebody else has it; not an error
    };
    guard.protect(work()).await?; // stops the work if the lock is lost
    guard.release().await?; // after an early return, the drop releases it
    Ok(true)
}

async fn work() {}

async fn with_expiry(locks: &LockClient) -> Result<bool, Error> {
    let job = locks
        .mutex("job")?
        .lease(Duration::from_secs(60))
        .fixed_lease();
    let Some(guard) = job.try_lock().await?.into_guard() else {
        return Ok(false);
    };
    let work = tokio::time::sleep(Duration::from_secs(61)); // takes too long
    let finished = guard.protect(work).await.is_ok(); // it is stopped when the lock is lost
    match guard.release().await {
        Err(Error::Lost { .. }) => Ok(false),
        released => released.map(|_| finished),
    }
}

async fn with_a_number(locks: &LockClient) -> Result<Option<(MutexGuard, FencingToken)>, Error> {
    let guard = locks.mutex("job")?.try_lock().await?.into_guard();
    // Claim with it: UPDATE … SET fence = $token WHERE … AND fence <= $token
    Ok(guard.map(|guard| {
        let token = guard.fencing_token();
        (guard, token)
    }))
}

async fn scope(locks: &LockClient) -> Result<Result<u32, String>, Error> {
    let job = locks.mutex("job")?;
    // The outer error is the lock's, the inner one the body's.
    job.with(async |_guard| charge(42).await).await
}

async fn charge(amount: u32) -> Result<u32, String> {
    Err(format!("cannot charge {amount}"))
}

async fn wait_for(locks: &LockClient, timeout: Option<Duration>) -> Result<bool, Error> {
    let job = locks.mutex("job")?.lease(Duration::from_secs(30));
    let guard = match timeout {
        None => job.lock().await?,
        Some(time) => match job.try_lock_for(time).await? {
            Outcome::Acquired(guard) => guard,
            Outcome::Contended(contention) => {
                println!("{contention}"); // how long you waited, and how many were ahead
                return Ok(false);
            }
        },
    };
    guard.release().await?;
    Ok(true)
}

async fn outer(locks: &LockClient) -> Result<Option<u32>, Error> {
    let tree = locks.mutex("tree")?.reentrant()?;
    let guard = tree.lock().await?;
    let left = inner(&tree).await?; // does not wait for `guard`
    guard.release().await?;
    Ok(left)
}

async fn inner(tree: &Mutex) -> Result<Option<u32>, Error> {
    let guard = tree.lock().await?;
    guard.release().await?;
    Ok(guard.holds_left()) // one hold is left
}

async fn long_work(locks: &LockClient) -> Result<(), Error> {
    let job = locks.mutex("job")?.max_hold(Duration::from_secs(3600));
    let guard = job.lock().await?;
    let work = tokio::time::sleep(Duration::from_secs(600)); // twenty leases
    guard.protect(work).await?; // `Error::Lost` if the lock is lost
    guard.release().await?;
    Ok(())
}

async fn read_and_write(locks: &LockClient) -> Result<(), Error> {
    let catalog = locks.rw_lock("catalog")?;
    let reading = catalog.read().await?; // "R", blocking
    let seen = locks.inspect("catalog").await?;
    assert!(seen.is_read_locked() && !seen.is_write_locked() && seen.is_held()); // "R", "W", "any"
    // "W", not blocking.
    match catalog.try_write().await? {
        Outcome::Acquired(writing) => drop(writing),
        Outcome::Contended(contention) => println!("{contention}"),
    }
    reading.release().await?;
    if let Outcome::Acquired(writing) = catalog.try_write_for(Duration::from_secs(5)).await? {
        writing.release().await?;
    }
    Ok(())
}

async fn ask_for(report: &mut Report, locks: &LockClient) -> Result<bool, Error> {
    let guard = locks.mutex("report")?.lock().await?;
    let token = guard.fencing_token();
    let asked = report.claim(token) == Some("made") && report.write("asked for", token);
    guard.release().await?;
    Ok(asked) // send the message if true; if that fails, ask again or let the worker look for such rows
}

async fn make(report: &mut Report, locks: &LockClient) -> Result<bool, Error> {
    let guard = locks.mutex("report")?.lock().await?;
    let token = guard.fencing_token();
    if report.claim(token) != Some("asked for") {
        return Ok(false); // the message came twice
    }
    let work = tokio::time::sleep(Duration::from_secs(60));
    guard.protect(work).await?;
    let made = report.write("made", token);
    guard.release().await?;
    Ok(made)
}

/// A row. Each method is one statement.
struct Report {
    state: &'static str,
    fence: FencingToken,
}

impl Report {
    /// `UPDATE report SET fence = $1 WHERE id = 7 AND fence <= $1 RETURNING state`
    fn claim(&mut self, token: FencingToken) -> Option<&'static str> {
        (self.fence <= token).then(|| {
            self.fence = token;
            self.state
        })
    }

    /// `UPDATE report SET state = $2 WHERE id = 7 AND fence = $1`
    fn write(&mut self, state: &'static str, token: FencingToken) -> bool {
        let claimed = self.fence == token;
        if claimed {
            self.state = state;
        }
        claimed
    }
}

/// What the web server and the worker get, and a message that comes twice.
async fn passed_on(web: &LockClient, worker: &LockClient) -> Result<(), Error> {
    let mut report = Report {
        state: "made",
        fence: FencingToken::default(),
    };
    assert!(ask_for(&mut report, web).await?);
    assert!(!ask_for(&mut report, web).await?, "it is asked for once");
    let webs_token = report.fence;
    assert!(make(&mut report, worker).await?);
    assert!(!report.write("asked for", webs_token), "a late write");
    assert!(!make(&mut report, worker).await?, "the message came twice");
    Ok(())
}

async fn from_rslock(locks: &LockClient) -> Result<u32, Error> {
    // manager.using(b"job", Duration::from_secs(10), async || 42).await
    let job = locks.mutex("job")?.lease(Duration::from_secs(10));
    job.with(async |_guard| 42).await
}

async fn from_redisson(locks: &LockClient) -> Result<bool, Error> {
    // if (lock.tryLock(100, 10, TimeUnit.SECONDS)) try { … } finally { lock.unlock(); }
    let lock = locks.mutex("job")?.reentrant()?;
    let lock = lock.lease(Duration::from_secs(10)).fixed_lease();
    let Some(guard) = lock
        .try_lock_for(Duration::from_secs(100))
        .await?
        .into_guard()
    else {
        return Ok(false);
    };
    let nested = lock.lock().await?; // re-enters: the same handle
    nested.release().await?;
    guard.release().await?;

    // RSemaphore: semaphore.trySetPermits(3); semaphore.acquire(2); … semaphore.release(2);
    let permits = locks
        .semaphore("downloads", 3)?
        .permits(2)
        .acquire()
        .await?;
    permits.release().await?;

    // RMultiLock: getMultiLock(a, b).lock()
    let both = locks.lock_all(["account:1", "account:2"]).await?;
    both.release().await?;
    Ok(true)
}

async fn from_redsync(locks: &LockClient) -> Result<bool, Error> {
    // mutex := rs.NewMutex("job", redsync.WithExpiry(8*time.Second), redsync.WithTries(32))
    let mutex = locks
        .mutex("job")?
        .lease(Duration::from_secs(8))
        .fixed_lease();
    // if err := mutex.Lock(); err != nil { return err }
    let Some(guard) = mutex
        .try_lock_for(Duration::from_secs(5))
        .await?
        .into_guard()
    else {
        return Ok(false);
    };
    // ok, err := mutex.Extend()
    let valid_for = guard.renew().await?;
    // ok, err = mutex.Valid()
    let valid = guard.is_valid() && valid_for > Duration::from_secs(7);
    // ok, err = mutex.Unlock()
    guard.release().await?;
    Ok(valid)
}

/// What a blocked caller gets, and a caller that waits long enough.
async fn under_contention(ours: &LockClient, theirs: &LockClient) -> Result<(), Error> {
    let held = theirs.mutex("job")?.lock().await?;
    assert!(!yes_or_no(ours).await?);
    assert!(!wait_for(ours, Some(Duration::from_secs(1))).await?);
    let (waited, released) = tokio::join!(wait_for(ours, None), async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        held.release().await
    });
    assert!(waited?);
    released?;
    Ok(())
}

fn main() -> AnyResult<()> {
    common::run(async |service| {
        let ours = service.client("ours").await?;
        let theirs = service.client("theirs").await?;

        assert!(yes_or_no(&ours).await?);
        assert!(!with_expiry(&ours).await?);
        let (guard, first) = with_a_number(&ours).await?.expect("nobody has it");
        guard.release().await?;
        let (guard, second) = with_a_number(&theirs).await?.expect("nobody has it");
        guard.release().await?;
        assert!(second > first);
        assert_eq!(scope(&ours).await?, Err("cannot charge 42".to_owned()));
        under_contention(&ours, &theirs).await?;
        assert_eq!(outer(&ours).await?, Some(1));
        long_work(&ours).await?;
        read_and_write(&ours).await?;
        passed_on(&ours, &theirs).await?;
        assert_eq!(from_rslock(&ours).await?, 42);
        assert!(from_redisson(&ours).await?);
        assert!(from_redsync(&ours).await?);

        println!("every lock of docs/migration.md works as it says");
        ours.shutdown().await?;
        theirs.shutdown().await?;
        Ok(())
    })
}
