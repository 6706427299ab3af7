//! The connections to one server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_api::TokioRuntime;

use super::managed::ManagedConnection;
use super::shared::Shared;
use crate::script::Call;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// All calls but renewals.
    Commands,
    /// Renewals. The renewal thread drives the connection.
    Renewals,
}

pub(crate) struct Node {
    pub(crate) commands: Arc<ManagedConnection>,
    /// A second connection, driven by the renewal thread, so that a program that blocks its runtime
    /// doesn't stop renewals. The same as `commands` if there is no renewal thread, or if the
    /// connection is the user's.
    pub(crate) renewals: Arc<ManagedConnection>,
    /// Whether the connection for renewals has been opened ahead of the first renewal.
    warmed: AtomicBool,
}

impl Node {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let commands = ManagedConnection::new(Arc::clone(shared));
        let renewals = match TokioRuntime::renewal_thread() {
            Some(renewal_thread) if shared.connector.is_own() => {
                let shared = Shared::clone(shared);
                let handle = renewal_thread;
                ManagedConnection::new(Arc::new(Shared { handle, ..shared }))
            }
            _ => Arc::clone(&commands),
        };
        Self {
            commands,
            renewals,
            warmed: AtomicBool::new(false),
        }
    }

    pub(crate) fn connection(&self, lane: Lane) -> &Arc<ManagedConnection> {
        match lane {
            Lane::Commands => &self.commands,
            Lane::Renewals => &self.renewals,
        }
    }

    pub(crate) fn renews_independently(&self) -> bool {
        !Arc::ptr_eq(&self.commands, &self.renewals)
    }

    /// Opens the connection for renewals and loads their script on the server. The first renewal of
    /// a short lease has time for one round trip only. `empty` makes a renewal of nothing.
    pub(crate) fn warm_renewals(&self, empty: impl FnOnce() -> Call) {
        if !self.renews_independently() || self.warmed.swap(true, Ordering::Relaxed) {
            return;
        }
        let (connection, empty) = (Arc::clone(&self.renewals), empty());
        // If this fails, the first renewal connects and loads the script.
        let warm_up = async move { connection.script(&empty).await.map(drop) };
        self.renewals.shared().handle.spawn(warm_up);
    }

    /// Drops the connections. Later calls open new ones.
    pub(crate) fn disconnect(&self) {
        self.commands.disconnect();
        self.renewals.disconnect();
        self.warmed.store(false, Ordering::Relaxed);
    }

    /// Closes the connections. Later calls fail.
    pub(crate) fn close(&self) {
        self.commands.close();
        self.renewals.close();
    }
}
