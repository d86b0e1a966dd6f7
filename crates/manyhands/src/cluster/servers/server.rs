//! A server of parameters: a process of its own that goes from job to job, or a thread of a worker where there are too few.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use manyhands_net::control::ask_status;
use manyhands_net::host::host_name;
use manyhands_net::membership::message::Reach as DriverReach;
use manyhands_net::secure::Secret;
use manyhands_net::station::{Route, Station, public_address};
use manyhands_net::tables::error::TableError;
use manyhands_net::tables::message::Reach;
use manyhands_net::tables::network::{Network, OnStation};
use manyhands_net::tables::serving::{ServerProcess, ServerSettings as ServingSettings};

use super::rule::rules;
use super::{SERVERS, history};
use crate::cluster::talk::{Talk, TalkError, Until};
use crate::cluster::words::FromDriver;
use crate::error::Error;
use crate::machine::Machine;

/// How long a coordinator may take to say what job there is.
const ANSWER: Duration = Duration::from_secs(2);
/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How long a driver may take to say where its director is.
const TELLING: Duration = Duration::from_secs(1);
/// How long joining may take.
const JOINING: Duration = Duration::from_secs(5);
/// How long one that others could not reach stays away.
const RESTING: Duration = Duration::from_secs(10);
/// How often there is a look at whether to leave.
const LOOK_UP: Duration = Duration::from_millis(20);
/// How long what it holds may take to move elsewhere before it leaves all the same.
const LEAVING: Duration = Duration::from_secs(60);

/// What a server needs to know.
pub struct ServerSettings {
    /// Where the coordinator is.
    pub coordinator: String,
    /// What it must prove.
    pub secret: Secret,
    /// The address on which others reach it.
    pub bind: IpAddr,
    /// What people call it; the machine's name and the process's number unless said.
    pub name: Option<String>,
    /// Bytes that parameters may take; nine tenths of what is free unless said.
    pub memory: Option<u64>,
    /// How it links to others.
    pub route: Route,
    /// Set to leave, when others have what it holds.
    pub stop: Arc<AtomicBool>,
}

/// Serves jobs until it is told to leave. `say` gets sentences for people.
pub fn run_server(settings: ServerSettings, say: impl Fn(&str)) -> Result<(), Error> {
    let ServerSettings { coordinator, secret, bind, name, memory, route, stop } = settings;
    let station = Arc::new(Station::open(bind, secret.clone(), route)?);
    let public = public_address(&coordinator, bind)?;
    let network: Arc<dyn Network> = Arc::new(OnStation::new(Arc::clone(&station), public));
    let name = name.unwrap_or_else(|| format!("{}-{}", host_name(), std::process::id()));
    let memory = memory.unwrap_or_else(usable_memory);
    let (mut told, mut without) = (None, None);
    while !stop.load(Ordering::Relaxed) {
        let problem = match ask_status(&coordinator, &secret, ANSWER) {
            Ok(status) => {
                // A job that has said so has no use for servers; one that has ended is not there any more.
                let driver = status.driver.filter(|(job, _)| without != Some(*job));
                match driver.map(|(job, reach)| (job, ask_director(&station, &reach, &name, &stop)))
                {
                    Some((job, Told::NoServers)) => {
                        without = Some(job);
                        let job = status.job.unwrap_or_default();
                        say(&format!(
                            "{name} has nothing to do: {job} keeps no parameters on servers"
                        ));
                    }
                    Some((_, Told::Director(director))) => {
                        let job = status.job.unwrap_or_default();
                        say(&format!("{name} holds parameters of {job}"));
                        match serving(&network, director, (&name, memory), &stop) {
                            Ok(()) => say(&format!("{name} has left")),
                            Err(error) => {
                                say(&format!("{name}: {error}"));
                                rest(&error, &stop);
                            }
                        }
                    }
                    Some((_, Told::Nothing)) | None => {}
                }
                None
            }
            Err(error) if error.is_hopeless() => {
                return Err(Error::NoCoordinator { reason: error.to_string() });
            }
            Err(error) => Some(error.to_string()),
        };
        if problem != told
            && let Some(problem) = &problem
        {
            say(&format!("no word from the coordinator, trying again: {problem}"));
        }
        told = problem;
        std::thread::sleep(ASK_EVERY);
    }
    Ok(())
}

