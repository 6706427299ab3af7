//! The clocks of a program, which a test can set.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::process::server_program;

const MILLION: i64 = 1_000_000;

/// A program that starts the server with a wall clock that differs from the machine's. Linux only.
/// It compiles a few lines of C with `CC`, or `cc` on `PATH`. Another program gets the clock by its [`environment`](Self::environment).
///
/// Keep this value as long as the program runs.
#[derive(Debug)]
#[must_use]
pub struct SteppedClock {
    /// Contains the offsets of both clocks in microseconds, and the rate. The program has mapped it.
    offsets: File,
    rate_ppm: i64,
    folder: TempDir,
}

impl SteppedClock {
    /// Creates a clock that shows the machine's time.
    pub fn new() -> Self {
        Self::with_rate(0)
    }

    /// Creates a clock that shows the machine's time when the program begins. From then on, what it shows of time that
    /// passes is this many millionths too much: 10,000 is 1 % too fast, -10,000 too slow. Its wall clock has the
    /// machine's rate, `CLOCK_BOOTTIME` the clock's.
    ///
    /// A program with another rate than the machine's ends at once, unless this is x86_64 and the kernel lets a
    /// process write its own code through `/proc/self/mem`.
    pub fn with_rate(rate_ppm: i64) -> Self {
        assert!(rate_ppm > -MILLION, "a clock goes on");
        let folder = tempfile::tempdir().expect("a temporary folder");
        // Postgres doesn't run as root.
        let readable = Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), readable).expect("a folder of this process");
        let path = folder.path().join("offset");
        let file = OpenOptions::new().create_new(true).write(true).open(&path);
        let clock = Self {
            offsets: file.expect("a new file"),
            rate_ppm,
            folder,
        };
        clock.set(0);
        clock.set_monotonic(0);
        clock.write(rate_ppm, 2);
        let library = compile_shim(clock.folder.path(), "stepped_clock");
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
    pub fn program(&self) -> PathBuf {
        self.folder.path().join("server")
    }

    /// The variables of the environment that give this clock to another program.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        let file = |name| self.folder.path().join(name);
        [
            ("STEPPED_CLOCK", file("offset")),
            ("LD_PRELOAD", file("stepped_clock.so")),
        ]
    }

    /// Sets the difference of the wall clock to the machine's.
    pub fn set(&self, micros: i64) {
        self.write(micros, 0);
    }

    /// Sets the difference of the monotonic clock to the machine's. A program that was stopped has been suspended, as
    /// far as it can tell, if its monotonic clock is set back by that time meanwhile: `CLOCK_BOOTTIME` has gone on.
    pub fn set_monotonic(&self, micros: i64) {
        self.write(micros, 1);
    }

    /// How far the program's clocks go on while this time passes.
    pub fn shown(&self, micros: i64) -> i64 {
        micros + micros * self.rate_ppm / MILLION
    }

    fn write(&self, value: i64, index: u64) {
        let at = index * size_of::<i64>() as u64;
        let written = self.offsets.write_all_at(&value.to_ne_bytes(), at);
        written.expect("a writable file");
    }
}

impl Default for SteppedClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Compiles `src/NAME.c` into `NAME.so`, with the compiler that Rust links with.
pub(crate) fn compile_shim(folder: &Path, name: &str) -> PathBuf {
    let library = folder.join(name).with_extension("so");
    let source = format!("{}/src/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
    let status = compiler.arg(&library).arg(&source).status();
    assert!(status.expect("a C compiler").success(), "{source} compiles");
    library
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::time::{Duration, Instant, SystemTime};

    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    const CHILD: &str = "LEASEHOLD_READS_ITS_CLOCKS";

    /// Runs itself as the program, because the clocks of a program are chosen when it starts.
    #[test]
    fn rate_is_seen_through_the_c_library_and_past_it() {
        if std::env::var_os(CHILD).is_some() {
            return print_rates();
        }
        for (rate_ppm, expected) in [(0, 1.0), (-500_000, 0.5), (500_000, 1.5)] {
            let clock = SteppedClock::with_rate(rate_ppm);
            let mut program = Command::new(std::env::current_exe().expect("a test"));
            program.args(["rate_is_seen", "--nocapture"]).env(CHILD, "");
            let output = program.envs(clock.environment()).output().expect("it runs");
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            let rates = shown.lines().filter_map(|it| it.strip_prefix("rate "));
            let rates: Vec<f64> = rates.map(|it| it.parse().expect("a number")).collect();
            assert_eq!(rates.len(), 2, "{shown}");
            for rate in rates {
                assert!((rate - expected).abs() < 0.1, "{rate_ppm} ppm: {shown}");
            }
        }
    }

    /// How fast two monotonic clocks are, beside the wall clock.
    #[expect(clippy::disallowed_methods, reason = "the clocks show how long it was")]
    fn print_rates() {
        // Not through the C library.
        let boottime = || {
            let at = clock_gettime(ClockId::Boottime);
            let (secs, nanos) = (at.tv_sec.try_into(), at.tv_nsec.try_into());
            Duration::new(secs.expect("not negative"), nanos.expect("not negative"))
        };
        let (wall, monotonic, boot) = (SystemTime::now(), Instant::now(), boottime());
        // Long, because a busy machine may stall between two of the readings.
        std::thread::sleep(Duration::from_secs(2));
        let passed = wall.elapsed().expect("it goes on").as_secs_f64();
        for showed in [monotonic.elapsed(), boottime() - boot] {
            println!("\nrate {}", showed.as_secs_f64() / passed);
        }
    }
}
