//! How a job with servers stands, as its driver tells the coordinator: for `manyhands status`.

use manyhands_net::membership::status::{JobStanding, ServerStanding, WorkerStanding};
use manyhands_net::tables::director::ServerStatus;
use manyhands_net::tables::spec::Consistency;

use super::TablesOfDriver;
use crate::cluster::table::Table;

impl TablesOfDriver {
    /// How the job stands.
    pub(in crate::cluster) fn standing(&self, table: &Table) -> JobStanding {
        let server = |one: ServerStatus| ServerStanding {
            name: one.name,
            address: one.address,
            shards: one.n_held as u64,
            first_of: one.n_first as u64,
            bytes: one.n_bytes,
            is_leaving: one.is_leaving,
        };
        let turns = table.turns.iter().flat_map(|turns| turns.standings());
        let worker = |(number, step, bound): (u64, u64, Option<u64>)| {
            let name = table.talks.get(&number)?.name.clone();
            Some(WorkerStanding { name, step, bound })
        };
        JobStanding {
            steps: table.done,
            consistency: Some(word(self.job.consistency).to_string()),
            servers: self.director.status().servers.into_iter().map(server).collect(),
            workers: turns.filter_map(worker).collect(),
            mesh: None,
        }
    }
}

/// A consistency as a job writes it.
fn word(consistency: Consistency) -> &'static str {
    match consistency {
        Consistency::Bsp => "bsp",
        Consistency::Ssp { .. } => "ssp",
        Consistency::Adaptive { .. } => "adaptive",
        Consistency::Async => "async",
    }
}
