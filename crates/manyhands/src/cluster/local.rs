//! A cluster on this machine: a coordinator in this process, and worker processes that it starts and, should they die, starts again.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use manyhands_net::control::{CoordinatorProcess, CoordinatorSettings};
use manyhands_net::secure::{SECRET_VARIABLE, Secret};
use manyhands_net::station::Route;

use super::driver::ClusterAddress;
use crate::error::Error;

/// How often the processes are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A worker that lived less than this is not started again at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// Workers that are processes of this machine.
#[derive(Clone, Debug)]
pub struct LocalWorkers {
    /// How many.
    pub n_workers: usize,
    /// Threads of each.
    pub threads: usize,
    /// The program that is a worker when it is called with `worker --join ADDRESS --threads N --with-parent`: this one unless said.
    pub program: Option<PathBuf>,
    /// How workers are linked.
    pub route: Route,
}

/// A coordinator in this process and workers beside it. They end with this.
pub struct LocalCluster {
    coordinator: CoordinatorProcess,
    secret: Secret,
    route: Route,
    _workers: LocalProcesses,
}

/// Worker processes, which end with this.
pub(super) struct LocalProcesses {
    stop: Arc<AtomicBool>,
    watching: Option<JoinHandle<()>>,
}

impl LocalCluster {
    /// Starts them.
    pub fn start(workers: &LocalWorkers) -> Result<LocalCluster, Error> {
        let secret = Secret::random()?;
        let listen = (IpAddr::V4(Ipv4Addr::LOCALHOST), 0).into();
        let settings = CoordinatorSettings { listen, secret: secret.clone(), log: None };
        let coordinator = CoordinatorProcess::start(settings, |_| {})?;
        let address = coordinator.address().to_string();
        let processes = LocalProcesses::start(workers, "local", &address, &secret)?;
        Ok(LocalCluster { coordinator, secret, route: workers.route, _workers: processes })
    }

    /// How to reach it.
    pub fn address(&self) -> ClusterAddress {
        ClusterAddress {
            coordinator: self.coordinator.address().to_string(),
            secret: self.secret.clone(),
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            route: self.route,
        }
    }
}

impl LocalProcesses {
    /// Starts workers that join the coordinator at an address, called by a word and their number.
    pub(super) fn start(
        workers: &LocalWorkers,
        word: &'static str,
        address: &str,
        secret: &Secret,
    ) -> Result<LocalProcesses, Error> {
        let program = match &workers.program {
            Some(program) => program.clone(),
            None => std::env::current_exe()?,
        };
        let (address, secret) = (address.to_string(), secret.clone());
        let start = Start { program, address, secret, word, workers: workers.clone() };
        let children = (0..workers.n_workers).map(|place| start.child(place));
        let children = children.collect::<Result<Vec<_>, Error>>()?;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let watching = std::thread::Builder::new().name("local-workers".into());
        let watching = Some(watching.spawn(move || watch(&start, children, &stopped))?);
        Ok(LocalProcesses { stop, watching })
    }
}

impl Drop for LocalProcesses {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(watching) = self.watching.take() {
            let _ = watching.join();
        }
    }
}

struct Start {
    program: PathBuf,
    address: String,
    secret: Secret,
    word: &'static str,
    workers: LocalWorkers,
}

impl Start {
    fn child(&self, place: usize) -> Result<(Child, Instant), Error> {
        let route = match self.workers.route {
            Route::Auto => "auto",
            Route::Tcp => "tcp",
            Route::TcpEncrypted => "tcp_encrypted",
        };
        let child = Command::new(&self.program)
            .args(["worker", "--join", &self.address, "--with-parent", "--quiet"])
            .args(["--threads", &self.workers.threads.to_string()])
            .args(["--name", &format!("{}-{place}", self.word)])
            .args(["--transport", route])
            .env(SECRET_VARIABLE, self.secret.text())
            // Ctrl-C is for the one who trains: it saves first, and ends them.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|source| Error::StartWorker { program: self.program.clone(), source })?;
        Ok((child, Instant::now()))
    }
}

/// Starts workers again that ended, until told to stop; then ends them all.
fn watch(start: &Start, mut children: Vec<(Child, Instant)>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for (place, (child, since)) in children.iter_mut().enumerate() {
            let has_ended = !matches!(child.try_wait(), Ok(None));
            if has_ended
                && since.elapsed() >= SHORT_LIFE
                && let Ok(again) = start.child(place)
            {
                (*child, *since) = again;
            }
        }
        std::thread::sleep(LOOK);
    }
    for (child, _) in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
}
