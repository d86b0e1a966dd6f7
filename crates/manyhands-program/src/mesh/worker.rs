//! The program of one worker of a mesh: pieces of the training program, and in which order they run and what moves between them.
//!
//! Values have names, and a grain where there is one of each per grain. A piece takes the values that its inputs are named after, and gives those
//! that its outputs are named after; its parameters are those of the worker. What a piece takes as `rate`, `step` and the inputs of
//! the data is handed in by whoever runs the step.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::along::part_type;
use crate::op::{Init, Role, SQUARE_BLOCK};
use crate::program::Program;
use crate::shape::TensorType;

/// What the names of a grain's sums that are scattered begin with.
pub const SCATTERED: &str = "scattered/";

/// What one worker of a mesh does in a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerProgram {
    /// Which worker of the mesh it is for.
    pub worker: usize,
    /// The grains of a step, those of other replicas included.
    pub n_grains: usize,
    /// What it computes.
    pub pieces: Vec<Piece>,
    /// What it does, one after the other.
    pub actions: Vec<Action>,
    /// The parameters that it holds from step to step.
    pub holdings: Vec<Holding>,
}

/// A part of the training program that runs as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// What it is, for people: `forward 0`, `backward 1`, `update`.
    pub name: String,
    /// The program of it.
    pub program: Program,
    /// The same for a step's last grain, where that is shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Program>,
}

/// A parameter as one worker holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holding {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// How its first value is made.
    pub init: Init,
    /// The whole of it.
    pub ty: TensorType,
    /// What the worker holds of it.
    pub along: Along,
    /// Whether another worker of the same replica holds the same, so that checkpoints take it from there.
    #[serde(default)]
    pub is_copy: bool,
}

/// What a worker holds of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Along {
    /// All of it.
    Whole,
    /// A run of its elements, as a tensor of one axis.
    Elements(Range<usize>),
    /// Some of it along one axis.
    Axis {
        /// Which axis.
        axis: usize,
        /// Which part of it: runs of that axis, one after the other.
        runs: Vec<Range<usize>>,
    },
    /// A run of the elements of what is some of it along one axis, as a tensor of one axis: a shard of a tensor part.
    AxisElements {
        /// Which axis.
        axis: usize,
        /// Which part of it: runs of that axis, one after the other.
        runs: Vec<Range<usize>>,
        /// The elements of that part.
        elements: Range<usize>,
    },
}

impl Along {
    /// What this is of a tensor of which only a part is there.
    pub fn within(self, part: &Along) -> Option<Along> {
        match (self, part.clone()) {
            (own, Along::Whole) => Some(own),
            (Along::Whole, part) => Some(part),
            (Along::Elements(elements), Along::Axis { axis, runs }) => {
                Some(Along::AxisElements { axis, runs, elements })
            }
            _ => None,
        }
    }
}

impl Holding {
    /// The bytes of what the worker holds; none where that does not lie in the whole.
    pub fn n_bytes(&self) -> usize {
        part_type(&self.ty, &self.along).map_or(0, |ty| ty.n_bytes())
    }
}

/// Where something lies on a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In a value, of the grain of the action if it has one.
    Value(String),
    /// In a parameter.
    Parameter(String),
}

/// What becomes of the sums of a piece that is run for a grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SumInto {
    /// They are written to a slot.
    Write(usize),
    /// They are added to those in a slot.
    Accumulate(usize),
    /// They are values of the grain, for [`Action::Scatter`].
    Value,
}

/// What a member of an exchange has afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Into {
    /// All of the totals.
    Whole,
    /// Its own shard of them, by [`shard_ranges`], as a tensor of one axis.
    Shard,
}

