//! Servers that are there and cannot reach each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use manyhands_net::station::{Call, StationError};
use manyhands_net::tables::message::Reach;
use manyhands_net::tables::network::Network;
use manyhands_net::tables::serving::{ServerProcess, ServerSettings};
use manyhands_net::tables::spec::{Consistency, TableSpec};
use manyhands_net::transport::{Link, LinkError};

use crate::cluster::{Cluster, Kind};

/// A network in which no server is reached.
struct Walled(Arc<dyn Network>);

impl Network for Walled {
    fn reach(&self, door: &str) -> Reach {
        self.0.reach(door)
    }

    fn call(
        &self,
        to: &Reach,
        deadline: Instant,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Link>, StationError> {
        if to.door.starts_with("tables/server/") {
            let (peer, source) = (to.door.clone(), LinkError::Closed);
            return Err(StationError::Link { peer, source });
        }
        self.0.call(to, deadline, gives_up)
    }

    fn next_call(&self, door: &str, wait: Duration) -> Option<Call> {
        self.0.next_call(door, wait)
    }

    fn open(&self, door: &str) {
        self.0.open(door);
    }

    fn close(&self, door: &str) {
        self.0.close(door);
    }
}

#[test]
fn servers_that_cannot_reach_each_other_are_named_and_pushes_go_on() {
    let mut cluster = Cluster::new(Kind::InProcess, 0);
    // The director places tables on what is there, so both come before the table.
    for name in ["s0", "s1"] {
        let settings = ServerSettings::new(name, cluster.director.reach().clone());
        let network: Arc<dyn Network> = Arc::new(Walled(cluster.network()));
        cluster.servers.push(Some(ServerProcess::start(network, settings).unwrap()));
    }
    let tables = cluster.client("w0");
    let spec = TableSpec { consistency: Consistency::Async, ..TableSpec::dense(50_000) };
    let table = tables.open("t", TableSpec { replication: 2, ..spec }).unwrap();
    table.push(0..50_000usize, &[1.0; 50_000]).unwrap().wait().unwrap();
    let mut out = vec![0.0; 50_000];
    table.pull(0..50_000usize, &mut out).unwrap().wait().unwrap();
    assert_eq!(out, [1.0; 50_000]);
    let status = cluster.director.status();
    assert!(status.said.iter().any(|said| said.contains(") cannot reach server ")), "{status:?}");
    assert_eq!(status.servers.len(), 1, "{status:?}");
    let ended = cluster.servers.iter().flatten().find_map(ServerProcess::ended).unwrap();
    let error = ended.unwrap_err().to_string();
    assert!(error.contains(") cannot reach server "), "{error}");
}
