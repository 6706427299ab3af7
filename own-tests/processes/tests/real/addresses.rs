//! The name of a server has two addresses, and the first is silent.

use std::process::Stdio;
use std::time::Duration;

use leasehold_processes::Library;
use leasehold_test_servers::{RedisServer, SilentFirstAddress};
use tokio::process::Command;
use tokio::time::timeout;

/// The time limit of the program. It connects for at most 5 s.
const SOON: Duration = Duration::from_secs(60);

through_both_libraries!(silent_address_hides_no_other);

async fn silent_address_hides_no_other(library: Library) {
    let server = RedisServer::start();
    let name = SilentFirstAddress::beside(server.address());
    let url = format!("redis://{}", name.name());
    let mut caller = Command::new(env!("CARGO_BIN_EXE_caller"));
    caller
        .args(["--client", library.name(), "--url", &url, "--calls", "1"])
        .envs(name.environment())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(SOON, caller.output()).await;
    let output = output.expect("in time").expect("it runs");
    assert!(output.status.success(), "{output:?}");
    assert!(name.was_tried(), "it is the first address");
}
