//! Checks of a job's values that need neither data nor a model: before anything starts, one sentence with the key.

use std::collections::BTreeSet;

use manyhands_data::{DataSpec, HeldOut, Source};
use manyhands_program::Clip;
use manyhands_program::mesh::Mesh;

use super::mesh::check_mesh;
use super::tables::check_tables;
use super::traffic::check_traffic;
use super::{
    ClassWeights, DistributeSpec, Job, MeshSpec, ModelSpec, OutputSpec, Strategy, TrainSpec,
};
use crate::catalog::nearest_name;

/// Why a job cannot be done as it is written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// A count that is too small.
    #[error("`{key}` must be at least {least}, found {found}")]
    AtLeast {
        /// The key.
        key: &'static str,
        /// The smallest that can be.
        least: usize,
        /// What is written.
        found: usize,
    },
    /// A number out of its range.
    #[error("`{key}` must be {range}, found {found}")]
    Range {
        /// The key.
        key: String,
        /// What can be.
        range: &'static str,
        /// What is written.
        found: f64,
    },
    /// A batch that does not divide into grains.
    #[error("`train.grain` = {grain} does not divide `train.batch` = {batch}; {} would", nearest_grains(*batch, *grain))]
    Grain {
        /// Samples per grain.
        grain: usize,
        /// Samples per step.
        batch: usize,
    },
    /// Nothing would be left to train on.
    #[error(
        "`data.test` = {test} and `data.validation` = {validation} together leave nothing to train on; their sum must be below 1"
    )]
    Shares {
        /// The share of the test part.
        test: f64,
        /// The share of the validation part.
        validation: f64,
    },
    /// Something that must not be empty.
    #[error("`{key}` is empty; {wanted}")]
    Empty {
        /// The key.
        key: &'static str,
        /// What it should have.
        wanted: &'static str,
    },
    /// Two keys that exclude each other.
    #[error("`{one}` and `{other}` exclude each other; leave one of them out")]
    Exclusive {
        /// A key.
        one: &'static str,
        /// The other.
        other: &'static str,
    },
    /// A key without the key that it works on.
    #[error("`{key}` needs {what}; set `{other}`")]
    Needs {
        /// The key.
        key: &'static str,
        /// What it needs.
        what: &'static str,
        /// The key that gives it.
        other: &'static str,
    },
    /// Something is monitored that is not measured.
    #[error("`train.monitor` = {name:?} is not measured{}; it can be {}", meant(.near), .known.join(", "))]
    Monitor {
        /// What is written.
        name: String,
        /// The nearest name, if one is near.
        near: Option<String>,
        /// What can be.
        known: Vec<String>,
    },
    /// Two nodes of one name.
    #[error("two entries of `model.node` have the name `{name}`; give each its own")]
    NodeTwice {
        /// The name.
        name: String,
    },
    /// A node that takes what comes after it.
    #[error(
        "`model.node` `{node}` takes `{input}`, which does not come before it; put `{input}` first"
    )]
    NodeOrder {
        /// The node.
        node: String,
        /// What it takes.
        input: String,
    },
    /// The label would be predicted from itself.
    #[error("`data.features` has the label `{label}`; leave it out, since it is what is predicted")]
    LabelIsFeature {
        /// The column.
        label: String,
    },
    /// A separator that the format cannot have.
    #[error(
        "`data.separator` must be one ASCII character other than a quote or a line end, found {found:?}"
    )]
    Separator {
        /// What is written.
        found: char,
    },
    /// More copies of a parameter than servers.
    #[error(
        "`distribute.replication` = {replication} needs as many servers, and `distribute.servers` = {n_servers}"
    )]
    Replication {
        /// Servers for each parameter.
        replication: usize,
        /// Servers.
        n_servers: usize,
    },
    /// A setting that changes what is learned, where the model of one worker is promised.
    #[error(
        "`{key}` changes what servers add up, and `distribute.consistency` = \"bsp\" promises the model of one worker, byte for byte; leave it out, or set `distribute.consistency` to \"ssp\", \"adaptive\" or \"async\""
    )]
    NotExact {
        /// The key.
        key: &'static str,
    },
    /// A mesh for another number of workers.
    #[error(
        "`distribute.mesh` = {mesh} is for {} workers, not {n_workers}: {}",
        mesh.n_workers(), that_fit(fitting, mesh.n_workers())
    )]
    MeshWorkers {
        /// The mesh.
        mesh: MeshSpec,
        /// How many workers there are.
        n_workers: usize,
        /// Meshes that would be for them.
        fitting: Vec<MeshSpec>,
    },
    /// A strategy with a mesh that has nothing of it.
    #[error(
        "`distribute.strategy` = \"{}\" with `distribute.mesh` = {mesh}, which has one worker along `{axis}`; set `distribute.mesh.{axis}` above 1, or leave the strategy out",
        strategy.word()
    )]
    MeshWithout {
        /// The strategy.
        strategy: Strategy,
        /// The mesh.
        mesh: MeshSpec,
        /// The axis that it lacks.
        axis: &'static str,
    },
    /// A level without replicas.
    #[error(
        "`distribute.level` = {level} shares state out over replicas, and a mesh of {mesh} has one: take more workers along `data`, fewer `stages`, or leave `level` out"
    )]
    NoReplicas {
        /// The level.
        level: u8,
        /// The mesh.
        mesh: Mesh,
    },
    /// A pipeline that does not come out even.
    #[error(
        "`distribute.stages` = {stages} cannot be shared out over {n_workers} workers; {} would fit",
        stages_of(*n_workers, *stages)
    )]
    Stages {
        /// Its stages.
        stages: usize,
        /// How many workers there are.
        n_workers: usize,
    },
    /// Other cuts than the pipeline has chunks.
    #[error(
        "`distribute.cut` names {n_cuts} layer(s), which makes {} chunks, and {n_workers} workers have {n_chunks}; name {}, or leave it out",
        n_cuts + 1, n_chunks.saturating_sub(1)
    )]
    Cuts {
        /// The layers that are named.
        n_cuts: usize,
        /// The chunks that there are to be.
        n_chunks: usize,
        /// The workers.
        n_workers: usize,
    },
    /// Nothing is held by one worker alone that a neighbour could keep.
    #[error(
        "`distribute.mirror` has nothing to do with {mesh}: {}; leave it out",
        why_no_mirror(mesh)
    )]
    NothingToMirror {
        /// The mesh.
        mesh: Mesh,
    },
    /// An amount of memory that cannot be read.
    #[error(
        "`distribute.memory` must be an amount such as \"2GiB\" or \"800 MB\", found {found:?}"
    )]
    Memory {
        /// What is written.
        found: String,
    },
    /// A seed that TOML cannot hold.
    #[error("`train.seed` must be below 2^63, found {found}")]
    Seed {
        /// What is written.
        found: u64,
    },
}

