//! The rows of keys.

use std::time::{Duration, Instant};

use crate::support::{Server, connect_to, hold};

#[tokio::test]
async fn rows_past_their_time_are_removed_and_others_kept() {
    let server = Server::start();
    let locks = server.locks().await;
    server.execute(
        "INSERT INTO leasehold.locks SELECT convert_to('old' || n, 'UTF8'), 0, '', 1
         FROM generate_series(1, 3500) AS n;
         INSERT INTO leasehold.locks VALUES ('new', 0, '', 9000000000000000)",
    );
    let guard = hold(&locks, "a").await;
    let keys =
        "SELECT string_agg(convert_from(key, 'UTF8'), ' ' ORDER BY key) FROM leasehold.locks";
    server.wait_for(keys, "a new").await;
    let minutes = "SELECT (keep_until / 1000000.0 - extract(epoch FROM clock_timestamp())) / 60
        BETWEEN 10 AND 13 FROM leasehold.locks WHERE key = 'a'";
    assert_eq!(
        server.execute(minutes),
        "t",
        "the token is kept for ten minutes"
    );
    guard.release().await.expect("released");
}

/// `LEASEHOLD_ROWS` asks for another number of rows.
#[tokio::test]
async fn removal_reads_no_row_that_is_kept() {
    let asked = std::env::var("LEASEHOLD_ROWS");
    let rows = asked.map_or(20_000, |rows| rows.parse().expect("a number of rows"));
    let server = Server::start();
    server.execute(&format!(
        "INSERT INTO leasehold.locks SELECT convert_to('live' || n, 'UTF8'), 0, '\\x00', 9e15
         FROM generate_series(1, {rows}) AS n;
         INSERT INTO leasehold.locks SELECT convert_to('old' || n, 'UTF8'), 0, '', n
         FROM generate_series(1, 500) AS n"
    ));
    server.execute("VACUUM ANALYZE leasehold.locks");
    let scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'locks'";
    let before = server.execute(scans);
    let locks = server.locks().await;
    let mut longest = Duration::ZERO;
    // The first call begins a removal.
    for _ in 0..300 {
        let begun = Instant::now();
        let guard = hold(&locks, "a").await;
        guard.release().await.expect("released");
        longest = longest.max(begun.elapsed());
    }
    println!("{rows} rows: the longest acquire and release beside a removal took {longest:?}");
    let left = "SELECT count(*) FROM leasehold.locks WHERE keep_until < 1000";
    // The server reports its statistics late.
    let index_was_used =
        "SELECT idx_scan > 0 FROM pg_stat_user_indexes WHERE indexrelname = 'locks_keep_until'";
    server.wait_for(index_was_used, "t").await;
    assert_eq!(server.execute(scans), before, "the table was scanned");
    assert_eq!(server.execute(left), "0");
}

/// An update stays within its page if no indexed column changes.
#[tokio::test]
async fn index_leaves_most_updates_within_their_page() {
    let server = Server::start();
    let locks = server.locks().await;
    for _ in 0..100 {
        let guard = hold(&locks, "a").await;
        guard.release().await.expect("released");
    }
    drop(locks);
    let updates = "SELECT n_tup_upd > 190, n_tup_hot_upd > n_tup_upd - 5 FROM pg_stat_user_tables
        WHERE relname = 'locks'";
    server.wait_for(updates, "t|t").await;
}

/// A crash of the server could lose commits that it has acknowledged.
#[tokio::test]
async fn locks_are_committed_to_disk_whatever_the_default_is() {
    let server = Server::start();
    server.execute(
        "ALTER ROLE locks SET synchronous_commit = off;
         CREATE TABLE seen (setting text);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
             INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NULL;
         END $$;
         CREATE TRIGGER note AFTER INSERT OR UPDATE ON leasehold.locks
             FOR EACH ROW EXECUTE FUNCTION note()",
    );
    let locks = server.locks().await;
    let guard = hold(&locks, "a").await;
    guard.release().await.expect("released");
    let seen = "SELECT string_agg(DISTINCT setting, ' ') FROM seen";
    assert_eq!(server.execute(seen), "on");
}

/// The server refuses each notification, as it does when its queue is full. The error is that of the server,
/// but comes from a function that hides the real one.
#[tokio::test]
async fn full_queue_of_notifications_does_not_fail_a_release() {
    let server = Server::start();
    server.execute(
        "CREATE SCHEMA hidden; GRANT USAGE ON SCHEMA hidden TO locks;
         CREATE FUNCTION hidden.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000';
         END $$;
         ALTER ROLE locks SET search_path = hidden, pg_catalog",
    );
    let one = connect_to(&server.url()).await;
    crate::lock_is_handed_over(one, connect_to(&server.url()).await).await;
}
