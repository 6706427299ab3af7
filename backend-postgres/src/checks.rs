//! Settings of the server that endanger locks.

use leasehold_api::BackendError;
use tokio::runtime::Handle;

use crate::backend::PostgresBackend;
use crate::connection::Connection;
use crate::statements::Query;

impl PostgresBackend {
    /// Asks the server for settings that endanger locks. Each text names a setting and what it may cause; none
    /// means that all is well. Opens a connection for that, and changes nothing.
    ///
    /// It looks at `fsync`, `full_page_writes`, `autovacuum` (also that of the table), an unlogged table,
    /// `synchronous_commit`, and standbys without `synchronous_standby_names`.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] if the server gives no answer within twice the connect timeout, and the other
    /// errors of a new connection.
    ///
    /// # Cancel safety
    /// If you drop the future, the connection is closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_postgres::PostgresBackend;
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let backend = PostgresBackend::connect("postgres://locks@db.example/shop").await?;
    /// for danger in backend.dangerous_settings().await? {
    ///     eprintln!("{danger}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dangerous_settings(&self) -> Result<Vec<String>, BackendError> {
        let shared = &self.shared;
        let connection = Connection::open(shared, &Handle::current()).await?;
        let asking = connection.query((Query::Dangers, &[]));
        let (rows, _) = shared.in_time(&shared.endpoint, "answer", asking).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}
