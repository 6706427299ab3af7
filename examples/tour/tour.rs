//! Support for the sections: processes, a clock, printed lines, and checks that must pass.

use std::error::Error;
use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::LockBackend;
use leasehold::{Label, LockClient};
use tokio::time::Instant;

use crate::connection::FlakyConnection;
use crate::server::Service;

pub(crate) type Anything = Box<dyn Error + Send + Sync>;
pub(crate) type Result<T, E = Anything> = std::result::Result<T, E>;

/// A process that acquires locks. Here it is one client with its own connection.
pub(crate) struct Process {
    pub(crate) name: &'static str,
    pub(crate) locks: LockClient,
    pub(crate) connection: Arc<FlakyConnection>,
}

impl Process {
    /// Releases all locks and closes the connection.
    pub(crate) async fn disconnect(self) -> Result<()> {
        self.locks.shutdown().await?;
        self.connection.close().await?;
        Ok(())
    }
}

/// Prints what the processes do, and counts the checks.
pub(crate) struct Tour<'a> {
    service: Service,
    out: &'a mut dyn Write,
    began: Instant,
    checks: u32,
}

impl<'a> Tour<'a> {
    pub(crate) fn new(service: Service, out: &'a mut dyn Write) -> Self {
        Self {
            service,
            out,
            began: Instant::now(),
            checks: 0,
        }
    }

    /// Connects a new process.
    pub(crate) async fn connect(&self, name: &'static str) -> Result<Process> {
        let connection = FlakyConnection::new(self.service.connect(name).await?);
        let backend: Arc<dyn LockBackend> = connection.clone();
        let locks = LockClient::builder(backend)
            .label(Label::new(name)?)
            .build()?;
        Ok(Process {
            name,
            locks,
            connection,
        })
    }

    /// Starts a section and its clock.
    pub(crate) fn section(&mut self, title: &str) -> Result<()> {
        self.began = Instant::now();
        writeln!(self.out, "\n{title}")?;
        Ok(())
    }

    /// Prints what a process does, with the time.
    pub(crate) fn print(&mut self, process: &Process, text: impl Display) -> Result<()> {
        let at = self.began.elapsed().as_secs_f64();
        writeln!(self.out, "  {at:4.1} s  {:<5} {text}", process.name)?;
        Ok(())
    }

    /// Prints what a process does at a time that varies, such as after the next renewal.
    pub(crate) fn print_untimed(&mut self, process: &Process, text: impl Display) -> Result<()> {
        writeln!(self.out, "    then    {:<5} {text}", process.name)?;
        Ok(())
    }

    /// Prints a remark.
    pub(crate) fn note(&mut self, text: impl Display) -> Result<()> {
        writeln!(self.out, "          {text}")?;
        Ok(())
    }

    /// Prints a checked fact.
    ///
    /// # Panics
    /// If the check fails.
    #[track_caller]
    pub(crate) fn check(&mut self, passed: bool, text: impl Display) -> Result<()> {
        assert!(passed, "the check failed: {text}");
        self.checks += 1;
        writeln!(self.out, "       ok {text}")?;
        Ok(())
    }

    /// The time since the section started.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Prints the number of checks.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let checks = self.checks;
        writeln!(self.out, "\nAll {checks} checks passed.")?;
        Ok(())
    }
}
