//! The facade on Postgres. `./test deep` runs these tests with the others on Postgres.

use leasehold_test_servers::PostgresServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_url_leads_to_postgres() {
    let server = tokio::task::block_in_place(PostgresServer::start);
    server.execute("postgres", leasehold::postgres::SCHEMA);
    let folder = server.folder().display().to_string().replace('/', "%2F");
    let location = format!("owner@{folder}:{}/postgres", server.port());
    let mut mutexes = Vec::new();
    for scheme in ["postgres", "postgresql"] {
        let url = format!("{scheme}://{location}");
        let locks = leasehold::connect(&url).await.expect("connected");
        let backend = format!("{:?}", locks.backend());
        assert!(backend.starts_with("PostgresBackend"), "{backend}");
        mutexes.push(locks.mutex("k").expect("a good key"));
    }
    let guard = mutexes[0].lock().await.expect("acquired");
    let refused = mutexes[1].try_lock().await.expect("answered");
    assert!(refused.into_guard().is_none());
    guard.release().await.expect("released");
    drop(mutexes[1].lock().await.expect("acquired"));
}
