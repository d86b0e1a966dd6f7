//! Workers that share one model: their programs are made as training would make them, and some steps are done with them. Where that is too much, what each worker does by itself is
//! rehearsed, and the rest of a step is simulated with what messages take here.

use std::sync::Barrier;

use manyhands_device::CpuDevice;
use manyhands_program::mesh::{Costs, WorkerProgram, simulate, traffic};

use super::Rates;
use super::predicted::{Memory, Timed};
use super::tryout::Tryout;
use super::workload::{CountedStep, Workload, counted_seconds};
use crate::cluster::PlanPrograms;
use crate::error::Error;
use crate::job::MeshPlan;
use crate::mesh::{MeshError, MeshHere, MeshWorker, Room, Spread, spread};
use crate::train::{Session, SetUp};

/// How often a worker rehearses its step, after once that finds cold caches.
const REHEARSALS: usize = 8;
/// The seed of first values, which make no difference to times.
const SEED: u64 = 1;

/// What all workers of a mesh do, and what each takes.
pub(crate) struct Meshed {
    sizes: Vec<Spread>,
    rooms: Vec<Room>,
}

impl Meshed {
    /// Makes the programs of all workers of a mesh, and lays them out on paper.
    pub(crate) fn new(
        plan: &MeshPlan,
        sizes: &[PlanPrograms],
        threads: usize,
    ) -> Result<Meshed, Error> {
        let sizes = spread(plan, plan.mesh, sizes.iter().map(PlanPrograms::training))?;
        let mut meshed = Meshed { sizes, rooms: Vec::new() };
        let n_workers = plan.mesh.n_workers();
        for worker in 0..n_workers {
            meshed.rooms.push(MeshWorker::room_for(meshed.programs(worker), threads)?);
        }
        Ok(meshed)
    }

    fn programs(&self, worker: usize) -> Vec<WorkerProgram> {
        self.sizes.iter().map(|one| one.workers[worker].clone()).collect()
    }

    /// Memory of the worker that takes most.
    pub(crate) fn memory(&self) -> Memory {
        let most = self.rooms.iter().max_by_key(|room| room.total()).copied().unwrap_or_default();
        Memory {
            parameters: most.parameters,
            state: most.state,
            gradients: most.sums,
            activations: most.values + most.temporaries,
            process: most.process,
        }
    }

    /// The time of a full step.
    pub(super) fn time(
        &self,
        workload: &Workload<'_>,
        rates: &Rates,
        counted: CountedStep,
        tryout: Option<&Tryout<'_>>,
    ) -> Result<Timed, Error> {
        let Some(full) = self.sizes.first() else { return Ok(Timed::default()) };
        let n_workers = self.rooms.len();
        let sent = full.workers.iter().map(|worker| traffic(worker).sent()).max().unwrap_or(0);
        let threads = workload.threads(n_workers);
        let tried = match tryout.map(|tryout| self.try_steps(tryout, threads)) {
            // A system that has no threads or links for it is no reason not to plan.
            Some(Err(Error::Mesh(_))) | None => None,
            Some(tried) => tried?,
        };
        let (seconds, waiting, is_measured) = match tried {
            Some((seconds, waiting)) => (seconds, waiting, true),
            None => self.simulate(full, workload, rates, counted)?,
        };
        let reason = format!("workers wait {:.0} % of the time", 100.0 * waiting);
        Ok(Timed { seconds, threads, sent_bytes: sent as u64, is_measured, reason })
    }

    /// Does some steps as training would. The seconds of one, and the share of their time for which workers waited.
    fn try_steps(&self, tryout: &Tryout<'_>, threads: usize) -> Result<Option<(f64, f64)>, Error> {
        let set_up = SetUp { workers: self.rooms.len(), threads, reason: String::new() };
        // Nobody is answered.
        let alone = SetUp { workers: 1, threads: 1, reason: String::new() };
        let answering = Session::new(tryout.recipe, &alone)?;
        let mut steps = MeshHere::start(tryout.recipe, &self.sizes, set_up, answering)?;
        steps.init(SEED)?;
        let seconds = tryout.seconds(&mut steps)?;
        Ok(seconds.map(|seconds| (seconds, steps.waiting())))
    }

