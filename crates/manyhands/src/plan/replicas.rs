//! One worker, and workers that each have the whole model: their steps are run as training would run them.

use std::time::Instant;

use manyhands_device::{CpuDevice, Isa, PaperDevice, StepExecutor};
use manyhands_program::{GrainAction, Op, RATE, Role, STEP, tree_schedule};

use super::predicted::{Memory, Timed};
use super::tryout::Tryout;
use super::workload::{CountedStep, Workload};
use crate::error::Error;
use crate::initial::initial_value;
use crate::mesh::process_bytes;
use crate::train::{Here, Purpose, Session, SetUp};

/// How often a step is run, after one that finds cold caches; the fastest counts, for others may use the machine too.
const TRIES: usize = 8;
/// The seed of first values, which make no difference to times.
const SEED: u64 = 1;

/// Sets of sums that are held at once, along the tree over a worker's grains.
fn n_sets(n_grains: usize) -> u64 {
    let written = tree_schedule(n_grains).into_iter().filter_map(|action| match action {
        GrainAction::Write { slot, .. } => Some(slot as u64 + 1),
        GrainAction::Accumulate { .. } | GrainAction::Merge { .. } => None,
    });
    written.max().unwrap_or(1)
}

impl Workload<'_> {
    /// The memory of each of so many workers of one process, which share one copy of what is trained.
    pub(super) fn memory_of_replicas(
        &self,
        n_workers: usize,
        counted: CountedStep,
    ) -> Result<Memory, Error> {
        let device = PaperDevice::new(n_workers, self.threads(n_workers))?;
        let mut executor = StepExecutor::new(Box::new(device), n_workers);
        for size in self.sizes {
            let of = size.training();
            executor.add_plan(of.program, of.n_grains, of.last)?;
        }
        let peak = executor.peak_bytes()? as u64;
        let held = |is_slot: bool| -> u64 {
            let Some(size) = self.sizes.first() else { return 0 };
            let program = size.training().program;
            let own = program.parameters().filter(|(_, role, _)| (*role == Role::Slot) == is_slot);
            own.map(|(.., value)| program.ty(value).n_bytes() as u64).sum()
        };
        let (parameters, state) = (held(false), held(true));
        let each = peak.saturating_sub(parameters + state) / n_workers as u64;
        let gradients = (counted.sum_bytes * n_sets(self.n_grains().div_ceil(n_workers))).min(each);
        let programs = self.sizes.iter().map(|size| size.training().program.nodes().len());
        let process = process_bytes(programs.sum()) as u64;
        Ok(Memory { parameters, state, gradients, activations: each - gradients, process })
    }

    /// The time of a step on so many of them.
    pub(super) fn time_of_replicas(
        &self,
        n_workers: usize,
        counted: CountedStep,
        memory: Memory,
        tryout: Option<&Tryout<'_>>,
    ) -> Result<Timed, Error> {
        let n_grains = self.n_grains();
        let n_threads = self.threads(n_workers);
        let reason = format!("{n_grains} grain(s), {} a worker", n_grains.div_ceil(n_workers));
        if self.can_measure(counted, memory.total() * n_workers as u64) {
            let mut best = (self.run_replicas(n_workers, n_threads, tryout)?, n_threads);
            // Several threads are slower than one where operations are small, and training would find that out.
            if n_threads > 1 && self.threads.is_none() {
                let alone = (self.run_replicas(n_workers, 1, tryout)?, 1);
                best = if alone.0 <= best.0 { alone } else { best };
            }
            let (seconds, threads) = best;
            return Ok(Timed { seconds, threads, sent_bytes: 0, is_measured: true, reason });
        }
        let crowding = (n_workers as f64 / self.n_cores.max(1) as f64).max(1.0);
        let at_once = (n_threads as f64).min(self.n_cores as f64 / n_workers as f64).max(1.0);
        let each = n_grains.div_ceil(n_workers) as f64 * counted.grain_seconds / at_once;
        let seconds = each * crowding + counted.update_seconds / at_once;
        Ok(Timed { seconds, threads: n_threads, sent_bytes: 0, is_measured: false, reason })
    }

    fn run_replicas(
        &self,
        n_workers: usize,
        n_threads: usize,
        tryout: Option<&Tryout<'_>>,
    ) -> Result<f64, Error> {
        if let Some(tryout) = tryout
            && let Some(seconds) = tryout.seconds(&mut replicas(tryout, n_workers, n_threads)?)?
        {
            return Ok(seconds);
        }
        let Some(size) = self.sizes.first() else { return Ok(0.0) };
        let of = size.training();
        let device = CpuDevice::with_lanes(n_workers, n_threads, Isa::detect())?;
        let mut executor = StepExecutor::new(Box::new(device), n_workers);
        let plan = executor.add_plan(of.program, of.n_grains, of.last)?;
        for node in of.program.nodes() {
            if let Op::Parameter { name, init, .. } = &node.op {
                let ty = of.program.ty(node.results[0]);
                let value = initial_value(executor.device_mut(), SEED, name, ty, *init)?;
                executor.set_parameter(name, &value)?;
            }
        }
        for (name, value) in [(RATE, 1e-6), (STEP, 1.0)] {
            if executor.has_input(plan, name) {
                executor.write_scalar(plan, name, value)?;
            }
        }
        let mut best = f64::INFINITY;
        for attempt in 0..=TRIES {
            let start = Instant::now();
            executor.run(plan)?;
            if attempt > 0 {
                best = best.min(start.elapsed().as_secs_f64());
            }
        }
        Ok(best)
    }
}

/// Steps on so many workers of this process that each have the whole model.
fn replicas<'a>(tryout: &Tryout<'a>, workers: usize, threads: usize) -> Result<Here<'a>, Error> {
    let set_up = SetUp { workers, threads, reason: String::new() };
    let mut session = Session::new(tryout.recipe, &set_up)?;
    session.plan(Purpose::Train, tryout.recipe.batch)?;
    session.initialise(SEED)?;
    Ok(Here::new(session))
}
