//! A director, servers and clients as threads of one process, on any kind of link.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use manyhands_net::secure::Secret;
use manyhands_net::station::{Route, Station};
use manyhands_net::tables::client::{ClientSettings, Tables};
use manyhands_net::tables::directing::{DirectorProcess, DirectorSettings};
use manyhands_net::tables::network::{Network, OnStation, WithinProcess};
use manyhands_net::tables::serving::{ServerProcess, ServerSettings};

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    InProcess,
    SharedMemory,
    Tcp,
    Encrypted,
}

pub(crate) const ALL: [Kind; 4] = [Kind::InProcess, Kind::SharedMemory, Kind::Tcp, Kind::Encrypted];

pub(crate) struct Cluster {
    within: WithinProcess,
    secret: Secret,
    kind: Kind,
    pub(crate) servers: Vec<Option<ServerProcess>>,
    pub(crate) director: DirectorProcess,
}

impl Cluster {
    pub(crate) fn new(kind: Kind, n_servers: usize) -> Cluster {
        let (within, secret) = (WithinProcess::new(), Secret::random().unwrap());
        let settings =
            DirectorSettings { n_servers: n_servers.max(1), ..DirectorSettings::default() };
        let network = network(kind, &within, &secret);
        let director = DirectorProcess::start(network, &settings, |_| ()).unwrap();
        let mut cluster = Cluster { within, secret, kind, servers: Vec::new(), director };
        (0..n_servers).for_each(|_| cluster.add_server());
        cluster
    }

    pub(crate) fn network(&self) -> Arc<dyn Network> {
        network(self.kind, &self.within, &self.secret)
    }

    pub(crate) fn add_server(&mut self) {
        self.add_server_with(|_| ());
    }

    pub(crate) fn add_server_with(&mut self, change: impl FnOnce(&mut ServerSettings)) {
        let name = format!("s{}", self.servers.len());
        let mut settings = ServerSettings::new(name, self.director.reach().clone());
        change(&mut settings);
        let server = ServerProcess::start(self.network(), settings).unwrap();
        self.servers.push(Some(server));
    }

    pub(crate) fn client(&self, name: &str) -> Tables {
        self.client_with(name, |_| ())
    }

    pub(crate) fn client_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut ClientSettings),
    ) -> Tables {
        let mut settings = ClientSettings::new(name, self.director.reach().clone());
        change(&mut settings);
        Tables::connect(self.network(), settings).unwrap()
    }

    /// Waits until all shards have all their holders.
    pub(crate) fn settled(&self) {
        let start = Instant::now();
        while !self.director.status().is_settled {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not settle");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn network(kind: Kind, within: &WithinProcess, secret: &Secret) -> Arc<dyn Network> {
    let route = match kind {
        Kind::InProcess => return Arc::new(within.clone()),
        Kind::SharedMemory => Route::Auto,
        Kind::Tcp => Route::Tcp,
        Kind::Encrypted => Route::TcpEncrypted,
    };
    let station = Station::open(IpAddr::V4(Ipv4Addr::LOCALHOST), secret.clone(), route).unwrap();
    Arc::new(OnStation::new(Arc::new(station), None))
}
