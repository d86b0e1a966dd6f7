//! What replicas do together while they run grains: all of them the same, in the same order, whether or not each has a grain left.
//!
//! The order is that of the replica with the most grains. One that has fewer takes part in the scatters and gathers of the runs that it does not have.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{Action, WorkerProgram};
use super::{Level, ShardError};

/// The runs of a replica group's pieces for grains.
pub(super) struct Rounds {
    /// The piece of each run of who has the most.
    pub(super) pieces: Vec<usize>,
    /// By run: the grain that each member has.
    pub(super) grains: Vec<Vec<Option<usize>>>,
}

impl Rounds {
    /// The rounds of workers that differ along the data axis only.
    pub(super) fn of(workers: &[&WorkerProgram], level: Level) -> Result<Rounds, ShardError> {
        let sequences: Vec<Vec<(usize, usize)>> =
            workers.iter().map(|worker| runs(worker)).collect();
        let longest = (0..sequences.len()).rev().max_by_key(|&member| sequences[member].len());
        let longest = longest.unwrap_or(0);
        let pieces: Vec<usize> = sequences[longest].iter().map(|(piece, _)| *piece).collect();
        let mut grains = vec![Vec::new(); pieces.len()];
        for (member, sequence) in sequences.iter().enumerate() {
            let differs = || ShardError::OrderDiffers {
                worker: workers[member].worker,
                other: workers[longest].worker,
            };
            let mut left = BTreeMap::new();
            sequence.iter().for_each(|(piece, _)| *left.entry(*piece).or_insert(0usize) += 1);
            let mut own = sequence.iter();
            for (piece, grains) in pieces.iter().zip(&mut grains) {
                let n_left = left.entry(*piece).or_insert(0);
                grains.push(match *n_left {
                    0 => None,
                    _ => {
                        *n_left -= 1;
                        let (found, grain) = own.next().ok_or_else(differs)?;
                        if found != piece {
                            return Err(differs());
                        }
                        Some(*grain)
                    }
                });
            }
            if own.next().is_some() {
                return Err(differs());
            }
        }
        for round in &grains {
            let found: Vec<usize> = round.iter().flatten().copied().collect();
            let is_contiguous = found.windows(2).all(|pair| pair[0] + 1 == pair[1]);
            let are_at_the_end = round.iter().skip(found.len()).all(Option::is_none);
            if !is_contiguous || !are_at_the_end {
                return Err(ShardError::NotInRounds { level, found });
            }
        }
        Ok(Rounds { pieces, grains })
    }
}

/// The pieces that a worker runs for grains, with the grains.
fn runs(worker: &WorkerProgram) -> Vec<(usize, usize)> {
    let runs = worker.actions.iter().filter_map(|action| match action {
        Action::Run { piece, grain: Some(grain), .. } => Some((*piece, *grain)),
        _ => None,
    });
    runs.collect()
}

/// Which weights are gathered before a run, and forgotten after it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Whole {
    pub(super) gathered: Vec<String>,
    pub(super) forgotten: Vec<String>,
}

/// Weights are gathered for the run that takes them, and kept for the next if that takes them too: so there are never those of more than one run, and what of the
/// next one's is on its way.
pub(super) fn whole_weights(needs: &[BTreeSet<String>]) -> Vec<Whole> {
    let nothing = BTreeSet::new();
    let need = |run: Option<usize>| run.and_then(|run| needs.get(run)).unwrap_or(&nothing);
    (0..needs.len())
        .map(|run| {
            let (before, own, after) =
                (need(run.checked_sub(1)), need(Some(run)), need(Some(run + 1)));
            Whole {
                gathered: own.difference(before).cloned().collect(),
                forgotten: own.difference(after).cloned().collect(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_kept_while_the_next_run_takes_them() {
        let needs = ["a", "ab", "b", "", "b"];
        let needs = needs.map(|names| names.chars().map(String::from).collect());
        let whole = whole_weights(&needs);
        let of = |list: &[String]| list.concat();
        let gathered: Vec<String> = whole.iter().map(|run| of(&run.gathered)).collect();
        let forgotten: Vec<String> = whole.iter().map(|run| of(&run.forgotten)).collect();
        assert_eq!(gathered, ["a", "b", "", "", "b"]);
        assert_eq!(forgotten, ["", "a", "b", "", "b"]);
    }
}