impl CheckError {
    /// The key to look at.
    pub fn key(&self) -> &str {
        match self {
            CheckError::AtLeast { key, .. }
            | CheckError::Empty { key, .. }
            | CheckError::NotExact { key }
            | CheckError::Needs { key, .. } => key,
            CheckError::Exclusive { other, .. } => other,
            CheckError::Range { key, .. } => key,
            CheckError::Grain { .. } => "train.grain",
            CheckError::Shares { .. } => "data.validation",
            CheckError::Monitor { .. } => "train.monitor",
            CheckError::NodeTwice { .. } | CheckError::NodeOrder { .. } => "model.node",
            CheckError::LabelIsFeature { .. } => "data.features",
            CheckError::Separator { .. } => "data.separator",
            CheckError::Replication { .. } => "distribute.replication",
            CheckError::MeshWorkers { .. } | CheckError::MeshWithout { .. } => "distribute.mesh",
            CheckError::NoReplicas { .. } => "distribute.level",
            CheckError::Stages { .. } => "distribute.stages",
            CheckError::Cuts { .. } => "distribute.cut",
            CheckError::NothingToMirror { .. } => "distribute.mirror",
            CheckError::Memory { .. } => "distribute.memory",
            CheckError::Seed { .. } => "train.seed",
        }
    }
}

