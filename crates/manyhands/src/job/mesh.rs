//! The keys of models that are spread over workers: the strategies `pipeline`, `tensor`, `sharded` and `auto`, and meshes of them.
//!
//! [`DistributeSpec::mesh_plan`] says what all of them come to for a number of workers. What is known only with the program (how often
//! it can be cut, which layers can be split, whether it fits in memory) is checked where there is one, also before anything starts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use manyhands_program::mesh::{MeasuredCosts, Mesh};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::byte_size::bytes_of;
use super::check::CheckError;
use super::{DistributeSpec, Strategy};

/// Chunks of each worker under the schedule `interleaved`, unless said.
const INTERLEAVED_CHUNKS: usize = 2;
/// The most workers that a mesh may have.
const MOST_WORKERS: usize = 4096;

/// How many workers there are along each axis; their product is the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MeshSpec {
    /// Replicas of the model, which share the grains of a step. With `level` they share its state as well.
    pub data: usize,
    /// Stages, each of which has some of the layers.
    pub pipeline: usize,
    /// Parts, each of which has a part of every layer that is split.
    pub tensor: usize,
}

impl Default for MeshSpec {
    fn default() -> MeshSpec {
        MeshSpec { data: 1, pipeline: 1, tensor: 1 }
    }
}

impl fmt::Display for MeshSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = [("data", self.data), ("pipeline", self.pipeline), ("tensor", self.tensor)];
        let said = axes.iter().filter(|(_, n)| *n != 1).map(|(name, n)| format!("{name} = {n}"));
        let said: Vec<String> = said.collect();
        match said.is_empty() {
            true => f.write_str("{ data = 1 }"),
            false => write!(f, "{{ {} }}", said.join(", ")),
        }
    }
}

impl MeshSpec {
    /// The number of workers.
    pub fn n_workers(&self) -> usize {
        self.mesh().n_workers()
    }

    fn mesh(&self) -> Mesh {
        Mesh { data: self.data, pipeline: self.pipeline, tensor: self.tensor }
    }

    /// Meshes of the same kind that have so many workers: one axis is changed.
    fn fitting(&self, n_workers: usize) -> Vec<MeshSpec> {
        let others =
            |n: usize| (n > 0 && n_workers.is_multiple_of(n)).then_some(n_workers / n.max(1));
        let data = others(self.pipeline.saturating_mul(self.tensor));
        let pipeline = others(self.data.saturating_mul(self.tensor));
        let tensor = others(self.data.saturating_mul(self.pipeline));
        let mut found: Vec<MeshSpec> = Vec::new();
        let changed = [
            data.map(|data| MeshSpec { data, ..*self }),
            pipeline.map(|pipeline| MeshSpec { pipeline, ..*self }),
            tensor.map(|tensor| MeshSpec { tensor, ..*self }),
        ];
        for one in changed.into_iter().flatten() {
            if !found.contains(&one) {
                found.push(one);
            }
        }
        found
    }
}

/// In which order the stages of a pipeline do the grains of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PipelineSchedule {
    /// All forward, then all backward: what is between is kept for every grain.
    #[serde(rename = "gpipe")]
    FillAndDrain,
    /// Each stage goes backward with a grain as soon as it can: as fast as `gpipe`, and what is between is kept for as many grains as there are stages at most.
    #[default]
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// As `1f1b`, with several `chunks` of the model at each stage: less waiting, more sending.
    #[serde(rename = "interleaved")]
    Interleaved,
    /// No stage waits for the end of a step: each grain uses the weights that a stage has when it gets there, in both directions. The model is not that of one worker.
    #[serde(rename = "asynchronous")]
    Asynchronous,
}

impl PipelineSchedule {
    /// How jobs write it.
    pub fn word(self) -> &'static str {
        match self {
            PipelineSchedule::FillAndDrain => "gpipe",
            PipelineSchedule::OneForwardOneBackward => "1f1b",
            PipelineSchedule::Interleaved => "interleaved",
            PipelineSchedule::Asynchronous => "asynchronous",
        }
    }
}

