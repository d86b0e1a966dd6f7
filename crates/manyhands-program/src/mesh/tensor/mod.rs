//! Tensor parallelism: from a training program to one program per part, each of which has a share of the large weights.
//!
//! A few parameters are annotated with the axis along which they are cut; everything else follows. A walk over the whole program, gradients
//! and optimizer included, knows of every value how it lies on the parts (`layout.rs`), and a rule per operation (`rules/`) says what
//! becomes of that: elementwise operations keep the cut, a sum over a cut axis gives summands, which `all_reduce` makes whole where somebody
//! needs them so. Where a cut value is needed whole, it is gathered: put into zeros and summed. A parameter whose next value comes out cut
//! is cut likewise, so that the rows of the next layer, biases, running statistics and the state of the optimizer need no annotation.
//!
//! All parts have the same operations in the same order, and a value has the same id on all of them; attributes differ. Sums are added in
//! another order than in the whole program, so bits differ from it, and from one number of parts to another.

mod choose;
mod layout;
mod parts;
mod rules;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::worker::Along;
use crate::dead_code;
use crate::error::ProgramError;
use crate::op::Op;
use crate::program::{Program, ValueId};
use layout::{Cut, Layout};
use parts::Parts;

/// What is said by hand of how parameters lie on the parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Annotations {
    /// By parameter. What follows from it for other parameters is found.
    pub parameters: BTreeMap<String, Wish>,
    /// Whether weights that nothing is said of are cut where that needs no gathering.
    pub rest: bool,
}

impl Default for Annotations {
    fn default() -> Annotations {
        Annotations { parameters: BTreeMap::new(), rest: true }
    }
}

/// How a parameter is to lie on the parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Wish {
    /// Every part has all of it.
    Whole,
    /// Cut along an axis.
    Axis {
        /// Which axis.
        axis: usize,
        /// Into how many equal blocks the axis is divided first; a part has a share of each. 3 for a fused projection to queries, keys
        /// and values.
        #[serde(default = "one_block")]
        blocks: usize,
    },
}

fn one_block() -> usize {
    1
}

/// A training program in parts.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorParts {
    /// The program of each part.
    pub programs: Vec<Program>,
    /// The parameters of the whole program, in its order.
    pub parameters: Vec<SplitParameter>,
    /// Weights that stay whole, and why.
    pub whole: Vec<StaysWhole>,
}

/// How a parameter lies on the parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitParameter {
    /// Its name.
    pub name: String,
    /// What each part has of it.
    pub along: Vec<Along>,
}

/// Why a weight stays whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaysWhole {
    /// Its name.
    pub name: String,
    /// The reason, as a sentence about it.
    pub reason: String,
}

impl fmt::Display for StaysWhole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" stays whole: {}", self.name, self.reason)
    }
}

/// A program that cannot be split as was asked.
#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs)]
pub enum SplitError {
    #[error("a program is split into at least one part, not 0")]
    NoParts,
    #[error("there is no parameter \"{name}\" to split")]
    NoSuchParameter { name: String },
    #[error("\"{name}\" has no axis {axis}: it has {rank}")]
    NoSuchAxis { name: String, axis: usize, rank: usize },
    #[error(
        "\"{name}\" cannot be split over {n_parts} parts along axis {axis}: its size of {size} in {blocks} blocks fits {}",
        listed(fitting)
    )]
    Size {
        name: String,
        axis: usize,
        size: usize,
        blocks: usize,
        n_parts: usize,
        fitting: Vec<usize>,
    },
    #[error(
        "\"{name}\" cannot be split over {n_parts} parts: the {heads} heads of the attention behind it fit {}",
        listed(fitting)
    )]
    Heads { name: String, heads: usize, n_parts: usize, fitting: Vec<usize> },
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// `1, 2 or 4`.
fn listed(numbers: &[usize]) -> String {
    let words: Vec<String> = numbers.iter().map(usize::to_string).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} or {last}", before.join(", ")),
        None => "no number of parts".to_string(),
    }
}

