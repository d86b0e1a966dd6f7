//! Who takes which place of a mesh, and from which step it goes on: decided from what workers say they hold.
//!
//! State is cut into *units*: a parameter, or the part of it that one place holds. A step can be gone on from where every unit of it is held by
//! somebody who is here; who stopped at the commit of that step can finish it alone, since it has all that it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use manyhands_program::mesh::{Along, MIRROR, Mesh, WorkerProgram};
use serde::{Deserialize, Serialize};

/// A parameter or a part of one, as a place holds it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::cluster) struct Unit {
    /// The parameter.
    pub(in crate::cluster) name: String,
    /// What of it, in words that tell parts apart.
    pub(in crate::cluster) part: String,
}

impl Unit {
    pub(in crate::cluster) fn new(name: &str, along: &Along) -> Unit {
        let part = match along {
            Along::Whole => String::new(),
            Along::Elements(run) => format!("elements {} to {}", run.start, run.end),
            Along::Axis { axis, runs } => format!("axis {axis}: {runs:?}"),
            Along::AxisElements { axis, runs, elements } => {
                let (start, end) = (elements.start, elements.end);
                format!("axis {axis}: {runs:?}, elements {start} to {end}")
            }
        };
        // What is kept for another worker is what that one holds.
        let name = name.strip_prefix(MIRROR).unwrap_or(name).to_string();
        Unit { name, part }
    }
}

/// What a worker says of the state that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cluster) struct Standing {
    /// The formation in which it got there.
    pub(in crate::cluster) formation: u64,
    /// Its place in that.
    pub(in crate::cluster) place: usize,
    /// Steps behind its state.
    pub(in crate::cluster) steps: u64,
    /// Whether it stopped at the commit of the next step, and can finish that.
    pub(in crate::cluster) can_finish: bool,
}

/// Where a formation goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cluster) enum Source {
    /// What the driver has.
    Kept,
    /// What workers have after so many steps: each unit from the worker of this index.
    Workers {
        /// How many steps.
        steps: u64,
        /// Who gives, by index among those who stand somewhere, and which units.
        givers: BTreeMap<usize, Vec<Unit>>,
    },
}

/// Decides where to go on from, with the reason. `kept` is the step of the state that the driver has; `units` are those that each place
/// of the formation before held; `standings` are of the workers that are here, if they hold state of it.
pub(in crate::cluster) fn source(
    kept: u64,
    formation: u64,
    units: &[Vec<Unit>],
    standings: &[Option<Standing>],
) -> (Source, String) {
    let held: Vec<(usize, Standing)> = standings
        .iter()
        .enumerate()
        .filter_map(|(idx, standing)| Some((idx, (*standing)?)))
        .filter(|(_, one)| one.formation == formation && one.place < units.len())
        .collect();
    let reached = |one: &Standing| one.steps + u64::from(one.can_finish);
    let mut steps: BTreeSet<u64> = held.iter().map(|(_, one)| one.steps).collect();
    // Nobody finishes a step alone unless somebody has passed its commit: steps that were reached so are no candidates.
    steps.retain(|step| *step > kept);
    let all: BTreeSet<&Unit> = units.iter().flatten().collect();
    let mut missing = None;
    for &step in steps.iter().rev() {
        let mut givers: BTreeMap<usize, Vec<Unit>> = BTreeMap::new();
        let mut lacking = all.clone();
        for (idx, one) in held.iter().filter(|(_, one)| one.steps <= step && reached(one) >= step) {
            for unit in units[one.place].iter().filter(|unit| lacking.remove(unit)) {
                givers.entry(*idx).or_default().push(unit.clone());
            }
        }
        match lacking.first() {
            None => {
                let givers_hold = match givers.len() {
                    1 => "1 worker holds".to_string(),
                    n => format!("{n} workers hold"),
                };
                let reason = format!("{givers_hold} all of the state after step {step}");
                return (Source::Workers { steps: step, givers }, reason);
            }
            Some(unit) => missing = missing.or(Some((step, (*unit).clone()))),
        }
    }
    let reason = match missing {
        Some((step, unit)) => {
            format!("nobody who is here holds {} after step {step}", unit.name)
        }
        None => {
            format!("nobody who is here holds any part of a state after more than {kept} steps")
        }
    };
    (Source::Kept, reason)
}

/// The mesh for so many workers: the one that is wanted where there are enough, else one with fewer replicas, then with fewer stages. The tensor axis stays
/// as it is, since another would be another model to the last bit. None where too few are here for any.
pub(in crate::cluster) fn mesh_for(wanted: Mesh, n_here: usize) -> Option<Mesh> {
    let fits = |mesh: Mesh| (mesh.n_workers() <= n_here).then_some(mesh);
    let fewer_replicas = (1..=wanted.data).rev().map(|data| Mesh { data, ..wanted });
    let fewer_stages =
        (1..wanted.pipeline).rev().map(|pipeline| Mesh { data: 1, pipeline, ..wanted });
    fewer_replicas.chain(fewer_stages).find_map(fits)
}

