//! Locks through a pooler that shares the connections of the server: PgBouncer in the mode `transaction`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_api::{
    AcquireReply, BackendError, ClockId, LockBackend, LockClient, Notification, Wait,
};
use leasehold_postgres::{ConnectError, PostgresBackend, SCHEMA, tokio_postgres};
use leasehold_test_servers::{PgBouncer, PostgresOptions, eventually, throughout};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;
use tokio_postgres::SimpleQueryMessage;

use crate::connections::{LONG, next, processes, write};
use crate::lock_is_handed_over;
use crate::requests::{
    Backend, acquire, acquired, key, mutex, operation, release, renew, session, soon,
};
use crate::support::{
    PRIVILEGES, Server, connect_pooled, connect_to, connect_with, hold, patient, rejected,
    sql_client,
};

const TRANSACTIONS: &str =
    "pool_mode = transaction\nserver_round_robin = 1\nserver_login_retry = 1";

impl Server {
    fn pool_of_transactions(&self) -> (PgBouncer, String) {
        self.pooler(TRANSACTIONS)
    }
}

/// A client whose subscriptions go around the pooler.
async fn connect_with_push(pooled: &str, server: &Server) -> PostgresBackend {
    connect_with(pooled, patient().direct_url(server.url())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_handed_over_through_a_pool_of_transactions() {
    let server = Server::start();
    let (_pooler, url) = server.pool_of_transactions();
    let polling = async || connect_pooled(&url).await;
    let pushed = async || connect_with_push(&url, &server).await;
    let direct = async || connect_to(&server.url()).await;
    assert!(!polling().await.capabilities().push);
    assert!(pushed().await.capabilities().push);
    lock_is_handed_over(polling().await, polling().await).await;
    lock_is_handed_over(pushed().await, pushed().await).await;
    lock_is_handed_over(polling().await, direct().await).await;
    lock_is_handed_over(direct().await, pushed().await).await;
    lock_is_handed_over(pushed().await, polling().await).await;
}

/// Each transaction has the settings that the statements rely on, whatever the role has. Other programs, whose
/// connections it shares, have their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_last_as_long_as_a_transaction() {
    let server = Server::start();
    server.execute(
        "CREATE TABLE seen (settings text);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
            INSERT INTO public.seen SELECT concat_ws(' ', current_setting('transaction_isolation'),
                current_setting('statement_timeout'), current_setting('lock_timeout'),
                current_setting('idle_in_transaction_session_timeout'), current_setting('synchronous_commit'));
            RETURN NEW; END $$;
         CREATE TRIGGER note BEFORE INSERT OR UPDATE ON leasehold.locks FOR EACH ROW EXECUTE FUNCTION note();
         ALTER ROLE locks SET default_transaction_isolation = 'serializable';
         ALTER ROLE locks SET lock_timeout = '7s'; ALTER ROLE locks SET synchronous_commit = off",
    );
    let (_pooler, url) = server.pool_of_transactions();
    let locks = LockClient::new(connect_pooled(&url).await);
    for _ in 0..4 {
        let guard = hold(&locks, "a").await;
        guard.release().await.expect("released");
    }
    let seen = server.execute("SELECT DISTINCT settings FROM seen");
    assert_eq!(seen, "read committed 5s 250ms 1s on");
    let client = sql_client(&url).await;
    for (setting, value) in [
        ("lock_timeout", "7s"),
        ("synchronous_commit", "off"),
        ("default_transaction_isolation", "serializable"),
        ("statement_timeout", "0"),
    ] {
        let shown = client.simple_query(&format!("SHOW {setting}")).await;
        let shown = shown.expect("an answer");
        let found = shown.iter().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        assert_eq!(found, Some(value), "{setting}");
    }
    let prepared = client
        .simple_query("SELECT name FROM pg_prepared_statements")
        .await;
    assert_eq!(prepared.expect("an answer").len(), 2, "no row");
}

/// Direct clients would pass over waiters that seem to listen and don't.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_fleet_keeps_the_order() {
    const WAITERS: usize = 9;
    let server = Server::start();
    let (_pooler, url) = server.pool_of_transactions();
    let mut clients = Vec::new();
    for number in 0..WAITERS {
        let backend = match number % 3 {
            0 => connect_pooled(&url).await,
            1 => connect_to(&server.url()).await,
            _ => connect_with_push(&url, &server).await,
        };
        clients.push(LockClient::new(backend));
    }
    let observer = server.locks().await;
    for holder in [&observer, &clients[0]] {
        let guard = hold(holder, "a").await;
        let (sender, mut order) = unbounded_channel();
        let mut waiting = Vec::new();
        for (number, locks) in clients.iter().enumerate() {
            let (mutex, sender) = (locks.mutex("a").expect("valid"), sender.clone());
            waiting.push(tokio::spawn(async move {
                let guard = mutex.lock().await.expect("a lock");
                sender.send(number).expect("the test waits");
                guard.release().await.expect("released");
            }));
            eventually("it waits", async || {
                let found = observer.inspect("a").await;
                found.is_ok_and(|it| it.waiter_count() as usize == number + 1)
            })
            .await;
        }
        guard.release().await.expect("released");
        for waiter in join_all(waiting).await {
            waiter.expect("no panic");
        }
        drop(sender);
        let mut found = Vec::new();
        order.recv_many(&mut found, WAITERS).await;
        while found.len() < WAITERS {
            found.push(order.recv().await.expect("all had their turn"));
        }
        assert_eq!(found, (0..WAITERS).collect::<Vec<_>>());
    }
}