/// What is computed again on the way back instead of being kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Nothing: the fastest, with the most memory.
    #[default]
    None,
    /// What is large and cheap to compute.
    Selected,
    /// All but what enters a chunk of the model: about a third more work, with the least memory.
    All,
}

/// The axis along which a parameter is split, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SplitAxis(pub usize);

/// What the keys of a job come to for a number of workers.
#[derive(Clone, Debug, PartialEq)]
pub struct MeshPlan {
    /// How the workers stand to each other.
    pub mesh: Mesh,
    /// What replicas share of the state, from 1 to 3; nothing unless said.
    pub level: Option<u8>,
    /// In which order stages do grains.
    pub schedule: PipelineSchedule,
    /// Chunks of the model at each stage.
    pub chunks_per_stage: usize,
    /// The layers before which chunks begin; balanced where there are none.
    pub cut: Vec<String>,
    /// What is computed again on the way back.
    pub recompute: Recompute,
    /// Whether a neighbour keeps what one worker alone holds.
    pub mirror: bool,
    /// Axes along which parameters are split by hand, by patterns of their names.
    pub split: BTreeMap<String, usize>,
    /// What operations take on the driver's machine, where that was measured: chunks are balanced by it.
    pub costs: Option<Arc<MeasuredCosts>>,
}

impl Default for MeshPlan {
    fn default() -> MeshPlan {
        MeshPlan {
            mesh: Mesh::default(),
            level: None,
            schedule: PipelineSchedule::default(),
            chunks_per_stage: 1,
            cut: Vec::new(),
            recompute: Recompute::default(),
            mirror: false,
            split: BTreeMap::new(),
            costs: None,
        }
    }
}

impl DistributeSpec {
    /// Whether the model is spread over workers.
    pub fn has_mesh(&self) -> bool {
        let spread =
            matches!(self.strategy, Strategy::Pipeline | Strategy::Tensor | Strategy::Sharded);
        spread || self.mesh.is_some()
    }

    /// How many workers the job is for, as far as it says so.
    pub fn n_workers_said(&self) -> Option<usize> {
        let stages = self.stages.filter(|_| self.strategy == Strategy::Pipeline);
        self.workers.or_else(|| self.mesh.map(|mesh| mesh.n_workers())).or(stages)
    }

    /// The memory that each worker may take, where there is a limit.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory.as_deref().and_then(bytes_of)
    }

    /// What the strategy and its keys come to for so many workers; nothing where the model is not spread over them. The strategy `auto` comes to
    /// nothing either, until the planner has chosen another.
    pub fn mesh_plan(&self, n_workers: usize) -> Result<Option<MeshPlan>, CheckError> {
        if !self.has_mesh() {
            return Ok(None);
        }
        let mesh = self.mesh_of(n_workers)?;
        let level = match self.strategy {
            Strategy::Sharded => Some(self.level.unwrap_or(1)),
            _ => self.level,
        };
        let chunks_per_stage = match self.schedule {
            Some(PipelineSchedule::Interleaved) => self.chunks.unwrap_or(INTERLEAVED_CHUNKS),
            _ => 1,
        };
        let plan = MeshPlan {
            mesh,
            level: level.and_then(|level| u8::try_from(level).ok()),
            schedule: self.schedule.unwrap_or_default(),
            chunks_per_stage,
            cut: self.cut.clone(),
            recompute: self.recompute,
            mirror: self.mirror,
            split: self.split.iter().map(|(name, axis)| (name.clone(), axis.0)).collect(),
            costs: None,
        };
        plan.check()?;
        Ok(Some(plan))
    }

    fn mesh_of(&self, n_workers: usize) -> Result<Mesh, CheckError> {
        if let Some(said) = self.mesh {
            if said.n_workers() != n_workers {
                let fitting = said.fitting(n_workers);
                return Err(CheckError::MeshWorkers { mesh: said, n_workers, fitting });
            }
            return Ok(said.mesh());
        }
        match self.strategy {
            Strategy::Pipeline => {
                let stages = self.stages.unwrap_or(n_workers);
                if stages == 0 || !n_workers.is_multiple_of(stages) {
                    return Err(CheckError::Stages { stages, n_workers });
                }
                Ok(Mesh { data: n_workers / stages, pipeline: stages, tensor: 1 })
            }
            Strategy::Tensor => Ok(Mesh { data: 1, pipeline: 1, tensor: n_workers }),
            _ => Ok(Mesh { data: n_workers, pipeline: 1, tensor: 1 }),
        }
    }
}

