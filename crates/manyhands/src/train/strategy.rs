//! How the steps of a run are done, decided before anything starts: as the job says, if that fits in the memory that workers may take, or as the planner
//! chooses.

use super::event::{Event, SetUp};
use super::run::Run;
use crate::cluster::plan_programs;
use crate::error::Error;
use crate::job::{MeshPlan, Strategy};
use crate::mesh::is_cut_by_costs;
use crate::plan::{Workload, does_not_fit, plan};

/// How steps are done.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Decided {
    /// Where workers share a model.
    pub(super) mesh: Option<MeshPlan>,
    /// Workers and threads, where the planner chose them.
    pub(super) set_up: Option<SetUp>,
    /// Seconds that a step should take, where it was predicted.
    pub(super) predicted: Option<f64>,
}

impl Run<'_> {
    /// Decides, and refuses what does not fit.
    pub(super) fn decide(&mut self) -> Result<Decided, Error> {
        let distribute = &self.job.distribute;
        if distribute.strategy == Strategy::Auto {
            return self.choose();
        }
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let n_workers = distribute.n_workers_said().unwrap_or(n_cores);
        let limit = distribute.memory_bytes();
        let mesh = distribute.mesh_plan(n_workers)?;
        if limit.is_none() && !mesh.as_ref().is_some_and(is_cut_by_costs) {
            return Ok(Decided { mesh, ..Decided::default() });
        }
        let sizes = plan_programs(self.recipe, self.planned.n_samples)?;
        let workload = Workload::new(distribute, &sizes);
        let mesh = mesh.map(|mesh| workload.with_costs(mesh, limit));
        if let Some(limit) = limit
            && let Some(refused) = does_not_fit(&workload, mesh.as_ref(), n_workers, limit)?
        {
            return Err(refused);
        }
        Ok(Decided { mesh, ..Decided::default() })
    }

    /// Has the planner choose, and says what there is to choose from.
    fn choose(&mut self) -> Result<Decided, Error> {
        let distribute = &self.job.distribute;
        let sizes = plan_programs(self.recipe, self.planned.n_samples)?;
        let workload = Workload::new(distribute, &sizes)
            .tried_with(self.opened.tryout(self.job, self.should_stop));
        let n_workers = distribute.n_workers_said().unwrap_or(workload.n_cores);
        let found = plan(&workload, n_workers, distribute.memory_bytes())?;
        let Some(chosen) = found.chosen.and_then(|idx| found.predictions.get(idx)).cloned() else {
            return Err(Error::NothingFits { advice: found.advice });
        };
        let chosen_plan = chosen.candidate.mesh_plan(&workload.wanted);
        let chosen_plan = workload.with_costs(chosen_plan, distribute.memory_bytes());
        self.tell(&Event::Strategies(&found));
        let candidate = &chosen.candidate;
        let workers = candidate.mesh.n_workers();
        let threads = chosen.threads.max(1);
        let reason = format!("chosen by `auto`: {}", found.advice);
        Ok(Decided {
            mesh: candidate.shares_a_model().then_some(chosen_plan),
            set_up: Some(SetUp { workers, threads, reason }),
            predicted: Some(chosen.seconds),
        })
    }
}
