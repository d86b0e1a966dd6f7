//! What is planned: the programs of a job's steps, and how the machine would be used for them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use manyhands_program::mesh::MeasuredCosts;
use manyhands_program::{Cost, Program, is_sum, split_grains};

use super::Rates;
use super::tryout::Tryout;
use crate::cluster::PlanPrograms;
use crate::error::Error;
use crate::job::{DistributeSpec, MeshPlan};
use crate::machine::Machine;
use crate::mesh::{is_cut_by_costs, measure};

/// Steps that would take longer are not run to be measured: their operations are counted.
const LONGEST_STEP: f64 = 4.0;
/// The share of the machine's memory that measuring may take.
const ROOM_TO_MEASURE: f64 = 0.5;

/// So many workers are started to try steps, and no more: each has a link to each other.
const MOST_TRIED: usize = 16;

/// What is planned.
pub(crate) struct Workload<'a> {
    /// The programs of full steps, and of an epoch's last where it is shorter.
    pub(crate) sizes: &'a [PlanPrograms],
    /// What the job says of meshes; axes and level are those of each candidate.
    pub(crate) wanted: MeshPlan,
    /// Threads of each worker, where the job says so.
    pub(crate) threads: Option<usize>,
    /// Cores that workers share.
    pub(crate) n_cores: usize,
    /// The samples that steps are tried with, where there are some.
    tryout: Option<Tryout<'a>>,
    /// What operations take, once that was measured: by tensor parts and threads.
    costs: RefCell<BTreeMap<(usize, usize), KnownCosts>>,
}

/// What operations take, or nothing where it could not be measured.
type KnownCosts = Option<Arc<MeasuredCosts>>;

/// What a grain and an update come to, counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CountedStep {
    pub(super) grain_seconds: f64,
    pub(super) update_seconds: f64,
    /// Bytes of one set of sums.
    pub(super) sum_bytes: u64,
}

impl<'a> Workload<'a> {
    /// The steps of a job on this machine.
    pub(crate) fn new(distribute: &DistributeSpec, sizes: &'a [PlanPrograms]) -> Workload<'a> {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted =
            MeshPlan { recompute: distribute.recompute, mirror: false, ..MeshPlan::default() };
        let (tryout, costs) = (None, RefCell::default());
        Workload { sizes, wanted, threads: distribute.threads, n_cores, tryout, costs }
    }

    /// The same, whose steps are tried with these samples.
    pub(crate) fn tried_with(self, tryout: Tryout<'a>) -> Workload<'a> {
        Workload { tryout: Some(tryout), ..self }
    }

    /// The samples to try steps with on one worker and on so many, where that can be done with all strategies.
    pub(super) fn tryout_for(
        &self,
        n_workers: usize,
        counted: CountedStep,
    ) -> Result<Option<&Tryout<'a>>, Error> {
        let tryout = self.tryout.as_ref().filter(|tryout| tryout.is_possible());
        let Some(tryout) = tryout.filter(|_| n_workers <= MOST_TRIED) else { return Ok(None) };
        // No strategy takes much more than as many whole models.
        let one = self.memory_of_replicas(1, counted)?.total();
        Ok(self.can_measure(counted, one * n_workers as u64).then_some(tryout))
    }

    /// A plan that knows what operations take here, where its pipeline is to be cut by that. It is measured once for all plans.
    pub(crate) fn with_costs(&self, plan: MeshPlan, limit: Option<u64>) -> MeshPlan {
        let Some(size) = self.sizes.first().filter(|_| is_cut_by_costs(&plan)) else { return plan };
        let threads = self.threads(plan.mesh.n_workers());
        let mut known = self.costs.borrow_mut();
        let costs = known
            .entry((plan.mesh.tensor, threads))
            .or_insert_with(|| measure(&plan, &size.training(), threads, limit).map(Arc::new));
        MeshPlan { costs: costs.clone(), ..plan }
    }

    /// Grains of a full step.
    pub(crate) fn n_grains(&self) -> usize {
        self.sizes.first().map_or(1, |size| size.training().n_grains)
    }

    /// Threads of each of so many workers: the cores are shared out.
    pub(super) fn threads(&self, n_workers: usize) -> usize {
        self.threads.unwrap_or((self.n_cores / n_workers.max(1)).max(1))
    }

    /// A full step by its counted operations, on one core.
    pub(super) fn counted(&self, rates: &Rates) -> Result<CountedStep, Error> {
        let mut counted = self.counted_bytes()?;
        if let Some(size) = self.sizes.first() {
            let split = split_grains(size.training().program)?;
            counted.grain_seconds = counted_seconds(&split.grain, rates);
            counted.update_seconds = counted_seconds(&split.step, rates);
        }
        Ok(counted)
    }

    /// The same without times.
    pub(super) fn counted_bytes(&self) -> Result<CountedStep, Error> {
        let mut counted = CountedStep { grain_seconds: 0.0, update_seconds: 0.0, sum_bytes: 0 };
        if let Some(size) = self.sizes.first() {
            let grain = split_grains(size.training().program)?.grain;
            let sums = grain.outputs().iter().filter(|one| is_sum(&one.name));
            counted.sum_bytes = sums.map(|one| grain.ty(one.value).n_bytes() as u64).sum();
        }
        Ok(counted)
    }

    /// Whether there is time and memory to run a step.
    pub(super) fn can_measure(&self, step: CountedStep, n_bytes: u64) -> bool {
        let all = Machine::look().usable_memory_bytes();
        let has_room = all.is_none_or(|all| (n_bytes as f64) < all as f64 * ROOM_TO_MEASURE);
        let seconds = step.grain_seconds * self.n_grains() as f64 + step.update_seconds;
        has_room && seconds < LONGEST_STEP
    }
}

/// Seconds of a program on one core, by its counted operations.
pub(super) fn counted_seconds(program: &Program, rates: &Rates) -> f64 {
    let nodes = program.nodes().iter();
    nodes.map(|node| rates.seconds(&node.op, Cost::of_node(program, node))).sum()
}
