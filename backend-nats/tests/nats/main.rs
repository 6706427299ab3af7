//! What the suite can't see: settings, logins, restarts, and what is too large.

#[path = "../support/mod.rs"]
mod support;

use std::env;
use std::path::Path;
use std::process::Command as Program;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use leasehold_api::machine::{self, Command, Env, Reach, Reply, Settings, State};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Key, Label, List, LockBackend, LockClient, LockSpec, Mode,
    Operation, OwnerId, ServerTime, SessionId, Wait, bounds,
};
use leasehold_nats::{ConnectError, NatsBackend, Options};
use leasehold_test_servers::{Authority, NatsServers};
use serde_json::{Value, json};
use support::ask;

/// What a busy machine may add to any time.
const SLACK: Duration = Duration::from_secs(40);

/// A busy machine may need longer for a call than the default.
async fn backend(url: &str) -> NatsBackend {
    let options = Options::new().call_timeout(bounds::MAX_CALL_TIMEOUT);
    let connected = NatsBackend::connect_with(url, options).await;
    connected.expect("connected")
}

async fn connect(url: &str) -> LockClient {
    LockClient::new(backend(url).await)
}

async fn refusal(url: &str) -> BackendError {
    match NatsBackend::connect(url).await {
        Err(ConnectError::Backend(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Takes a lock and releases it.
async fn use_once(locks: &LockClient, key: &str) {
    let mutex = locks.mutex(key).expect("a key");
    let acquired = mutex.try_lock_for(SLACK).await.expect("an answer");
    let guard = acquired.into_guard().expect("free");
    guard.release().await.expect("released");
}

/// Creates a bucket with some settings of its own.
async fn create(server: &NatsServers, bucket: &str, settings: Value) {
    let mut config = json!({
        "name": format!("KV_{bucket}"),
        "subjects": [format!("$KV.{bucket}.>")],
        "max_msgs_per_subject": 1,
        "discard": "new",
        "storage": "file",
    });
    let all = config.as_object_mut().expect("an object");
    all.extend(settings.as_object().cloned().expect("an object"));
    let subject = format!("$JS.API.STREAM.CREATE.KV_{bucket}");
    let answer = ask(&server.url(), &subject, &config).await;
    let answer = answer.expect("an answer");
    assert_eq!(answer["error"], Value::Null, "{answer}");
}

#[tokio::test]
async fn bad_url_is_refused_without_its_password() {
    for url in [
        "postgres://me:s3cret@127.0.0.1/db",
        "nats:me:s3cret@127.0.0.1",
        "nats://me:s3cret@127.0.0.1:port",
        "nats://me:s3cret@",
        "nats://me:s3cret@127.0.0.1,/a",
        "nats://me:s3cret@127.0.0.1/a.b",
        "nats://me:s3cret@127.0.0.1/a?b=c",
        "nats://m%FFe:s3cret@127.0.0.1",
        "nats://me:s3cret@127.0.0.1,me:s3cret@127.0.0.2",
    ] {
        let error = NatsBackend::connect(url).await.expect_err(url);
        assert!(matches!(error, ConnectError::Invalid(_)), "{error:?}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn paused_clock_is_refused() {
    let connected = NatsBackend::connect("nats://127.0.0.1:1").await;
    assert!(
        matches!(connected, Err(ConnectError::Invalid(_))),
        "{connected:?}"
    );
}

/// Each would lose locks, or is something else.
#[tokio::test]
async fn dangerous_bucket_is_refused() {
    let server = NatsServers::start("");
    for (number, (settings, named)) in [
        (json!({ "storage": "memory" }), "storage"),
        (json!({ "max_age": 3_600_000_000_000_u64 }), "max_age"),
        (json!({ "discard": "old", "max_bytes": 1_000_000 }), "limit"),
        (json!({ "discard": "old", "max_msgs": 1_000 }), "limit"),
        (json!({ "retention": "interest" }), "vanish"),
        (json!({ "no_ack": true }), "acknowledges"),
        (json!({ "persist_mode": "async" }), "before they are stored"),
        (
            json!({ "discard_new_per_subject": true }),
            "can't be written again",
        ),
        (json!({ "subjects": ["other.>"] }), "plain"),
        (
            json!({
                "subject_delete_marker_ttl": 60_000_000_000_u64,
                "allow_msg_ttl": true,
                "allow_rollup_hdrs": true,
            }),
            "marker",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let bucket = format!("b{number}");
        create(&server, &bucket, settings).await;
        let error = refusal(&format!("{}/{bucket}", server.url())).await;
        let text = error.to_string();
        assert!(
            matches!(error, BackendError::Rejected { .. }) && text.contains(named),
            "{error:?}"
        );
    }
}

/// As the command `nats kv add` makes it, with reads from replicas, which nobody uses.
#[tokio::test]
async fn bucket_that_exists_is_used() {
    let server = NatsServers::start("");
    let settings = json!({ "allow_direct": true, "allow_rollup_hdrs": true, "deny_delete": true });
    create(&server, "shop", settings).await;
    let locks = connect(&format!("{}/shop", server.url())).await;
    let guard = locks.mutex("k").expect("a key").lock().await.expect("free");
    // Another bucket, and another prefix.
    use_once(&connect(&server.url()).await, "k").await;
    let options = Options::new()
        .key_prefix("billing:")
        .call_timeout(bounds::MAX_CALL_TIMEOUT);
    let url = format!("{}/shop", server.url());
    let others = NatsBackend::connect_with(&url, options).await;
    use_once(&LockClient::new(others.expect("connected")), "k").await;
    let info = json!({ "subjects_filter": "$KV.shop.>" });
    let info = ask(&server.url(), "$JS.API.STREAM.INFO.KV_shop", &info).await;
    let subjects = &info.expect("an answer")["state"]["subjects"];
    let expected = json!({ "$KV.shop.k": 1, "$KV.shop.billing=3Ak": 1 });
    assert_eq!(subjects, &expected);
    guard.release().await.expect("released");
}

#[tokio::test]
async fn server_without_jetstream_or_with_a_login_refuses() {
    let server = NatsServers::start(
        "accounts { A { users [ { user: me, password: s3cret } ] }, B { jetstream: enabled, users [ { user: locks, password: \"s3/cret\" } ] } }",
    );
    let host = server.url().replace("nats://", "");
    for login in ["", "locks:wrong@", "me:s3cret@"] {
        let error = refusal(&format!("nats://{login}{host}")).await;
        let text = format!("{error} {error:?}");
        assert!(
            matches!(error, BackendError::Rejected { .. }) && !text.contains("cret"),
            "{text}"
        );
    }
    let url = format!("nats://locks:s3%2Fcret@{host}");
    let backend = backend(&url).await;
    assert!(!format!("{backend:?}").contains("cret"), "{backend:?}");
    use_once(&LockClient::new(backend), "k").await;
    let server = NatsServers::start("authorization { token: s3cret }");
    let host = server.url().replace("nats://", "");
    use_once(&connect(&format!("nats://s3cret@{host}")).await, "k").await;
}

const TLS_URL: &str = "LEASEHOLD_TEST_TLS_URL";

/// In a process whose machine trusts the server's authority.
#[tokio::test]
#[ignore = "tls_is_used_with_the_authorities_of_the_machine runs it in a process of its own"]
async fn with_authority() {
    let url = env::var(TLS_URL).expect("a URL");
    use_once(&connect(&url).await, "k").await;
    // The server asks for it.
    use_once(&connect(&url.replace("tls://", "nats://")).await, "k").await;
}

#[tokio::test]
async fn tls_is_used_with_the_authorities_of_the_machine() {
    let authority = Authority::new();
    let server = NatsServers::start_with_tls(&authority.issue("127.0.0.1"));
    let url = server.url().replace("nats://", "tls://");
    let error = refusal(&url).await;
    let text = error.to_string();
    assert!(
        !error.is_transient() && text.contains("certificate"),
        "{error:?}"
    );
    // A server without TLS is not used in plain text.
    let plain = NatsServers::start("");
    refusal(&plain.url().replace("nats://", "tls://")).await;
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("authority.pem");
    std::fs::write(&file, authority.certificate()).expect("a file");
    let tests = env::current_exe().expect("a path");
    let run = Program::new(tests)
        .args(["--ignored", "--exact", "with_authority"])
        .env("SSL_CERT_FILE", file)
        .env(TLS_URL, url)
        .output()
        .expect("started");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && text.contains("1 passed"), "{text}");
}

/// A server with one user, who has these rights.
fn server_with_rights(rights: &str) -> (NatsServers, String) {
    let server = NatsServers::start(&format!(
        "authorization {{ users [ {{ user: locks, password: a, permissions: {{ {rights} }} }} ] }}"
    ));
    let url = server.url().replace("nats://", "nats://locks:a@");
    (server, url)
}

/// The error names the subject.
#[tokio::test]
async fn missing_right_is_named() {
    let is_named = |is_transient: bool, error: String, subject: &str| {
        assert!(!is_transient && error.contains(subject), "{error}");
    };
    let (_server, url) = server_with_rights("publish: { deny: [\"$KV.>\"] }");
    let locks = connect(&url).await;
    let error = locks.mutex("Key").expect("a key").try_lock().await;
    let error = error.expect_err("no right to write");
    let subject = "\"$KV.leasehold.Key\"";
    is_named(error.is_transient(), error.to_string(), subject);
    for denied in ["subscribe", "publish"] {
        let rights = format!("{denied}: {{ deny: [\"_LEASEHOLD.>\"] }}");
        let (_server, url) = server_with_rights(&rights);
        let listening = backend(&url)
            .await
            .listen(SessionId::from_bytes([1; 16]))
            .await;
        let error = listening.err().expect("no right to listen");
        let subject = "\"_LEASEHOLD.leasehold.";
        is_named(error.is_transient(), error.to_string(), subject);
    }
    let (_server, url) = server_with_rights("subscribe: { deny: [\"_INBOX.>\"] }");
    let error = refusal(&url).await;
    is_named(error.is_transient(), error.to_string(), "\"_INBOX.");
}

/// The rights that the page of the crate names.
#[tokio::test]
async fn named_rights_are_enough() {
    let (_server, url) = server_with_rights(
        r#"
        publish: { allow: [
            "$JS.API.STREAM.INFO.KV_leasehold", "$JS.API.STREAM.CREATE.KV_leasehold",
            "$JS.API.STREAM.MSG.GET.KV_leasehold", "$KV.leasehold.>", "_LEASEHOLD.>",
        ] },
        subscribe: { allow: [ "_INBOX.>", "_LEASEHOLD.>" ] }
        "#,
    );
    let locks = connect(&url).await;
    let guard = locks.mutex("k").expect("a key").lock().await.expect("free");
    let others = backend(&url).await;
    let listed = others.list(&List::new("")).await.expect("listed");
    assert_eq!(listed.keys, [Key::new("k").expect("a key")]);
    let listening = others.listen(SessionId::from_bytes([1; 16])).await;
    assert!(listening.is_ok(), "{:?}", listening.err());
    guard.release().await.expect("released");
    use_once(&LockClient::new(others), "k").await;
}

/// As JetStream does while no server leads it.
#[tokio::test]
async fn unanswered_request_is_tried_again() {
    let server = NatsServers::start("mappings { \"$JS.API.STREAM.INFO.KV_leasehold\": \"fake\" }");
    let client = async_nats::connect(server.url()).await.expect("connected");
    let mut requests = client.subscribe("fake").await.expect("subscribed");
    client.flush().await.expect("sent");
    let answering = async {
        requests.next().await.expect("a request");
        while let Some(request) = requests.next().await {
            let error =
                json!({ "error": { "err_code": 10076, "description": "the second answer" } });
            let reply = request.reply.expect("a request");
            let answered = client.publish(reply, error.to_string().into()).await;
            answered.expect("connected");
        }
    };
    let url = server.url();
    let connecting = Box::pin(refusal(&url));
    let Either::Left((error, _)) = select(connecting, Box::pin(answering)).await else {
        panic!("the connection was lost");
    };
    assert!(error.to_string().contains("the second answer"), "{error:?}");
}

/// A leader before NATS 2.14 says so if its own disk is full, when a majority has accepted the write.
#[tokio::test]
async fn write_that_a_leader_could_not_store_may_be_stored_by_others() {
    let server = NatsServers::start("mappings { \"$KV.leasehold.k\": \"fake\" }");
    let client = async_nats::connect(server.url()).await.expect("connected");
    let mut writes = client.subscribe("fake").await.expect("subscribed");
    client.flush().await.expect("sent");
    let answering = async {
        while let Some(write) = writes.next().await {
            let error =
                json!({ "error": { "err_code": 10077, "description": "no space left on device" } });
            let reply = write.reply.expect("a request");
            let answered = client.publish(reply, error.to_string().into()).await;
            answered.expect("connected");
        }
    };
    let backend = backend(&server.url()).await;
    let now = backend.hello().await.expect("a clock").at;
    let request = [waiter(1, now.saturating_add(Duration::from_secs(5)))];
    let acquiring = backend.acquire(&request);
    let Either::Left((mut answers, _)) = select(acquiring, Box::pin(answering)).await else {
        panic!("the connection was lost");
    };
    let error = answers.remove(0).expect_err("not stored");
    assert!(
        matches!(error, BackendError::OutcomeUnknown { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn lock_survives_a_crash_of_the_server() {
    let mut server = NatsServers::start("");
    let locks = connect(&server.url()).await;
    let mutex = locks.mutex("k").expect("a key");
    let guard = mutex.lease(Duration::from_secs(60)).lock().await;
    let guard = guard.expect("free");
    server.kill(0);
    server.restart(0);
    let others = connect(&server.url()).await;
    let outcome = others.mutex("k").expect("a key").try_lock().await;
    assert!(!outcome.expect("an answer").is_acquired());
    use_once(&locks, "free").await;
    assert!(guard.is_valid());
    guard.release().await.expect("still held");
    use_once(&others, "k").await;
}

/// Each call ends, and the client goes on when the server does.
#[tokio::test]
async fn stopped_server_holds_up_no_call() {
    let server = NatsServers::start("");
    let locks = connect(&server.url()).await;
    use_once(&locks, "k").await;
    server.pause(0, true);
    let began = Instant::now();
    let error = locks.mutex("k").expect("a key").try_lock().await;
    let error = error.expect_err("nobody answers");
    assert!(error.is_transient() && began.elapsed() < SLACK, "{error:?}");
    server.pause(0, false);
    use_once(&locks, "k").await;
}

/// A client that waits, with the longest label.
fn waiter(number: u64, soon: ServerTime) -> Acquire {
    let mut session = [0; 16];
    session[..8].copy_from_slice(&number.to_be_bytes());
    let operation = Operation {
        session: SessionId::from_bytes(session),
        sequence: 1,
        owner: OwnerId::from_u64(number),
    };
    // So long that none leaves the queue before it is full.
    let spec = LockSpec::mutex().with_waiter_lease(bounds::MAX_WAITER_LEASE);
    let (key, spec) = (Key::new("k").expect("a key"), spec.expect("valid"));
    let request = Acquire::new(key, spec, Mode::Exclusive, operation, SLACK, soon);
    let label = Label::new("x".repeat(bounds::MAX_LABEL_BYTES)).expect("a label");
    request
        .expect("valid")
        .with_label(label)
        .with_wait(Wait::new(true))
}

/// Each takes the same room.
#[test]
fn message_has_room_for_7_000_waiters() {
    let now = ServerTime::from_micros(1_800_000_000_000_000);
    let env = Env {
        now,
        settings: Settings::default(),
        reachable: &|_| Reach::Listening,
    };
    let mut state = State::default();
    let mut size_with = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            let request = waiter(number, now.saturating_add(Duration::from_secs(5)));
            let (reply, _) = machine::step(&mut state, env, &Command::Acquire(request));
            assert!(matches!(
                reply,
                Reply::Acquire(AcquireReply::Acquired(_) | AcquireReply::Queued(_))
            ));
        }
        state.to_bytes().len()
    };
    let (few, more) = (size_with(0..100), size_with(100..200));
    let each = (more - few).div_ceil(100);
    // Up to 16 bytes more, with a floor and the end of a wait. With the headers, less than the server's own `max_payload`.
    let all = few + (each + 16) * 7_000;
    assert!(
        all < (1 << 20) - 1_024,
        "{all} bytes, {each} for each waiter"
    );
}

#[tokio::test]
async fn state_that_is_too_large_is_refused() {
    let server = NatsServers::start("max_payload: 8KB");
    let backend = backend(&server.url()).await;
    for number in 0..300 {
        let now = backend.hello().await.expect("a clock").at;
        let request = waiter(number, now.saturating_add(Duration::from_secs(5)));
        match backend.acquire(&[request]).await.remove(0) {
            Ok(_) => {}
            Err(error @ BackendError::Rejected { .. }) => {
                assert!(
                    number > 10 && error.to_string().contains("max_payload"),
                    "{error:?}"
                );
                return;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("it fits");
}
