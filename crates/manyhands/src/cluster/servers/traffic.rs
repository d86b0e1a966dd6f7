//! Bytes between workers and servers, as workers count them and the summary of a run tells them.

use manyhands_net::tables::traffic::SavedByFilter;
use serde::{Deserialize, Serialize};

use super::at_worker::TableAtHand;

/// Bytes that moved between workers and servers, and what was done to move fewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerTraffic {
    /// Bytes that left workers for servers.
    pub to_servers: u64,
    /// Bytes that came from servers to workers.
    pub from_servers: u64,
    /// Bytes before and after each setting of `distribute.traffic`.
    pub saved: SavedByFilter,
}

impl ServerTraffic {
    pub(crate) fn add(&mut self, more: ServerTraffic) {
        self.to_servers = self.to_servers.saturating_add(more.to_servers);
        self.from_servers = self.from_servers.saturating_add(more.from_servers);
        self.saved += more.saved;
    }

    fn since(self, earlier: ServerTraffic) -> ServerTraffic {
        ServerTraffic {
            to_servers: self.to_servers.saturating_sub(earlier.to_servers),
            from_servers: self.from_servers.saturating_sub(earlier.from_servers),
            saved: self.saved.since(earlier.saved),
        }
    }
}

impl TableAtHand {
    /// What this worker moved since it last told the driver.
    pub(in crate::cluster) fn take_traffic(&mut self) -> Option<ServerTraffic> {
        let (tables, table) = self.client.as_ref()?;
        let [to_servers, from_servers] = tables.traffic();
        let now = ServerTraffic { to_servers, from_servers, saved: table.saved() };
        let since = now.since(std::mem::replace(&mut self.told, now));
        Some(since)
    }
}
