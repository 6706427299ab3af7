//! What callers of an instance get, as a process on real servers.

mod common;

use leasehold_test_servers::{PostgresServer, RedisServer, block_until};
use leasehold_web_example::accounts::SCHEMA;

use crate::common::{Instance, deposit, free_address, get};

/// Redis, and Postgres with the accounts 7 and 8.
fn servers() -> (RedisServer, PostgresServer) {
    let postgres = PostgresServer::start();
    postgres.execute("postgres", SCHEMA);
    postgres.execute("postgres", "INSERT INTO account VALUES (7, 0), (8, 0)");
    (RedisServer::start(), postgres)
}

/// An instance that listens.
fn instance(redis: &RedisServer, postgres: &PostgresServer) -> Instance {
    let database = postgres.url("owner", "postgres");
    Instance::start(free_address(), &redis.url(), &database)
}

fn await_ready(instance: &Instance) {
    block_until("the instance is ready", || {
        get(instance.address, "/readyz") == 200
    });
}

fn assert_status(instance: &Instance, (account, request, amount): (i64, i64, i64), status: u16) {
    let answer = deposit(instance.address, account, request, amount);
    assert_eq!(answer.expect("an answer"), status);
}

#[test]
fn two_callers_with_one_request_id_are_both_booked() {
    let (redis, postgres) = servers();
    let web = instance(&redis, &postgres);
    await_ready(&web);
    assert_status(&web, (7, 1, 5), 200);
    for _ in 0..2 {
        assert_status(&web, (8, 1, 9), 200);
    }
    let balances = "SELECT string_agg(balance::text, ' ' ORDER BY id) FROM account";
    assert_eq!(postgres.execute("postgres", balances), "5 9");
}

#[test]
fn request_id_with_another_amount_is_422() {
    let (redis, postgres) = servers();
    let web = instance(&redis, &postgres);
    await_ready(&web);
    assert_status(&web, (7, 1, 5), 200);
    assert_status(&web, (7, 1, 6), 422);
    let sum = "SELECT sum(balance) FROM account";
    assert_eq!(postgres.execute("postgres", sum), "5");
}

#[test]
fn unknown_account_is_404_and_a_later_claim_503() {
    let (redis, postgres) = servers();
    let web = instance(&redis, &postgres);
    await_ready(&web);
    assert_status(&web, (9, 1, 5), 404);
    postgres.execute(
        "postgres",
        &format!("UPDATE account SET fence = {} WHERE id = 7", i64::MAX),
    );
    assert_status(&web, (7, 1, 5), 503);
}

#[test]
fn statement_that_hangs_ends_before_the_request_does() {
    let (redis, postgres) = servers();
    let web = instance(&redis, &postgres);
    await_ready(&web);
    postgres.execute(
        "postgres",
        "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN PERFORM pg_sleep(600); RETURN NEW; END $$;
        CREATE TRIGGER hang BEFORE UPDATE ON account FOR EACH ROW WHEN (OLD.id = 7) EXECUTE FUNCTION hang()",
    );
    assert_status(&web, (7, 1, 5), 503); // 504, if only the request's limit ends it
    assert_status(&web, (8, 1, 5), 200);
}

#[test]
fn instance_is_alive_before_the_server_of_the_locks() {
    let (mut redis, postgres) = servers();
    redis.kill();
    let web = instance(&redis, &postgres);
    assert_eq!(get(web.address, "/livez"), 200);
    assert_eq!(get(web.address, "/readyz"), 503);
    assert_status(&web, (7, 1, 5), 503);
    block_until("the first attempt to connect is over", || {
        web.has_logged("the server of the locks is away")
    });
    redis.start_again();
    await_ready(&web);
    assert_status(&web, (7, 1, 5), 200);
}

#[test]
fn instance_with_a_mistake_in_its_url_ends() {
    let database = "postgres://localhost/postgres"; // connects with the first request
    let mut web = Instance::spawn(free_address(), "http://localhost", database);
    let ended = || web.process.try_wait().expect("ours").is_some();
    block_until("the instance ends", ended);
    assert!(!web.process.wait().expect("ended").success());
}