/// They count as polling, and nobody looks for their listener.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_one_pooled_client_are_woken_within_it() {
    let server = Server::start();
    let (_pooler, url) = server.pool_of_transactions();
    let backend: Backend = Arc::new(connect_pooled(&url).await);
    let mut stream = backend.listen(session(7)).await.expect("a stream");
    let (key, holder) = (key("a"), operation(session(1), 1));
    let before = soon(&backend).await;
    let first = acquire(&backend, &mutex(&key, holder, before)).await;
    acquired(&first.expect("an answer").reply);
    let waiter = operation(session(7), 1);
    let waits = mutex(&key, waiter, before).with_wait(Wait::new(true));
    let queued = acquire(&backend, &waits).await.expect("an answer").reply;
    assert_matches!(queued, AcquireReply::Queued(_));
    release(&backend, &key, holder).await.expect("released");
    let told = next(&mut stream).await;
    assert_matches!(told, Notification::Granted { sequence: 1, .. });
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(server.execute(held), "0", "nobody listens");
}

/// A pooled client can't subscribe, but its releases reach those that can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pooled_client_notifies_others() {
    let server = Server::start();
    let (_pooler, url) = server.pool_of_transactions();
    let (pooled, direct) = (connect_pooled(&url).await, connect_to(&server.url()).await);
    let (pooled, direct): (Backend, Backend) = (Arc::new(pooled), Arc::new(direct));
    let mut stream = direct.listen(session(7)).await.expect("a stream");
    let (key, holder) = (key("a"), operation(session(1), 1));
    let before = soon(&pooled).await;
    let first = acquire(&pooled, &mutex(&key, holder, before)).await;
    acquired(&first.expect("an answer").reply);
    // The second one is gone: it doesn't listen any more.
    for sequence in [(9, 1), (7, 1)] {
        let waiter = operation(session(sequence.0), sequence.1);
        let waits = mutex(&key, waiter, before).with_wait(Wait::new(true));
        let queued = acquire(&direct, &waits).await.expect("an answer").reply;
        assert_matches!(queued, AcquireReply::Queued(_));
    }
    release(&pooled, &key, holder).await.expect("released");
    let told = next(&mut stream).await;
    assert_matches!(told, Notification::Granted { sequence: 1, .. });
    let renewed = renew(&direct, &key, operation(session(7), 1), LONG).await;
    renewed.expect("renewed");
}

