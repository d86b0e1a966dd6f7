//! From a job's training programs to what every worker of a mesh does: split, cut, scheduled, sharded, checked.

use std::collections::{BTreeMap, BTreeSet};

use manyhands_program::mesh::{
    Activations, Annotations, CROSSING_WEIGHT, Chunked, CutError, Cutting, Holding, Level,
    MeasuredCosts, Mesh, NodeCost, Places, Schedule, Shares, TensorParts, Wish, WorkerProgram,
    are_alike, check, cut, lower_parts, mirror, positions, shard, split,
};
use manyhands_program::{Program, Role, TensorType};

use super::error::MeshError;
use super::part::{own_name, part_of};
use crate::checkpoint::NamedTensor;
use crate::error::Error;
use crate::job::{MeshPlan, PipelineSchedule, Recompute};

/// The most pieces into which a worker's share of the model is cut where parameters are gathered piece by piece.
const MOST_PIECES: usize = 64;
/// Pieces that are gathered have about so many bytes of weights at most: workers hold two or three of them whole.
const LARGE_PIECE: usize = 4 << 20;

/// A training program for steps of one size.
pub(crate) struct TrainingOf<'a> {
    pub(crate) n_samples: usize,
    pub(crate) n_grains: usize,
    pub(crate) program: &'a Program,
    pub(crate) last: Option<&'a Program>,
}

/// What every worker does in steps of one size.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    pub(crate) n_samples: usize,
    pub(crate) n_grains: usize,
    pub(crate) workers: Vec<WorkerProgram>,
}

/// Spreads the programs of all sizes of steps over a mesh, which may be smaller than the one that the plan is for.
pub(crate) fn spread<'a>(
    plan: &MeshPlan,
    mesh: Mesh,
    sizes: impl IntoIterator<Item = TrainingOf<'a>>,
) -> Result<Vec<Spread>, Error> {
    let sizes: Vec<TrainingOf<'_>> = sizes.into_iter().collect();
    let programs = sizes.iter().flat_map(|one| std::iter::once(one.program).chain(one.last));
    let simplifies = are_alike(programs).map_err(MeshError::from)?;
    let mut cuts = Cuts { simplifies, places: None };
    let all = sizes.iter().map(|one| spread_one(plan, mesh, one, &mut cuts));
    Ok(all.collect::<Result<_, MeshError>>()?)
}

/// How steps of all sizes are cut: at one place, so that what is trained stays where it is.
struct Cuts {
    /// Whether programs are simplified before, which may not make them unlike each other.
    simplifies: bool,
    /// Where, once it is known.
    places: Option<Places>,
}

/// The tensor parts of a program.
pub(super) fn parts_of(
    plan: &MeshPlan,
    mesh: Mesh,
    program: &Program,
) -> Result<TensorParts, MeshError> {
    Ok(split(program, mesh.tensor, &annotations(program, &plan.split)?)?)
}

fn spread_one(
    plan: &MeshPlan,
    mesh: Mesh,
    of: &TrainingOf<'_>,
    cuts: &mut Cuts,
) -> Result<Spread, MeshError> {
    let level = plan.level.filter(|_| mesh.data > 1).map(Level::try_from).transpose()?;
    let parts = |program: &Program| parts_of(plan, mesh, program);
    let (split, last) = (parts(of.program)?, of.last.map(parts).transpose()?);
    let mut chunked = Vec::with_capacity(mesh.tensor);
    for (idx, program) in split.programs.iter().enumerate() {
        let last = last.as_ref().map(|last| &last.programs[idx]);
        chunked.push(chunks(plan, mesh, program, last, level == Some(Level::Weights), cuts)?);
    }
    let shares = match level {
        Some(Level::Gradients | Level::Weights) => Shares::Rounds,
        Some(Level::Slots) | None => Shares::Blocks,
    };
    let kind = schedule_of(plan.schedule);
    let per_stage = plan.chunks_per_stage;
    let mut workers = lower_parts(&chunked, mesh, of.n_grains, kind, per_stage, shares)?;
    if let Some(level) = level {
        workers = shard(workers, mesh, level)?;
    }
    // To the programs a tensor part is a parameter like any other, whole or in shards.
    if mesh.tensor > 1 {
        tell_parts(&mut workers, mesh, of.program, &split)?;
    }
    let workers = if plan.mirror { mirror(workers)? } else { workers };
    check(&workers)?;
    Ok(Spread { n_samples: of.n_samples, n_grains: of.n_grains, workers })
}

/// What a job says of how parameters are split, by their names.
fn annotations(
    program: &Program,
    said: &BTreeMap<String, usize>,
) -> Result<Annotations, MeshError> {
    let mut annotations = Annotations::default();
    for (pattern, axis) in said {
        let mut is_found = false;
        for (name, role, _) in program.parameters() {
            if role == Role::Weight && crate::job::matches(pattern, name) {
                is_found = true;
                let wish = Wish::Axis { axis: *axis, blocks: 1 };
                annotations.parameters.insert(name.to_string(), wish);
            }
        }
        if !is_found {
            return Err(MeshError::NothingToSplit { pattern: pattern.clone() });
        }
    }
    Ok(annotations)
}