/// Nine tenths of what is free.
fn usable_memory() -> u64 {
    Machine::look().usable_memory_bytes().map_or(u64::MAX, |free| free / 10 * 9)
}

/// One that others cannot reach is not wanted for a while: it does not ask all the time.
fn rest(error: &TableError, stop: &AtomicBool) {
    let until = Instant::now() + RESTING;
    while matches!(error, TableError::Unreachable { .. })
        && Instant::now() < until
        && !stop.load(Ordering::Relaxed)
    {
        std::thread::sleep(LOOK_UP);
    }
}

/// What a driver says of its director.
enum Told {
    Director(Reach),
    NoServers,
    /// It did not answer.
    Nothing,
}

/// Where the director of a driver's job is, if it has one.
fn ask_director(station: &Station, driver: &DriverReach, name: &str, stop: &AtomicBool) -> Told {
    let deadline = Instant::now() + TELLING;
    let gives_up = || stop.load(Ordering::Relaxed);
    let key = format!("{SERVERS}{name}");
    let called = station.call(&driver.addresses, &driver.host, &key, deadline, gives_up);
    let Ok(link) = called else { return Told::Nothing };
    let until = Until { deadline: Some(deadline), stop };
    let told: Result<FromDriver, TalkError> = Talk::of_driver(link).await_message(&until);
    match told {
        Ok(FromDriver::Director(reach)) => Told::Director(reach),
        Ok(FromDriver::NoServers) => Told::NoServers,
        _ => Told::Nothing,
    }
}

/// Holds parameters until the job ends, or this is to leave and others have them.
fn serving(
    network: &Arc<dyn Network>,
    director: Reach,
    (name, memory): (&str, u64),
    stop: &Arc<AtomicBool>,
) -> Result<(), TableError> {
    let settings = ServingSettings {
        name: name.to_string(),
        director,
        rules: rules(),
        memory_limit: memory,
        deadline: JOINING,
        history: history(),
    };
    let process = ServerProcess::start(Arc::clone(network), settings)?;
    let mut leaving: Option<Instant> = None;
    loop {
        match process.ended() {
            // The job is over.
            Some(Err(TableError::DirectorLost { .. })) => return Ok(()),
            Some(ended) => return ended,
            None => {}
        }
        if stop.load(Ordering::Relaxed) && leaving.is_none() {
            process.leave();
            leaving = Some(Instant::now());
        }
        if let Some(since) = leaving.filter(|since| since.elapsed() >= LEAVING) {
            return Err(TableError::Deadline {
                what: "leaving".to_string(),
                waits_for: "nobody takes the parameters that it holds".to_string(),
                after: since.elapsed(),
            });
        }
        std::thread::sleep(LOOK_UP);
    }
}

/// A server that is a thread of a worker. When this is dropped it leaves by itself, as long as the process lives.
pub(super) struct Hosted {
    stop: Arc<AtomicBool>,
    /// Whether all that it held was taken by others, or is not needed any more.
    thread: Option<JoinHandle<bool>>,
}

impl Hosted {
    /// Starts it. None where there can be no more threads.
    pub(super) fn start(
        network: Arc<dyn Network>,
        director: Reach,
        name: String,
    ) -> Option<Hosted> {
        let stop = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("server".into());
        let served = move || {
            // What goes wrong with it the director sees and says.
            serving(&network, director, (&name, usable_memory()), &ends).is_ok()
        };
        thread.spawn(served).ok().map(|thread| Hosted { stop, thread: Some(thread) })
    }

    /// Asks it to leave.
    pub(super) fn leave(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until it has left. Whether it has, with nothing lost; none where it had ended before.
    pub(super) fn await_end(mut self) -> Option<bool> {
        let start = Instant::now();
        let thread = self.thread.take().filter(|thread| !thread.is_finished())?;
        while !thread.is_finished() && start.elapsed() < LEAVING + JOINING {
            std::thread::sleep(LOOK_UP);
        }
        Some(thread.is_finished() && thread.join().unwrap_or(false))
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.leave();
    }
}
