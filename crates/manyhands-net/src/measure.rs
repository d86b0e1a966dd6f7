//! How fast collectives are here: the time of an all-reduce by size, between threads of this process or processes of this machine.
//!
//! [`run`] measures in a group that is there. [`run_processes`] starts processes, links them and gives what the first measured: each of them
//! must call [`serve_child`], which talks with its parent in lines of JSON over its standard input and output.

mod leaves;

pub use leaves::Leaves;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::collective::{Algorithm, CollectiveError, Group, Reduction};
use crate::host::host_id;
use crate::secure::{SECRET_VARIABLE, Secret, SecretError};
use crate::station::{Route, Station, StationError};
use crate::transport::{Link, LinkError, in_process};
use leaves::LeafSums;

/// How long linking may take.
const LINKING: Duration = Duration::from_secs(20);
/// Bytes that the timed rounds of one size move, as far as the bounds below allow.
const BYTES_PER_SIZE: usize = 256 << 20;
/// The fewest and the most timed rounds of one size.
const ROUNDS: (usize, usize) = (7, 500);
/// Bytes of a ring between threads: as between processes.
const RING: usize = crate::station::RING;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TCP over loopback.
    Tcp,
    /// TCP over loopback, encrypted.
    TcpEncrypted,
    /// Memory that processes share.
    Shm,
    /// Memory of one process, with a thread for each rank.
    Inproc,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// What carries the bytes.
    pub transport: Transport,
    /// Ranks of the group: processes, or threads.
    pub n_processes: usize,
    /// Into how many blocks the ranks fall that are linked by TCP as if they were hosts; each is linked within as the transport says.
    pub n_hosts: usize,
    /// Bytes of `f32` that each rank brings, one measurement each.
    pub sizes: Vec<usize>,
    /// How the all-reduce is done.
    pub algorithm: Algorithm,
    /// Timed rounds of each size; fewer of large ones where it is not said.
    pub n_rounds: Option<usize>,
}