impl fmt::Display for MeshPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mesh)?;
        if self.mesh.pipeline > 1 {
            write!(f, ", {}", self.schedule.word())?;
        }
        if let Some(level) = self.level.filter(|_| self.mesh.data > 1) {
            write!(f, ", sharded at level {level}")?;
        }
        match self.recompute {
            Recompute::None => Ok(()),
            Recompute::Selected => f.write_str(", cheap activations computed again"),
            Recompute::All => f.write_str(", activations computed again"),
        }
    }
}

impl MeshPlan {
    /// Checks what depends on the mesh.
    fn check(&self) -> Result<(), CheckError> {
        let Mesh { data, pipeline, .. } = self.mesh;
        let n_chunks = pipeline.saturating_mul(self.chunks_per_stage);
        if !self.cut.is_empty() && self.cut.len() + 1 != n_chunks {
            let (n_cuts, n_workers) = (self.cut.len(), self.mesh.n_workers());
            return Err(CheckError::Cuts { n_cuts, n_chunks, n_workers });
        }
        if let Some(level) = self.level.filter(|_| data == 1 && self.mesh.n_workers() > 1) {
            return Err(CheckError::NoReplicas { level, mesh: self.mesh });
        }
        let is_alone = self.level.is_some() || data == 1;
        if self.mirror && (!is_alone || self.mesh.n_workers() == 1) {
            return Err(CheckError::NothingToMirror { mesh: self.mesh });
        }
        Ok(())
    }
}

/// Checks the keys of models that are spread over workers.
pub(super) fn check_mesh(distribute: &DistributeSpec) -> Result<(), CheckError> {
    check_counts(distribute)?;
    check_belonging(distribute)?;
    check_pipeline(distribute)?;
    check_sharding(distribute)?;
    match distribute.n_workers_said() {
        Some(n_workers) => distribute.mesh_plan(n_workers).map(drop),
        None => Ok(()),
    }
}

fn check_counts(distribute: &DistributeSpec) -> Result<(), CheckError> {
    let within = |key: &'static str, found: Option<usize>| match found {
        Some(0) => Err(CheckError::AtLeast { key, least: 1, found: 0 }),
        Some(found) if found > MOST_WORKERS => {
            let range = "at most 4096";
            Err(CheckError::Range { key: key.to_string(), range, found: found as f64 })
        }
        _ => Ok(()),
    };
    let axis = |of: fn(&MeshSpec) -> usize| distribute.mesh.as_ref().map(of);
    within("distribute.stages", distribute.stages)?;
    within("distribute.chunks", distribute.chunks)?;
    within("distribute.mesh.data", axis(|mesh| mesh.data))?;
    within("distribute.mesh.pipeline", axis(|mesh| mesh.pipeline))?;
    within("distribute.mesh.tensor", axis(|mesh| mesh.tensor))?;
    if let Some(level) = distribute.level.filter(|level| !(1..=3).contains(level)) {
        let range = "1 (the optimizer's state is spread), 2 (gradients too) or 3 (parameters too)";
        let key = "distribute.level".to_string();
        return Err(CheckError::Range { key, range, found: level as f64 });
    }
    if let Some(text) = distribute.memory.as_ref().filter(|text| bytes_of(text).is_none()) {
        return Err(CheckError::Memory { found: text.clone() });
    }
    Ok(())
}

