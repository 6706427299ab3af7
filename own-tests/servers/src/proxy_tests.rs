use super::*;
use crate::RedisServer;

const SOON: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(20);

/// A client that sends and receives bytes.
struct Client(TcpStream);

impl Client {
    async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.expect("connects"))
    }

    async fn send(&mut self, words: &[&str]) {
        let text = resp::text_of(words);
        self.0.write_all(text.as_bytes()).await.expect("sends");
    }

    async fn expect(&mut self, reply: &str) {
        let mut received = vec![0; reply.len()];
        let read = self.0.read_exact(&mut received);
        tokio::time::timeout(LONG, read)
            .await
            .expect("in time")
            .expect("a reply");
        assert_eq!(String::from_utf8_lossy(&received), reply);
    }

    async fn ping(&mut self) {
        self.send(&["PING"]).await;
        self.expect("+PONG\r\n").await;
    }

    async fn expect_closed(&mut self) {
        let read = tokio::time::timeout(LONG, self.0.read_u8())
            .await
            .expect("in time");
        assert!(read.is_err(), "the connection should be closed");
    }

    async fn expect_silence(&mut self) {
        let read = tokio::time::timeout(SOON, self.0.read_u8()).await;
        assert!(read.is_err(), "unexpected bytes: {read:?}");
    }
}

async fn start() -> (RedisServer, FaultProxy, Client) {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    let client = Client::connect(proxy.address()).await;
    (server, proxy, client)
}

#[tokio::test]
async fn proxy_without_faults_forwards_everything() {
    let (_server, proxy, mut client) = start().await;
    let large = "x".repeat(100_000);
    client.send(&["SET", "k", &large]).await;
    client.expect("+OK\r\n").await;
    client.send(&["GET", "k"]).await;
    client.expect(&format!("$100000\r\n{large}\r\n")).await;
    assert_eq!((proxy.eaten_replies(), proxy.eaten_requests()), (0, 0));
}

#[tokio::test]
async fn dropped_reply_was_executed_once_and_the_connection_is_closed() {
    let (_server, proxy, mut client) = start().await;
    for _ in 0..2 {
        proxy.eat_reply(|request| request.is("INCR"));
        // The reply before the dropped one still arrives.
        client.send(&["PING"]).await;
        client.send(&["INCR", "n"]).await;
        client.expect("+PONG\r\n").await;
        client.expect_closed().await;
        client = Client::connect(proxy.address()).await;
    }
    client.send(&["INCR", "n"]).await;
    client.expect(":3\r\n").await;
    assert_eq!(proxy.eaten_replies(), 2);
    assert_eq!(proxy.connections(), 3);
}

#[tokio::test]
async fn only_the_matching_reply_of_a_pipeline_is_dropped() {
    let (_server, proxy, mut client) = start().await;
    proxy.eat_reply(|request| request.arguments()[1..] == [b"b".to_vec()]);
    for key in ["a", "b", "c"] {
        client.send(&["INCR", key]).await;
    }
    client.expect(":1\r\n").await;
    client.expect_closed().await;
    let mut client = Client::connect(proxy.address()).await;
    client.send(&["INCR", "b"]).await;
    client.expect(":2\r\n").await;
}

#[tokio::test]
async fn pushes_and_subscriptions_do_not_count_as_replies() {
    for hello in ["2", "3"] {
        let (_server, proxy, mut client) = start().await;
        client.send(&["HELLO", hello]).await;
        client.send(&["SUBSCRIBE", "c", "d"]).await;
        client.send(&["PING"]).await;
        proxy.eat_reply(|request| request.is("PING"));
        let mut all = String::new();
        tokio::time::timeout(LONG, client.0.read_to_string(&mut all))
            .await
            .expect("in time")
            .expect("closed without an error");
        assert_eq!(proxy.eaten_replies(), 1);
        assert_eq!(all.matches("subscribe").count(), 2, "{all}");
        assert!(!all.to_lowercase().contains("pong"), "{all}");
    }
}

