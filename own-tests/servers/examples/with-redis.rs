//! Runs a command with a temporary Redis server. `{url}` in the arguments is replaced by the
//! server's URL.
//!
//! ```sh
//! cargo run -p leasehold-test-servers --example with-redis -- redis-cli -u '{url}' info server
//! ```

use std::process::{Command, ExitCode};

use leasehold_test_servers::RedisServer;

fn main() -> ExitCode {
    let server = RedisServer::start();
    let mut words = std::env::args()
        .skip(1)
        .map(|word| word.replace("{url}", &server.url()));
    let Some(program) = words.next() else {
        eprintln!("usage: with-redis COMMAND [ARGUMENT]..., where {{url}} is the server's URL");
        return ExitCode::from(2);
    };
    match Command::new(&program).args(words).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("`{program}`: {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("cannot run `{program}`: {error}");
            ExitCode::FAILURE
        }
    }
}
