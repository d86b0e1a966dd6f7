//! How fast this machine is: a matrix product and memory on one core, and a link between two workers of one machine.

use std::sync::mpsc::channel;
use std::time::Instant;

use manyhands_device::{CpuDevice, Device, Isa, Launch};
use manyhands_net::mail::{Mail, MailError};
use manyhands_net::transport::in_process;
use manyhands_program::{Builder, Cost, DType, Op, Program};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::mesh::{AllLinks, MeshError, linked};

/// Rates of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Operations a second of one core in matrix products.
    pub products: f64,
    /// Operations a second of one core in everything else that is not bound by memory.
    pub others: f64,
    /// Bytes a second that one core reads and writes.
    pub memory: f64,
    /// Seconds until a message is there, whatever its size.
    pub link_seconds: f64,
    /// Bytes a second from one worker to another.
    pub link: f64,
    /// Bytes a second that a worker copies.
    pub copying: f64,
    /// Seconds until a message is there and its receiver has a core, where there are more workers than cores; as long as with a core for each, where there are not.
    pub crowded_seconds: f64,
    /// Seconds that it takes to hand a step to a worker that waits for it, and to hear that it is done.
    pub handing_over: f64,
}

/// The edge of the matrices that are multiplied.
const EDGE: usize = 384;
/// Elements that are added: more than caches hold.
const N_ADDED: usize = 1 << 22;
/// How often each is tried; the fastest counts.
const TRIES: usize = 4;
/// Bytes of the messages that a link is measured with.
const SIZES: [usize; 2] = [4 << 10, 1 << 20];
/// Letters of each size.
const LETTERS: usize = 20;
/// With more workers than these no letter goes round: each has a link to each other.
const MOST_GO_ROUND: usize = 24;
/// What it is taken to last then until somebody who sleeps has a core, in seconds.
const WAKING_UP: f64 = 2e-5;
/// How often a letter goes round all workers, where there are more of them than cores.
const LAPS: usize = 40;
/// Room of the links that it takes, in bytes.
const LAP_CAPACITY: usize = 1 << 16;

impl Rates {
    /// Measures this machine for so many workers, in a part of a second.
    pub fn measure(n_workers: usize) -> Result<Rates, Error> {
        let mut device = CpuDevice::with_lanes(1, 1, Isa::detect())?;
        let g = Builder::new("product");
        let x = g.input("x", DType::F32, [EDGE, EDGE])?;
        let y = g.input("y", DType::F32, [EDGE, EDGE])?;
        g.output("z", &x.matmul(&y)?)?;
        let product = g.finish();
        let seconds = fastest(&mut device, &product)?;
        let products = 2.0 * (EDGE * EDGE * EDGE) as f64 / seconds;
        let g = Builder::new("sum");
        let x = g.input("x", DType::F32, [N_ADDED])?;
        let y = g.input("y", DType::F32, [N_ADDED])?;
        g.output("z", &(&x + &y)?)?;
        let memory = 12.0 * N_ADDED as f64 / fastest(&mut device, &g.finish())?;
        let (link_seconds, link) = link()?;
        let copying = copying();
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let crowded_seconds = match n_workers.min(2 * n_cores) {
            crowd if crowd <= n_cores => link_seconds,
            crowd if crowd <= MOST_GO_ROUND => going_round(crowd)?.max(link_seconds),
            _ => link_seconds.max(WAKING_UP),
        };
        let others = products / 4.0;
        let handing_over = handing_over();
        Ok(Rates {
            products,
            others,
            memory,
            link_seconds,
            link,
            copying,
            crowded_seconds,
            handing_over,
        })
    }

    /// Seconds that one core would take for an operation, by what it counts.
    pub fn seconds(&self, op: &Op, cost: Cost) -> f64 {
        let rate = match is_product(op) {
            true => self.products,
            false => self.others,
        };
        let moved = (cost.read + cost.written) as f64 / self.memory;
        (cost.operations as f64 / rate).max(moved)
    }

    /// Seconds until so many bytes are with another worker, which has a core for itself or not.
    pub fn sending(&self, n_bytes: f64, is_crowded: bool) -> f64 {
        let latency = if is_crowded { self.crowded_seconds } else { self.link_seconds };
        latency + n_bytes / self.link
    }
}

/// Whether an operation is made of products.
fn is_product(op: &Op) -> bool {
    let name = op.name();
    ["matmul", "dense", "convolution", "attention"].iter().any(|part| name.contains(part))
}

/// The fastest of some runs, on zeros.
fn fastest(device: &mut CpuDevice, program: &Program) -> Result<f64, Error> {
    let executable = device.compile(program)?;
    let mut launch = Launch { executable, inputs: vec![], parameters: vec![], outputs: vec![] };
    for (_, value) in program.inputs() {
        launch.inputs.push(device.allocate(program.ty(value))?);
    }
    for output in program.outputs() {
        launch.outputs.push(device.allocate(program.ty(output.value))?);
    }
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        let start = Instant::now();
        device.run(std::slice::from_ref(&launch))?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    for buffer in launch.inputs.iter().chain(&launch.outputs) {
        device.free(*buffer)?;
    }
    device.release(executable)?;
    Ok(best.max(1e-9))
}

