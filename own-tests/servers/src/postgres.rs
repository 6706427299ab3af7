//! A Postgres server for one test.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::clock::SteppedClock;
use crate::process::{Process, StaticFolder, folder_on_path, path_in};
use crate::server::free_port;
use crate::tls::{Authority, Identity, ServerTls};
use crate::waiting::within;

/// The variable with the folder of the programs `initdb`, `postgres` and `psql`.
const VARIABLE: &str = "LEASEHOLD_POSTGRES_BIN";
/// Where Debian has these programs: in `VERSION/bin`.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The maximum start time of a server on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(60);
/// The user that the server runs as if the tests run as root, which Postgres refuses.
const ROOTS_USER: u32 = 65_534;
/// The port in the name of the Unix socket.
const DEFAULT_PORT: u16 = 5432;
const PORT_TRIES: u32 = 20;

/// Options for starting a server.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct PostgresOptions {
    tls: Option<ServerTls>,
    access: Option<String>,
    settings: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
}

impl PostgresOptions {
    /// Adds a setting, such as `work_mem=1MB`.
    pub fn with_setting(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }

    /// Gives the server this clock.
    pub fn with_clock(mut self, clock: &SteppedClock) -> Self {
        self.environment.extend(clock.environment());
        self
    }

    /// Listens on a port of 127.0.0.1 that has TLS, and refuses plain text there. If there is an authority
    /// for clients, clients may show a certificate from it, and no others.
    pub fn with_tls(mut self, identity: Identity, clients: Option<&Authority>) -> Self {
        let clients = clients.map(Authority::certificate);
        self.tls = Some(ServerTls { identity, clients });
        self
    }

    /// Sets how the users of the port log in, as in `pg_hba.conf`: `scram-sha-256`, or
    /// `trust clientcert=verify-ca`. The default is `trust`. Without TLS, the port is in plain text.
    pub fn with_access(mut self, method: impl Into<String>) -> Self {
        self.access = Some(method.into());
        self
    }

    /// Creates a database cluster and starts a server on it.
    pub fn start(self) -> PostgresServer {
        let folder = folder("leasehold-postgres-");
        let mut server = PostgresServer {
            process: None,
            folder,
            programs: programs(),
            options: self,
            port: DEFAULT_PORT,
        };
        server.initialize();
        for _ in 0..PORT_TRIES {
            if server.options.method().is_some() {
                server.port = free_port();
            }
            if server.launch() {
                return server;
            }
        }
        panic!("the Postgres server did not start");
    }

    /// How users log in through the port. Without it, there is only the Unix socket.
    fn method(&self) -> Option<&str> {
        let default = self.tls.as_ref().map(|_| "trust");
        self.access.as_deref().or(default)
    }

    /// Writes the certificates and who may log in. Returns the server's settings.
    fn prepare(&self, data: &Path) -> Vec<String> {
        let Some(method) = self.method() else {
            return vec!["listen_addresses=".into()];
        };
        let kind = if self.tls.is_some() {
            "hostssl"
        } else {
            "host"
        };
        let access = format!("local all all trust\n{kind} all all 127.0.0.1/32 {method}\n");
        write(data, "pg_hba.conf", &access);
        let mut settings = vec!["listen_addresses=127.0.0.1".to_owned()];
        if let Some(tls) = &self.tls {
            write(data, "server.crt", &tls.identity.certificate);
            write(data, "server.key", &tls.identity.key);
            settings.push("ssl=on".into());
            if let Some(clients) = &tls.clients {
                write(data, "clients.crt", clients);
                settings.push("ssl_ca_file=clients.crt".into());
            }
        }
        settings
    }
}

/// Writes a file that the server's user owns, and nobody else can read.
fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a writable folder");
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("our file");
    give_away(&path);
}

/// Gives a file or folder of root to the user of [`unprivileged`].
fn give_away(path: &Path) {
    if runs_as_root() {
        chown(path, Some(ROOTS_USER), Some(ROOTS_USER)).expect("root may give a file away");
    }
}

/// A running Postgres server on a Unix socket in a temporary folder. Its superuser is `owner`. It has no
/// passwords unless [`PostgresOptions::with_access`] asks for them, and syncs nothing to disk.
///
/// Dropping this value ends the server and removes the folder.
#[derive(Debug)]
#[must_use]
pub struct PostgresServer {
    // Dropped in this order: the process before its folder.
    process: Option<Process>,
    folder: TempDir,
    programs: PathBuf,
    options: PostgresOptions,
    port: u16,
}

impl PostgresServer {
    /// Creates a database cluster and starts a server on it.
    pub fn start() -> Self {
        PostgresOptions::default().start()
    }

    /// Copies the template, which is ten times as fast as to run `initdb` for each server.
    fn initialize(&self) {
        let template = template(&self.programs);
        let mut command = unprivileged(Path::new("cp"), self.folder.path());
        command.arg("-Rp").arg(template).arg(self.data());
        let output = command.output().expect("cp runs");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cp failed:\n{log}");
    }

    /// Kills the server, if it runs, and starts it again on the same data.
    pub fn restart(&mut self) {
        self.stop();
        assert!(self.launch(), "the Postgres server did not start");
    }

