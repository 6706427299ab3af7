//! Installs the libraries of adapters in other languages, in the versions that the files in
//! `own-tests/torture/adapters` pin, below `target`.

use std::path::{Path, PathBuf};
use std::process::Command as Program;

use crate::Failure;

const ADAPTERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/adapters");

/// A virtual environment of Python. Returns its interpreter.
pub(crate) fn python() -> Result<PathBuf, Failure> {
    let folder = folder("python")?;
    let interpreter = folder.join("bin/python");
    once(&folder, || {
        run(Program::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let pip = "-m pip install -q --disable-pip-version-check -r";
        let mut program = Program::new(&interpreter);
        run(program
            .args(pip.split(' '))
            .arg(adapter("requirements.txt")))
    })?;
    Ok(interpreter)
}

/// A folder with the packages of Node.js.
pub(crate) fn node() -> Result<PathBuf, Failure> {
    let folder = folder("node")?;
    once(&folder, || {
        std::fs::create_dir_all(&folder)?;
        std::fs::copy(adapter("package.json"), folder.join("package.json"))?;
        let npm = ["install", "--silent", "--no-audit", "--no-fund"];
        run(Program::new("npm").args(npm).current_dir(&folder))
    })?;
    Ok(folder.join("node_modules"))
}

pub(crate) fn adapter(name: &str) -> PathBuf {
    Path::new(ADAPTERS).join(name)
}

/// Beside the folder of this program.
fn folder(name: &str) -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).ok_or("no target folder")?;
    Ok(target.join("torture-adapters").join(name))
}

/// Installs unless that has been done.
fn once(folder: &Path, install: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let done = folder.join("installed");
    if !done.exists() {
        install()?;
        std::fs::write(done, "")?;
    }
    Ok(())
}

fn run(program: &mut Program) -> Result<(), Failure> {
    match program.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program:?}: {status}").into()),
        Err(error) => Err(format!("{program:?}: {error}").into()),
    }
}
