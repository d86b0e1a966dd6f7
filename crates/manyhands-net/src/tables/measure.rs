//! How fast tables are: keys and bytes per second of pushes and pulls, dense and sparse, for each consistency.
//!
//! Servers and workers are threads of one process, over real links.

mod scale;

pub use scale::{Scale, scale};

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::client::{ClientSettings, PushSettings, StepPart, Table, Tables};
use super::directing::{DirectorProcess, DirectorSettings};
use super::error::TableError;
use super::network::{Network, OnStation, WithinProcess};
use super::serving::{ServerProcess, ServerSettings};
use super::spec::{Consistency, TableSpec, mix};
use super::store::RowInit;
use super::traffic::{SavedByFilter, TrafficSpec};
use crate::collective::{Algorithm, CollectiveError, Group, Reduction};
use crate::measure::Transport;
use crate::secure::{Secret, SecretError};
use crate::station::{Route, Station, StationError};
use crate::transport::{Link, LinkError, TcpLink, in_process};

/// Pushes that a worker has underway.
const UNDERWAY: usize = 4;
/// Bytes of a ring within the process.
const RING: usize = 1 << 20;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// What carries the bytes.
    pub transport: Transport,
    /// Servers.
    pub n_servers: usize,
    /// Workers.
    pub n_workers: usize,
    /// How many servers hold each shard.
    pub replication: usize,
    /// Keys of a batch.
    pub n_keys: usize,
    /// Rows of the sparse table.
    pub n_rows: u64,
    /// Elements of a row.
    pub width: usize,
    /// Bytes of the dense table.
    pub dense_bytes: usize,
    /// Timed rounds.
    pub n_rounds: usize,
    /// The filters; those that change values are left out under BSP.
    #[serde(default)]
    pub traffic: TrafficSpec,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            transport: Transport::Tcp,
            n_servers: 2,
            n_workers: 2,
            replication: 1,
            n_keys: 10_000,
            n_rows: 1_000_000,
            width: 16,
            dense_bytes: 16 << 20,
            n_rounds: 50,
            traffic: TrafficSpec::default(),
        }
    }
}

/// One measurement, of all workers together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `dense` or `sparse`.
    pub table: String,
    /// `push`, `pull`, `pull + push`, or `2 all-reduces`, which a dense `pull + push` is to be compared with.
    pub what: String,
    /// `bsp`, `ssp` or `async`.
    pub consistency: String,
    /// Rows, or elements, per second, of all workers.
    pub keys_per_second: f64,
    /// Bytes of values per second, of all workers.
    pub bytes_per_second: f64,
    /// The middle round of the first worker, in microseconds.
    pub median_us: f64,
    /// Bytes that left workers and came to them, of all workers and rounds, those before the timed ones included.
    pub bytes_moved: [u64; 2],
    /// What each filter saved of them.
    pub saved: SavedByFilter,
}