fn meant(near: &Option<String>) -> String {
    near.as_ref().map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default()
}

/// What would fit instead of a mesh for another number of workers.
fn that_fit(fitting: &[MeshSpec], n_workers: usize) -> String {
    let meshes: Vec<String> = fitting.iter().map(ToString::to_string).collect();
    match meshes.is_empty() {
        true => format!("only {n_workers} workers would fit"),
        false => format!("{} would fit", meshes.join(" or ")),
    }
}

/// The numbers of stages next to the wanted one that workers can be shared out over.
fn stages_of(n_workers: usize, wanted: usize) -> String {
    nearest_grains(n_workers, wanted)
}

fn why_no_mirror(mesh: &Mesh) -> &'static str {
    match mesh.n_workers() {
        1 => "there is no neighbour",
        _ => "without `distribute.level` every replica holds all of the state",
    }
}

/// The grains next to the wanted one that divide the batch, in words.
fn nearest_grains(batch: usize, wanted: usize) -> String {
    let divides = |grain: &usize| batch.is_multiple_of(*grain);
    let below = (1..=wanted.min(batch)).rev().find(divides);
    let above = (wanted.saturating_add(1)..=batch).find(divides);
    match (below, above) {
        (Some(below), Some(above)) => format!("{below} or {above}"),
        (Some(one), None) | (None, Some(one)) => one.to_string(),
        (None, None) => "1".to_string(),
    }
}

/// The most grains that a batch is cut into unless the job says so.
const MOST_GRAINS: usize = 8;
/// The fewest samples that such a grain has: less would be more overhead than work.
const FEWEST_SAMPLES: usize = 16;

impl TrainSpec {
    /// Samples per grain: `train.grain`, else the batch cut into the most equal grains, at most eight, of at least 16
    /// samples; one grain where there is no such cut.
    pub fn samples_per_grain(&self) -> usize {
        let fits = |n: &usize| self.batch.is_multiple_of(*n) && self.batch / n >= FEWEST_SAMPLES;
        let default = || self.batch / (1..=MOST_GRAINS).rev().find(fits).unwrap_or(1);
        self.grain.unwrap_or_else(default)
    }
}

impl Job {
    /// Checks every value that can be checked without data.
    pub fn check(&self) -> Result<(), CheckError> {
        let Job { data, model, train, distribute, output } = self;
        check_data(data)?;
        check_samples(data)?;
        check_model(model)?;
        check_train(train)?;
        check_monitor(train, data.validation.is_some())?;
        check_distribute(distribute)?;
        check_output(output)
    }
}

fn at_least(key: &'static str, least: usize, found: usize) -> Result<(), CheckError> {
    if found >= least { Ok(()) } else { Err(CheckError::AtLeast { key, least, found }) }
}

fn at_least_if_said(
    key: &'static str,
    least: usize,
    found: Option<usize>,
) -> Result<(), CheckError> {
    found.map_or(Ok(()), |found| at_least(key, least, found))
}

fn range(key: &str, range: &'static str, found: f64, holds: bool) -> Result<(), CheckError> {
    if holds { Ok(()) } else { Err(CheckError::Range { key: key.to_string(), range, found }) }
}

fn not_negative(key: &str, found: f64) -> Result<(), CheckError> {
    range(key, "a finite number of at least 0", found, found >= 0.0 && found.is_finite())
}

