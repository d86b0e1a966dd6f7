//! Proofs of a schedule by running it with sends that never block: everything once, nobody stuck, how much is kept, how long stages wait.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::Slot;
use crate::mesh::Phase;

/// What a checked schedule comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleChecked {
    /// By stage: the most pairs of chunk and grain that are between their forward and their backward at once.
    pub n_kept: Vec<usize>,
    /// When the last stage is done, in the units of the times given.
    pub seconds: f64,
    /// The share of that in which a stage waits, over all stages.
    pub bubble: f64,
}

/// What is wrong with a schedule.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ScheduleFault {
    #[error("stage {stage} runs {} of chunk {} for grain {} {n_times} times, not once", word(.slot), .slot.chunk, .slot.grain)]
    NotOnce { stage: usize, slot: Slot, n_times: usize },
    #[error("stage {stage} runs {} of chunk {} for grain {}, which is not its own", word(.slot), .slot.chunk, .slot.grain)]
    Foreign { stage: usize, slot: Slot },
    #[error("stage {stage} takes grain {} of chunk {} {} out of order", .slot.grain, .slot.chunk, word(.slot))]
    NotRising { stage: usize, slot: Slot },
    #[error("no stage can go on: stage {stage} waits to run {} of chunk {} for grain {}", word(.slot), .slot.chunk, .slot.grain)]
    Stuck { stage: usize, slot: Slot },
}

fn word(slot: &Slot) -> &'static str {
    match slot.phase {
        Phase::Forward => "forward",
        _ => "backward",
    }
}

/// Checks a schedule by running it; `seconds` are those of one chunk for one grain, forward and backward.
pub fn check_schedule(
    stages: &[Vec<Slot>],
    chunks_per_stage: usize,
    n_grains: usize,
    seconds: [f64; 2],
) -> Result<ScheduleChecked, ScheduleFault> {
    let n_chunks = stages.len() * chunks_per_stage;
    for (stage, slots) in stages.iter().enumerate() {
        check_complete(stage, slots, stages.len(), n_chunks, n_grains)?;
    }
    let n_kept = stages.iter().map(|slots| most_kept(slots)).collect();
    let seconds = run(stages, n_chunks, seconds)?;
    let all = seconds.last * stages.len() as f64;
    let bubble = if all > 0.0 { 1.0 - seconds.busy / all } else { 0.0 };
    Ok(ScheduleChecked { n_kept, seconds: seconds.last, bubble })
}

fn check_complete(
    stage: usize,
    slots: &[Slot],
    n_stages: usize,
    n_chunks: usize,
    n_grains: usize,
) -> Result<(), ScheduleFault> {
    let mut times: BTreeMap<Slot, usize> = BTreeMap::new();
    let mut next: BTreeMap<(usize, Phase), usize> = BTreeMap::new();
    for chunk in (stage..n_chunks).step_by(n_stages) {
        for grain in 0..n_grains {
            for phase in [Phase::Forward, Phase::Backward] {
                times.insert(Slot { chunk, grain, phase }, 0);
            }
        }
    }
    for &slot in slots {
        match times.get_mut(&slot) {
            Some(n_times) => *n_times += 1,
            None => return Err(ScheduleFault::Foreign { stage, slot }),
        }
    }
    if let Some((&slot, &n_times)) = times.iter().find(|(_, n_times)| **n_times != 1) {
        return Err(ScheduleFault::NotOnce { stage, slot, n_times });
    }
    for &slot in slots {
        let expected = next.entry((slot.chunk, slot.phase)).or_default();
        if slot.grain != *expected {
            return Err(ScheduleFault::NotRising { stage, slot });
        }
        *expected += 1;
    }
    Ok(())
}

fn most_kept(slots: &[Slot]) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for slot in slots {
        match slot.phase {
            Phase::Forward => now += 1,
            _ => now = now.saturating_sub(1),
        }
        most = most.max(now);
    }
    most
}

/// When the last stage is done, and how long all together were busy.
struct Seconds {
    last: f64,
    busy: f64,
}

fn run(
    stages: &[Vec<Slot>],
    n_chunks: usize,
    [forward, backward]: [f64; 2],
) -> Result<Seconds, ScheduleFault> {
    let mut done: BTreeMap<Slot, f64> = BTreeMap::new();
    let mut next = vec![0; stages.len()];
    let mut free_at = vec![0.0f64; stages.len()];
    let mut busy = 0.0;
    loop {
        let mut has_moved = false;
        for (stage, slots) in stages.iter().enumerate() {
            while let Some(slot) = slots.get(next[stage]) {
                let Some(ready) = ready_at(slot, n_chunks, &done) else { break };
                let takes = if slot.phase == Phase::Forward { forward } else { backward };
                free_at[stage] = free_at[stage].max(ready) + takes;
                busy += takes;
                done.insert(*slot, free_at[stage]);
                next[stage] += 1;
                has_moved = true;
            }
        }
        if !has_moved {
            break;
        }
    }
    let waiting = next.iter().enumerate().find(|(stage, at)| **at < stages[*stage].len());
    match waiting {
        Some((stage, &at)) => Err(ScheduleFault::Stuck { stage, slot: stages[stage][at] }),
        None => Ok(Seconds { last: free_at.into_iter().fold(0.0, f64::max), busy }),
    }
}

/// When everything that a slot waits for is done, if it is.
fn ready_at(slot: &Slot, n_chunks: usize, done: &BTreeMap<Slot, f64>) -> Option<f64> {
    let &Slot { chunk, grain, phase } = slot;
    let mut before = BTreeSet::new();
    if phase == Phase::Forward {
        before.extend(chunk.checked_sub(1).map(|chunk| Slot { chunk, grain, phase }));
    } else {
        before.insert(Slot { chunk, grain, phase: Phase::Forward });
        let next = chunk + 1;
        before.extend((next < n_chunks).then_some(Slot { chunk: next, grain, phase }));
    }
    before.iter().try_fold(0.0, |ready: f64, slot| done.get(slot).map(|at| ready.max(*at)))
}
