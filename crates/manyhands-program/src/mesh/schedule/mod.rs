//! Schedules of pipelines, as data: which chunk runs which grain when, a list per stage.
//!
//! Chunk `c` lies on stage `c % n_stages`. In every schedule a chunk takes its grains in rising order, forward and backward, so that
//! sums over grains can follow their tree while grains stream in.

mod check;

pub use check::{ScheduleChecked, ScheduleFault, check_schedule};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Phase;

/// A kind of schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Schedule {
    /// All grains forward, then all backward.
    #[serde(rename = "gpipe")]
    Gpipe,
    /// Backward as soon as there is one to do: a stage keeps as many grains as there are stages from it to the end.
    #[default]
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// The same with several chunks a stage: a smaller bubble for more messages.
    #[serde(rename = "interleaved")]
    Interleaved,
    /// The order of 1F1B, and every grain is an update of its own, with the weights that its forward saw.
    #[serde(rename = "asynchronous")]
    Asynchronous,
}

/// A chunk that runs for a grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slot {
    /// Which chunk.
    pub chunk: usize,
    /// For which grain.
    pub grain: usize,
    /// [`Phase::Forward`] or [`Phase::Backward`].
    pub phase: Phase,
}

/// A schedule that cannot be.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ScheduleError {
    #[error(
        "a pipeline has at least one stage and one chunk a stage, not {n_stages} and {chunks_per_stage}"
    )]
    Empty { n_stages: usize, chunks_per_stage: usize },
    #[error(
        "with {chunks_per_stage} chunks on each of {n_stages} stages the schedule is `interleaved`; the one asked for has one chunk a stage"
    )]
    SeveralChunks { n_stages: usize, chunks_per_stage: usize },
}

/// What every stage does in a step, in order.
pub fn schedule(
    kind: Schedule,
    n_stages: usize,
    chunks_per_stage: usize,
    n_grains: usize,
) -> Result<Vec<Vec<Slot>>, ScheduleError> {
    if n_stages == 0 || chunks_per_stage == 0 {
        return Err(ScheduleError::Empty { n_stages, chunks_per_stage });
    }
    let stages = 0..n_stages;
    match kind {
        Schedule::Interleaved if n_stages > 1 && chunks_per_stage > 1 => Ok(stages
            .map(|stage| interleaved(stage, n_stages, chunks_per_stage, n_grains))
            .collect()),
        _ if chunks_per_stage > 1 && n_stages > 1 => {
            Err(ScheduleError::SeveralChunks { n_stages, chunks_per_stage })
        }
        Schedule::Gpipe => {
            Ok(stages.map(|stage| fill_and_drain(stage, chunks_per_stage, n_grains)).collect())
        }
        _ if n_stages == 1 => Ok(vec![grain_by_grain(chunks_per_stage, n_grains)]),
        _ => Ok(stages.map(|stage| one_forward_one_backward(stage, n_stages, n_grains)).collect()),
    }
}

/// The share of the time in which a stage waits, where all chunks take the same time and messages none. Interleaved: of grains that are a
/// multiple of the stages; others wait a little more.
pub fn bubble(kind: Schedule, n_stages: usize, chunks_per_stage: usize, n_grains: usize) -> f64 {
    let per_grain = match kind {
        Schedule::Interleaved => chunks_per_stage,
        _ => 1,
    };
    let waits = n_stages.saturating_sub(1);
    match n_grains * per_grain + waits {
        0 => 0.0,
        all => waits as f64 / all as f64,
    }
}

fn forward(chunk: usize, grain: usize) -> Slot {
    Slot { chunk, grain, phase: Phase::Forward }
}

fn backward(chunk: usize, grain: usize) -> Slot {
    Slot { chunk, grain, phase: Phase::Backward }
}

/// All forward, then all backward. More than one chunk only where there is one stage.
fn fill_and_drain(stage: usize, chunks_per_stage: usize, n_grains: usize) -> Vec<Slot> {
    let chunks = || (0..chunks_per_stage).map(move |idx| stage + idx);
    let grains = || 0..n_grains;
    let first = chunks().flat_map(|chunk| grains().map(move |grain| forward(chunk, grain)));
    let then = chunks().rev().flat_map(|chunk| grains().map(move |grain| backward(chunk, grain)));
    first.chain(then).collect()
}

/// One stage with all chunks: every grain goes through all of them and back before the next.
fn grain_by_grain(n_chunks: usize, n_grains: usize) -> Vec<Slot> {
    (0..n_grains)
        .flat_map(|grain| {
            let there = (0..n_chunks).map(move |chunk| forward(chunk, grain));
            there.chain((0..n_chunks).rev().map(move |chunk| backward(chunk, grain)))
        })
        .collect()
}

fn one_forward_one_backward(stage: usize, n_stages: usize, n_grains: usize) -> Vec<Slot> {
    let forwards = (0..n_grains).map(|grain| forward(stage, grain)).collect();
    let backwards = (0..n_grains).map(|grain| backward(stage, grain)).collect();
    alternating(forwards, backwards, n_stages - stage - 1)
}

/// So many forwards first, then one forward and one backward in turn, then the backwards that are left.
fn alternating(forwards: Vec<Slot>, backwards: Vec<Slot>, n_first: usize) -> Vec<Slot> {
    let mut forwards = forwards.into_iter();
    let mut slots: Vec<Slot> = forwards.by_ref().take(n_first).collect();
    for backward in backwards {
        slots.extend(forwards.next());
        slots.push(backward);
    }
    slots
}

/// Grains in groups as large as the pipeline; each group goes through one chunk of the stage after the other. Where grains do not fill the last
/// group it is made as if they did and the missing ones are left out: leaving grains out cannot make others wait for each other.
fn interleaved(
    stage: usize,
    n_stages: usize,
    chunks_per_stage: usize,
    n_grains: usize,
) -> Vec<Slot> {
    let n_groups = n_grains.div_ceil(n_stages);
    let chunk = |idx: usize| idx * n_stages + stage;
    let group = |group: usize| group * n_stages..(group + 1) * n_stages;
    let (mut forwards, mut backwards) = (Vec::new(), Vec::new());
    for at in 0..n_groups {
        for idx in 0..chunks_per_stage {
            forwards.extend(group(at).map(|grain| forward(chunk(idx), grain)));
        }
        for idx in (0..chunks_per_stage).rev() {
            backwards.extend(group(at).map(|grain| backward(chunk(idx), grain)));
        }
    }
    let n_first = 2 * (n_stages - stage - 1) + (chunks_per_stage - 1) * n_stages;
    let mut slots = alternating(forwards, backwards, n_first);
    slots.retain(|slot| slot.grain < n_grains);
    slots
}

#[cfg(test)]
mod tests;
