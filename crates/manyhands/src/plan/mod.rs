//! The planner: what each strategy would take of memory and time, before anything is trained.
//!
//! Memory is counted from layouts that are made on paper, by the code that training lays out with. Times follow from runs on this machine: some steps of the job are done as
//! training would do them (`tryout.rs`). Of more workers than that is done with, or where an epoch has too few steps, one worker and replicas do a step with zeros (`replicas.rs`), and those that share a model
//! rehearse what each does by itself, of which the step of all is simulated (`meshed.rs`). Where a step is too large to be run, operations are counted. [`choose()`] takes the fastest that fits, with a reason.

mod choose;
mod limit;
mod meshed;
mod predicted;
mod rates;
mod replicas;
mod tryout;
mod workload;

pub use choose::choose;
pub(crate) use limit::does_not_fit;
pub(crate) use meshed::Meshed;
pub use predicted::{Memory, Predicted};
pub use rates::Rates;
pub(crate) use tryout::Tryout;
pub(crate) use workload::Workload;

use manyhands_program::mesh::Mesh;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::job::{MeshPlan, Strategy};
use crate::machine::Machine;
use workload::CountedStep;

/// A way to share a job out over workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its name, for people: `pipeline x 2`.
    pub name: String,
    /// The strategy that a job would name.
    pub strategy: Strategy,
    /// How the workers stand to each other.
    pub mesh: Mesh,
    /// What replicas share of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
}

/// What each strategy would take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Workers that the strategies are for.
    pub n_workers: usize,
    /// Cores that they share.
    pub n_cores: usize,
    /// Grains of a step.
    pub n_grains: usize,
    /// The memory that each worker may take.
    pub memory_limit: Option<u64>,
    /// How fast this machine is.
    pub rates: Rates,
    /// Whether steps of the job were run to know how long they take; otherwise their operations were counted.
    pub is_measured: bool,
    /// The strategies, one worker first.
    pub predictions: Vec<Predicted>,
    /// The place of the one to take; nothing where none fits.
    pub chosen: Option<usize>,
    /// One sentence: which, and why.
    pub advice: String,
}

/// What can be tried with so many workers: one of them, then all, by every strategy and mesh of two.
pub fn candidates(n_workers: usize) -> Vec<Candidate> {
    let of = |name: String, strategy, mesh, level| Candidate { name, strategy, mesh, level };
    let (n, one) = (n_workers.max(1), Mesh::default());
    let mut all = vec![of("one worker".to_string(), Strategy::AllReduce, one, None)];
    if n == 1 {
        return all;
    }
    let data = Mesh { data: n, ..one };
    all.push(of(format!("all_reduce x {n}"), Strategy::AllReduce, data, None));
    let pipeline = Mesh { pipeline: n, ..one };
    all.push(of(format!("pipeline x {n}"), Strategy::Pipeline, pipeline, None));
    for level in 1..=3 {
        let name = format!("sharded {level} x {n}");
        all.push(of(name, Strategy::Sharded, data, Some(level)));
    }
    let tensor = Mesh { tensor: n, ..one };
    all.push(of(format!("tensor x {n}"), Strategy::Tensor, tensor, None));
    for replicas in (2..n).filter(|replicas| n.is_multiple_of(*replicas)) {
        let mesh = Mesh { data: replicas, pipeline: n / replicas, tensor: 1 };
        all.push(of(mesh.to_string(), Strategy::Pipeline, mesh, None));
        let name = format!("{mesh}, sharded 3");
        all.push(of(name, Strategy::Pipeline, mesh, Some(3)));
    }
    all
}

/// Plans a job's steps for so many workers: measures, predicts every candidate, chooses.
pub(crate) fn plan(
    workload: &Workload<'_>,
    n_workers: usize,
    memory_limit: Option<u64>,
) -> Result<Plan, Error> {
    let rates = Rates::measure(n_workers)?;
    let counted = workload.counted(&rates)?;
    // All in the same way, or they could not be compared.
    let tryout = workload.tryout_for(n_workers, counted)?;
    let mut is_measured = true;
    let mut predictions = Vec::new();
    let machine = Machine::look().usable_memory_bytes();
    for candidate in candidates(n_workers) {
        // Workers of one machine share its memory.
        let of_machine = machine.map(|all| all / candidate.mesh.n_workers() as u64);
        let limit = memory_limit.or(of_machine);
        let predicted = match memory_of(workload, &candidate, counted, memory_limit) {
            Ok((memory, meshed)) => {
                let timed = match &meshed {
                    Some(meshed) => meshed.time(workload, &rates, counted, tryout)?,
                    None => {
                        workload.time_of_replicas(candidate.mesh.data, counted, memory, tryout)?
                    }
                };
                is_measured &= timed.is_measured;
                Predicted::new(candidate, memory, timed, limit)
            }
            Err(error) => Predicted::impossible(candidate, error.to_string()),
        };
        predictions.push(predicted);
    }
    let (chosen, advice) = choose(&predictions, memory_limit.or(machine));
    Ok(Plan {
        n_workers,
        n_cores: workload.n_cores,
        n_grains: workload.n_grains(),
        memory_limit,
        rates,
        is_measured,
        predictions,
        chosen,
        advice,
    })
}

/// The memory of a candidate, and its worker programs where workers share a model.
fn memory_of(
    workload: &Workload<'_>,
    candidate: &Candidate,
    counted: CountedStep,
    limit: Option<u64>,
) -> Result<(Memory, Option<Meshed>), Error> {
    let n_workers = candidate.mesh.n_workers();
    if !candidate.shares_a_model() {
        return Ok((workload.memory_of_replicas(n_workers, counted)?, None));
    }
    let plan = workload.with_costs(candidate.mesh_plan(&workload.wanted), limit);
    let meshed = Meshed::new(&plan, workload.sizes, workload.threads(n_workers))?;
    Ok((meshed.memory(), Some(meshed)))
}

impl Candidate {
    /// Whether no worker has all of what is trained; otherwise there is one, or each has all of it.
    pub fn shares_a_model(&self) -> bool {
        self.mesh.pipeline > 1 || self.mesh.tensor > 1 || self.level.is_some()
    }

    /// What it comes to, where the rest is as a job says.
    pub(crate) fn mesh_plan(&self, wanted: &MeshPlan) -> MeshPlan {
        let (mesh, level) = (self.mesh, self.level);
        MeshPlan { mesh, level, ..wanted.clone() }
    }
}

#[cfg(test)]
mod tests;
