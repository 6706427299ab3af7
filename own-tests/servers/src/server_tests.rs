use super::*;

#[test]
fn restart_keeps_the_address_and_optionally_the_data() {
    for options in [
        ServerOptions::default(),
        ServerOptions::default().with_append_only(),
    ] {
        let mut server = options.start();
        let port = server.port();
        server.run(&["SET", "k", "1"]);
        server.restart(Data::Kept);
        assert_eq!(server.run(&["EXISTS", "k"]), "1");
        server.restart(Data::Lost);
        assert_eq!(server.run(&["EXISTS", "k"]), "0");
        assert_eq!(server.port(), port);
    }
}

#[test]
fn last_writes_can_get_lost() {
    let mut server = ServerOptions::default().with_append_only().start();
    server.run(&["SET", "first", "1"]);
    server.run(&["SET", "last", "1"]);
    server.kill();
    server.lose_last_writes(5);
    server.start_again();
    assert_eq!(server.run(&["EXISTS", "first"]), "1");
    assert_eq!(server.run(&["EXISTS", "last"]), "0");
}

#[test]
fn server_answers_while_it_loads() {
    let options = ServerOptions::default().with_append_only();
    // It loads for 10 s, so that a busy machine sees it, unless it is told to hurry.
    let mut server = options.with_slow_load(2_000).start();
    let fill = "for i = 1, 5000 do redis.call('SET', i, i) end";
    server.run(&["EVAL", fill, "0"]);
    server.kill();
    server.start_loading();
    assert!(!server.is_ready());
    let persistence = server.run(&["INFO", "persistence"]);
    assert!(persistence.contains("loading:1"), "{persistence}");
    server.run(&["CONFIG", "SET", "key-load-delay", "0"]);
    crate::block_until("it has loaded", || server.is_ready());
    assert_eq!(server.run(&["EXISTS", "5000"]), "1");
}

#[test]
fn drop_kills_the_server_and_removes_its_folder() {
    let server = RedisServer::start();
    let (address, folder) = (server.address(), server.folder.path().to_owned());
    server.pause();
    drop(server);
    assert!(std::net::TcpStream::connect(address).is_err());
    assert!(!folder.exists());
}

#[test]
#[should_panic(expected = "did not start")]
fn refused_configuration_panics() {
    let _ = ServerOptions::default()
        .with_config("maxmemory", ["nonsense"])
        .start();
}

#[test]
#[should_panic(expected = "LEASEHOLD_REDIS_SERVER=/path/to/redis-server")]
fn missing_program_panics_with_instructions() {
    let _ = ServerOptions::default()
        .with_program("/nowhere/redis-server")
        .start();
}

#[test]
fn version_is_parsed_from_the_output() {
    let text = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=d81";
    let version = parse_version(text).expect("a version");
    assert_eq!((version.major, version.minor, version.patch), (7, 0, 15));
    assert_eq!(parse_version("Redis server"), None);
}

#[test]
fn servers_are_called_by_their_own_names() {
    let valkey = "Valkey server v=8.1.4 sha=00000000:0 malloc=libc bits=64 build=0";
    assert_eq!(product_in(valkey).as_deref(), Some("Valkey 8.1.4"));
    let redis = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64";
    assert_eq!(product_in(redis).as_deref(), Some("Redis 7.0.15"));
}
