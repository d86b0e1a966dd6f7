//! A worker: follows the coordinator, and does what views ask of it with a device.
//!
//! Two threads: the follower keeps to the coordinator (`manyhands_net::control`), this one computes. What the follower decides arrives as commands; a stop arrives
//! as a flag, so that it ends what is under way at once.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

use manyhands_device::KERNEL_SET;
use manyhands_net::control::{Apart, Follower};
use manyhands_net::host::{host_id, host_name, random_number};
use manyhands_net::membership::identity::Instance;
use manyhands_net::membership::message::{Go, Join};
use manyhands_net::membership::worker::{Action, Event, Worker};
use manyhands_net::secure::Secret;
use manyhands_net::station::{Route, Station, public_address};

use super::plane::Plane;
use super::watch::Watcher;
use crate::error::Error;

/// What a worker needs to know.
pub struct WorkerSettings {
    /// Where the coordinator is.
    pub coordinator: String,
    /// What it must prove.
    pub secret: Secret,
    /// The address on which other workers reach it.
    pub bind: IpAddr,
    /// What people call it; the machine's name and the process's number unless said.
    pub name: Option<String>,
    /// Threads that it computes with; one for each core unless said.
    pub threads: Option<usize>,
    /// A folder below which the data of jobs lies on this machine; where jobs say unless said.
    pub data: Option<PathBuf>,
    /// How it links to others.
    pub route: Route,
    /// Set to leave after the step at hand.
    pub drain: Arc<AtomicBool>,
    /// Is told where in a step the worker is.
    pub watcher: Watcher,
}

/// What the computing thread is to do.
pub(super) enum Command {
    /// Give up the state.
    Forget,
    /// Copy the state for a view.
    Copy { go: Box<Go>, rank: usize, stop: Arc<AtomicBool> },
    /// Take part in a view.
    Start { go: Box<Go>, rank: usize, stop: Arc<AtomicBool> },
    /// End.
    End,
}

/// Works until it is drained. `say` gets sentences for people.
pub fn run_worker(
    settings: WorkerSettings,
    say: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(), Error> {
    let station = Station::open(settings.bind, settings.secret.clone(), settings.route)?;
    let station = Arc::new(station);
    let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = settings.threads.unwrap_or(n_cores);
    let name = settings.name.unwrap_or_else(|| format!("{}-{}", host_name(), std::process::id()));
    let public = public_address(&settings.coordinator, settings.bind)?;
    let join = Join {
        name: name.clone(),
        instance: Instance(random_number()?),
        host: host_id().to_string(),
        addresses: station.addresses(public),
        cores: threads as u32,
        kernel_set: KERNEL_SET.to_string(),
        follows: None,
        previous: None,
        view: None,
    };
    let (sender, commands) = channel();
    let stop: Arc<Mutex<Arc<AtomicBool>>> = Arc::default();
    let say = Arc::new(say);
    let tells = Arc::clone(&say);
    let worker = Worker::new(std::time::Duration::ZERO, join);
    let follower = Follower::start(settings.coordinator, settings.secret, worker, move |action| {
        let mut stop = stop.lock().unwrap_or_else(PoisonError::into_inner);
        let command = match action {
            Action::Abort => return stop.store(true, Ordering::SeqCst),
            Action::Say(sentence) => return tells(&sentence),
            Action::Forget => Command::Forget,
            Action::Copy { go, rank } => {
                *stop = Arc::default();
                Command::Copy { go, rank, stop: Arc::clone(&stop) }
            }
            Action::Start { go, rank } => {
                *stop = Arc::default();
                Command::Start { go, rank, stop: Arc::clone(&stop) }
            }
            Action::End => {
                stop.store(true, Ordering::SeqCst);
                Command::End
            }
            // The loop itself does the rest.
            _ => return,
        };
        // Nobody takes it where the computing thread has ended.
        let _ = sender.send(command);
    })?;
    let watched = (name, settings.watcher);
    let mut plane = Plane::new((station, public), threads, &follower, watched, settings.data);
    let worked = work(&mut plane, &commands, &follower, &settings.drain, &*say);
    // Parameters that it holds in place of a server move first.
    match plane.leave_as_server() {
        Some(true) => say("the parameters that it held are with others"),
        Some(false) => say("nobody took the parameters that it held"),
        None => {}
    }
    worked
}

fn work(
    plane: &mut Plane<'_>,
    commands: &Receiver<Command>,
    follower: &Follower<Event>,
    drain: &AtomicBool,
    say: &dyn Fn(&str),
) -> Result<(), Error> {
    let mut told_drain = false;
    let mut told_apart = None;
    loop {
        let apart = follower.apart();
        if apart != told_apart
            && let Some(Apart { reason, is_hopeless, .. }) = &apart
        {
            if *is_hopeless {
                return Err(Error::NoCoordinator { reason: reason.clone() });
            }
            say(&format!("no connection to the coordinator, trying again: {reason}"));
        }
        // Nobody is there to let it go, so it goes: the others find its connections closed.
        if drain.load(Ordering::Relaxed) && apart.is_some() {
            return Ok(());
        }
        told_apart = apart;
        if drain.load(Ordering::Relaxed) && !told_drain {
            told_drain = true;
            follower.tell(Event::Drain);
        }
        let command = commands.recv_timeout(std::time::Duration::from_millis(50));
        match command {
            Ok(Command::Forget) => plane.forget(),
            Ok(Command::Copy { go, rank, stop }) => {
                plane.copy(&go, go.members[rank].id, &stop)?;
            }
            Ok(Command::Start { go, rank, stop }) => plane.take_part(&go, rank, &stop, drain)?,
            Ok(Command::End) => return Ok(()),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// The variable in which a process that starts workers says which one it is.
pub(super) const PARENT_VARIABLE: &str = "MANYHANDS_PARENT";

/// Has this process end when the thread that started it does, which in [`super::LocalCluster`] lives as long as its process or ends its workers itself.
pub fn end_with_parent() -> std::io::Result<()> {
    // Not a signal that can be caught: a worker that is asked to leave waits for a coordinator to let it go, which has ended as well.
    let signal = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(signal))?;
    // Whoever ended before that sends no signal any more.
    check_parent(std::env::var(PARENT_VARIABLE).ok().as_deref())
}

/// Whether the process that started this one is still there, where it said which one it is.
fn check_parent(expected: Option<&str>) -> std::io::Result<()> {
    let parent = std::os::unix::process::parent_id();
    match expected.and_then(|expected| expected.parse::<u32>().ok()) {
        Some(expected) if expected != parent => {
            let sentence = format!("process {expected}, which started this worker, has ended");
            Err(std::io::Error::other(sentence))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_whose_parent_has_ended_does_not_begin() {
        let parent = std::os::unix::process::parent_id();
        assert!(check_parent(None).is_ok());
        assert!(check_parent(Some(&parent.to_string())).is_ok());
        let error = check_parent(Some(&std::process::id().to_string())).unwrap_err();
        assert!(error.to_string().ends_with("which started this worker, has ended"), "{error}");
    }
}
