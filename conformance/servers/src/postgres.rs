//! A Postgres server for one test.

use std::ffi::OsStr;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::Process;

/// The variable with the folder of the programs `initdb`, `postgres` and `psql`.
const VARIABLE: &str = "LEASEHOLD_POSTGRES_BIN";
/// Where Debian has them, by version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The maximum start time of a server on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(60);
/// The user that the server runs as if the tests run as root, which Postgres refuses.
const ROOTS_USER: u32 = 65_534;

/// A running Postgres server on a Unix socket in a temporary folder. Its superuser is `owner`. It has no
/// passwords, and syncs nothing to disk.
///
/// Dropping this value ends the server and removes the folder.
#[derive(Debug)]
pub struct PostgresServer {
    // Dropped in this order: the process before its folder.
    process: Option<Process>,
    folder: TempDir,
    programs: PathBuf,
}

impl PostgresServer {
    /// Creates a database cluster and starts a server on it.
    ///
    /// # Panics
    /// Panics if the programs are missing, or if the server does not answer within 60 s. For missing
    /// programs, the message says how to install them.
    #[must_use]
    pub fn start() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("leasehold-postgres-")
            .tempdir()
            .expect("a temporary folder");
        let programs = programs();
        let mut server = Self {
            process: None,
            folder,
            programs,
        };
        server.initialize();
        server.restart();
        server
    }

    fn initialize(&self) {
        if runs_as_root() {
            let user = Some(ROOTS_USER);
            chown(self.folder.path(), user, user).expect("root may give a folder away");
        }
        let data = self.data();
        let mut command = self.program("initdb");
        command
            .args(["--no-sync", "--no-instructions", "--auth=trust"])
            .args(["--username=owner", "--encoding=UTF8", "--locale=C"])
            .arg("--pgdata")
            .arg(&data);
        let output = command.output().unwrap_or_else(|error| {
            panic!("{}", cannot_run(&self.programs.join("initdb"), &error));
        });
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "initdb failed:\n{log}");
    }

    /// Kills the server, if it runs, and starts it again on the same data.
    ///
    /// # Panics
    /// Panics if the server does not answer within 60 s.
    pub fn restart(&mut self) {
        self.stop();
        let mut command = self.program("postgres");
        command
            .arg("-D")
            .arg(self.data())
            .args(["-F", "-c", "listen_addresses=", "-c", "max_connections=600"])
            .args([
                "-c",
                "shared_buffers=32MB",
                "-c",
                "superuser_reserved_connections=5",
            ])
            .args([
                "-c",
                "logging_collector=off",
                "-c",
                "log_min_messages=warning",
            ])
            .arg("-c")
            .arg(format!(
                "unix_socket_directories={}",
                self.folder.path().display()
            ));
        let process = Process::spawn(&mut command, &[self.folder.path()])
            .unwrap_or_else(|error| panic!("{}", cannot_run(&self.programs, &error)));
        self.process = Some(process);
        let begun = Instant::now();
        while !self.psql("postgres", "SELECT 1").status.success() {
            let process = self.process.as_mut().expect("it was started");
            let ended = process.ended().expect("the state of a child");
            assert!(
                ended.is_none() && begun.elapsed() < START_WITHIN,
                "the Postgres server did not start: {ended:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the server at once, without a checkpoint, as in a crash.
    pub fn stop(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        process.signal(Signal::QUIT);
        let begun = Instant::now();
        while process.ended().is_ok_and(|ended| ended.is_none())
            && begun.elapsed() < Duration::from_secs(5)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Executes statements as the superuser.
    ///
    /// # Panics
    /// Panics with the server's message if a statement fails.
    pub fn execute(&self, database: &str, statements: &str) -> String {
        let output = self.psql(database, statements);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{statements}\n{log}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn psql(&self, database: &str, statements: &str) -> Output {
        self.program("psql")
            .args([
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "owner",
            ])
            .arg("-h")
            .arg(self.folder.path())
            .args(["-d", database, "-c", statements])
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("{}", cannot_run(&self.programs, &error)))
    }

    /// The URL of a database for a user, without a password.
    #[must_use]
    pub fn url(&self, user: &str, database: &str) -> String {
        let folder = self.folder.path().display();
        format!("host='{folder}' user='{user}' dbname='{database}'")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A command as a user that Postgres accepts.
    fn program(&self, name: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(self.programs.join(name.as_ref()));
        command.current_dir(self.folder.path()).env_clear();
        if runs_as_root() {
            command.uid(ROOTS_USER).gid(ROOTS_USER);
        }
        command
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn runs_as_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The folder of the programs: the variable's, Debian's newest, or that of `postgres` on `PATH`.
fn programs() -> PathBuf {
    if let Some(folder) = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        return PathBuf::from(folder);
    }
    let versions = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.path()).max_by_key(number);
    if let Some(newest) = newest {
        return newest.join("bin");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).find(|folder| folder.join("initdb").exists());
    on_path.unwrap_or_else(|| PathBuf::from(DEBIAN))
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
