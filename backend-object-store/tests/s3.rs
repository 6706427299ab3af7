//! What the suite can't see: URLs, credentials, and the names of objects on a server.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::time::Duration;

use leasehold_api::{BackendError, ConnectError, Key, LockClient, bounds};
use leasehold_object_store::{ObjectStoreBackend, Options};
use leasehold_test_servers::{SeaweedFs, eventually};

/// A busy machine may need longer than the default.
fn patient() -> Options {
    Options::new().call_timeout(bounds::MAX_CALL_TIMEOUT)
}

async fn client(url: &str, options: Options) -> LockClient {
    let backend = ObjectStoreBackend::connect_with(url, options).await;
    let locks = LockClient::builder(backend.expect("connected"));
    let locks = locks.call_timeout(bounds::MAX_CALL_TIMEOUT).build();
    locks.expect("in range")
}

#[tokio::test]
async fn bad_url_is_refused_without_its_password() {
    for url in [
        "https://bucket/s3cret",
        "s3:///folder?secret_access_key=s3cret",
        "s3://me:s3cret@bucket/folder",
        "s3://bucket?s3cret=1",
        "s3://bucket?secret_access_key=s3cret&access_key_id=me&virtual_hosted_style_request=s3cret",
        "s3://bucket/%ff?secret_access_key=s3cret",
        "s3://bucket?proxy_url=http://s3cret",
        "s3://bucket?timeout=1&secret_access_key=s3cret&access_key_id=me",
        // Credentials are sent in plain text only if the URL says so.
        "s3://bucket?endpoint=http://127.0.0.1:1/s3cret",
        "s3://bucket?endpoint=127.0.0.1:1/s3cret&allow_http=true",
        "s3://bucket?max_clock_skew=5&secret_access_key=s3cret&access_key_id=me",
        "s3://bucket?endpoint=https://me:s3cret@127.0.0.1:1",
        // As from a file with a line break at its end.
        "s3://bucket?secret_access_key=me&access_key_id=s3cret%0A",
        "s3://bucket?secret_access_key=me&access_key_id=me&token=s3cret%0A",
        "s3://bucket?secret_access_key=me&access_key_id=me&region=s3cret%C3%A9",
        "s3cret",
    ] {
        let error = ObjectStoreBackend::connect(url).await.expect_err(url);
        assert!(
            matches!(error, ConnectError::Invalid(_)),
            "{url}: {error:?}"
        );
        assert!(
            !format!("{error} {error:?}").contains("s3cret"),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn wrong_bucket_and_wrong_password_are_refused() {
    let server = SeaweedFs::start();
    let url = server.url("");
    let mut others = vec![url.replacen("s3://locks", "s3://none", 1)];
    others.push(url.replacen("=s3cret", "=other", 1));
    for other in others {
        assert_ne!(other, url);
        let error = ObjectStoreBackend::connect(&other).await.expect_err(&other);
        let is_refused = matches!(error, ConnectError::Backend(BackendError::Rejected { .. }));
        assert!(is_refused, "{other}: {error:?}");
    }
}

/// Each command is a client of its own, which never sees a lease end.
#[tokio::test]
async fn command_of_a_moment_gets_the_lock_of_a_dead_holder() {
    let server = SeaweedFs::start();
    let url = format!("{}&max_clock_skew=0s", server.url(""));
    let lease = Duration::from_secs(1);
    let holder = client(&url, patient()).await;
    let mutex = holder.mutex("k").expect("a key").lease(lease);
    let guard = mutex.fixed_lease().lock().await;
    std::mem::forget(guard.expect("free"));
    let command = async || {
        let locks = client(&url, patient()).await;
        let acquired = locks.mutex("k").expect("a key").try_lock().await;
        acquired.expect("an answer").into_guard().is_some()
    };
    eventually("a command gets the lock", command).await;
}

/// A server that can't be reached leaves no doubt: the check reads first.
#[tokio::test]
async fn unreachable_server_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = url_of(&listener);
    drop(listener);
    let error = ObjectStoreBackend::connect(&url)
        .await
        .expect_err("nobody listens");
    let is_unavailable = matches!(
        error,
        ConnectError::Backend(BackendError::Unavailable { .. })
    );
    assert!(is_unavailable, "{error:?}");
}

/// A server that gives the same answer to each request.
#[tokio::test]
async fn answers_say_whether_to_try_again() {
    const TOO_SLOW: &str = "<Error><Code>RequestTimeout</Code></Error>";
    for (status, body, is_permanent) in [
        ("301 Moved Permanently", "", true),
        (
            "307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/",
            "",
            true,
        ),
        ("400 Bad Request", "", true),
        ("400 Bad Request", TOO_SLOW, false),
        ("405 Method Not Allowed", "", true),
        ("408 Request Timeout", "", false),
        ("429 Too Many Requests", "", false),
        ("500 Internal Server Error", "", false),
        ("503 Slow Down", "", false),
    ] {
        let url = server_that_answers(status, body);
        let error = ObjectStoreBackend::connect(&url).await.expect_err(status);
        let ConnectError::Backend(error) = error else {
            panic!("{status}: {error:?}");
        };
        let is_rejected = matches!(error, BackendError::Rejected { .. });
        let answer = (status, body);
        assert_eq!(is_rejected, is_permanent, "{answer:?}: {error:?}");
        assert_eq!(error.is_transient(), !is_permanent, "{answer:?}: {error:?}");
    }
}

/// Returns the URL of a bucket.
fn server_that_answers(status: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = url_of(&listener);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut lines = BufReader::new(&stream).lines();
            while lines
                .next()
                .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
            {}
            let length = body.len();
            let headers = format!("Content-Length: {length}\r\nConnection: close");
            let answer = format!("HTTP/1.1 {status}\r\n{headers}\r\n\r\n{body}");
            drop(stream.write_all(answer.as_bytes()));
        }
    });
    url
}

