//! Training under a launcher (`mpirun`, `srun`, `torchrun`): rank 0 has the job and coordinates, and every rank is a worker, rank 0 by a
//! process of its own beside it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use manyhands_net::control::{CoordinatorProcess, CoordinatorSettings};
use manyhands_net::host::own_address;
use manyhands_net::launch::{Launch, Meeting};
use manyhands_net::secure::Secret;
use manyhands_net::station::Route;
use manyhands_net::world::World;

use super::driver::ClusterAddress;
use super::local::{LocalProcesses, LocalWorkers};
use super::worker::{WorkerSettings, run_worker};
use crate::error::Error;

/// How long ranks wait for each other at the start.
const MEETING: Duration = Duration::from_secs(120);
/// Ranks wait for the end as long as training takes.
const TRAINING: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// What a rank of a launch is to do.
pub enum Launched {
    /// It has the job.
    Driver(Box<LaunchedCluster>),
    /// It is a worker, until the driver is done.
    Worker(Box<LaunchedWorker>),
}

/// The cluster of a launch, at the rank that has the job.
pub struct LaunchedCluster {
    world: World,
    _coordinator: CoordinatorProcess,
    _own_worker: LocalProcesses,
    address: ClusterAddress,
}

/// A rank of a launch that works for another.
pub struct LaunchedWorker {
    world: World,
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
    let bind = match launch.meeting {
        Meeting::Alone | Meeting::Here { .. } => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Meeting::At(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    world.set_patience(TRAINING);
    match world.rank() {
        0 => drive(world, bind, threads).map(|driver| Some(Launched::Driver(Box::new(driver)))),
        rank => {
            let text = tell_all(&mut world, String::new())?;
            let (coordinator, secret) = text.split_once(' ').unwrap_or_default();
            let settings = WorkerSettings {
                coordinator: coordinator.to_string(),
                secret: Secret::from_text(secret.to_string(), "rank 0")?,
                bind,
                name: Some(format!("rank-{rank}")),
                threads: Some(threads),
                route: Route::Auto,
                drain: Arc::<AtomicBool>::default(),
                watcher: Box::new(|_, _| {}),
            };
            Ok(Some(Launched::Worker(Box::new(LaunchedWorker { world, settings }))))
        }
    }
}

fn drive(mut world: World, bind: IpAddr, threads: usize) -> Result<LaunchedCluster, Error> {
    let secret = Secret::random()?;
    let settings =
        CoordinatorSettings { listen: (bind, 0).into(), secret: secret.clone(), log: None };
    let coordinator = CoordinatorProcess::start(settings, |_| {})?;
    let mut place = coordinator.address();
    if bind.is_unspecified() {
        place.set_ip(own_address().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
    tell_all(&mut world, format!("{place} {}", secret.text()))?;
    let workers = LocalWorkers { n_workers: 1, threads, program: None, route: Route::Auto };
    let own_worker = LocalProcesses::start(&workers, "rank", &place.to_string(), &secret)?;
    let address =
        ClusterAddress { coordinator: place.to_string(), secret, bind, route: Route::Auto };
    Ok(LaunchedCluster { world, _coordinator: coordinator, _own_worker: own_worker, address })
}

/// Gives all ranks the text of rank 0.
fn tell_all(world: &mut World, text: String) -> Result<String, Error> {
    let mut length = [text.len() as i64];
    world.broadcast(&mut length, 0)?;
    let mut bytes = text.into_bytes();
    bytes.resize(length[0] as usize, 0);
    world.broadcast(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl LaunchedCluster {
    /// How to reach it.
    pub fn address(&self) -> ClusterAddress {
        self.address.clone()
    }

    /// Lets the other ranks end.
    pub fn finish(mut self) -> Result<(), Error> {
        Ok(self.world.barrier()?)
    }
}

impl LaunchedWorker {
    /// Works until the driver is done, or gone.
    pub fn run(mut self) -> Result<(), Error> {
        let working = std::thread::Builder::new().name("worker".into());
        let settings = self.settings;
        // It ends with the process.
        working.spawn(move || run_worker(settings, |_| {}))?;
        Ok(self.world.barrier()?)
    }
}