/// Each key stands with a strategy that has a use for it.
fn check_belonging(distribute: &DistributeSpec) -> Result<(), CheckError> {
    let DistributeSpec { strategy, mesh, .. } = distribute;
    let needs = |key, what| Err(CheckError::Needs { key, what, other: "distribute.strategy" });
    let spread = matches!(strategy, Strategy::Pipeline | Strategy::Tensor | Strategy::Sharded);
    let meets_mesh = spread || *strategy == Strategy::AllReduce;
    if mesh.is_some() && !meets_mesh {
        return needs(
            "distribute.mesh",
            "a strategy that is a mesh: `pipeline`, `tensor`, `sharded`, or none",
        );
    }
    let along = |of: fn(&MeshSpec) -> usize| mesh.as_ref().is_some_and(|mesh| of(mesh) > 1);
    if let Some(mesh) = mesh {
        let lacks = match strategy {
            Strategy::Pipeline => (mesh.pipeline == 1).then_some("pipeline"),
            Strategy::Tensor => (mesh.tensor == 1).then_some("tensor"),
            Strategy::Sharded => (mesh.data == 1).then_some("data"),
            _ => None,
        };
        if let Some(axis) = lacks.filter(|_| mesh.n_workers() > 1) {
            return Err(CheckError::MeshWithout { strategy: *strategy, mesh: *mesh, axis });
        }
        if distribute.stages.is_some() {
            return Err(CheckError::Exclusive {
                one: "distribute.mesh",
                other: "distribute.stages",
            });
        }
    }
    let is_pipeline = *strategy == Strategy::Pipeline || along(|mesh| mesh.pipeline);
    let pipeline = "a pipeline: the strategy `pipeline`, or a mesh with `pipeline` above 1";
    let of_pipelines = [
        ("distribute.stages", distribute.stages.is_some()),
        ("distribute.schedule", distribute.schedule.is_some()),
        ("distribute.chunks", distribute.chunks.is_some()),
        ("distribute.cut", !distribute.cut.is_empty()),
    ];
    if let Some((key, _)) = of_pipelines.into_iter().find(|(_, said)| *said && !is_pipeline) {
        return needs(key, pipeline);
    }
    if !distribute.split.is_empty() && *strategy != Strategy::Tensor && !along(|mesh| mesh.tensor) {
        return needs(
            "distribute.split",
            "layers that are split: the strategy `tensor`, or a mesh with `tensor` above 1",
        );
    }
    let is_any = distribute.has_mesh() || *strategy == Strategy::Auto;
    let of_all = [
        ("distribute.recompute", distribute.recompute != Recompute::None),
        ("distribute.mirror", distribute.mirror),
    ];
    match of_all.into_iter().find(|(_, said)| *said && !is_any) {
        Some((key, _)) => needs(
            key,
            "a model that is spread over workers: `pipeline`, `tensor`, `sharded`, `auto` or a mesh",
        ),
        None => Ok(()),
    }
}

fn check_pipeline(distribute: &DistributeSpec) -> Result<(), CheckError> {
    if distribute.chunks.is_some() && distribute.schedule != Some(PipelineSchedule::Interleaved) {
        let (key, what) = ("distribute.chunks", "the schedule `interleaved`");
        return Err(CheckError::Needs { key, what, other: "distribute.schedule" });
    }
    if distribute.cut.iter().any(String::is_empty) {
        let wanted = "name layers, or leave it out";
        return Err(CheckError::Empty { key: "distribute.cut", wanted });
    }
    if distribute.split.keys().any(String::is_empty) {
        let wanted = "name parameters, such as \"dense1/*\"";
        return Err(CheckError::Empty { key: "distribute.split", wanted });
    }
    Ok(())
}

fn check_sharding(distribute: &DistributeSpec) -> Result<(), CheckError> {
    if distribute.level.is_none() {
        return Ok(());
    }
    let key = "distribute.level";
    let replicas = match (distribute.strategy, distribute.mesh) {
        (Strategy::Sharded, _) => true,
        (_, Some(mesh)) => mesh.data > 1,
        (Strategy::Pipeline, None) => true,
        _ => false,
    };
    if !replicas {
        let what =
            "replicas that share state: the strategy `sharded`, or a mesh with `data` above 1";
        return Err(CheckError::Needs { key, what, other: "distribute.strategy" });
    }
    if distribute.schedule == Some(PipelineSchedule::Asynchronous) {
        return Err(CheckError::Exclusive { one: "distribute.schedule", other: key });
    }
    Ok(())
}
