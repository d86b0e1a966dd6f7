//! A cluster on this machine: a coordinator in this process, and processes of workers and servers that it starts and, should they die, starts again.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use manyhands_net::control::{CoordinatorProcess, CoordinatorSettings};
use manyhands_net::secure::{SECRET_VARIABLE, Secret};
use manyhands_net::station::Route;
use rustix::process::{Pid, Signal, kill_process};

use super::driver::ClusterAddress;
use super::padding::{PADDING_VARIABLE, Stragglers};
use super::servers::wants_history;
use super::worker::PARENT_VARIABLE;
use crate::error::Error;

/// How often the processes are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A worker that lived less than this is not started again at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// How long servers may take to note how their shards stood.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Workers that are processes of this machine.
#[derive(Clone, Debug)]
pub struct LocalWorkers {
    /// How many.
    pub n_workers: usize,
    /// Servers of parameters beside them.
    pub n_servers: usize,
    /// Threads of each.
    pub threads: usize,
    /// The program that is a worker when it is called with `worker --join ADDRESS --threads N --with-parent`, and a server with `server` for
    /// `worker`: this one unless said.
    pub program: Option<PathBuf>,
    /// How workers are linked.
    pub route: Route,
    /// Which of them are slow, in measurements: then all sleep a part of the time, so that few cores hold many workers.
    pub stragglers: Option<Stragglers>,
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
        let start = Start {
            program,
            address,
            secret,
            word,
            workers: workers.clone(),
            at: SystemTime::now(),
        };
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let (begun, began) = channel();
        let watching = std::thread::Builder::new().name("local-workers".into());
        // Workers end with the thread that starts them, so it is one that stays as long as they do.
        let watching = watching.spawn(move || {
            let mut children = Vec::new();
            let n = start.workers.n_workers + start.workers.n_servers;
            let all =
                (0..n).try_for_each(|place| start.child(place).map(|child| children.push(child)));
            if all.is_err() {
                stopped.store(true, Ordering::Relaxed);
            }
            // Nobody listens where the one who asked has ended.
            let _ = begun.send(all);
            watch(&start, children, &stopped);
        })?;
        let processes = LocalProcesses { stop, watching: Some(watching) };
        match began.recv() {
            Ok(all) => all.map(|()| processes),
            Err(_) => Err(Error::Stopped),
        }
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
    /// When the first was started.
    at: SystemTime,
}

impl Start {
    /// How a worker sleeps.
    fn padding(&self, place: usize) -> Option<(&'static str, String)> {
        let (stragglers, n) = (self.workers.stragglers?, self.workers.n_workers);
        (place < n).then(|| (PADDING_VARIABLE, stragglers.told_to(place, n, self.at)))
    }

    fn child(&self, place: usize) -> Result<(Child, Instant), Error> {
        let route = match self.workers.route {
            Route::Auto => "auto",
            Route::Tcp => "tcp",
            Route::TcpEncrypted => "tcp_encrypted",
        };
        let mut command = Command::new(&self.program);
        match place.checked_sub(self.workers.n_workers) {
            None => command
                .args(["worker", "--threads", &self.workers.threads.to_string()])
                .args(["--name", &format!("{}-{place}", self.word)]),
            Some(place) => {
                command.args(["server", "--name", &format!("{}-server-{place}", self.word)])
            }
        };
        let child = command
            .args(["--join", &self.address, "--with-parent", "--quiet", "--transport", route])
            .env(SECRET_VARIABLE, self.secret.text())
            .envs(self.padding(place))
            .env(PARENT_VARIABLE, std::process::id().to_string())
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
    if wants_history() {
        end_servers(start, &mut children);
    }
    for (child, _) in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Has servers end by themselves: they note how their shards stood.
fn end_servers(start: &Start, children: &mut [(Child, Instant)]) {
    let servers = &mut children[start.workers.n_workers..];
    for (child, _) in servers.iter_mut() {
        // The number of one that has ended may be somebody else's by now.
        if matches!(child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
    }
    let until = Instant::now() + LAST_WORDS;
    let mut is_there = |(child, _): &mut (Child, Instant)| matches!(child.try_wait(), Ok(None));
    while Instant::now() < until && servers.iter_mut().any(&mut is_there) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Workers that do nothing but note their number, and die with the thread that started them, as workers do.
    #[test]
    fn workers_outlive_the_thread_that_asked_for_them_and_end_with_the_cluster() {
        let folder = tempfile::tempdir().unwrap();
        let (program, noted) = (folder.path().join("worker"), folder.path().join("noted"));
        let script = format!(
            "#!/bin/sh\necho $$ $MANYHANDS_PARENT >> {}\nexec setpriv --pdeathsig KILL sleep 60\n",
            noted.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let workers = LocalWorkers {
            n_workers: 2,
            n_servers: 0,
            threads: 1,
            program: Some(program),
            route: Route::Auto,
            stragglers: None,
        };
        let asked = std::thread::spawn(move || LocalCluster::start(&workers));
        let cluster = asked.join().unwrap().unwrap();
        // Longer than the time after which a worker that died is started again.
        std::thread::sleep(SHORT_LIFE + 5 * LOOK);
        let noted = std::fs::read_to_string(noted).unwrap();
        let lines: Vec<Vec<u32>> = noted
            .lines()
            .map(|line| line.split(' ').map(|word| word.parse().unwrap()).collect())
            .collect();
        assert_eq!(lines.len(), 2, "none died and was started again: {noted}");
        let is_there = |pid: u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
        assert!(lines.iter().all(|line| is_there(line[0]) && line[1] == std::process::id()));
        drop(cluster);
        assert!(!lines.iter().any(|line| is_there(line[0])));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let program = Some(PathBuf::from("/no/such/program"));
        let workers = LocalWorkers {
            n_workers: 1,
            n_servers: 0,
            threads: 1,
            program,
            route: Route::Auto,
            stragglers: None,
        };
        let sentence = LocalCluster::start(&workers).err().unwrap().to_string();
        assert!(sentence.starts_with("cannot start a worker (/no/such/program)"), "{sentence}");
    }
}