/// Commands and renewals have a connection each. Both end with the pooler, and come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pooler_restarts_under_load() {
    const ROUNDS: usize = 60;
    let server = Server::start();
    let (mut pooler, url) = server.pool_of_transactions();
    let is_held = Arc::new(AtomicBool::new(false));
    let (progress, mut done) = unbounded_channel();
    let mut tasks = Vec::new();
    let kept = LockClient::new(connect_pooled(&url).await);
    let mutex = kept.mutex("kept").expect("valid").lease(LONG);
    let kept = mutex.lock().await.expect("a lock");
    for number in 0..4 {
        let backend = match number % 2 {
            0 => connect_pooled(&url).await,
            _ => connect_with_push(&url, &server).await,
        };
        let (locks, is_held) = (LockClient::new(backend), Arc::clone(&is_held));
        let progress = progress.clone();
        tasks.push(tokio::spawn(async move {
            let mutex = locks.mutex("a").expect("valid");
            for _ in 0..ROUNDS {
                let guard = mutex.lock().await.expect("it waits for the pooler");
                assert!(!is_held.swap(true, Ordering::SeqCst), "two holders");
                tokio::task::yield_now().await;
                assert!(is_held.swap(false, Ordering::SeqCst));
                // If it gets no answer, it goes on in the background.
                let _ = guard.release().await;
                progress.send(()).expect("the test waits");
            }
        }));
    }
    drop(progress);
    for _ in 0..3 {
        for _ in 0..ROUNDS / 2 {
            done.recv().await.expect("they go on");
        }
        pooler.restart();
    }
    while done.recv().await.is_some() {}
    for task in tasks {
        task.await.expect("no panic");
    }
    eventually("renewed through the new pooler", async || {
        kept.renew().await.is_ok()
    })
    .await;
    assert!(kept.is_valid());
}

/// The clock of the server that answers through the pooler.
async fn clock(backend: &Backend) -> Option<ClockId> {
    backend.hello().await.ok().map(|stamp| stamp.clock)
}

async fn started(client: &tokio_postgres::Client) -> String {
    let asked = client
        .simple_query("SELECT pg_postmaster_start_time()")
        .await;
    format!("{:?}", asked.expect("an answer"))
}

/// The connection to the pooler lives on, and leads elsewhere. What was read on the old server isn't written on the new one,
/// even if that has the same row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_behind_the_pooler_is_replaced() {
    let (old, new) = (Server::start(), Server::start());
    let (mut pooler, url) = old.pool_of_transactions();
    let backend: Backend = Arc::new(connect_pooled(&url).await);
    let (key, before) = (key("a"), soon(&backend).await);
    let acquire = async |sequence| {
        let request = mutex(&key, operation(session(1), sequence), before);
        acquire(&backend, &request).await.expect("an answer")
    };
    // So often that the client remembers the row, and writes without a read.
    for sequence in 1..6 {
        acquired(&acquire(sequence).await.reply);
        let released = release(&backend, &key, operation(session(1), sequence)).await;
        released.expect("released");
    }
    let before = clock(&backend).await.expect("the server answers");
    let row = "SELECT format('INSERT INTO leasehold.locks VALUES (%L, %L, %L, %L)', key, version, state, keep_until)
        FROM leasehold.locks";
    new.execute(&old.execute(row));
    let other = sql_client(&url).await;
    let was = started(&other).await;
    pooler.lead_to(&[&new.postgres]);
    eventually("it leads to the new server", async || {
        started(&other).await != was
    })
    .await;
    let answer = acquire(6).await;
    acquired(&answer.reply);
    let after = clock(&backend).await.expect("the server answers");
    assert_ne!(before, after);
    assert_eq!(
        answer.stamp.clock, after,
        "it was executed at the time of the new server"
    );
}