/// The latency and the bytes a second of letters between threads of one process, as workers of a mesh send them.
fn link() -> Result<(f64, f64), Error> {
    let mut links = linked(2)?.into_iter();
    let (Some(here), Some(there)) = (links.next(), links.next()) else { return Ok((1e-5, 1e9)) };
    let failed = |source: MailError| MeshError::from(source);
    let mut mail = Mail::new(0, here).map_err(failed)?;
    let answering = move || -> Result<(), MailError> {
        let mut mail = Mail::new(1, there)?;
        let mut letter = vec![0; SIZES[1]];
        for n_bytes in SIZES {
            for _ in 0..LETTERS {
                mail.take(0, 0, &mut letter[..n_bytes], &"a letter")?;
                mail.post(0, 0, &[&letter[..n_bytes]])?;
            }
        }
        mail.meet()
    };
    let other = std::thread::spawn(answering);
    let mut best = [f64::INFINITY; 2];
    let mut letter = vec![0; SIZES[1]];
    for (best, n_bytes) in best.iter_mut().zip(SIZES) {
        for _ in 0..LETTERS {
            let start = Instant::now();
            mail.post(1, 0, &[&letter[..n_bytes]]).map_err(failed)?;
            mail.take(1, 0, &mut letter[..n_bytes], &"a letter").map_err(failed)?;
            *best = best.min(start.elapsed().as_secs_f64() / 2.0);
        }
    }
    mail.meet().map_err(failed)?;
    // Whatever it says, this side has had all its letters.
    let _ = other.join();
    let [small, large] = best;
    let rate = (SIZES[1] - SIZES[0]) as f64 / (large - small).max(1e-7);
    Ok((small, rate))
}

/// The seconds that a small letter takes from one to the next of so many workers, where most of them wait without a core: in the fastest of the laps, as the first of
/// them sees it.
fn going_round(n: usize) -> Result<f64, Error> {
    let mut links: AllLinks = (0..n).map(|_| (0..n).map(|_| None).collect()).collect();
    for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
        let pair = in_process::pair(LAP_CAPACITY);
        let (one, other) = pair.map_err(|source| MeshError::NoLink { a, b, source })?;
        links[a][b] = Some(Box::new(one));
        links[b][a] = Some(Box::new(other));
    }
    let passing = |worker: usize, links| -> Result<f64, MailError> {
        let mut mail = Mail::new(worker, links)?;
        let (before, after) = ((worker + n - 1) % n, (worker + 1) % n);
        let (mut letter, mut best) = ([0; 8], f64::INFINITY);
        for _ in 0..LAPS {
            let start = Instant::now();
            if worker == 0 {
                mail.post(after, 0, &[&letter])?;
            }
            mail.take(before, 0, &mut letter, &"a letter")?;
            best = best.min(start.elapsed().as_secs_f64() / n as f64);
            if worker != 0 {
                mail.post(after, 0, &[&letter])?;
            }
        }
        // Who left earlier would be taken for lost.
        mail.meet()?;
        Ok(best)
    };
    let first = std::thread::scope(|scope| {
        let passing = &passing;
        let workers = links.into_iter().enumerate();
        let running: Vec<_> =
            workers.map(|(worker, links)| scope.spawn(move || passing(worker, links))).collect();
        running.into_iter().next().and_then(|first| first.join().ok())
    });
    match first {
        Some(seconds) => Ok(seconds.map_err(MeshError::from)?),
        None => Err(MeshError::ThreadEnded { worker: 0 }.into()),
    }
}

/// The seconds until a thread that sleeps has been told of something and has said so.
fn handing_over() -> f64 {
    let ((say, told), (answer, answered)) = (channel::<()>(), channel::<()>());
    let other = std::thread::spawn(move || while told.recv().is_ok() && answer.send(()).is_ok() {});
    let mut seconds: Vec<f64> = Vec::with_capacity(LETTERS);
    for _ in 0..LETTERS {
        let start = Instant::now();
        // The other ends only after this.
        let _ = say.send(());
        let _ = answered.recv();
        seconds.push(start.elapsed().as_secs_f64());
    }
    drop(say);
    let _ = other.join();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Bytes a second that one core copies.
fn copying() -> f64 {
    let (from, mut into) = (vec![1_u8; SIZES[1]], vec![0_u8; SIZES[1]]);
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        let start = Instant::now();
        into.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&into);
        best = best.min(start.elapsed().as_secs_f64());
    }
    SIZES[1] as f64 / best.max(1e-9)
}
