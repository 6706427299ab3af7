//! Lists keys: from the only server, or from one primary of a cluster after the other.

use std::sync::Arc;

use leasehold_api::{BackendError, ClockId, Cursor, List, Listed};

use super::Backend;
use crate::connection::{Cluster, Node};

/// Where a listing goes on at one server. A server that was restarted, or a replica that was promoted, has
/// its keys in another order, so the listing of this server begins again.
struct Place<'a> {
    clock: ClockId,
    cursor: &'a str,
}

impl<'a> Place<'a> {
    /// Reads `CLOCK CURSOR`. The cursor is `0` at the beginning.
    fn parse(text: &'a str) -> Self {
        let (clock, cursor) = text.split_once(' ').unwrap_or(("", "0"));
        let clock = ClockId::new(clock.parse().unwrap_or(0));
        Self { clock, cursor }
    }

    /// Whether this place is one of the server with this clock. Its answer goes on from the place then.
    fn is_at(&self, clock: ClockId) -> bool {
        self.cursor == "0" || self.clock == clock
    }
}

impl Backend {
    pub(super) async fn list_one(
        &self,
        node: &Node,
        request: &List,
    ) -> Result<Listed, BackendError> {
        let place = Place::parse(request.cursor.as_ref().map_or("", Cursor::as_str));
        let call = self.protocol.list(request, place.cursor);
        let mut answer = node.commands.script(&call).await?;
        if !place.is_at(answer.clock) {
            let from_start = self.protocol.list(request, "0");
            answer = node.commands.script(&from_start).await?;
        }
        let (next, keys) = self.protocol.listed(&answer.body)?;
        let next = (next != "0").then(|| Cursor::new(format!("{} {next}", answer.clock.get())));
        Ok(Listed { keys, next })
    }

    /// A page of keys of a cluster: one primary after the other, in the order of their addresses.
    pub(super) async fn list_cluster(
        &self,
        cluster: &Arc<Cluster>,
        request: &List,
    ) -> Result<Listed, BackendError> {
        let text = request.cursor.as_ref().map_or("", Cursor::as_str);
        let (last, place) = text.split_once(' ').unwrap_or_default();
        let place = Place::parse(place);
        let mut found = None;
        if place.cursor != "0" {
            let call = self.protocol.list(request, place.cursor);
            found = cluster.script_on(&call, |address| address == last).await?;
        }
        if found
            .as_ref()
            .is_none_or(|(_, answer)| !place.is_at(answer.clock))
        {
            let is_new = found.is_some();
            let call = self.protocol.list(request, "0");
            let wanted = |address: &str| address > last || is_new && address == last;
            found = cluster.script_on(&call, wanted).await?;
        }
        let Some((address, answer)) = found else {
            return Ok(Listed::default());
        };
        let (next, keys) = self.protocol.listed(&answer.body)?;
        let next = Cursor::new(format!("{address} {} {next}", answer.clock.get()));
        Ok(Listed {
            keys,
            next: Some(next),
        })
    }
}
