//! The clocks of a program, which a test can set.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::process::server_program;

/// A program that starts the server with a wall clock that differs from the machine's. Linux only.
/// It compiles a few lines of C. Another program gets the clock by its [`environment`](Self::environment).
///
/// Keep this value as long as the program runs.
#[derive(Debug)]
pub struct SteppedClock {
    /// Contains the offsets of both clocks in microseconds. The program has mapped it.
    offsets: File,
    folder: TempDir,
}

impl SteppedClock {
    /// Creates a clock that shows the machine's time.
    ///
    /// # Panics
    /// Panics without a C compiler: `CC`, or `cc` on `PATH`.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("offset");
        let file = OpenOptions::new().create_new(true).write(true).open(&path);
        let clock = Self {
            offsets: file.expect("a new file"),
            folder,
        };
        clock.set(0);
        clock.set_monotonic(0);
        let library = compile_shim(clock.folder.path());
        let script = format!(
            "#!/bin/sh\nSTEPPED_CLOCK='{}' LD_PRELOAD='{}' exec '{}' \"$@\"\n",
            path.display(),
            library.display(),
            server_program().display()
        );
        let program = clock.program();
        std::fs::write(&program, script).expect("it can be written");
        let executable = Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, executable).expect("a file of this process");
        clock
    }

    /// The program, for [`ServerOptions::with_program`](crate::ServerOptions::with_program).
    #[must_use]
    pub fn program(&self) -> PathBuf {
        self.folder.path().join("server")
    }

    /// The variables of the environment that give this clock to another program.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        let file = |name| self.folder.path().join(name);
        [
            ("STEPPED_CLOCK", file("offset")),
            ("LD_PRELOAD", file("stepped_clock.so")),
        ]
    }

    /// Sets the difference of the wall clock to the machine's.
    ///
    /// # Panics
    /// Panics if the file of the offsets can't be written.
    pub fn set(&self, micros: i64) {
        self.write(micros, 0);
    }

    /// Sets the difference of the monotonic clock to the machine's. A program that was stopped has been suspended, as
    /// far as it can tell, if its monotonic clock is set back by that time meanwhile: `CLOCK_BOOTTIME` has gone on.
    ///
    /// # Panics
    /// Panics if the file of the offsets can't be written.
    pub fn set_monotonic(&self, micros: i64) {
        self.write(micros, size_of::<i64>() as u64);
    }

    fn write(&self, micros: i64, at: u64) {
        let written = self.offsets.write_all_at(&micros.to_ne_bytes(), at);
        written.expect("a writable file");
    }
}

impl Default for SteppedClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Compiles the shim with the compiler that Rust links with.
fn compile_shim(folder: &Path) -> PathBuf {
    let library = folder.join("stepped_clock.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/stepped_clock.c");
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
    let status = compiler.arg(&library).arg(source).status();
    assert!(status.expect("a C compiler").success(), "{source} compiles");
    library
}
