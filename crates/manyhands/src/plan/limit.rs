//! Whether what a job asks for fits in the memory that workers may take, and what would.

use std::time::{Duration, Instant};

use super::workload::CountedStep;
use super::{Candidate, Memory, Meshed, Workload, candidates, memory_of};
use crate::error::Error;
use crate::job::{MeshPlan, bytes_in_words};

/// More workers than asked for are looked at up to so many times as many.
const MORE_WORKERS: [usize; 4] = [1, 2, 4, 8];
/// After so long nothing more is looked at: large models on many workers take long to lay out.
const LONGEST_LOOK: Duration = Duration::from_secs(20);
/// So many ways that would fit are named.
const MOST_NAMED: usize = 3;

/// The error for a mesh, or for so many workers that each have all of the model, if it does not fit.
pub(crate) fn does_not_fit(
    workload: &Workload<'_>,
    mesh: Option<&MeshPlan>,
    n_workers: usize,
    limit: u64,
) -> Result<Option<Error>, Error> {
    let counted = workload.counted_bytes()?;
    let (way, memory) = match mesh {
        Some(plan) => {
            let meshed = Meshed::new(plan, workload.sizes, workload.threads(n_workers))?;
            (plan.to_string(), meshed.memory())
        }
        None => {
            let way = match n_workers {
                1 => "one worker".to_string(),
                n => format!("each of {n} workers with the whole model"),
            };
            (way, workload.memory_of_replicas(n_workers, counted)?)
        }
    };
    if memory.total() <= limit {
        return Ok(None);
    }
    let fitting = what_fits(workload, n_workers, counted, limit);
    let (needs, limit) = (memory.in_words(), bytes_in_words(limit));
    Ok(Some(Error::DoesNotFit { way, needs, limit, fitting }))
}

/// A clause: what fits with so many workers, or with more; else what takes least.
fn what_fits(
    workload: &Workload<'_>,
    n_workers: usize,
    counted: CountedStep,
    limit: u64,
) -> String {
    let mut least: Option<(Candidate, Memory)> = None;
    let start = Instant::now();
    for times in MORE_WORKERS {
        if start.elapsed() > LONGEST_LOOK {
            break;
        }
        let mut fitting = Vec::new();
        for candidate in candidates(n_workers.max(2) * times) {
            // What the model cannot be shared out by does not fit either.
            let Ok((memory, _)) = memory_of(workload, &candidate, counted, Some(limit)) else {
                continue;
            };
            if memory.total() <= limit {
                fitting.push((candidate, memory));
            } else if least.as_ref().is_none_or(|(_, known)| memory.total() < known.total()) {
                least = Some((candidate, memory));
            }
        }
        if !fitting.is_empty() {
            fitting.sort_by_key(|(_, memory)| memory.total());
            let named = fitting.iter().take(MOST_NAMED).map(in_words).collect::<Vec<_>>();
            return format!("what would fit: {}", named.join(", "));
        }
    }
    match least {
        Some(least) => format!(
            "the least that was found is {}; allow that much, or take a smaller `train.grain` or `distribute.recompute`",
            in_words(&least)
        ),
        None => "allow more, or take a smaller `train.grain`".to_string(),
    }
}

fn in_words((candidate, memory): &(Candidate, Memory)) -> String {
    format!("{} with {}", candidate.name, bytes_in_words(memory.total()))
}