/// Why a mesh is not formed of so many workers yet, if it waits for more: it has waited for so long, of so long at most. Where none can be formed of them it
/// waits for ever.
pub(in crate::cluster) fn still_missing(
    wanted: Mesh,
    n_here: usize,
    waited: Duration,
    patience: Duration,
) -> Option<String> {
    let n_wanted = wanted.n_workers();
    let are_here = if n_here == 1 { "1 is here".to_string() } else { format!("{n_here} are here") };
    if n_here >= n_wanted {
        return None;
    }
    match mesh_for(wanted, n_here) {
        None => Some(format!(
            "{wanted} is for {n_wanted} workers, and for {} at least; {are_here}, more are waited for",
            wanted.tensor
        )),
        Some(smaller) => (waited < patience).then(|| {
            let seconds = patience.as_secs();
            format!(
                "{wanted} is for {n_wanted} workers, {are_here}; unless more come within {seconds} s, it goes on with {smaller}"
            )
        }),
    }
}

/// The units that each place holds, copies and mirrored ones included.
pub(in crate::cluster) fn units_of(workers: &[WorkerProgram]) -> Vec<Vec<Unit>> {
    let of = |worker: &WorkerProgram| {
        worker.holdings.iter().map(|one| Unit::new(&one.name, &one.along)).collect()
    };
    workers.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(name: &str) -> Unit {
        Unit::new(name, &Along::Whole)
    }

    fn at(place: usize, steps: u64, can_finish: bool) -> Option<Standing> {
        Some(Standing { formation: 1, place, steps, can_finish })
    }

    /// Two replicas of two stages: places 0 and 2 hold `a`, 1 and 3 hold `b`.
    fn replicated() -> Vec<Vec<Unit>> {
        ["a", "b", "a", "b"].into_iter().map(|name| vec![unit(name)]).collect()
    }

    fn decide(kept: u64, standings: &[Option<Standing>]) -> Option<u64> {
        match source(kept, 1, &replicated(), standings).0 {
            Source::Kept => None,
            Source::Workers { steps, .. } => Some(steps),
        }
    }

    #[test]
    fn what_a_lost_replica_held_another_has() {
        assert_eq!(decide(0, &[at(0, 7, false), None, None, at(3, 7, false)]), Some(7));
        assert_eq!(decide(7, &[at(0, 7, false), at(3, 7, false)]), None, "the driver has it too");
    }

    #[test]
    fn who_stopped_at_the_commit_finishes_a_step_that_somebody_has_done() {
        assert_eq!(decide(0, &[at(0, 6, true), at(1, 7, false)]), Some(7));
        assert_eq!(decide(0, &[at(0, 6, false), at(1, 7, false)]), None, "it is too far behind");
        assert_eq!(
            decide(0, &[at(0, 6, true), at(1, 6, true)]),
            Some(6),
            "nobody passed the commit"
        );
    }

    #[test]
    fn state_that_only_a_lost_worker_held_is_taken_from_what_was_saved() {
        let (found, reason) = source(4, 1, &replicated(), &[at(0, 7, false), at(2, 7, false)]);
        assert_eq!(found, Source::Kept);
        assert!(reason.contains("nobody who is here holds b after step 7"), "{reason}");
    }

    #[test]
    fn state_of_another_formation_does_not_count() {
        let other = Some(Standing { formation: 2, place: 0, steps: 9, can_finish: false });
        assert_eq!(decide(0, &[other, at(1, 9, false)]), None);
    }

    #[test]
    fn more_workers_are_waited_for_and_people_are_told_for_how_long() {
        let wanted = Mesh { data: 2, pipeline: 2, tensor: 1 };
        let (soon, late) = (Duration::from_secs(1), Duration::from_secs(3));
        assert_eq!(still_missing(wanted, 4, Duration::ZERO, late), None);
        assert_eq!(still_missing(wanted, 3, late, late), None);
        let sentence = still_missing(wanted, 3, soon, late).unwrap();
        assert_eq!(
            sentence,
            "data 2 x pipeline 2 is for 4 workers, 3 are here; unless more come within 3 s, it goes on with pipeline 2"
        );
        let tensor = Mesh { tensor: 2, ..wanted };
        let sentence = still_missing(tensor, 1, 9 * late, late).unwrap();
        assert!(sentence.contains("and for 2 at least; 1 is here, more are"), "{sentence}");
    }

    #[test]
    fn a_worker_that_was_away_brings_its_part_back() {
        let units = [vec![unit("a")], vec![unit("b")]];
        let (found, _) = source(4, 1, &units, &[at(1, 7, false), None, at(0, 6, true)]);
        let Source::Workers { steps: 7, givers } = found else { panic!("{found:?}") };
        assert_eq!(givers[&0], [unit("b")]);
        assert_eq!(givers[&2], [unit("a")]);
    }

    #[test]
    fn fewer_workers_make_a_smaller_mesh() {
        let wanted = Mesh { data: 2, pipeline: 3, tensor: 1 };
        assert_eq!(mesh_for(wanted, 9), Some(wanted));
        assert_eq!(mesh_for(wanted, 5), Some(Mesh { data: 1, ..wanted }));
        assert_eq!(mesh_for(wanted, 2), Some(Mesh { data: 1, pipeline: 2, tensor: 1 }));
        assert_eq!(mesh_for(Mesh { tensor: 2, ..wanted }, 1), None);
    }
}
