//! Worker programs, run against each other without computing: whether they fit together, and how long a step takes. What memory it takes is known where it is laid
//! out on a device.

mod state;
mod walk;

pub use walk::{Costs, Simulated, Span};

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use thiserror::Error;

use super::WorkerProgram;
use state::State;
use walk::{Observer, walk};

/// What checked worker programs come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// How many actions there are, of all workers.
    pub n_actions: usize,
    /// How many messages are sent.
    pub n_messages: usize,
}

/// A worker that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which.
    pub worker: usize,
    /// What it wants to do, as a line of text.
    pub action: String,
}

/// What is wrong with worker programs.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fault {
    #[error("the programs are for workers {found:?}, not for 0, 1, ... in order")]
    Workers { found: Vec<usize> },
    #[error("nobody can go on: {}", waiting_list(.waiting))]
    Stuck { waiting: Vec<Waiting> },
    #[error("worker {worker} is to {action}, but has no `{name}` then")]
    Missing { worker: usize, action: String, name: String },
    #[error("worker {worker} is to {action}, but it does not hold the parameter `{name}`")]
    NotHeld { worker: usize, action: String, name: String },
    #[error("worker {worker} is to {action}, but there is no such piece")]
    NoPiece { worker: usize, action: String },
    #[error("worker {worker} is to {action} a second time")]
    Twice { worker: usize, action: String },
    #[error("the piece \"{piece}\" does not run for grain {grain} as often as for others")]
    Uneven { piece: String, grain: usize },
    #[error("the piece \"{piece}\" of worker {worker} never runs")]
    Never { worker: usize, piece: String },
    #[error(
        "worker {worker} is to {action}, but slot {slot} does not hold what belongs there along the tree"
    )]
    Sums { worker: usize, action: String, slot: usize },
    #[error(
        "worker {worker} is to {action}, but the subtrees {found:?} do not make the tree over all grains"
    )]
    Tree { worker: usize, action: String, found: Vec<Range<usize>> },
    #[error("sums of the piece \"{piece}\" stay on worker {worker}; nobody totals them")]
    NotTotalled { worker: usize, piece: String },
    #[error("what worker {from} sends to worker {to} is never received: {what}")]
    NotReceived { from: usize, to: usize, what: String },
}

fn waiting_list(waiting: &[Waiting]) -> String {
    let words = waiting.iter().map(|one| format!("worker {} waits to {}", one.worker, one.action));
    words.collect::<Vec<_>>().join("; ")
}

/// Checks that the programs of all workers fit together: every message is sent and received, exchanges meet, values are there when they are
/// taken, every piece runs for every grain once, all sums are totalled along the tree, and nobody waits for ever.
pub fn check(workers: &[WorkerProgram]) -> Result<Checked, Fault> {
    let mut observer = Facts::new(workers);
    let walked = walk(workers, &NoTime, &mut observer)?;
    observer.finish(workers)?;
    let n_actions = workers.iter().map(|worker| worker.actions.len()).sum();
    Ok(Checked { n_actions, n_messages: walked.n_messages })
}

/// The seconds of a step and of its parts, where actions cost what they are said to.
pub fn simulate(workers: &[WorkerProgram], costs: &dyn Costs) -> Result<Simulated, Fault> {
    Ok(walk(workers, costs, &mut ())?.simulated)
}

/// Costs of nothing, where only the order matters.
struct NoTime;

impl Costs for NoTime {
    fn run(&self, _: usize, _: usize, _: Option<usize>) -> f64 {
        0.0
    }

    fn message(&self, _: usize, _: usize, _: usize) -> f64 {
        0.0
    }

    fn exchange(&self, _: usize, _: usize, _: bool) -> f64 {
        0.0
    }
}

/// What is known of all workers while they are walked.
struct Facts {
    states: Vec<State>,
}

impl Facts {
    fn new(workers: &[WorkerProgram]) -> Facts {
        let given: BTreeSet<String> = workers.iter().flat_map(state::given_names).collect();
        Facts { states: workers.iter().map(|worker| State::new(worker, &given)).collect() }
    }

    /// What must hold when all are done.
    fn finish(&self, workers: &[WorkerProgram]) -> Result<(), Fault> {
        let mut n_runs: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (worker, state) in workers.iter().zip(&self.states) {
            state.finish(worker)?;
            for &(piece, grain) in &state.ran {
                let name = worker.pieces[piece].name.as_str();
                let counts = n_runs.entry(name).or_insert_with(|| vec![0; worker.n_grains]);
                if let Some(n) = grain.and_then(|grain| counts.get_mut(grain)) {
                    *n += 1;
                }
            }
        }
        for (name, counts) in &n_runs {
            let most = counts.iter().copied().max().unwrap_or(0);
            if let Some(grain) = counts.iter().position(|&n| n != most) {
                return Err(Fault::Uneven { piece: (*name).to_string(), grain });
            }
        }
        for (worker, state) in workers.iter().zip(&self.states) {
            for (idx, piece) in worker.pieces.iter().enumerate() {
                let is_of_grains = n_runs
                    .get(piece.name.as_str())
                    .is_some_and(|counts| counts.iter().any(|&n| n > 0));
                let has_run = state.ran.iter().any(|(ran, _)| *ran == idx);
                if !has_run && !is_of_grains {
                    let (worker, piece) = (worker.worker, piece.name.clone());
                    return Err(Fault::Never { worker, piece });
                }
            }
        }
        Ok(())
    }
}

impl Observer for Facts {
    fn observe(&mut self, program: &WorkerProgram, at: usize) -> Result<(), Fault> {
        self.states[program.worker].act(program, &program.actions[at])
    }
}

#[cfg(test)]
mod tests;