    /// Kills the server, and starts it again as a standby that has no primary. `pg_promote()` ends that.
    pub fn restart_as_standby(&mut self) {
        self.stop();
        write(&self.data(), "standby.signal", "");
        assert!(self.launch(), "the Postgres server did not start");
    }

    /// Starts the process and waits until it answers. Returns whether it does: the port may be taken.
    fn launch(&mut self) -> bool {
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.data()).arg("-F");
        command.envs(self.options.environment.iter().cloned());
        let own = [
            "max_connections=600".to_owned(),
            "shared_buffers=32MB".to_owned(),
            "superuser_reserved_connections=5".to_owned(),
            "logging_collector=off".to_owned(),
            "log_min_messages=warning".to_owned(),
            format!("port={}", self.port),
            format!("unix_socket_directories={}", self.folder.path().display()),
        ];
        let prepared = self.options.prepare(&self.data());
        for setting in own.iter().chain(&prepared).chain(&self.options.settings) {
            command.args(["-c", setting]);
        }
        let mut process = Process::spawn(&mut command, &[self.folder.path()])
            .unwrap_or_else(|error| panic!("{}", cannot_run(&self.programs, &error)));
        let is_ready = || self.psql("postgres", "SELECT 1").status.success();
        let answers = process.wait_until(is_ready, START_WITHIN).is_ok();
        self.process = Some(process);
        answers
    }

    /// Ends the server at once, without a checkpoint, as in a crash.
    pub fn stop(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        process.signal(Signal::QUIT);
        // If it doesn't, dropping it kills it.
        within(Duration::from_secs(5), || {
            process.ended().is_ok_and(|ended| ended.is_some())
        });
    }

    /// Executes statements as the superuser.
    pub fn execute(&self, database: &str, statements: &str) -> String {
        let output = self.psql(database, statements);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{statements}\n{log}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn psql(&self, database: &str, statements: &str) -> Output {
        self.program("psql")
            .args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-U", "owner"])
            .args(["-p", &self.port.to_string()])
            .arg("-h")
            .arg(self.folder.path())
            .args(["-d", database, "-c", statements])
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("{}", cannot_run(&self.programs, &error)))
    }

    /// The URL of a database for a user, without a password.
    pub fn url(&self, user: &str, database: &str) -> String {
        let folder = self.folder.path().display();
        let port = self.port;
        format!("host='{folder}' port={port} user='{user}' dbname='{database}'")
    }

    /// The URL of a database for a user through the port, without a password. It ends with the name of
    /// the database.
    pub fn tcp_url(&self, user: &str, database: &str) -> String {
        let method = self.options.method();
        assert!(method.is_some(), "the server has only a Unix socket");
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// The number of the port, and of the Unix socket.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of the Unix socket.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A command as a user that Postgres accepts.
    fn program(&self, name: &str) -> Command {
        unprivileged(&self.programs.join(name), self.folder.path())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An empty database cluster, which this program creates once.
fn template(programs: &Path) -> PathBuf {
    static TEMPLATE: OnceLock<StaticFolder> = OnceLock::new();
    let data = |folder: &Path| folder.join("data");
    let template = TEMPLATE.get_or_init(|| {
        let folder = StaticFolder::new(folder("leasehold-postgres-template-"));
        let folder = folder.expect("a shell removes the folder at the end");
        let program = programs.join("initdb");
        let mut command = unprivileged(&program, folder.path());
        command
            .args(["--no-sync", "--no-instructions", "--auth=trust"])
            .args(["--username=owner", "--encoding=UTF8", "--locale=C"])
            .arg("--pgdata")
            .arg(data(folder.path()));
        let output = command
            .output()
            .unwrap_or_else(|error| panic!("{}", cannot_run(&program, &error)));
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "initdb failed:\n{log}");
        folder
    });
    data(template.path())
}

/// A command in a folder, not as root.
pub(crate) fn unprivileged(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env_clear();
    if runs_as_root() {
        command.uid(ROOTS_USER).gid(ROOTS_USER);
    }
    command
}

/// A temporary folder of the user of [`unprivileged`].
pub(crate) fn folder(prefix: &str) -> TempDir {
    let folder = tempfile::Builder::new().prefix(prefix).tempdir();
    let folder = folder.expect("a temporary folder");
    give_away(folder.path());
    folder
}

fn runs_as_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The folder of the programs: the variable's, Debian's newest, or that of `postgres` on `PATH`.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.path()).max_by_key(number);
    path_in(VARIABLE)
        .or_else(|| Some(newest?.join("bin")))
        .or_else(|| folder_on_path("initdb"))
        .unwrap_or_else(|| DEBIAN.into())
}

fn cannot_run(program: &Path, error: &std::io::Error) -> String {
    format!(
        "cannot run the Postgres server `{}`: {error}\n\
         These tests need a real server. Run `./test deep`, which installs one, or \
         `apt-get install postgresql`,\nor set {VARIABLE}=/folder/of/initdb.",
        program.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_server_says_how_to_get_one() {
        let error = std::io::Error::from(std::io::ErrorKind::NotFound);
        let text = cannot_run(Path::new("/nowhere/initdb"), &error);
        assert!(text.contains("/nowhere/initdb") && text.contains("apt-get install postgresql"));
        assert!(text.contains("LEASEHOLD_POSTGRES_BIN"));
    }
}