/// A hold that the new server doesn't know is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_is_lost_with_its_server() {
    let (old, new) = (Server::start(), Server::start());
    let (mut pooler, url) = old.pool_of_transactions();
    let locks = LockClient::new(connect_with_push(&url, &old).await);
    let mutex = locks.mutex("a").expect("valid").lease(LONG * 10);
    let guard = mutex.lock().await.expect("a lock");
    pooler.lead_to(&[&new.postgres]);
    eventually("it is lost", async || {
        let _ = guard.renew().await;
        !guard.is_valid()
    })
    .await;
    let other = locks.mutex("b").expect("valid").try_lock_for(LONG).await;
    assert!(other.expect("an answer").is_acquired());
}

/// A pooler that sends some transactions to a standby, as one that splits reads does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_behind_the_pooler_answers_nothing() {
    let (primary, mut standby) = (Server::start(), Server::start());
    standby.postgres.restart_as_standby();
    let (mut pooler, url) = primary.pool_of_transactions();
    let backend: Backend = Arc::new(connect_pooled(&url).await);
    let (key, before) = (key("a"), soon(&backend).await);
    let held = acquire(&backend, &mutex(&key, operation(session(1), 1), before)).await;
    acquired(&held.expect("an answer").reply);
    pooler.lead_to(&[&primary.postgres, &standby.postgres]);
    // So many at once that the pool has connections to both.
    let clients = join_all((0..6).map(|_| sql_client(&url))).await;
    let sleeping = clients
        .iter()
        .map(|it| it.batch_execute("SELECT pg_sleep(0.2)"));
    for slept in join_all(sleeping).await {
        slept.expect("executed");
    }
    let mut seen = BTreeSet::new();
    eventually("both were asked", async || {
        match backend.inspect(&key).await {
            Ok(found) => assert_eq!(found.reply.holder_count, 1),
            Err(BackendError::Unavailable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let listed = backend.list(&leasehold_api::List::new("")).await;
        seen.insert(match listed {
            Ok(listed) => {
                assert_eq!(listed.keys.len(), 1);
                "primary"
            }
            Err(error) => {
                assert!(error.to_string().contains("standby"), "{error}");
                "standby"
            }
        });
        seen.len() == 2
    })
    .await;
    let all_standby = PgBouncer::start(&standby.postgres, "locks", TRANSACTIONS);
    let options = patient()
        .pooled(true)
        .initial_connect_timeout(Duration::from_millis(100));
    let refused = PostgresBackend::connect_with(&all_standby.url("locks", "shop"), options).await;
    let error = refused.expect_err("a standby").to_string();
    assert!(error.contains("standby"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn direct_url_must_lead_to_the_same_database() {
    let (server, other) = (Server::start(), Server::start());
    server.postgres.execute("postgres", "CREATE DATABASE other");
    server.postgres.execute("other", SCHEMA);
    server.postgres.execute("other", PRIVILEGES);
    let (_pooler, url) = server.pool_of_transactions();
    let refused = async |direct: String| {
        let options = patient().direct_url(direct);
        let options = options.initial_connect_timeout(Duration::from_millis(100));
        PostgresBackend::connect_with(&url, options).await
    };
    let error = rejected(refused(server.postgres.url("locks", "other")).await);
    assert!(error.contains("another database"), "{error}");
    let error = refused(other.url()).await.expect_err("another server");
    assert!(error.to_string().contains("another server"), "{error}");
    // It accepts connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("bound").to_string();
    let error = refused(format!("postgres://locks@{address}/shop")).await;
    let error = error.expect_err("no answer").to_string();
    assert!(error.contains(&address), "{error}");
    // Before any I/O:
    for (direct, text) in [
        (
            "postgres://locks@a/shop?pgbouncer=true",
            "leads to a pooler",
        ),
        (
            "postgres://locks:hunter2@a/shop?nothing=1",
            "names of its options",
        ),
        ("postgres://locks:hunter2@a/shop?pgbouncer=1", "neither"),
    ] {
        let error = refused(direct.into()).await.expect_err("not valid");
        assert_matches!(error, ConnectError::Invalid(_));
        let text_of_all = format!("{error} {error:?}");
        assert!(text_of_all.contains(text), "{text_of_all}");
        assert!(text_of_all.contains("direct_url"), "{text_of_all}");
        assert!(!text_of_all.contains("hunter2"), "{text_of_all}");
    }
    let options = patient().direct_url("postgres://locks:hunter2@a/shop");
    assert!(!format!("{options:?}").contains("hunter2"), "{options:?}");
}

/// Notifications would be lost. No setting has reached the pool's connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn direct_url_to_a_pool_of_transactions_is_refused() {
    let server = Server::start();
    let (_pooler, url) = server.pool_of_transactions();
    let options = patient().direct_url(&url);
    let error = rejected(PostgresBackend::connect_with(&url, options).await);
    let port = server.postgres.port();
    assert!(error.contains("direct_url"), "{error}");
    assert!(error.contains(&format!("(port {port})")), "{error}");
    assert!(!error.contains("pgbouncer=true"), "{error}");
    let client = sql_client(&url).await;
    let pool = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'locks'";
    let mut asked = BTreeSet::new();
    eventually("each connection of the pool was asked", async || {
        let question = "SELECT pg_backend_pid(), current_setting('lock_timeout')";
        for answer in client.simple_query(question).await.expect("an answer") {
            if let SimpleQueryMessage::Row(row) = answer {
                assert_eq!(row.get(1), Some("0"));
                asked.insert(row.get(0).map(str::to_owned));
            }
        }
        server.execute(pool) == asked.len().to_string()
    })
    .await;
}

/// The pooler may send the next write elsewhere. If it doesn't for a second, another connection may lead elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_server_keeps_the_connection_to_the_pooler_for_a_while() {
    let server = Server::start();
    server.execute("ALTER ROLE locks SET default_transaction_read_only = on");
    let backend: Backend = Arc::new(connect_pooled(&server.url()).await);
    // On a busy machine, a round may take a second.
    eventually("it keeps the connection", async || {
        let before = processes(&server).await;
        let error = write(&backend, 1).await.expect_err("read only");
        assert!(matches!(error, BackendError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("25006"), "{error}");
        backend.hello().await.expect("an answer");
        processes(&server).await == before
    })
    .await;
    // Only new connections can write again.
    server.execute("ALTER ROLE locks RESET default_transaction_read_only");
    eventually("it is written on a new connection", async || {
        backend.hello().await.expect("an answer");
        write(&backend, 1).await.is_ok()
    })
    .await;
}

/// Each server has a pooler. After a switchover, the old one lives on, and the connections of its clients too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pooler_of_a_standby_is_left() {
    let (mut old, new) = (Server::start(), Server::start());
    let start = |it: &Server| PgBouncer::start_with_port(&it.postgres, "locks", TRANSACTIONS);
    let poolers = [&old, &new].map(start);
    let hosts = [&poolers[0], &poolers[1]].map(|it| format!("127.0.0.1:{}", it.port()));
    let url = format!("postgres://locks@{}/shop?pgbouncer=true", hosts.join(","));
    let backend: Backend = Arc::new(connect_to(&url).await);
    write(&backend, 1).await.expect("written");
    let rows = "SELECT count(*) FROM leasehold.locks";
    assert_eq!(old.execute(rows), "1", "the first host is used");
    old.postgres.restart_as_standby();
    let error = write(&backend, 2).await.expect_err("a standby");
    assert!(error.to_string().contains("standby"), "{error}");
    eventually("it is written through the other pooler", async || {
        write(&backend, 2).await.is_ok()
    })
    .await;
    assert_eq!(new.execute(rows), "1");
}

/// Forwards connections to a server. If told to, it makes the next `BEGIN` of one that has replaced a row fail as if
/// somebody had cancelled it. The client removes rows over another one.
async fn canceller(server: &Server) -> (SocketAddr, Arc<AtomicBool>) {
    const CANCELLED: &[u8] = b"DO $$BEGIN RAISE SQLSTATE '57014'; END$$";
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, port) = (listener.local_addr(), server.postgres.port());
    let armed = Arc::new(AtomicBool::new(false));
    let cancels = Arc::clone(&armed);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await;
            let (mut from_server, mut to_server) = server.expect("a server").into_split();
            let (mut from_client, mut to_client) = client.into_split();
            tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
            let cancels = Arc::clone(&cancels);
            tokio::spawn(async move {
                let (mut bytes, mut writes) = (vec![0; 1 << 16], false);
                while let Ok(read @ 1..) = from_client.read(&mut bytes).await {
                    let sent = &mut bytes[..read];
                    let place = |text: &[u8]| sent.windows(text.len()).position(|it| it == text);
                    writes |= place(b"UPDATE leasehold.locks").is_some();
                    let begin = place(b"BEGIN ").filter(|_| writes);
                    if let Some(at) = begin.filter(|_| cancels.swap(false, Ordering::SeqCst)) {
                        let text = sent[at..].split_mut(|byte| *byte == 0).next();
                        let text = text.expect("a text");
                        text.fill(b' ');
                        text[..CANCELLED.len()].copy_from_slice(CANCELLED);
                    }
                    to_server.write_all(sent).await.expect("a server");
                }
            });
        }
    });
    (address.expect("bound"), armed)
}