fn url_of(listener: &TcpListener) -> String {
    let address = listener.local_addr().expect("an address");
    let login = "access_key_id=me&secret_access_key=it";
    format!("s3://bucket?endpoint=http://{address}&allow_http=true&{login}")
}

#[tokio::test]
async fn folders_and_prefixes_are_apart() {
    let server = SeaweedFs::start();
    let key = "é/../%2F ".repeat(20);
    let mut guards = Vec::new();
    for (folder, prefix) in [("", ""), ("a b/c", ""), ("", "a b/c"), ("a b/c", ":")] {
        let locks = client(&server.url(folder), patient().key_prefix(prefix)).await;
        let taken = locks.mutex(&key).expect("valid").try_lock().await;
        let guard = taken.expect("it works").into_guard();
        guards.push(guard.unwrap_or_else(|| panic!("{folder:?} {prefix:?}: not free")));
        let page = locks.list("").expect("valid").next_page().await;
        let keys = page.expect("it works").unwrap_or_default();
        assert_eq!(
            keys,
            [Key::new(&key).expect("valid")],
            "{folder:?} {prefix:?}"
        );
    }
}

/// The next leader has a higher term, and knows of the first one's end at its next poll.
#[tokio::test]
async fn leaders_follow_each_other() {
    let server = SeaweedFs::start();
    let url = server.url("jobs");
    let [first, second] = [client(&url, patient()).await, client(&url, patient()).await];
    let of = |locks: &LockClient| locks.election("leader").expect("valid");
    let leads = of(&first).info("10.0.0.7:80").expect("valid");
    let term = leads.campaign().await.expect("elected");
    let follows = of(&second);
    let leader = follows.leader().await.expect("it works").expect("a leader");
    assert_eq!(&leader.info[..], b"10.0.0.7:80");
    let next = tokio::spawn(async move { follows.campaign().await });
    let before = term.number();
    term.resign().await.expect("it leads");
    let term = next.await.expect("no panic").expect("elected");
    assert!(term.number() > before);
    term.resign().await.expect("it leads");
}
