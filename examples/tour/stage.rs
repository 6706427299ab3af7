//! Where the scenes play: actors, a clock, and claims that must hold.

use std::error::Error;
use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Label, LockBackend, LockClient};
use tokio::time::Instant;

use crate::cable::Cable;

pub(crate) type Anything = Box<dyn Error + Send + Sync>;
pub(crate) type Result<T, E = Anything> = std::result::Result<T, E>;

/// Connects one more process, as it were, to the lock service.
#[async_trait::async_trait]
pub(crate) trait Connect: Send + Sync {
    async fn connect(&self, name: &str) -> Result<Arc<dyn LockBackend>>;
}

/// One process that takes locks.
pub(crate) struct Actor {
    pub(crate) name: &'static str,
    pub(crate) locks: LockClient,
    pub(crate) cable: Arc<Cable>,
}

impl Actor {
    /// Leaves the stage: everything is released, the connection is closed.
    pub(crate) async fn leave(self) -> Result<()> {
        self.locks.shutdown().await?;
        self.cable.close().await?;
        Ok(())
    }
}

pub(crate) struct Stage {
    connect: Box<dyn Connect>,
    out: Box<dyn Write + Send>,
    began: Instant,
    claims: u32,
}

impl Stage {
    pub(crate) fn new(connect: Box<dyn Connect>, out: Box<dyn Write + Send>) -> Self {
        Self {
            connect,
            out,
            began: Instant::now(),
            claims: 0,
        }
    }

    /// An actor with a connection and a client of its own.
    pub(crate) async fn enter(&self, name: &'static str) -> Result<Actor> {
        let cable = Cable::around(self.connect.connect(name).await?);
        let backend: Arc<dyn LockBackend> = cable.clone();
        let locks = LockClient::builder(backend)
            .label(Label::new(name)?)
            .build()?;
        Ok(Actor { name, locks, cable })
    }

    /// Starts a scene; its clock starts with it.
    pub(crate) fn scene(&mut self, title: &str) -> Result<()> {
        self.began = Instant::now();
        writeln!(self.out, "\n{title}")?;
        Ok(())
    }

    /// What somebody does.
    pub(crate) fn tell(&mut self, who: &Actor, what: impl Display) -> Result<()> {
        let at = self.began.elapsed().as_secs_f64();
        writeln!(self.out, "  {at:4.1} s  {:<5} {what}", who.name)?;
        Ok(())
    }

    /// What somebody does at a time that chance decides, such as the phase of a renewal.
    pub(crate) fn tell_then(&mut self, who: &Actor, what: impl Display) -> Result<()> {
        writeln!(self.out, "    then    {:<5} {what}", who.name)?;
        Ok(())
    }

    /// What the audience should know.
    pub(crate) fn note(&mut self, what: impl Display) -> Result<()> {
        writeln!(self.out, "          {what}")?;
        Ok(())
    }

    /// A claim, which is printed only if it holds; otherwise the tour fails.
    #[track_caller]
    pub(crate) fn claim(&mut self, holds: bool, what: impl Display) -> Result<()> {
        assert!(holds, "the claim does not hold: {what}");
        self.claims += 1;
        writeln!(self.out, "       ok {what}")?;
        Ok(())
    }

    /// Time since the scene began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn end(&mut self) -> Result<()> {
        let claims = self.claims;
        writeln!(self.out, "\nAll {claims} claims hold.")?;
        Ok(())
    }
}
