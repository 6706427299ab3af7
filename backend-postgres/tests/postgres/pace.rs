//! A server goes away while many calls wait, and one of several hosts is of no use.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use leasehold_api::LockClient;
use leasehold_postgres::Options;
use leasehold_test_servers::{PostgresOptions, ServerAway, throughout};
use tokio::task::JoinSet;

use crate::support::{Server, connect_with, hold};

fn start() -> Server {
    Server::start_with(PostgresOptions::default().with_access("trust"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_to_connect_do_not_grow_with_waiting_calls() {
    let mut server = start();
    let locks = LockClient::new(connect_with(&server.tcp_url(), Options::new()).await);
    let guard = hold(&locks, "held").await;
    let mut waiting = JoinSet::new();
    // One of them waits in the queue, with a subscription.
    let mut wait_for = |key: String| {
        let mutex = locks.mutex(key).expect("valid");
        waiting.spawn(async move { mutex.lock().await.map(drop) });
    };
    wait_for("held".into());
    let listens = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    server.wait_for(listens, "1").await;
    server.postgres.stop();
    let away = ServerAway::listen((Ipv4Addr::LOCALHOST, server.postgres.port()).into());
    (0..50).for_each(|number| wait_for(format!("{number}")));
    let are_few = async || away.connections() <= 35;
    throughout(Duration::from_secs(5), "attempts are few", are_few).await;
    assert!(away.connections() >= 2, "{}", away.connections());
    drop(away);
    server.postgres.restart();
    drop(guard);
    while let Some(done) = waiting.join_next().await {
        done.expect("no panic").expect("a lock");
    }
}

/// The first host accepts connections and never answers.
#[tokio::test]
async fn silent_host_hides_no_other() {
    let server = start();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let silent = listener.local_addr().expect("bound");
    let own = format!("127.0.0.1:{}", server.postgres.port());
    for settings in ["", "?target_session_attrs=read-write"] {
        let url = server.tcp_url().replace(&own, &format!("{silent},{own}"));
        let backend = connect_with(&format!("{url}{settings}"), Options::new()).await;
        let guard = hold(&LockClient::new(backend), "a").await;
        guard.release().await.expect("released");
    }
    drop(listener);
}

#[tokio::test]
async fn standby_hides_no_primary() {
    let (mut standby, primary) = (start(), start());
    standby.postgres.restart_as_standby();
    let hosts = [&standby, &primary].map(|it| format!("127.0.0.1:{}", it.postgres.port()));
    for hosts in [hosts.join(","), format!("{},{}", hosts[1], hosts[0])] {
        let url = format!("postgres://locks@{hosts}/shop");
        let backend = connect_with(&url, Options::new()).await;
        let guard = hold(&LockClient::new(backend), "a").await;
        guard.release().await.expect("released");
    }
}
