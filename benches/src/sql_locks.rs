//! The simplest locks in SQL, the floors of a lock on Postgres. They have no lease, no fencing token and no
//! timeout.

use leasehold::postgres::tokio_postgres::{Client, NoTls, Statement, connect};

use crate::Result;
use crate::lock::Lock;

/// The key of each lock.
const KEY: i64 = 42;
/// The table of [`Kind::Row`], and its row.
pub(crate) const ROWS: &str = "CREATE TABLE rows (key bigint PRIMARY KEY, held boolean NOT NULL)
    WITH (fillfactor = 50);
    INSERT INTO rows VALUES (42, false)";

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// An advisory lock of a session, with `pg_advisory_lock`, which waits in the server.
    Wait,
    /// A row that says whether it is held. It must be free. Unlike an advisory lock, it is written and
    /// committed.
    Row,
}

impl Kind {
    /// Statements that acquire and release, and return whether they did.
    const fn statements(self) -> [&'static str; 2] {
        match self {
            Self::Wait => [
                "SELECT true FROM pg_advisory_lock($1)",
                "SELECT pg_advisory_unlock($1)",
            ],
            Self::Row => [
                "UPDATE rows SET held = true WHERE key = $1 AND NOT held RETURNING true",
                "UPDATE rows SET held = false WHERE key = $1 AND held RETURNING true",
            ],
        }
    }
}

/// A lock on a separate connection.
pub(crate) struct SqlLock {
    client: Client,
    acquire: Statement,
    release: Statement,
}

impl SqlLock {
    pub(crate) async fn connect(url: &str, kind: Kind) -> Result<Self> {
        let (client, connection) = connect(url, NoTls).await?;
        tokio::spawn(connection);
        let [acquire, release] = kind.statements();
        Ok(Self {
            acquire: client.prepare(acquire).await?,
            release: client.prepare(release).await?,
            client,
        })
    }

    async fn execute(&self, statement: &Statement) -> Result<()> {
        let row = self.client.query_opt(statement, &[&KEY]).await?;
        match row.map(|row| row.try_get(0)).transpose()? {
            Some(true) => Ok(()),
            _ => Err("the lock was not free, or not held".into()),
        }
    }
}

impl Lock for SqlLock {
    type Held = ();

    async fn acquire(&self) -> Result<()> {
        self.execute(&self.acquire).await
    }

    async fn release(&self, (): ()) -> Result<()> {
        self.execute(&self.release).await
    }
}