    /// Simulates a step from what each worker takes by itself and what messages take. The seconds, the share of them for which workers wait, and whether workers were run for it.
    fn simulate(
        &self,
        full: &Spread,
        workload: &Workload<'_>,
        rates: &Rates,
        counted: CountedStep,
    ) -> Result<(f64, f64, bool), Error> {
        let (n_workers, n_cores) = (self.rooms.len(), workload.n_cores.max(1));
        let at_once: u64 = self.rooms.iter().take(n_cores).map(Room::total).sum();
        let is_measured = workload.can_measure(counted, at_once);
        let own = match is_measured {
            true => self.rehearse(workload.threads(n_workers), n_cores)?,
            false => Vec::new(),
        };
        let busy: f64 = own.iter().flatten().sum();
        let is_crowded = n_workers > n_cores;
        let times = Times { own, workers: &full.workers, rates, is_crowded };
        let simulated = simulate(&full.workers, &times).map_err(MeshError::from)?;
        // More workers than cores take turns.
        let busy = if is_measured { busy } else { simulated.busy.iter().sum() };
        let step = simulated.seconds.max(busy / n_cores as f64);
        // Whoever hands steps over needs a core too: where all have a worker, the workers wait for it one after the other.
        let handed_over = if n_workers < n_cores { 1 } else { n_workers };
        let seconds = step + rates.handing_over * handed_over as f64;
        let waiting = simulated.waiting.iter().sum::<f64>() / n_workers as f64;
        Ok((seconds, waiting / simulated.seconds.max(f64::MIN_POSITIVE), is_measured))
    }

    /// By worker and action: the seconds that it takes by itself. As many workers as there are cores run side by side, for they share caches.
    fn rehearse(&self, threads: usize, n_cores: usize) -> Result<Vec<Vec<f64>>, MeshError> {
        let workers: Vec<usize> = (0..self.rooms.len()).collect();
        let mut own = Vec::with_capacity(workers.len());
        for together in workers.chunks(n_cores) {
            let start = Barrier::new(together.len());
            let of_one = |worker: usize| -> Result<Vec<f64>, MeshError> {
                let rehearsing = self.made_ready(worker, threads);
                start.wait();
                rehearsing?.rehearse(0, REHEARSALS)
            };
            let found: Vec<Result<Vec<f64>, MeshError>> = std::thread::scope(|scope| {
                let of_one = &of_one;
                let running: Vec<_> =
                    together.iter().map(|&worker| scope.spawn(move || of_one(worker))).collect();
                let ended = running.into_iter().zip(together).map(|(one, &worker)| {
                    one.join().unwrap_or(Err(MeshError::ThreadEnded { worker }))
                });
                ended.collect()
            });
            for one in found {
                own.push(one?);
            }
        }
        Ok(own)
    }

    fn made_ready(&self, worker: usize, threads: usize) -> Result<MeshWorker, MeshError> {
        let device = CpuDevice::new(threads);
        let action = "at the start".to_string();
        let device =
            device.map_err(|source| MeshError::Device { worker, action, source: source.into() })?;
        let mut made = MeshWorker::new(self.programs(worker), Box::new(device))?;
        made.init(SEED)?;
        Ok(made)
    }
}

/// What actions take.
struct Times<'a> {
    /// By worker and action; empty where operations are counted.
    own: Vec<Vec<f64>>,
    workers: &'a [WorkerProgram],
    rates: &'a Rates,
    /// Whether there are more workers than cores.
    is_crowded: bool,
}

impl Costs for Times<'_> {
    fn run(&self, worker: usize, piece: usize, grain: Option<usize>) -> f64 {
        counted_seconds(self.workers[worker].program(piece, grain), self.rates)
    }

    fn by_itself(&self, worker: usize, action: usize) -> Option<f64> {
        self.own.get(worker)?.get(action).copied()
    }

    fn message(&self, _: usize, _: usize, n_bytes: usize) -> f64 {
        self.rates.sending(n_bytes as f64, self.is_crowded)
    }

    fn handling(&self, n_bytes: usize) -> f64 {
        n_bytes as f64 / self.rates.copying
    }

    fn exchange(&self, n_members: usize, n_bytes: usize, is_whole: bool) -> f64 {
        let others = n_members.saturating_sub(1) as f64;
        let moved = n_bytes as f64 * others / n_members.max(1) as f64;
        // Adding is what members do by themselves.
        let adding = match self.own.is_empty() {
            true => 3.0 * moved / self.rates.memory,
            false => 0.0,
        };
        let rounds = if is_whole && n_bytes > 0 { 2.0 } else { 1.0 };
        let sending = self.rates.sending(moved, self.is_crowded);
        rounds * (sending + 2.0 * moved / self.rates.copying) + adding
    }
}
