//! Tables as a worker reaches them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::running::Shared;
use super::table::Table;
use crate::tables::error::TableError;
use crate::tables::history::HistoryWriter;
use crate::tables::identity::ClientId;
use crate::tables::message::Reach;
use crate::tables::network::Network;
use crate::tables::spec::TableSpec;

/// What a client needs to know.
pub struct ClientSettings {
    /// What people call it: the name of the worker.
    pub name: String,
    /// Where the director is reached.
    pub director: Reach,
    /// How long anything may take.
    pub deadline: Duration,
    /// Waits end when this is set.
    pub stop: Arc<AtomicBool>,
    /// Where its history is written.
    pub history: Option<HistoryWriter>,
}

impl ClientSettings {
    /// A client that waits for a minute and writes no history.
    pub fn new(name: impl Into<String>, director: Reach) -> ClientSettings {
        ClientSettings {
            name: name.into(),
            director,
            deadline: Duration::from_secs(60),
            stop: Arc::default(),
            history: None,
        }
    }
}

/// The tables of a director, as one worker has them. Clones are the same client; with the last it leaves.
#[derive(Clone)]
pub struct Tables {
    shared: Arc<Shared>,
}

impl Tables {
    /// Joins as a client.
    pub fn connect(
        network: Arc<dyn Network>,
        settings: ClientSettings,
    ) -> Result<Tables, TableError> {
        Ok(Tables { shared: Shared::start(network, settings)? })
    }

    /// Who this client is.
    pub fn id(&self) -> ClientId {
        self.shared.id()
    }

    /// Opens a table, or takes part in one that others opened and that is the same. The clock begins at 0.
    pub fn open(&self, name: &str, spec: TableSpec) -> Result<Table, TableError> {
        self.open_at(name, spec, 0)
    }

    /// As [`Tables::open`], for one who comes later and begins with another clock.
    pub fn open_at(&self, name: &str, spec: TableSpec, clock: u64) -> Result<Table, TableError> {
        spec.check(name)?;
        let opened = self.shared.open(name, &spec)?;
        Table::new(Arc::clone(&self.shared), opened, clock)
    }

    /// Waits until everything that was pushed is acknowledged. Tells what went wrong with pushes that nobody waited for.
    pub fn flush(&self) -> Result<(), TableError> {
        self.shared.flush()
    }

    /// Bytes that were sent to servers, and that came from them.
    pub fn traffic(&self) -> [u64; 2] {
        self.shared.traffic()
    }
}