/// The all-reduce of one size, as the first rank saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Bytes that each rank brought.
    pub n_bytes: usize,
    /// Timed rounds.
    pub n_rounds: usize,
    /// The time of the middle round, in microseconds.
    pub median_us: f64,
    /// The time of all rounds divided by their number, in microseconds.
    pub mean_us: f64,
    /// The time of the fastest round, in microseconds.
    pub best_us: f64,
    /// The bytes that each rank must send at least, 2 (n - 1) / n of what it brought, by the median time: GB/s.
    pub bandwidth: f64,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The settings make no sense.
    #[error("{0}")]
    Settings(String),
    /// An all-reduce failed.
    #[error("the all-reduce that was to be measured failed: {0}")]
    Collective(#[from] CollectiveError),
    /// The sum is not what it must be.
    #[error("an all-reduce of {n_bytes} bytes gave {found} instead of {wanted}")]
    Wrong {
        /// Bytes of the values.
        n_bytes: usize,
        /// A value of the result.
        found: f32,
        /// What it should be.
        wanted: f32,
    },
    /// Ranks could not be linked.
    #[error("ranks could not be linked: {0}")]
    Station(#[from] StationError),
    /// There is no secret for the links.
    #[error("ranks could not be linked: {0}")]
    Secret(#[from] SecretError),
    /// A process did not start, or does not talk.
    #[error("rank {rank} of the measurement: {source}")]
    Process {
        /// Which.
        rank: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A process said something else than was expected, or ended.
    #[error("rank {rank} of the measurement ended or said what was not expected: {said:?}")]
    Said {
        /// Which.
        rank: usize,
        /// What it said.
        said: String,
    },
    /// Threads could not be linked.
    #[error("threads could not be linked: {0}")]
    Link(#[from] LinkError),
    /// A thread ended by a panic.
    #[error("a rank of the measurement panicked")]
    Panicked,
}

/// What a parent tells a child first.
#[derive(Serialize, Deserialize)]
struct Task {
    settings: Settings,
    leaves: Option<Leaves>,
    rank: usize,
}

/// Measures in a group; all ranks call it with the same settings and get their own times.
pub fn run(group: &mut Group, settings: &Settings) -> Result<Vec<Row>, MeasureError> {
    run_any(group, settings, None)
}

/// The same of sums over leaves.
pub fn run_leaves(
    group: &mut Group,
    settings: &Settings,
    leaves: Leaves,
) -> Result<Vec<Row>, MeasureError> {
    run_any(group, settings, Some(leaves))
}

fn run_any(
    group: &mut Group,
    settings: &Settings,
    leaves: Option<Leaves>,
) -> Result<Vec<Row>, MeasureError> {
    let sizes = settings.sizes.iter();
    sizes
        .map(|&n_bytes| match leaves {
            None => run_size(group, settings, n_bytes),
            Some(leaves) => {
                let mut sums = LeafSums::new(group, leaves, n_bytes / size_of::<f32>());
                sums.round(group, settings)?;
                sums.check(n_bytes)?;
                let row = time(group, settings, n_bytes, |group| sums.round(group, settings))?;
                sums.check(n_bytes)?;
                Ok(row)
            }
        })
        .collect()
}

fn run_size(group: &mut Group, settings: &Settings, n_bytes: usize) -> Result<Row, MeasureError> {
    let size = group.size();
    let mut values = vec![group.rank() as f32 + 1.0; n_bytes / size_of::<f32>()];
    group.all_reduce_by(&mut values, Reduction::Sum, settings.algorithm)?;
    let wanted = (size * (size + 1) / 2) as f32;
    if let Some(&found) = values.iter().find(|found| **found != wanted) {
        return Err(MeasureError::Wrong { n_bytes, found, wanted });
    }
    // Zeros stay zeros, however often they are added.
    values.fill(0.0);
    let round =
        |group: &mut Group| group.all_reduce_by(&mut values, Reduction::Sum, settings.algorithm);
    time(group, settings, n_bytes, round)
}

/// Times the rounds of one size.
fn time(
    group: &mut Group,
    settings: &Settings,
    n_bytes: usize,
    mut round: impl FnMut(&mut Group) -> Result<(), CollectiveError>,
) -> Result<Row, MeasureError> {
    let bounded = (BYTES_PER_SIZE / n_bytes.max(1)).clamp(ROUNDS.0, ROUNDS.1);
    let n_rounds = settings.n_rounds.unwrap_or(bounded).max(1);
    let mut times = Vec::with_capacity(n_rounds);
    for _ in 0..2 + n_rounds / 10 {
        round(group)?;
    }
    group.barrier()?;
    let start = Instant::now();
    for _ in 0..n_rounds {
        let start = Instant::now();
        round(group)?;
        times.push(start.elapsed());
    }
    let mean = start.elapsed() / n_rounds as u32;
    times.sort_unstable();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let median_us = us(times[n_rounds / 2]);
    let size = group.size();
    let moved = 2.0 * (size - 1) as f64 / size as f64 * n_bytes as f64;
    let bandwidth = moved / median_us / 1e3;
    let (mean_us, best_us) = (us(mean), us(times[0]));
    Ok(Row { n_bytes, n_rounds, median_us, mean_us, best_us, bandwidth })
}

/// Measures among threads of this process.
pub fn run_threads(settings: &Settings) -> Result<Vec<Row>, MeasureError> {
    run_any_threads(settings, None)
}

fn run_any_threads(settings: &Settings, leaves: Option<Leaves>) -> Result<Vec<Row>, MeasureError> {
    check(settings)?;
    let n = settings.n_processes;
    let mut links: Vec<Vec<Option<Box<dyn Link>>>> = Vec::with_capacity(n);
    for _ in 0..n {
        let mut own: Vec<Option<Box<dyn Link>>> = Vec::with_capacity(n);
        for earlier in &mut links {
            let (a, b) = in_process::pair(RING)?;
            earlier.push(Some(Box::new(a)));
            own.push(Some(Box::new(b)));
        }
        own.push(None);
        links.push(own);
    }
    std::thread::scope(|scope| {
        let measure = |(rank, links): (usize, Vec<Option<Box<dyn Link>>>)| {
            scope.spawn(move || run_any(&mut Group::new(rank, links)?, settings, leaves))
        };
        let threads: Vec<_> = links.into_iter().enumerate().map(measure).collect();
        let rows = threads.into_iter().map(|thread| thread.join());
        let rows: Result<Vec<_>, _> =
            rows.map(|rows| rows.map_err(|_| MeasureError::Panicked).flatten()).collect();
        Ok(rows?.swap_remove(0))
    })
}

/// Measures among processes of this machine, each started by `child_command`, which must come to [`serve_child`].
/// Threads instead of processes where the transport is within one.
pub fn run_processes(
    settings: &Settings,
    child_command: impl Fn() -> Command,
) -> Result<Vec<Row>, MeasureError> {
    run_any_processes(settings, None, child_command)
}

/// As [`run_processes`], of sums over leaves.
pub fn run_leaves_processes(
    settings: &Settings,
    leaves: Leaves,
    child_command: impl Fn() -> Command,
) -> Result<Vec<Row>, MeasureError> {
    run_any_processes(settings, Some(leaves), child_command)
}

fn run_any_processes(
    settings: &Settings,
    leaves: Option<Leaves>,
    child_command: impl Fn() -> Command,
) -> Result<Vec<Row>, MeasureError> {
    if settings.transport == Transport::Inproc {
        return run_any_threads(settings, leaves);
    }
    check(settings)?;
    let secret = Secret::random()?;
    let start = |rank: usize| {
        let mut command = child_command();
        command.env(SECRET_VARIABLE, secret.text());
        let mut one = Process::start(rank, command)?;
        one.say(&Task { settings: settings.clone(), leaves, rank })?;
        Ok(one)
    };
    let processes: Result<Vec<Process>, MeasureError> =
        (0..settings.n_processes).map(start).collect();
    let mut processes = processes?;
    let addresses: Result<Vec<[Vec<String>; 2]>, _> =
        processes.iter_mut().map(Process::hear).collect();
    let addresses = addresses?;
    processes.iter_mut().try_for_each(|process| process.say(&addresses))?;
    let rows: Result<Vec<Vec<Row>>, _> = processes.iter_mut().map(Process::hear).collect();
    Ok(rows?.swap_remove(0))
}

fn check(settings: &Settings) -> Result<(), MeasureError> {
    let sentence = match settings.n_processes {
        0 => "at least one process is needed".to_string(),
        n if n > 64 => {
            format!("{n} processes are more than the 64 that one machine is measured with")
        }
        _ => return Ok(()),
    };
    Err(MeasureError::Settings(sentence))
}

/// A process that takes part. It is ended with its parent's interest in it.
struct Process {
    rank: usize,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(rank: usize, mut command: Command) -> Result<Process, MeasureError> {
        let failed = |source| MeasureError::Process { rank, source };
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(std::io::ErrorKind::BrokenPipe.into()));
        };
        Ok(Process { rank, child, input, output: BufReader::new(output) })
    }

    fn say(&mut self, what: &impl Serialize) -> Result<(), MeasureError> {
        say(&mut self.input, what)
            .map_err(|source| MeasureError::Process { rank: self.rank, source })
    }

    fn hear<T: for<'de> Deserialize<'de>>(&mut self) -> Result<T, MeasureError> {
        hear(&mut self.output, self.rank)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that is done has ended by itself, or is about to.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(to: &mut impl Write, what: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

fn hear<T: for<'de> Deserialize<'de>>(
    from: &mut impl BufRead,
    rank: usize,
) -> Result<T, MeasureError> {
    let mut said = String::new();
    from.read_line(&mut said).map_err(|source| MeasureError::Process { rank, source })?;
    serde_json::from_str(&said).map_err(|_| MeasureError::Said { rank, said })
}

/// The side of a process that [`run_processes`] started: does what the parent says over the standard input, tells the times over the standard output.
pub fn serve_child() -> Result<(), MeasureError> {
    let mut input = std::io::stdin().lock();
    let mut output = std::io::stdout().lock();
    let task: Task = hear(&mut input, 0)?;
    let rank = task.rank;
    let failed = |source| MeasureError::Process { rank, source };
    let route = match task.settings.transport {
        Transport::Tcp => Route::Tcp,
        Transport::TcpEncrypted => Route::TcpEncrypted,
        Transport::Shm | Transport::Inproc => Route::Auto,
    };
    // One place in the network for the ranks of the same host, one for others.
    let secret = Secret::from_environment()?;
    let open = |route| Station::open(IpAddr::V4(Ipv4Addr::LOCALHOST), secret.clone(), route);
    let stations = [open(route)?, open(if route == Route::Auto { Route::Tcp } else { route })?];
    let own = stations.each_ref().map(|station| station.addresses(None));
    say(&mut output, &own).map_err(failed)?;
    let addresses: Vec<[Vec<String>; 2]> = hear(&mut input, rank)?;
    let deadline = Instant::now() + LINKING;
    let per_host = addresses.len().div_ceil(task.settings.n_hosts.max(1));
    let link = |other: usize| -> Result<Option<Box<dyn Link>>, StationError> {
        let which = usize::from(other / per_host != rank / per_host);
        let station = &stations[which];
        Ok(match other.cmp(&rank) {
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Less => {
                let key = format!("measure/{rank}");
                Some(station.call(&addresses[other][which], host_id(), &key, deadline, || false)?)
            }
            std::cmp::Ordering::Greater => {
                Some(station.await_call(&format!("measure/{other}"), deadline, || false)?)
            }
        })
    };
    let links: Result<Vec<_>, StationError> = (0..addresses.len()).map(link).collect();
    let rows = run_any(&mut Group::new(rank, links?)?, &task.settings, task.leaves)?;
    say(&mut output, &rows).map_err(failed)?;
    // The parent closes the input when all are done: nobody leaves while others still talk.
    let _ = input.read_line(&mut String::new());
    Ok(())
}
