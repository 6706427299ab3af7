//! PgBouncer in front of a Postgres server.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::postgres::{PostgresServer, folder, unprivileged};
use crate::process::{Process, folder_on_path, path_in};

/// The variable with the program.
const VARIABLE: &str = "LEASEHOLD_PGBOUNCER";
/// Where Debian has it, which may not be on `PATH`.
const DEBIAN: &str = "/usr/sbin/pgbouncer";
const START_WITHIN: Duration = Duration::from_secs(30);
/// The port in the name of the Unix socket. It listens on no other.
const PORT: u16 = 6432;

/// A running PgBouncer on a Unix socket in a temporary folder. Its users have no passwords.
///
/// Dropping this value kills it and removes the folder.
#[derive(Debug)]
#[must_use]
pub struct PgBouncer {
    // Dropped in this order: the process before its folder.
    process: Process,
    folder: TempDir,
    /// The configuration without the caller's lines.
    config: String,
}

impl PgBouncer {
    /// Starts a pooler with these lines of configuration, such as `pool_mode = session`, for one user.
    pub fn start(server: &PostgresServer, user: &str, settings: &str) -> Self {
        let folder = folder("leasehold-pgbouncer-");
        let path = folder.path().display();
        let config = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_port = {PORT}\n\
             unix_socket_dir = {path}\nauth_type = trust\nauth_file = {path}/users\n",
            server.folder().display(),
            server.port(),
        );
        let write = |name, text: String| {
            std::fs::write(folder.path().join(name), text).expect("a writable folder");
        };
        write("config", format!("{config}{settings}\n"));
        write("users", format!("\"{user}\" \"\"\n"));
        let program = program();
        let mut command = unprivileged(&program, folder.path());
        let process = Process::spawn(command.arg("config"), &[folder.path()]);
        let mut process = process.unwrap_or_else(|error| {
            panic!(
                "cannot run `{}`: {error}\nRun `./test deep`, which installs it, or `apt-get install \
                 pgbouncer`, or set {VARIABLE}=/path/to/pgbouncer.",
                program.display()
            )
        });
        let socket = folder.path().join(format!(".s.PGSQL.{PORT}"));
        process
            .wait_until(|| UnixStream::connect(&socket).is_ok(), START_WITHIN)
            .unwrap_or_else(|ended| panic!("PgBouncer did not start: {ended:?}"));
        Self {
            process,
            folder,
            config,
        }
    }

    /// Replaces the lines of configuration while it runs. It soon applies those that need no restart.
    pub fn reconfigure(&self, settings: &str) {
        let text = format!("{}{settings}\n", self.config);
        std::fs::write(self.folder.path().join("config"), text).expect("a writable folder");
        self.process.signal(Signal::HUP);
    }

    /// The URL of a database for a user.
    pub fn url(&self, user: &str, database: &str) -> String {
        let folder = self.folder.path().display();
        format!("host='{folder}' port={PORT} user='{user}' dbname='{database}'")
    }
}

/// The variable's program, or that of `PATH`, or Debian's.
fn program() -> PathBuf {
    let on_path = || Some(folder_on_path("pgbouncer")?.join("pgbouncer"));
    path_in(VARIABLE)
        .or_else(on_path)
        .unwrap_or_else(|| DEBIAN.into())
}