fn check_data(data: &DataSpec) -> Result<(), CheckError> {
    check_source("data.train", &data.train)?;
    check_held_out("data.test", &data.test)?;
    check_held_out("data.validation", &data.validation)?;
    if let (Some(HeldOut::Share(test)), Some(HeldOut::Share(validation))) =
        (&data.test, &data.validation)
        && test + validation >= 1.0
    {
        return Err(CheckError::Shares { test: *test, validation: *validation });
    }
    if let Some(features) = &data.features {
        if features.is_empty() {
            return Err(CheckError::Empty {
                key: "data.features",
                wanted: "name at least one column, or leave it out for all",
            });
        }
        // In a window the past of the label is known.
        let label = data.label.as_ref().filter(|_| data.window.is_none());
        if let Some(label) = label.filter(|label| features.contains(label)) {
            return Err(CheckError::LabelIsFeature { label: label.clone() });
        }
    }
    let separates = |c: char| c.is_ascii() && !matches!(c, '"' | '\n' | '\r' | '\0');
    if !separates(data.separator) {
        return Err(CheckError::Separator { found: data.separator });
    }
    Ok(())
}

/// The keys that say what a sample is, and how samples are kept.
fn check_samples(data: &DataSpec) -> Result<(), CheckError> {
    if let Some(shape) = &data.shape {
        if shape.is_empty() {
            return Err(CheckError::Empty {
                key: "data.shape",
                wanted: "write the axes, such as [28, 28, 1]",
            });
        }
        shape.iter().try_for_each(|extent| at_least("data.shape", 1, *extent))?;
    }
    if data.window.is_some() && data.text.is_some() {
        return Err(CheckError::Exclusive { one: "data.window", other: "data.text" });
    }
    if let Some(window) = &data.window {
        at_least("data.window.length", 1, window.length)?;
        at_least("data.window.stride", 1, window.stride)?;
        at_least("data.window.horizon", 1, window.horizon)?;
    }
    if let Some(text) = &data.text {
        at_least("data.text.length", 1, text.length)?;
        at_least_if_said("data.text.stride", 1, text.stride)?;
        at_least_if_said("data.text.vocabulary", 1, text.vocabulary)?;
    }
    at_least_if_said("data.shuffle_window", 1, data.shuffle_window)?;
    at_least_if_said("data.memory", 1, data.memory)
}

fn check_source(key: &'static str, source: &Source) -> Result<(), CheckError> {
    let is_empty = match source {
        Source::One(path) => path.is_empty(),
        Source::Many(paths) => paths.is_empty() || paths.iter().any(String::is_empty),
        Source::Columns(files) => files.is_empty() || files.values().any(String::is_empty),
    };
    if is_empty {
        return Err(CheckError::Empty { key, wanted: "name a file, or a glob such as data/*.csv" });
    }
    Ok(())
}

fn check_held_out(key: &'static str, part: &Option<HeldOut>) -> Result<(), CheckError> {
    match part {
        Some(HeldOut::Share(share)) => {
            range(key, "a share between 0 and 1, or files", *share, *share > 0.0 && *share < 1.0)
        }
        Some(HeldOut::Files(source)) => check_source(key, source),
        None => Ok(()),
    }
}

fn check_model(model: &ModelSpec) -> Result<(), CheckError> {
    match (model.layers.is_empty(), model.node.is_empty()) {
        (true, true) => {
            return Err(CheckError::Empty {
                key: "model",
                wanted: "give it layers, such as layers = [\"dense 64 relu\", \"dense 10\"]",
            });
        }
        (false, false) => {
            return Err(CheckError::Exclusive { one: "model.layers", other: "model.node" });
        }
        _ => {}
    }
    let names: BTreeSet<&str> = model.node.iter().map(|node| node.name.as_str()).collect();
    let mut before = BTreeSet::new();
    for node in &model.node {
        if node.name.is_empty() {
            return Err(CheckError::Empty { key: "model.node", wanted: "name every node" });
        }
        let is_later =
            |input: &&String| names.contains(input.as_str()) && !before.contains(input.as_str());
        if let Some(input) = node.inputs.iter().find(is_later) {
            let (node, input) = (node.name.clone(), input.clone());
            return Err(CheckError::NodeOrder { node, input });
        }
        if !before.insert(node.name.as_str()) {
            return Err(CheckError::NodeTwice { name: node.name.clone() });
        }
    }
    Ok(())
}