/// The cuts of parameters, by name; the others are whole.
type Cuts = BTreeMap<String, Cut>;

/// Splits a training program into parts.
pub fn split(
    program: &Program,
    n_parts: usize,
    wishes: &Annotations,
) -> Result<TensorParts, SplitError> {
    if n_parts == 0 {
        return Err(SplitError::NoParts);
    }
    if n_parts == 1 {
        return Ok(in_one(program));
    }
    let (cuts, whole) = choose::cuts(program, n_parts, wishes)?;
    let written = write(program, n_parts, n_parts, &cuts)?;
    // Whole values of which only shares are looked at are gone again.
    let programs = written.programs.iter().map(dead_code).collect::<Result<_, _>>()?;
    let along = |name: &str, part: usize| {
        cuts.get(name).map_or(Along::Whole, |cut| cut.along(part, n_parts))
    };
    let parameters = program.parameters().map(|(name, ..)| SplitParameter {
        name: name.to_string(),
        along: (0..n_parts).map(|part| along(name, part)).collect(),
    });
    Ok(TensorParts { parameters: parameters.collect(), programs, whole })
}

/// One part has everything.
fn in_one(program: &Program) -> TensorParts {
    let whole = |name: &str| SplitParameter { name: name.to_string(), along: vec![Along::Whole] };
    TensorParts {
        programs: vec![program.clone()],
        parameters: program.parameters().map(|(name, ..)| whole(name)).collect(),
        whole: Vec::new(),
    }
}

/// What writing the programs of parts gave.
struct Written {
    programs: Vec<Program>,
    /// Cut values that had to be gathered, with the operation that asked (one past the last: an output or update).
    gathered: Vec<(ValueId, usize)>,
    /// Whole parameters whose next value comes out cut.
    following: Cuts,
}

/// Writes the programs of the first `n_written` parts under the given cuts.
fn write(
    program: &Program,
    n_parts: usize,
    n_written: usize,
    cuts: &Cuts,
) -> Result<Written, ProgramError> {
    let mut parts = Parts::new(program, n_parts, n_written);
    for (idx, node) in program.nodes().iter().enumerate() {
        match &node.op {
            Op::Parameter { name, .. } if cuts.contains_key(name) => {
                parts.node_idx = idx;
                let layout = Layout::Split(cuts[name].clone());
                let local = parts.local_type(node.results[0], &layout).shape;
                let mut op = node.op.clone();
                if let Op::Parameter { shape, .. } = &mut op {
                    *shape = local;
                }
                let value = parts.emit(op, &[])?;
                parts.bind(node.results[0], layout, value)?;
            }
            _ => rules::apply(&mut parts, idx)?,
        }
    }
    parts.node_idx = program.nodes().len();
    let mut following = Cuts::new();
    for output in program.outputs() {
        let value = parts.get(output.value, &Layout::Whole)?;
        for part in &mut parts.programs {
            part.add_output(output.name.clone(), value)?;
        }
    }
    for update in program.updates() {
        let Op::Parameter { name, .. } = &program.definer(update.parameter).op else { continue };
        let next = parts.layout(update.value);
        let layout = match (cuts.get(name), next) {
            (Some(cut), _) => Layout::Split(cut.clone()),
            (None, Layout::Split(cut)) => {
                following.insert(name.clone(), cut);
                Layout::Whole
            }
            (None, _) => Layout::Whole,
        };
        let n_gathered = parts.gathered.len();
        let parameter = parts.get(update.parameter, &layout)?;
        let value = parts.get(update.value, &layout)?;
        // A parameter that will follow needs no gathering then.
        parts.gathered.truncate(n_gathered);
        for part in &mut parts.programs {
            part.add_update(parameter, value)?;
        }
    }
    Ok(Written { programs: parts.programs, gathered: parts.gathered, following })
}

#[cfg(test)]
mod tests;
