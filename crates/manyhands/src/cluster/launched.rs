//! Training under a launcher (`mpirun`, `srun`, `torchrun`): rank 0 has the job and coordinates, and every rank is a worker, rank 0 by a
//! process of its own beside it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use manyhands_net::collective::{CollectiveError, Group};
use manyhands_net::control::{CoordinatorProcess, CoordinatorSettings};
use manyhands_net::host::all_of_family;
use manyhands_net::launch::{Launch, Meeting};
use manyhands_net::secure::Secret;
use manyhands_net::station::{Route, StationError};
use manyhands_net::world::{World, WorldError};

use super::driver::ClusterAddress;
use super::local::{LocalProcesses, LocalWorkers};
use super::watch::Watcher;
use super::worker::{WorkerSettings, run_worker};
use crate::error::Error;

/// How long ranks wait for each other at the start.
const MEETING: Duration = Duration::from_secs(120);
/// Ranks wait for the end as long as training takes.
const TRAINING: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long a rank may take to hear that training is done: it waits for nothing else.
const ENDING: Duration = Duration::from_secs(10);
/// The longest text that rank 0 tells.
const MAX_TEXT: usize = 4096;
/// How often a rank looks whether it was asked to leave.
const LOOK: Duration = Duration::from_millis(50);
/// How long the driver has to save and end the run when all ranks are asked to leave. Launchers kill them a second or more after they asked.
const DRIVER_SAVES: Duration = Duration::from_millis(1500);

/// What a rank of a launch is to do.
pub enum Launched {
    /// It has the job.
    Driver(Box<LaunchedCluster>),
    /// It is a worker, until the driver is done.
    Worker(Box<LaunchedWorker>),
}

/// The cluster of a launch, at the rank that has the job.
pub struct LaunchedCluster {
    /// With each other rank alone, so that one that has left keeps nobody from the end.
    ends: Vec<Group>,
    _coordinator: CoordinatorProcess,
    _own_worker: LocalProcesses,
    address: ClusterAddress,
}

/// A rank of a launch that works for another.
pub struct LaunchedWorker {
    rank: usize,
    /// With rank 0: it comes there when training is done.
    end: Group,
    settings: WorkerSettings,
}

/// Looks whether a launcher started this process as one of several, and meets the other ranks. `threads` are those of each worker.
pub fn launched(threads: Option<usize>) -> Result<Option<Launched>, Error> {
    let Some(launch) = Launch::from_environment()?.filter(|launch| launch.size > 1) else {
        return Ok(None);
    };
    let mut world = World::launched(&launch, MEETING)?;
    let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.unwrap_or((n_cores / world.local_size().max(1)).max(1));
    let zero = world.address_of(0).ok_or(StationError::NoOwnAddress)?;
    let bind = match launch.meeting {
        Meeting::Alone | Meeting::Here { .. } => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Meeting::At(_) => all_of_family(zero),
    };
    let rank = world.rank();
    if rank == 0 {
        let driver = drive(&mut world, (bind, zero), threads)?;
        return Ok(Some(Launched::Driver(Box::new(driver))));
    }
    let told = tell_all(&mut world, String::new())?;
    let (coordinator, secret) = understood(&told, zero).ok_or_else(|| {
        WorldError::Disagreement("rank 0 did not say where its coordinator is".to_string())
    })?;
    let settings = WorkerSettings {
        coordinator: coordinator.to_string(),
        secret: Secret::from_text(secret.to_string(), "rank 0")?,
        bind,
        name: Some(format!("rank-{rank}")),
        threads: Some(threads),
        data: None,
        route: Route::Auto,
        drain: Arc::<AtomicBool>::default(),
        watcher: Watcher::none(),
    };
    let end = end_with(&world, &[0, rank])?;
    Ok(Some(Launched::Worker(Box::new(LaunchedWorker { rank, end, settings }))))
}

fn drive(
    world: &mut World,
    (bind, zero): (IpAddr, IpAddr),
    threads: usize,
) -> Result<LaunchedCluster, Error> {
    let secret = Secret::random()?;
    let settings =
        CoordinatorSettings { listen: (bind, 0).into(), secret: secret.clone(), log: None };
    let coordinator = CoordinatorProcess::start(settings, |_| {})?;
    let mut place = coordinator.address();
    if bind.is_unspecified() {
        place.set_ip(zero);
    }
    tell_all(world, format!("{place} {}", secret.text()))?;
    let others = 1..world.size();
    let ends = others.map(|rank| end_with(world, &[0, rank])).collect::<Result<_, Error>>()?;
    let workers = LocalWorkers {
        n_workers: 1,
        n_servers: 0,
        threads,
        program: None,
        route: Route::Auto,
        stragglers: None,
    };
    let own_worker = LocalProcesses::start(&workers, "rank", &place.to_string(), &secret)?;
    let address =
        ClusterAddress { coordinator: place.to_string(), secret, bind, route: Route::Auto };
    Ok(LaunchedCluster { ends, _coordinator: coordinator, _own_worker: own_worker, address })
}

