//! What a driver makes of a recipe for its workers.

use manyhands_net::membership::message::GrainCounts;
use manyhands_net::tables::traffic::TrafficSpec;

use super::dispatch::Drift;
use super::offer::DataOffer;
use super::outer::LocalRule;
use super::words::{PlanPrograms, Programs};
use crate::error::Error;
use crate::job::{Consistency, DistributeSpec, LocalSpec, MeshPlan, OnServers, Overlap, Strategy};
use crate::model::LABEL;
use crate::train::{Purpose, Recipe};

/// What a driver knows of a run beyond its recipe.
pub(crate) struct DriverPlan {
    pub(crate) n_samples: usize,
    pub(crate) threads: Option<usize>,
    local: Option<LocalRule>,
    offer: Option<DataOffer>,
    overlap: Overlap,
    /// Under the strategy `parameter_server`.
    pub(super) servers: Option<ServersPlan>,
    /// Where the model is spread over workers.
    pub(super) mesh: Option<MeshPlan>,
}

/// What a job says of servers.
#[derive(Clone, Debug)]
pub(super) struct ServersPlan {
    pub(super) n_servers: usize,
    pub(super) replication: usize,
    pub(super) parameters: OnServers,
    pub(super) consistency: Consistency,
    /// The bound of `ssp`.
    pub(super) staleness: u64,
    pub(super) traffic: TrafficSpec,
    pub(super) foresight: bool,
}

impl ServersPlan {
    /// How far workers may drift apart; none where they may not.
    pub(super) fn drift(&self) -> Option<Drift> {
        match self.consistency {
            Consistency::Bsp => None,
            Consistency::Ssp => Some(Drift::Bounded(self.staleness)),
            Consistency::Adaptive => Some(Drift::Adaptive),
            Consistency::Async => Some(Drift::Unbounded),
        }
    }
}

impl DriverPlan {
    pub(crate) fn new(
        distribute: &DistributeSpec,
        n_samples: usize,
        n_steps: usize,
        offer: Option<DataOffer>,
        mesh: Option<MeshPlan>,
    ) -> DriverPlan {
        let local = (distribute.strategy == Strategy::Local).then(|| {
            let LocalSpec { steps, outer } = distribute.local.unwrap_or_default();
            LocalRule { every: steps as u64, outer, last_step: n_steps as u64 }
        });
        let (threads, overlap) = (distribute.threads, distribute.overlap);
        let servers = (distribute.strategy == Strategy::ParameterServer).then(|| ServersPlan {
            n_servers: distribute.n_servers(),
            replication: distribute.n_replicas(),
            parameters: distribute.tables.clone().unwrap_or_default().parameters,
            consistency: distribute.consistency,
            staleness: distribute.staleness_bound(),
            traffic: distribute.traffic.unwrap_or_default().of_table(),
            foresight: distribute.foresight.unwrap_or(true),
        });
        DriverPlan { n_samples, threads, local, offer, overlap, servers, mesh }
    }
}

/// How many grains steps have.
pub(super) fn grain_counts(recipe: &Recipe, n_samples: usize) -> GrainCounts {
    let steps_per_epoch = n_samples.div_ceil(recipe.batch).max(1);
    let last = n_samples - (steps_per_epoch - 1) * recipe.batch;
    GrainCounts {
        full: recipe.n_grains(recipe.batch.min(n_samples)) as u32,
        last: recipe.n_grains(last) as u32,
        steps_per_epoch: steps_per_epoch as u64,
    }
}

/// As many members as there are places in a mesh, for the coordinator, which gives each at least one grain.
pub(super) fn n_members(n_places: usize) -> GrainCounts {
    GrainCounts { full: n_places as u32, last: n_places as u32, steps_per_epoch: 1 }
}

/// The programs of full steps, and of an epoch's last where it has fewer samples.
pub(crate) fn plan_programs(recipe: &Recipe, n_samples: usize) -> Result<Vec<PlanPrograms>, Error> {
    let full = recipe.batch.min(n_samples);
    let rest = n_samples % recipe.batch;
    let sizes = if rest == 0 || rest == full { vec![full] } else { vec![full, rest] };
    let plan = |n_samples: usize| {
        let (program, last) =
            recipe.grain_programs(n_samples, |grain| recipe.program(Purpose::Train, grain))?;
        let (n_grains, indices, last_indices) = (recipe.n_grains(n_samples), None, None);
        Ok(PlanPrograms { n_samples, n_grains, program, last, indices, last_indices })
    };
    sizes.into_iter().map(plan).collect()
}

/// What a driver tells workers of a job.
pub(super) fn programs(recipe: &Recipe, plan: &DriverPlan) -> Result<Programs, Error> {
    let DriverPlan { n_samples, threads, local, overlap, .. } = *plan;
    let offer = plan.offer.clone();
    let plans = plan_programs(recipe, n_samples)?;
    let bytes = |input: &manyhands_data::Input| {
        input.shape.iter().product::<usize>() * input.element.size()
    };
    let encoded = recipe.encoding.inputs();
    let mut inputs = Vec::new();
    let mut places = Vec::new();
    for input in recipe.model.inputs() {
        if let Some(place) = encoded.iter().position(|one| one.name == input.name) {
            inputs.push((input.name.clone(), bytes(&encoded[place])));
            places.push(place);
        }
    }
    let target = recipe.encoding.target().ok_or(Error::NoLabels)?;
    inputs.push((LABEL.to_string(), bytes(target)));
    let grain = recipe.grain;
    let (table, is_meshed) = (None, false);
    Ok(Programs { plans, inputs, places, grain, local, threads, offer, overlap, table, is_meshed })
}
