//! The strategy `parameter_server`: parameters that live on servers, which workers push gradients to and pull the new values from.
//!
//! The driver decides which parameters these are (`layout.rs`), directs the servers and fills them with the state that the run begins with (`at_driver.rs`). A worker
//! pushes the sums of its grains and pulls what the servers made of them (`at_worker.rs`); sums that belong to no server it exchanges with the other workers, as under
//! `all_reduce`. A server (`server.rs`) is a process of its own, or a thread of a worker where there are too few; it applies the job's own update (`rule.rs`).

mod at_driver;
mod at_worker;
mod foresight;
mod layout;
mod row_layout;
mod row_rule;
mod rows_at_worker;
mod rows_of_grains;
mod rule;
mod server;
mod standing;
mod state;
mod traffic;
mod turns;

pub(super) use at_driver::{TablesOfDriver, refuse_servers};
pub(super) use at_worker::{PartsOf, TableAtHand};
pub(super) use rows_of_grains::RowsOfGrains;
pub use server::{ServerSettings, run_server};
pub use traffic::ServerTraffic;

use manyhands_net::tables::history::HistoryWriter;
use manyhands_net::tables::message::Reach;
use manyhands_net::tables::spec::{Consistency, TableSpec};
use manyhands_net::tables::store::RowInit;
use manyhands_net::tables::traffic::TrafficSpec;
use serde::{Deserialize, Serialize};

use layout::TableLayout;
use row_layout::RowsOnServer;

/// What the key begins with by which servers call a driver to ask for its director.
const SERVERS: &str = "servers/";
/// Elements of a shard, where there are enough of them: a megabyte.
const SHARD_ELEMENTS: usize = 1 << 18;
/// Rows of a shard, at most: an index holds a few times as many.
const SHARD_ROWS: usize = 1 << 20;

/// The table of a job, as its workers are told of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JobTable {
    pub(super) layout: TableLayout,
    /// Tables of which workers have the rows of their grains alone.
    #[serde(default)]
    pub(super) rows: Vec<RowsOnServer>,
    pub(super) n_servers: usize,
    pub(super) replication: usize,
    pub(super) director: Reach,
    /// What reads may miss; workers that may miss something are given turns.
    pub(super) consistency: Consistency,
    /// How fewer bytes move.
    #[serde(default)]
    pub(super) traffic: TrafficSpec,
    /// Whether workers that may miss something compute gradients where the parameters are going to be.
    #[serde(default)]
    pub(super) foresight: bool,
}

/// The variable that names a file in which clients note what they did and were shown, and servers how it ended.
const HISTORY_VARIABLE: &str = "MANYHANDS_HISTORY";

/// Where what this process does with tables is noted, where somebody wants it.
fn history() -> Option<HistoryWriter> {
    HistoryWriter::append(std::env::var_os(HISTORY_VARIABLE)?.as_ref()).ok()
}

/// Whether somebody wants what is done with tables noted.
pub(super) fn wants_history() -> bool {
    std::env::var_os(HISTORY_VARIABLE).is_some()
}

impl JobTable {
    /// What the table is called.
    const NAME: &str = "parameters";

    /// Whether workers need not wait for each other.
    pub(super) fn is_stale(&self) -> bool {
        self.consistency != Consistency::Bsp
    }

    /// Whether what arrived from elsewhere can be.
    pub(super) fn check(&self) -> Result<(), String> {
        self.layout.check()?;
        self.rows.iter().try_for_each(RowsOnServer::check)
    }

    /// Whether parameters live in the dense table, beside those of which rows are taken.
    fn is_dense(&self) -> bool {
        self.layout.n_elements > 0
    }

    /// The table of rows of a parameter. Rows that nobody has touched and that begin as zeros are not there.
    fn rows_spec(&self, rows: &RowsOnServer) -> TableSpec {
        let n_shards = (4 * self.n_servers).max(rows.n_rows / SHARD_ROWS).clamp(1, 1024);
        TableSpec {
            rule: row_rule::rule_spec(rows),
            consistency: self.consistency,
            traffic: self.traffic,
            replication: self.replication,
            n_shards: Some(n_shards),
            rejects_nan: false,
            ..TableSpec::rows(rows.width, RowInit::Zeros)
        }
    }

    fn spec(&self) -> TableSpec {
        let n_elements = self.layout.n_elements;
        // A few for each server, so that they can be shared out again when one comes or goes.
        let n_shards = (4 * self.n_servers).max(n_elements / SHARD_ELEMENTS).clamp(1, 256);
        TableSpec {
            rule: rule::rule_spec(&self.layout),
            consistency: self.consistency,
            traffic: self.traffic,
            replication: self.replication,
            n_shards: Some(n_shards),
            // A loss that is not finite says more than the first gradient that is none.
            rejects_nan: false,
            ..TableSpec::dense(n_elements as u64)
        }
    }
}