/// The statement behind it is then executed by itself, and what it writes stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_without_its_transaction_is_not_called_unexecuted() {
    let server = Server::start_with(PostgresOptions::default().with_access("trust"));
    let (address, cancels) = canceller(&server).await;
    let url = format!("postgres://locks@{address}/shop?sslmode=disable&pgbouncer=true");
    let backend: Backend = Arc::new(connect_to(&url).await);
    let (key, before) = (key("a"), soon(&backend).await);
    // So often that the client remembers the row, and writes without a read.
    for sequence in 1..6 {
        let held = operation(session(1), sequence);
        let held = acquire(&backend, &mutex(&key, held, before)).await;
        acquired(&held.expect("an answer").reply);
        if sequence < 5 {
            let released = release(&backend, &key, operation(session(1), sequence)).await;
            released.expect("released");
        }
    }
    let last = operation(session(1), 5);
    cancels.store(true, Ordering::SeqCst);
    let released = release(&backend, &key, last).await;
    assert!(!cancels.load(Ordering::SeqCst), "it was cancelled");
    assert_matches!(released, Err(BackendError::OutcomeUnknown { .. }));
    let direct: Backend = Arc::new(connect_to(&server.url()).await);
    let found = direct.inspect(&key).await.expect("an answer");
    assert_eq!(found.reply.holder_count, 0, "it was released");
    let again = release(&backend, &key, last).await;
    again.expect("the client goes on");
}

/// Another program locks the rows. The wait is short, and other calls of the client go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_row_is_unavailable_and_keeps_the_connection() {
    let server = Server::start();
    let (_pooler, url) = server.pool_of_transactions();
    let backend: Backend = Arc::new(connect_pooled(&url).await);
    let write =
        async |sequence| release(&backend, &key("a"), operation(session(1), sequence)).await;
    write(1).await.expect("a row");
    let client = sql_client(&server.postgres.url("owner", "shop")).await;
    let lock = "BEGIN; SELECT FROM leasehold.locks FOR UPDATE";
    client.batch_execute(lock).await.expect("locked");
    let error = write(2).await.expect_err("locked");
    assert!(matches!(error, BackendError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("55P03"), "{error}");
    client.batch_execute("ROLLBACK").await.expect("unlocked");
    write(2).await.expect("an answer");
    throughout(Duration::from_millis(50), "it answers", async || {
        backend.hello().await.is_ok()
    })
    .await;
}
