//! A MariaDB server for one test.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;

use crate::postgres::{folder, unprivileged};
use crate::process::{Process, StaticFolder, path_in};
use crate::server::free_port;
use crate::tls::{self, Authority, Identity};

/// The variable with the folder of `mariadbd`, `mariadb` and `mariadb-install-db`.
const VARIABLE: &str = "LEASEHOLD_MARIADB_BIN";
/// Where Debian has them, which may not be on `PATH`.
const DEBIAN: [&str; 2] = ["/usr/sbin", "/usr/bin"];
/// The maximum start time of a server on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(60);
const PORT_TRIES: u32 = 20;

/// A running MariaDB server on a port of 127.0.0.1 and a Unix socket, in a temporary folder. It has no passwords, and
/// syncs nothing to disk. It has the database `shop`, and the user `root` of its clients.
///
/// Dropping this value ends the server and removes the folder.
#[derive(Debug)]
#[must_use]
pub struct MariaDb {
    // Dropped in this order: the process before its folder.
    process: Option<Process>,
    folder: TempDir,
    arguments: Vec<String>,
    port: u16,
}

impl MariaDb {
    /// Creates a database and starts a server on it, with further arguments such as `--log-bin`.
    pub fn start(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(ToString::to_string);
        Self::start_in(folder("leasehold-mariadb-"), arguments.collect())
    }

    /// The same with TLS, which it requires but through its socket. It asks clients for a certificate of that authority, and users with
    /// `REQUIRE X509` need one.
    pub fn start_with_tls(identity: &Identity, clients: &Authority) -> Self {
        let folder = folder("leasehold-mariadb-");
        let [certificate, key] = identity.write(folder.path(), "server");
        let clients = tls::write(folder.path(), "clients", &clients.certificate());
        let arguments = vec![
            format!("--ssl-cert={certificate}"),
            format!("--ssl-key={key}"),
            format!("--ssl-ca={clients}"),
            "--require-secure-transport=ON".to_owned(),
            // It shows which connections resumed a session of TLS.
            "--performance-schema".to_owned(),
        ];
        Self::start_in(folder, arguments)
    }

    fn start_in(folder: TempDir, arguments: Vec<String>) -> Self {
        let mut copying = unprivileged(Path::new("/bin/cp"), folder.path());
        copying
            .arg("-R")
            .arg(template())
            .arg(folder.path().join("data"));
        let output = copying.output().expect("cp runs");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cp failed:\n{log}");
        let mut server = Self {
            process: None,
            folder,
            arguments,
            port: 0,
        };
        for _ in 0..PORT_TRIES {
            server.port = free_port();
            if server.launch() {
                server.execute("mysql", "CREATE DATABASE shop");
                return server;
            }
        }
        panic!("the MariaDB server did not start:\n{}", server.log());
    }

    /// Starts the process and waits until it answers. Returns whether it does: the port may be taken.
    fn launch(&mut self) -> bool {
        let mut command = unprivileged(&program("mariadbd"), self.folder.path());
        command.args([
            "--no-defaults",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
        ]);
        // Small and fast. A test doesn't lose power.
        command.args([
            "--max-connections=2000",
            "--innodb-buffer-pool-size=32M",
            "--innodb-flush-method=nosync",
        ]);
        for (option, file) in [
            ("datadir", "data"),
            ("socket", "socket"),
            ("pid-file", "pid"),
            ("log-error", "log"),
        ] {
            command.arg(format!(
                "--{option}={}",
                self.folder.path().join(file).display()
            ));
        }
        command
            .arg(format!("--port={}", self.port))
            .args(&self.arguments);
        let mut process = Process::spawn(&mut command, &[self.folder.path()])
            .unwrap_or_else(|error| panic!("{}", cannot_run("mariadbd", &error)));
        let is_ready = || self.client("mysql", "SELECT 1").status.success();
        let answers = process.wait_until(is_ready, START_WITHIN).is_ok();
        self.process = Some(process);
        answers
    }

    /// Kills the server, as in a crash.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Kills the server, if it runs, and starts it again on the same data.
    pub fn restart(&mut self) {
        self.stop();
        assert!(
            self.launch(),
            "the MariaDB server did not start:\n{}",
            self.log()
        );
    }

    /// Executes statements as `root`. Returns the rows as lines.
    pub fn execute(&self, database: &str, statements: &str) -> String {
        let output = self.client(database, statements);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{statements}\n{log}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn client(&self, database: &str, statements: &str) -> Output {
        let mut client = unprivileged(&program("mariadb"), self.folder.path());
        client.args([
            "--no-defaults",
            "--user=root",
            "--batch",
            "--skip-column-names",
        ]);
        client.arg(format!(
            "--socket={}",
            self.folder.path().join("socket").display()
        ));
        client
            .args([database, "--execute", statements])
            .stdin(Stdio::null());
        let output = client.output();
        output.unwrap_or_else(|error| panic!("{}", cannot_run("mariadb", &error)))
    }

    /// The URL of the database `shop` for a user.
    pub fn url(&self, user: &str) -> String {
        format!("mysql://{user}@127.0.0.1:{}/shop", self.port)
    }

    /// The URL of the database `shop` for a user, through the Unix socket.
    pub fn socket_url(&self, user: &str) -> String {
        let socket = self.folder.path().join("socket");
        format!("mysql://{user}@localhost/shop?socket={}", socket.display())
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

/// An empty database, which this program creates once.
fn template() -> PathBuf {
    static TEMPLATE: OnceLock<StaticFolder> = OnceLock::new();
    let data = |folder: &Path| folder.join("data");
    let template = TEMPLATE.get_or_init(|| {
        let folder = StaticFolder::new(folder("leasehold-mariadb-template-"));
        let folder = folder.expect("a shell removes the folder at the end");
        let mut install = unprivileged(&program("mariadb-install-db"), folder.path());
        // It is a script.
        install.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        install.args([
            "--no-defaults",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ]);
        install.arg("--innodb-flush-method=nosync");
        install.arg(format!("--datadir={}", data(folder.path()).display()));
        let output = install.output();
        let output =
            output.unwrap_or_else(|error| panic!("{}", cannot_run("mariadb-install-db", &error)));
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "mariadb-install-db failed:\n{log}");
        folder
    });
    data(template.path())
}

fn program(name: &str) -> PathBuf {
    if let Some(folder) = path_in(VARIABLE) {
        return folder.join(name);
    }
    let places = DEBIAN.map(|folder| Path::new(folder).join(name));
    places
        .into_iter()
        .find(|it| it.exists())
        .unwrap_or_else(|| name.into())
}

fn cannot_run(name: &str, error: &std::io::Error) -> String {
    format!(
        "cannot run `{name}` of the MariaDB server: {error}\n\
         These tests need a real server. Run `./test deep`, which installs one, or \
         `apt-get install mariadb-server`,\nor set {VARIABLE}=/folder/of/{name}."
    )
}