#[tokio::test]
async fn dropped_request_was_not_executed() {
    let (_server, proxy, mut client) = start().await;
    proxy.eat_request(|request| request.is("INCR"));
    client.send(&["INCR", "n"]).await;
    client.expect_closed().await;
    let mut client = Client::connect(proxy.address()).await;
    client.send(&["INCR", "n"]).await;
    client.expect(":1\r\n").await;
    assert_eq!(proxy.eaten_requests(), 1);
}

#[tokio::test]
async fn black_hole_forwards_nothing_until_healed() {
    let (_server, proxy, mut old) = start().await;
    old.ping().await;
    proxy.black_hole();
    let mut new = Client::connect(proxy.address()).await;
    for client in [&mut old, &mut new] {
        client.send(&["INCR", "n"]).await;
        client.expect_silence().await;
    }
    proxy.heal();
    // Messages sent into the black hole arrive late: both were executed.
    old.send(&["GET", "n"]).await;
    let mut reply = [0; 4];
    old.0.read_exact(&mut reply).await.expect("a late reply");
    new.0.read_exact(&mut reply).await.expect("a late reply");
    new.send(&["GET", "n"]).await;
    new.expect("$1\r\n2\r\n").await;
}

#[tokio::test]
async fn stranded_connections_stay_silent_while_new_ones_work() {
    let (_server, proxy, mut old) = start().await;
    old.ping().await;
    proxy.strand_connections();
    proxy.heal();
    old.send(&["INCR", "n"]).await;
    let mut new = Client::connect(proxy.address()).await;
    new.send(&["INCR", "n"]).await;
    new.expect(":1\r\n").await;
    old.expect_silence().await;
}

#[tokio::test]
async fn connections_are_closed_even_in_a_black_hole() {
    let (_server, proxy, mut client) = start().await;
    client.ping().await;
    proxy.black_hole();
    proxy.cut_connections();
    client.expect_closed().await;
}

/// Even if it is read before its connection notices the cut.
#[tokio::test]
async fn nothing_passes_after_a_cut() {
    let faults = watch::Sender::new(Faults::default());
    let gate = |number| Gate {
        number,
        faults: faults.subscribe(),
    };
    let (mut cut, mut open) = (gate(0), gate(1));
    assert_eq!(cut.pass().await, Some(Duration::ZERO));
    faults.send_modify(|w| w.cut_below = 1);
    assert_eq!(cut.pass().await, None);
    assert_eq!(open.pass().await, Some(Duration::ZERO));
}

#[tokio::test]
async fn replies_are_delayed() {
    let (_server, proxy, mut client) = start().await;
    proxy.delay(2 * SOON);
    client.send(&["PING"]).await;
    client.expect_silence().await;
    client.expect("+PONG\r\n").await;
}

#[tokio::test]
async fn killed_server_closes_the_connection() {
    let (mut server, proxy, mut client) = start().await;
    client.ping().await;
    server.kill();
    client.expect_closed().await;
    Client::connect(proxy.address()).await.expect_closed().await;
    server.start_again();
    let mut client = Client::connect(proxy.address()).await;
    client.ping().await;
}

#[tokio::test]
async fn drop_closes_all_connections() {
    let (_server, proxy, mut client) = start().await;
    let address = proxy.address();
    client.ping().await;
    drop(proxy);
    client.expect_closed().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn cut_reply_was_executed_and_its_beginning_arrives() {
    let (_server, proxy, mut client) = start().await;
    proxy.cut_reply(|request| request.is("INCR"));
    client.send(&["INCR", "n"]).await;
    client.expect(":1").await;
    client.expect_closed().await;
    let mut client = Client::connect(proxy.address()).await;
    client.send(&["INCR", "n"]).await;
    client.expect(":2\r\n").await;
    assert_eq!(proxy.eaten_replies(), 1);
}
