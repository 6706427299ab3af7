//! Settings of the server that endanger locks.

use leasehold_api::BackendError;
use tokio::runtime::Handle;

use crate::backend::PostgresBackend;
use crate::connection::Connection;

/// One row for each danger.
const DANGERS: &str = "
    SELECT 'fsync is off: a crash of the machine may lose locks, and damage the database'
        WHERE current_setting('fsync') = 'off'
    UNION ALL
    SELECT 'full_page_writes is off: a crash of the machine may damage the database'
        WHERE current_setting('full_page_writes') = 'off'
    UNION ALL
    SELECT 'autovacuum is off: each renewal leaves a dead row behind, and the table grows'
        WHERE current_setting('autovacuum') = 'off' OR EXISTS (
            SELECT FROM pg_class WHERE oid = to_regclass('leasehold.locks')
            AND reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off'])
    UNION ALL
    SELECT 'the table leasehold.locks is unlogged: a crash empties it'
        WHERE EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('leasehold.locks') AND relpersistence = 'u')
    UNION ALL
    SELECT 'synchronous_commit is ' || current_setting('synchronous_commit')
        || ': a failover may lose locks; with on, synchronous_standby_names protects them'
        WHERE current_setting('synchronous_commit') IN ('local', 'remote_write')
        AND current_setting('synchronous_standby_names') <> ''
    UNION ALL
    SELECT 'there are standbys, and synchronous_standby_names is empty: a failover may lose locks'
        WHERE current_setting('synchronous_standby_names') = '' AND EXISTS (SELECT FROM pg_stat_replication)";

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
        let call = connection.call(connection.client.query(DANGERS, &[]));
        let rows = shared.in_time("answer", call).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}