/// One thing that a worker does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Runs a piece, for a grain or once a step.
    Run {
        /// Which piece.
        piece: usize,
        /// For which grain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grain: Option<usize>,
        /// What becomes of its sums over grains (outputs named `grain_sum#...`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sums: Option<SumInto>,
    },
    /// Adds all sums of one slot of a piece to those of another, on its left.
    Merge {
        /// Whose sums.
        piece: usize,
        /// The slot on the left, which takes the sum.
        into: usize,
        /// The slot on the right, which is free afterwards.
        from: usize,
    },
    /// Sends to another worker, which receives the same. Never waits for it.
    Send {
        /// What.
        what: Vec<Place>,
        /// Of which grain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grain: Option<usize>,
        /// To whom.
        to: usize,
    },
    /// Waits for what another worker sends.
    Receive {
        /// What.
        what: Vec<Place>,
        /// Of which grain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grain: Option<usize>,
        /// From whom.
        from: usize,
    },
    /// Has values become the sum of those of all members, added in their order.
    AllReduce {
        /// Which values.
        values: Vec<String>,
        /// Of which grain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grain: Option<usize>,
        /// Whose, this worker included.
        among: Vec<usize>,
    },
    /// Joins the sums over grains that members hold, along the tree, into the totals: values of the same names.
    Total {
        /// The piece whose slots they lie in.
        piece: usize,
        /// Which of its sums; all, unless said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sums: Option<Vec<String>>,
        /// Whose, this worker included.
        among: Vec<usize>,
        /// The subtrees that each member brings; its own lie in its slots 0, 1, ...
        brings: Vec<Vec<Range<usize>>>,
        /// What each has afterwards.
        into: Into,
    },
    /// Gives every member its shard of the sums of one grain of each, which it adds along the tree; after the last grain of the step the shard of
    /// the totals is a value, of no grain. Sums that are scattered are values of the grain, named [`SCATTERED`] and then as the total is; they are not there
    /// afterwards.
    Scatter {
        /// Which piece gave the sums: all of its outputs that are named so.
        piece: usize,
        /// Whose, this worker included.
        among: Vec<usize>,
        /// The grain that each member brings, in rising order; those without one at the end.
        grains: Vec<Option<usize>>,
    },
    /// Sends this worker's shard to the other members, for a [`Action::Gather`] later. Never waits.
    Offer {
        /// What it has a shard of.
        shard: Place,
        /// To whom, this worker included.
        among: Vec<usize>,
    },
    /// Puts the shards that members offered together, one after the other in their order, as long as each is.
    Gather {
        /// What was offered.
        shard: Place,
        /// Where the whole goes, as the type there says.
        into: Place,
        /// By whom, this worker included.
        among: Vec<usize>,
    },
    /// Copies a parameter, or a run of its elements, into a value.
    Copy {
        /// Which parameter.
        parameter: String,
        /// Which of its elements; all, in the parameter's shape, unless said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        elements: Option<Range<usize>>,
        /// The value.
        into: String,
        /// Of which grain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grain: Option<usize>,
    },
    /// Values that are not used again.
    Forget {
        /// Which.
        values: Vec<String>,
        /// Of which grain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grain: Option<usize>,
    },
    /// Waits until all workers are here. What follows changes parameters and sends nothing that could be lost: from here the step counts.
    Commit,
}

impl WorkerProgram {
    /// The program of a piece for a grain: the last may be shorter.
    pub fn program(&self, piece: usize, grain: Option<usize>) -> &Program {
        let Piece { program, last, .. } = &self.pieces[piece];
        match last {
            Some(last) if grain.is_some_and(|grain| grain + 1 == self.n_grains) => last,
            _ => program,
        }
    }

    /// The types of all values, by name and whether they are of a shorter last grain, as the pieces say that take or give them.
    pub fn value_types(&self) -> BTreeMap<(&str, bool), &TensorType> {
        let mut types = BTreeMap::new();
        for piece in &self.pieces {
            for (program, is_last) in [(Some(&piece.program), false), (piece.last.as_ref(), true)] {
                let Some(program) = program else { continue };
                let inputs = program.inputs();
                let outputs = program.outputs().iter().map(|one| (one.name.as_str(), one.value));
                for (name, value) in inputs.chain(outputs) {
                    types.insert((name, is_last), program.ty(value));
                }
            }
        }
        types
    }
}