/// What the workers of a measurement took and moved.
struct Timed {
    /// Of all.
    time: Duration,
    /// The rounds of the first.
    rounds: Vec<Duration>,
    moved: [u64; 2],
    saved: SavedByFilter,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A table failed.
    #[error("the table that was to be measured failed: {0}")]
    Table(#[from] TableError),
    /// No links.
    #[error("servers and workers could not be linked: {0}")]
    Station(#[from] StationError),
    /// No secret.
    #[error("servers and workers could not be linked: {0}")]
    Secret(#[from] SecretError),
    /// An all-reduce failed.
    #[error("the all-reduce beside it failed: {0}")]
    Collective(#[from] CollectiveError),
    /// No link for it.
    #[error("workers could not be linked for an all-reduce: {0}")]
    Link(#[from] LinkError),
    /// The system has none.
    #[error("workers could not be linked for an all-reduce: {0}")]
    Io(#[from] std::io::Error),
    /// A thread ended by a panic.
    #[error("a worker of the measurement panicked")]
    Panicked,
    /// The system does not tell.
    #[error("this system does not say how much memory a process has (/proc/self/status)")]
    NoMemoryFigures,
}

/// The director, servers and workers of a measurement.
struct Scene {
    settings: Settings,
    director: DirectorProcess,
    _servers: Vec<ServerProcess>,
    within: WithinProcess,
    secret: Secret,
}

/// Measures everything.
pub fn run(settings: &Settings) -> Result<Vec<Row>, MeasureError> {
    let scene = Scene::new(settings)?;
    let mut rows = Vec::new();
    for consistency in [Consistency::Async, Consistency::Ssp { staleness: 2 }, Consistency::Bsp] {
        rows.extend(scene.sparse(consistency)?);
        rows.extend(scene.dense(consistency)?);
        // Right after it, since machines are not always equally fast.
        rows.extend(scene.all_reduces(consistency)?);
    }
    Ok(rows)
}

impl Scene {
    fn new(settings: &Settings) -> Result<Scene, MeasureError> {
        let (within, secret) = (WithinProcess::new(), Secret::random()?);
        let n_servers = settings.n_servers.max(1);
        let director = DirectorSettings { n_servers, ..DirectorSettings::default() };
        let network = network_of(settings.transport, &within, &secret)?;
        let director = DirectorProcess::start(network, &director, |_| ())?;
        let server = |idx: usize| -> Result<ServerProcess, MeasureError> {
            let network = network_of(settings.transport, &within, &secret)?;
            let name = format!("server {idx}");
            let own = ServerSettings::new(name, director.reach().clone());
            Ok(ServerProcess::start(network, own)?)
        };
        let servers: Result<Vec<ServerProcess>, MeasureError> =
            (0..n_servers).map(server).collect();
        let servers = servers?;
        Ok(Scene { settings: settings.clone(), director, _servers: servers, within, secret })
    }

    fn client(&self, idx: usize) -> Result<Tables, MeasureError> {
        let network = network_of(self.settings.transport, &self.within, &self.secret)?;
        let own = ClientSettings::new(format!("worker {idx}"), self.director.reach().clone());
        Ok(Tables::connect(network, own)?)
    }

    /// Runs a body in every worker, and times it in all of them together.
    fn timed(
        &self,
        name: &str,
        spec: &TableSpec,
        round: impl Fn(&Table, &Tables, usize, usize) -> Result<(), TableError> + Sync,
    ) -> Result<Timed, MeasureError> {
        let n_workers = self.settings.n_workers.max(1);
        let n_rounds = self.settings.n_rounds.max(1);
        let warm = 2 + n_rounds / 10;
        let barrier = Barrier::new(n_workers);
        let worker = |idx: usize| -> Result<Timed, MeasureError> {
            let opened = self.client(idx).and_then(|tables| {
                let table = tables.open(name, spec.clone())?;
                Ok((tables, table))
            });
            barrier.wait();
            let (tables, table) = opened?;
            for n in 0..warm {
                round(&table, &tables, idx, n)?;
            }
            tables.flush()?;
            barrier.wait();
            let (start, mut rounds) = (Instant::now(), Vec::with_capacity(n_rounds));
            for n in warm..warm + n_rounds {
                let start = Instant::now();
                round(&table, &tables, idx, n)?;
                rounds.push(start.elapsed());
            }
            tables.flush()?;
            barrier.wait();
            let (time, moved, saved) = (start.elapsed(), tables.traffic(), table.saved());
            Ok(Timed { time, rounds, moved, saved })
        };
        let worker = &worker;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..n_workers).map(|idx| scope.spawn(move || worker(idx))).collect();
            let mut all: Option<Timed> = None;
            for thread in threads {
                let found = thread.join().map_err(|_| MeasureError::Panicked)??;
                match &mut all {
                    Some(all) => {
                        all.moved = [0, 1].map(|way| all.moved[way] + found.moved[way]);
                        all.saved += found.saved;
                    }
                    None => all = Some(found),
                }
            }
            all.ok_or(MeasureError::Panicked)
        })
    }

    fn row(
        &self,
        [table, what]: [&str; 2],
        consistency: Consistency,
        (n_keys, n_bytes): (usize, usize),
        Timed { time, mut rounds, moved, saved }: Timed,
    ) -> Row {
        let n_rounds = rounds.len() * self.settings.n_workers.max(1);
        rounds.sort_unstable();
        let per_second = |n: usize| (n * n_rounds) as f64 / time.as_secs_f64();
        Row {
            table: table.to_string(),
            what: what.to_string(),
            consistency: word(consistency).to_string(),
            keys_per_second: per_second(n_keys),
            bytes_per_second: per_second(n_bytes),
            median_us: rounds[rounds.len() / 2].as_secs_f64() * 1e6,
            bytes_moved: moved,
            saved,
        }
    }

    fn sparse(&self, consistency: Consistency) -> Result<Vec<Row>, MeasureError> {
        let Settings { n_keys, n_rows, width, replication, .. } = self.settings;
        let traffic = self.traffic(consistency);
        let rows = TableSpec::rows(width, RowInit::Zeros);
        let spec = TableSpec { consistency, replication, traffic, ..rows };
        let values = vec![1e-3; n_keys * width];
        let batches: Vec<Vec<u64>> =
            (0..16 * self.settings.n_workers.max(1)).map(|n| batch(n, n_keys, n_rows)).collect();
        let keys = |worker: usize, n: usize| &batches[(worker * 16 + n % 16) % batches.len()];
        let name = |what: &str| format!("sparse {what} {}", word(consistency));
        let size = (n_keys, n_keys * width * 4);
        let mut rows = Vec::new();
        if consistency == Consistency::Bsp {
            let times = self.timed(&name("both"), &spec, |table, _, worker, n| {
                let keys = keys(worker, n);
                let part = self.part(worker, n);
                table.push_part(&part, keys, &values[..keys.len() * width])?.detach();
                let mut out = vec![0.0; keys.len() * width];
                table.pull_at(n as u64 + 1, keys, &mut out)?.wait()
            })?;
            rows.push(self.row(["sparse", "pull + push"], consistency, size, times));
            return Ok(rows);
        }
        let underway = Underway::new(self.settings.n_workers);
        let times = self.timed(&name("push"), &spec, |table, _, worker, n| {
            let keys = keys(worker, n);
            underway.add(worker, table.push(keys, &values[..keys.len() * width])?)?;
            if n % 8 == 7 { table.clock() } else { Ok(()) }
        })?;
        underway.end()?;
        rows.push(self.row(["sparse", "push"], consistency, size, times));
        let times = self.timed(&name("push"), &spec, |table, _, worker, n| {
            let keys = keys(worker, n);
            let mut out = vec![0.0; keys.len() * width];
            table.pull(keys, &mut out)?.wait()
        })?;
        rows.push(self.row(["sparse", "pull"], consistency, size, times));
        Ok(rows)
    }

    /// The filters that a table of this consistency can have.
    fn traffic(&self, consistency: Consistency) -> TrafficSpec {
        let all = self.settings.traffic;
        match consistency {
            Consistency::Bsp => {
                let (key_lists, zero_runs) = (all.key_lists, all.zero_runs);
                TrafficSpec { key_lists, zero_runs, ..TrafficSpec::default() }
            }
            _ => all,
        }
    }

    fn part(&self, worker: usize, n: usize) -> StepPart {
        let n_grains = self.settings.n_workers.max(1);
        let grains = worker..worker + 1;
        StepPart { step: n as u64, grains, n_grains, rate: 1.0, divisor: 1.0 }
    }

    fn dense(&self, consistency: Consistency) -> Result<Vec<Row>, MeasureError> {
        let n = self.settings.dense_bytes / 4;
        let replication = self.settings.replication;
        let traffic = self.traffic(consistency);
        let spec = TableSpec { consistency, replication, traffic, ..TableSpec::dense(n as u64) };
        let values = vec![1e-3; n];
        let name = format!("dense {}", word(consistency));
        let outs: Vec<std::sync::Mutex<Vec<f32>>> =
            (0..self.settings.n_workers.max(1)).map(|_| vec![0.0; n].into()).collect();
        let times = self.timed(&name, &spec, |table, _, worker, round| {
            let mut out = outs[worker].lock().unwrap_or_else(|error| error.into_inner());
            if consistency == Consistency::Bsp {
                table.step(&self.part(worker, round), 0..n as u64, &values, &mut out)
            } else {
                table.pull(0..n, &mut out)?.wait()?;
                table.push_and_wait(0..n, &values, PushSettings::default())?;
                table.clock()
            }
        })?;
        Ok(vec![self.row(["dense", "pull + push"], consistency, (2 * n, 8 * n), times)])
    }
}

impl Scene {
    /// What a dense pull and push are measured by: two all-reduces of as many bytes among the workers, over the same kind of link.
    fn all_reduces(&self, consistency: Consistency) -> Result<Vec<Row>, MeasureError> {
        let (n, n_ranks) = (self.settings.dense_bytes / 4, self.settings.n_workers.max(1));
        let n_rounds = self.settings.n_rounds.max(1);
        let Some(links) = mesh(self.settings.transport, n_ranks)? else { return Ok(Vec::new()) };
        let rank = |(rank, links): (usize, Links)| -> Result<_, MeasureError> {
            let mut group = Group::new(rank, links)?;
            let mut values = vec![0f32; n];
            let (mut start, mut rounds) = (Instant::now(), Vec::with_capacity(n_rounds));
            for round in 0..n_rounds + 2 {
                let began = Instant::now();
                for _ in 0..2 {
                    group.all_reduce_by(&mut values, Reduction::Sum, Algorithm::Direct)?;
                }
                match round {
                    0 => {}
                    1 => start = Instant::now(),
                    _ => rounds.push(began.elapsed()),
                }
            }
            Ok((start.elapsed(), rounds))
        };
        let rank = &rank;
        let (time, rounds) = std::thread::scope(|scope| {
            let threads: Vec<_> =
                links.into_iter().enumerate().map(|own| scope.spawn(move || rank(own))).collect();
            let mut first = None;
            for thread in threads {
                let found = thread.join().map_err(|_| MeasureError::Panicked)??;
                first.get_or_insert(found);
            }
            first.ok_or(MeasureError::Panicked)
        })?;
        // Each byte of a sum goes to its owner and back to all, but those of the owner itself.
        let moved = (2 * 2 * 4 * n * (n_ranks - 1) * (n_rounds + 2)) as u64;
        let times = Timed { time, rounds, moved: [moved; 2], saved: SavedByFilter::default() };
        Ok(vec![self.row(["dense", "2 all-reduces"], consistency, (2 * n, 8 * n), times)])
    }
}

type Links = Vec<Option<Box<dyn Link>>>;

/// A link between every two ranks, for each of them; none where there are none of this kind within a process.
fn mesh(transport: Transport, n_ranks: usize) -> Result<Option<Vec<Links>>, MeasureError> {
    let mut all: Vec<Links> = Vec::with_capacity(n_ranks);
    for _ in 0..n_ranks {
        let mut own: Links = Vec::with_capacity(n_ranks);
        for earlier in &mut all {
            let (one, other): (Box<dyn Link>, Box<dyn Link>) = match transport {
                Transport::Tcp => {
                    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                    let one = TcpStream::connect(listener.local_addr()?)?;
                    let (other, _) = listener.accept()?;
                    (Box::new(TcpLink::new(one)?), Box::new(TcpLink::new(other)?))
                }
                Transport::Inproc => {
                    let (one, other) = in_process::pair(RING)?;
                    (Box::new(one), Box::new(other))
                }
                Transport::Shm | Transport::TcpEncrypted => return Ok(None),
            };
            earlier.push(Some(one));
            own.push(Some(other));
        }
        own.push(None);
        all.push(own);
    }
    Ok(Some(all))
}

/// Pushes of each worker that were not waited for yet.
struct Underway(Vec<std::sync::Mutex<std::collections::VecDeque<super::client::Ticket>>>);

impl Underway {
    fn new(n_workers: usize) -> Underway {
        Underway((0..n_workers.max(1)).map(|_| Default::default()).collect())
    }

    fn add(&self, worker: usize, ticket: super::client::Ticket) -> Result<(), TableError> {
        let mut tickets = self.0[worker].lock().unwrap_or_else(|error| error.into_inner());
        tickets.push_back(ticket);
        match tickets.len() > UNDERWAY {
            true => tickets.pop_front().map_or(Ok(()), super::client::Ticket::wait),
            false => Ok(()),
        }
    }

    /// The clients may be gone by now, with everything acknowledged.
    fn end(self) -> Result<(), TableError> {
        drop(self.0);
        Ok(())
    }
}

fn word(consistency: Consistency) -> &'static str {
    match consistency {
        Consistency::Bsp => "bsp",
        Consistency::Ssp { .. } => "ssp",
        Consistency::Adaptive { .. } => "adaptive",
        Consistency::Async => "async",
    }
}

/// Keys that rise, each there once, about evenly spread.
fn batch(n: usize, n_keys: usize, n_rows: u64) -> Vec<u64> {
    let key = |idx: usize| mix((n * n_keys + idx) as u64 + 1) % n_rows.max(1);
    let mut keys: Vec<u64> = (0..n_keys).map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn network_of(
    transport: Transport,
    within: &WithinProcess,
    secret: &Secret,
) -> Result<Arc<dyn Network>, MeasureError> {
    let route = match transport {
        Transport::Inproc => return Ok(Arc::new(within.clone())),
        Transport::Shm => Route::Auto,
        Transport::Tcp => Route::Tcp,
        Transport::TcpEncrypted => Route::TcpEncrypted,
    };
    let station = Station::open(IpAddr::V4(Ipv4Addr::LOCALHOST), secret.clone(), route)?;
    Ok(Arc::new(OnStation::new(Arc::new(station), None)))
}
