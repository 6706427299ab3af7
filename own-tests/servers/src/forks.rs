//! A fork, for programs without unsafe code.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::clock::compile_shim;

/// Lets a program fork, for which Rust needs unsafe code.
///
/// A program has it by [`environment`](Self::environment). Keep this value as long as the program runs.
#[derive(Debug)]
#[must_use]
pub struct Forks(TempDir);

impl Forks {
    /// The program forks when it calls `std::os::unix::process::parent_id`, which returns 0 in the child.
    pub fn at_parent_id() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        compile_shim(folder.path(), "forks");
        Self(folder)
    }

    /// The variable of the environment that a program needs.
    pub fn environment(&self) -> [(&'static str, PathBuf); 1] {
        [("LD_PRELOAD", self.0.path().join("forks.so"))]
    }
}