fn check_train(train: &TrainSpec) -> Result<(), CheckError> {
    at_least("train.batch", 1, train.batch)?;
    at_least_if_said("train.grain", 1, train.grain)?;
    if let Some(grain) = train.grain.filter(|grain| !train.batch.is_multiple_of(*grain)) {
        return Err(CheckError::Grain { grain, batch: train.batch });
    }
    at_least("train.epochs", 1, train.epochs)?;
    at_least_if_said("train.steps", 1, train.steps)?;
    if let Some(Clip::Value(bound) | Clip::GlobalNorm(bound)) = train.clip {
        range("train.clip", "above 0 and finite", bound, bound > 0.0 && bound.is_finite())?;
    }
    if let Some(ClassWeights::Table(weights)) = &train.class_weights {
        for (class, weight) in weights {
            not_negative(&format!("train.class_weights.{class}"), *weight)?;
        }
    }
    if let Some(stopping) = &train.early_stopping {
        at_least("train.early_stopping.patience", 1, stopping.patience)?;
        not_negative("train.early_stopping.least", stopping.least)?;
    }
    if i64::try_from(train.seed).is_err() {
        return Err(CheckError::Seed { found: train.seed });
    }
    Ok(())
}

/// What is judged must be measured, and on data that is not trained on.
fn check_monitor(train: &TrainSpec, has_validation: bool) -> Result<(), CheckError> {
    let names = train.metrics.iter().map(|metric| metric.name().to_string());
    let known: Vec<String> = std::iter::once("loss".to_string()).chain(names).collect();
    let whole = train.metrics.iter().any(|metric| metric.to_string() == train.monitor);
    if !known.contains(&train.monitor) && !whole {
        let near = nearest_name(&train.monitor, known.iter().map(String::as_str));
        return Err(CheckError::Monitor { name: train.monitor.clone(), near, known });
    }
    let wanting = [
        ("train.early_stopping", train.early_stopping.is_some()),
        ("train.keep_best", train.keep_best),
        ("train.schedule", train.schedule.name() == "plateau"),
    ];
    match wanting.into_iter().find(|(_, wants)| *wants && !has_validation) {
        Some((key, _)) => {
            let what = "data to judge by";
            Err(CheckError::Needs { key, what, other: "data.validation" })
        }
        None => Ok(()),
    }
}

fn check_distribute(distribute: &DistributeSpec) -> Result<(), CheckError> {
    at_least_if_said("distribute.workers", 1, distribute.workers)?;
    at_least_if_said("distribute.threads", 1, distribute.threads)?;
    at_least_if_said("distribute.local.steps", 1, distribute.local.map(|local| local.steps))?;
    check_tables(distribute)?;
    check_traffic(distribute)?;
    check_mesh(distribute)?;
    let Some(outer) = distribute.local.and_then(|local| local.outer) else { return Ok(()) };
    not_negative("distribute.local.outer.rate", outer.rate)?;
    not_negative("distribute.local.outer.momentum", outer.momentum)
}

fn check_output(output: &OutputSpec) -> Result<(), CheckError> {
    not_negative("output.checkpoint_seconds", output.checkpoint_seconds)?;
    at_least("output.keep", 1, output.keep)?;
    if output.folder.as_ref().is_some_and(String::is_empty) {
        let wanted = "name a folder, or leave it out";
        return Err(CheckError::Empty { key: "output.folder", wanted });
    }
    Ok(())
}
