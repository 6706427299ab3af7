//! PgBouncer in front of a Postgres server.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::postgres::{PostgresServer, folder, unprivileged};
use crate::process::{Process, folder_on_path, path_in};
use crate::server::free_port;
use crate::waiting::block_until;

/// The variable with the program.
const VARIABLE: &str = "LEASEHOLD_PGBOUNCER";
/// Where Debian has it, which may not be on `PATH`.
const DEBIAN: &str = "/usr/sbin/pgbouncer";
const START_WITHIN: Duration = Duration::from_secs(30);
/// The port in the name of the Unix socket, unless it listens on another one, too.
const PORT: u16 = 6432;

/// A running PgBouncer with a Unix socket in a temporary folder. Its users have no passwords.
///
/// Dropping this value kills it and removes the folder.
#[derive(Debug)]
#[must_use]
pub struct PgBouncer {
    // Dropped in this order: the process before its folder.
    process: Process,
    folder: TempDir,
    /// Of the Unix socket, and of 127.0.0.1 if it listens there.
    port: u16,
    servers: String,
    settings: String,
}

impl PgBouncer {
    /// Starts a pooler with these lines of configuration, such as `pool_mode = session`, for one user.
    pub fn start(server: &PostgresServer, user: &str, settings: &str) -> Self {
        Self::start_on(server, user, settings, PORT)
    }

    /// The same, and it listens on a port of 127.0.0.1.
    pub fn start_with_port(server: &PostgresServer, user: &str, settings: &str) -> Self {
        Self::start_on(server, user, settings, free_port())
    }

    fn start_on(server: &PostgresServer, user: &str, settings: &str, port: u16) -> Self {
        let folder = folder("leasehold-pgbouncer-");
        let servers = addresses(&[server]);
        write(
            &folder,
            "config",
            &config(&folder, port, &servers, settings),
        );
        write(&folder, "users", &format!("\"{user}\" \"\"\n"));
        Self {
            process: launch(&folder, port),
            folder,
            port,
            servers,
            settings: settings.to_owned(),
        }
    }

    /// The number of the port, and of the Unix socket.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it, with all its connections, and starts it again.
    pub fn restart(&mut self) {
        self.process.signal(Signal::KILL);
        block_until("PgBouncer ends", || {
            self.process.ended().is_ok_and(|ended| ended.is_some())
        });
        // Otherwise it seems to be ready at once.
        let _ = std::fs::remove_file(socket(&self.folder, self.port));
        self.process = launch(&self.folder, self.port);
    }

    /// Replaces the lines of configuration while it runs. It soon applies those that need no restart.
    pub fn reconfigure(&mut self, settings: &str) {
        settings.clone_into(&mut self.settings);
        self.reload();
    }

    /// Leads to these servers from now on, whose sockets have the same port: each new connection to the next one.
    pub fn lead_to(&mut self, servers: &[&PostgresServer]) {
        self.servers = addresses(servers);
        self.reload();
    }

    fn reload(&self) {
        let config = config(&self.folder, self.port, &self.servers, &self.settings);
        write(&self.folder, "config", &config);
        self.process.signal(Signal::HUP);
    }

    /// The URL of a database for a user.
    pub fn url(&self, user: &str, database: &str) -> String {
        let folder = self.folder.path().display();
        format!(
            "host='{folder}' port={} user='{user}' dbname='{database}'",
            self.port
        )
    }

    /// The same for programs that want a scheme. It ends with the name of the database.
    pub fn scheme_url(&self, user: &str, database: &str) -> String {
        let folder = self.folder.path().display().to_string();
        let folder = folder.replace('/', "%2F");
        format!("postgres://{user}@{folder}:{}/{database}", self.port)
    }
}

/// The line that leads to these servers.
fn addresses(servers: &[&PostgresServer]) -> String {
    let folders = servers.iter().map(|it| it.folder().display().to_string());
    let folders: Vec<_> = folders.collect();
    format!("* = host={} port={}", folders.join(","), servers[0].port())
}

fn config(folder: &TempDir, port: u16, servers: &str, settings: &str) -> String {
    let path = folder.path().display();
    let listens = if port == PORT {
        ""
    } else {
        "listen_addr = 127.0.0.1"
    };
    format!(
        "[databases]\n{servers}\n[pgbouncer]\n{listens}\nlisten_port = {port}\nunix_socket_dir = {path}\n\
         auth_type = trust\nauth_file = {path}/users\n{settings}\n"
    )
}

fn write(folder: &TempDir, name: &str, text: &str) {
    std::fs::write(folder.path().join(name), text).expect("a writable folder");
}

fn socket(folder: &TempDir, port: u16) -> PathBuf {
    folder.path().join(format!(".s.PGSQL.{port}"))
}

fn launch(folder: &TempDir, port: u16) -> Process {
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
    let socket = socket(folder, port);
    process
        .wait_until(|| UnixStream::connect(&socket).is_ok(), START_WITHIN)
        .unwrap_or_else(|ended| panic!("PgBouncer did not start: {ended:?}"));
    process
}

/// The variable's program, or that of `PATH`, or Debian's.
fn program() -> PathBuf {
    let on_path = || Some(folder_on_path("pgbouncer")?.join("pgbouncer"));
    path_in(VARIABLE)
        .or_else(on_path)
        .unwrap_or_else(|| DEBIAN.into())
}