/// The elements of which each of `n` members has the shard: as equal as edges of blocks allow, on which norms are summed.
pub fn shard_ranges(n_elements: usize, n: usize) -> Vec<Range<usize>> {
    let n_blocks = n_elements.div_ceil(SQUARE_BLOCK);
    let edge = |member: usize| (n_blocks * member / n.max(1) * SQUARE_BLOCK).min(n_elements);
    (0..n)
        .map(|member| edge(member)..if member + 1 == n { n_elements } else { edge(member + 1) })
        .collect()
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Value(name) => write!(f, "{name}"),
            Place::Parameter(name) => write!(f, "parameter {name}"),
        }
    }
}

/// Words with commas between them.
fn list<T: fmt::Display>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn of_grain(grain: &Option<usize>) -> String {
    grain.map_or(String::new(), |grain| format!(" of grain {grain}"))
}

impl WorkerProgram {
    /// An action as a line of text.
    pub fn describe(&self, action: &Action) -> String {
        let name = |piece: &usize| self.pieces.get(*piece).map_or("?", |piece| &piece.name);
        match action {
            Action::Run { piece, grain, sums } => {
                let sums = match sums {
                    Some(SumInto::Write(slot)) => format!(", sums to slot {slot}"),
                    Some(SumInto::Accumulate(slot)) => format!(", sums added to slot {slot}"),
                    Some(SumInto::Value) | None => String::new(),
                };
                format!("run {}{}{sums}", name(piece), of_grain(grain))
            }
            Action::Merge { piece, into, from } => {
                format!("merge sums of {}: slot {from} into {into}", name(piece))
            }
            Action::Send { what, grain, to } => {
                format!("send {}{} to worker {to}", list(what), of_grain(grain))
            }
            Action::Receive { what, grain, from } => {
                format!("receive {}{} from worker {from}", list(what), of_grain(grain))
            }
            Action::AllReduce { values, grain, among } => {
                format!("all-reduce {}{} among {}", list(values), of_grain(grain), list(among))
            }
            Action::Total { piece, sums, among, into, .. } => {
                let what = match into {
                    Into::Whole => "totals",
                    Into::Shard => "shard of the totals",
                };
                let sums = sums.as_ref().map_or(String::new(), |sums| format!(" {}", list(sums)));
                format!("{what}{sums} of {} among {}", name(piece), list(among))
            }
            Action::Scatter { piece, among, grains } => {
                let grains: Vec<usize> = grains.iter().flatten().copied().collect();
                format!(
                    "scatter sums of {} of grains {} among {}",
                    name(piece),
                    list(&grains),
                    list(among)
                )
            }
            Action::Offer { shard, among } => format!("offer {shard} among {}", list(among)),
            Action::Gather { shard, into, among } => {
                format!("gather {shard} among {} into {into}", list(among))
            }
            Action::Copy { parameter, elements, into, grain } => {
                let elements = elements
                    .as_ref()
                    .map_or(String::new(), |run| format!(" elements {} to {}", run.start, run.end));
                format!("copy parameter {parameter}{elements} into {into}{}", of_grain(grain))
            }
            Action::Forget { values, grain } => {
                format!("forget {}{}", list(values), of_grain(grain))
            }
            Action::Commit => "commit".to_string(),
        }
    }
}

impl fmt::Display for WorkerProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "worker {} {{", self.worker)?;
        for action in &self.actions {
            writeln!(f, "  {}", self.describe(action))?;
        }
        writeln!(f, "}}")?;
        self.pieces.iter().try_for_each(|piece| write!(f, "# {}\n{}", piece.name, piece.program))
    }
}