/// Has holdings say what they are of the whole parameters, where each part's program knows only its own.
fn tell_parts(
    workers: &mut [WorkerProgram],
    mesh: Mesh,
    whole: &Program,
    split: &TensorParts,
) -> Result<(), MeshError> {
    let types: BTreeMap<&str, &TensorType> =
        whole.parameters().map(|(name, _, value)| (name, whole.ty(value))).collect();
    for (worker, program) in workers.iter_mut().enumerate() {
        let part = mesh.position(worker).tensor;
        for holding in &mut program.holdings {
            let found = split.parameters.iter().find(|one| one.name == holding.name);
            if let (Some(one), Some(ty)) = (found, types.get(holding.name.as_str())) {
                let along = holding.along.clone().within(&one.along[part]);
                let missing = || MeshError::Missing { name: holding.name.clone() };
                (holding.along, holding.ty) = (along.ok_or_else(missing)?, (*ty).clone());
            }
        }
    }
    Ok(())
}

/// The chunks of a program, cut where one before it was. Where parameters are gathered piece by piece, a chunk has as many pieces as it has layers, or nearly.
fn chunks(
    plan: &MeshPlan,
    mesh: Mesh,
    program: &Program,
    last: Option<&Program>,
    in_pieces: bool,
    known: &mut Cuts,
) -> Result<Chunked, MeshError> {
    let n_chunks = mesh.pipeline * plan.chunks_per_stage;
    let recompute = match plan.recompute {
        Recompute::None => Activations::Keep,
        Recompute::Selected => Activations::Selected,
        Recompute::All => Activations::Again,
    };
    let simplifies = known.simplifies;
    let cutting = |places: &Places| {
        let n_chunks = match places {
            Places::At(positions) => positions.len() + 1,
            Places::Balanced | Places::Before(_) => n_chunks,
        };
        Cutting { places: places.clone(), recompute, simplifies, ..Cutting::balanced(n_chunks) }
    };
    let is_wanted_mesh = mesh.pipeline == plan.mesh.pipeline;
    if !plan.cut.is_empty() && is_wanted_mesh {
        let places = Places::Before(plan.cut.clone());
        return Ok(cut(program, last, &cutting(&places))?);
    }
    let outcome = match &known.places {
        Some(places) => cut(program, last, &cutting(places)),
        None => Err(CutError::NoChunks),
    };
    let chunked = match outcome {
        Ok(chunked) => chunked,
        // The first, or one of another structure.
        Err(_) => {
            let places = Places::At(balanced(plan, mesh, (program, last), in_pieces, simplifies)?);
            let chunked = cut(program, last, &cutting(&places))?;
            known.places.get_or_insert(places);
            chunked
        }
    };
    let n_pieces = chunked.n_chunks / n_chunks;
    Ok(chunked.grouped(n_pieces))
}

/// The positions at which a program is cut so that chunks cost about the same: as measured, where it was, else as counted.
fn balanced(
    plan: &MeshPlan,
    mesh: Mesh,
    (program, last): (&Program, Option<&Program>),
    in_pieces: bool,
    simplifies: bool,
) -> Result<Vec<usize>, CutError> {
    let n_chunks = mesh.pipeline * plan.chunks_per_stage;
    let is_of_this =
        |costs: &&MeasuredCosts| costs.n_parts == mesh.tensor && costs.simplifies == simplifies;
    let measured = plan.costs.as_deref().filter(is_of_this);
    let of_node = measured.map(|costs| {
        move |_: &Program, node: usize| costs.seconds.get(node).copied().unwrap_or(0.0)
    });
    let cutting = |n_chunks| Cutting {
        cost: of_node.as_ref().map(|cost| cost as &NodeCost<'_>),
        crossing_weight: measured.map_or(CROSSING_WEIGHT, |costs| costs.seconds_per_byte),
        simplifies,
        ..Cutting::balanced(n_chunks)
    };
    let most = match in_pieces {
        true => n_pieces(program).div_ceil(n_chunks).clamp(1, MOST_PIECES),
        false => 1,
    };
    // A program may have fewer places to cut than layers.
    let mut outcome = positions(program, last, &cutting(n_chunks * most));
    for n_pieces in (1..most).rev() {
        if outcome.is_ok() {
            break;
        }
        outcome = positions(program, last, &cutting(n_chunks * n_pieces));
    }
    outcome
}

/// Into how many pieces a model is cut whose parameters are gathered piece by piece: one for each layer with weights, by the first words of their names, and more where
/// layers are large.
fn n_pieces(program: &Program) -> usize {
    let weights = program.parameters().filter(|(_, role, _)| *role == Role::Weight);
    let (mut layers, mut n_bytes) = (BTreeSet::new(), 0);
    for (name, _, value) in weights {
        layers.insert(name.split('/').next().unwrap_or(name));
        n_bytes += program.ty(value).n_bytes();
    }
    layers.len().max(n_bytes / LARGE_PIECE).max(1)
}

fn schedule_of(schedule: PipelineSchedule) -> Schedule {
    match schedule {
        PipelineSchedule::FillAndDrain => Schedule::Gpipe,
        PipelineSchedule::OneForwardOneBackward => Schedule::OneFOneB,
        PipelineSchedule::Interleaved => Schedule::Interleaved,
        PipelineSchedule::Asynchronous => Schedule::Asynchronous,
    }
}

/// A place's parts of the whole state, in the order of what it holds.
pub(crate) fn part_of_state(
    state: &[NamedTensor],
    holdings: &[Holding],
) -> Result<Vec<NamedTensor>, Error> {
    let part = |holding: &Holding| {
        let found = state.iter().find(|tensor| tensor.name == own_name(holding));
        let missing = || Error::MissingParameter { name: holding.name.clone() };
        let whole = found.ok_or_else(missing)?;
        Ok(NamedTensor { tensor: part_of(holding, &whole.tensor)?, ..whole.clone() })
    };
    holdings.iter().map(part).collect()
}