/// Where the coordinator is for this rank, and the secret. Rank 0 says how others find it; a rank of another machine has found it itself.
fn understood(told: &str, zero: IpAddr) -> Option<(SocketAddr, &str)> {
    let (place, secret) = told.split_once(' ')?;
    let mut place: SocketAddr = place.parse().ok()?;
    if !zero.is_loopback() {
        place.set_ip(zero);
    }
    Some((place, secret))
}

/// What two ranks meet in when training is done.
fn end_with(world: &World, ranks: &[usize]) -> Result<Group, Error> {
    let nobody = || WorldError::Misuse("this rank has no place in its own pair".to_string());
    let mut group = world.group(ranks)?.ok_or_else(nobody)?;
    group.set_patience(TRAINING);
    Ok(group)
}

/// Gives all ranks the text of rank 0.
fn tell_all(world: &mut World, text: String) -> Result<String, Error> {
    let mut length = [text.len() as i64];
    world.broadcast(&mut length, 0)?;
    let n_bytes = usize::try_from(length[0]).ok().filter(|n_bytes| *n_bytes <= MAX_TEXT);
    let n_bytes = n_bytes.ok_or_else(|| {
        WorldError::Disagreement(format!("rank 0 announced a text of {} bytes", length[0]))
    })?;
    let mut bytes = text.into_bytes();
    bytes.resize(n_bytes, 0);
    world.broadcast(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl LaunchedCluster {
    /// How to reach it.
    pub fn address(&self) -> ClusterAddress {
        self.address.clone()
    }

    /// Lets the other ranks end.
    pub fn finish(mut self) {
        for end in &mut self.ends {
            end.set_patience(ENDING);
            // One that has left before, as when it was asked to, has nothing to wait for.
            let _ = end.barrier();
        }
    }
}

impl LaunchedWorker {
    /// Works until the driver is done or gone, or, once `stop` is set, leaves after the step at hand. An error says which rank it is of.
    pub fn run(self, stop: Arc<AtomicBool>) -> Result<(), Error> {
        let LaunchedWorker { rank, mut end, mut settings } = self;
        settings.drain = after_a_while(stop)?;
        let abort = end.abort_flag();
        let (sender, outcome) = channel();
        let working = std::thread::Builder::new().name("worker".into());
        // It ends with the process where the driver is done first.
        working.spawn(move || {
            // Nobody listens any more where the driver is done.
            let _ = sender.send(run_worker(settings, |_| {}));
            abort.store(true, Ordering::Relaxed);
        })?;
        let waited = end.barrier().map_err(Error::from);
        let ended = match (waited, outcome.try_recv()) {
            (Err(Error::Collective(CollectiveError::Aborted { .. })), Ok(outcome)) => outcome,
            (waited, _) => waited,
        };
        ended.map_err(|source| Error::Rank { rank, source: Box::new(source) })
    }
}

/// Set some time after another. Launchers pass a signal on to all ranks: that of the driver saves with those it has and ends the run, which it could not do while all others leave.
fn after_a_while(stop: Arc<AtomicBool>) -> Result<Arc<AtomicBool>, Error> {
    let later = Arc::<AtomicBool>::default();
    let set = Arc::clone(&later);
    std::thread::Builder::new().name("leaving".into()).spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
        }
        std::thread::sleep(DRIVER_SAVES);
        set.store(true, Ordering::Relaxed);
    })?;
    Ok(later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_finds_the_coordinator_where_it_found_rank_0() {
        let found = |told, zero: &str| {
            understood(told, zero.parse().unwrap()).map(|(place, _)| place.to_string())
        };
        let near = found("10.0.0.1:7 secret", "127.0.0.1");
        assert_eq!(near.as_deref(), Some("10.0.0.1:7"));
        let far = found("10.0.0.1:7 secret", "192.168.0.1");
        assert_eq!(far.as_deref(), Some("192.168.0.1:7"));
        let six = found("[::]:7 secret", "fd00::1");
        assert_eq!(six.as_deref(), Some("[fd00::1]:7"));
        assert_eq!(found("nothing", "127.0.0.1"), None);
    }
}
