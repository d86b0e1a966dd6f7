//! Constant folding, with the kernels of the device that will run the program: a folded value has the bits that it would
//! have had at run time.

use std::error::Error;

use super::rewrite::{Rewriter, Rewritten, in_bodies};
use crate::cost::Cost;
use crate::op::Op;
use crate::program::{Node, Program, ValueId};
use crate::shape::{Shape, TensorType};
use crate::tensor::Tensor;

/// Results up to so many elements are folded whatever they are made of.
const SMALL: usize = 4096;

/// Runs programs that have no inputs; a device implements it.
pub trait Evaluate {
    /// The outputs of a program without inputs and parameters.
    fn evaluate(&self, program: &Program) -> Result<Vec<Tensor>, Box<dyn Error + Send + Sync>>;
}

/// The most operations and bytes of what is folded, about a millisecond's; what takes longer is left to the run.
const MOST_WORK: u64 = 1 << 24;
/// The longest scan that is folded.
const LONGEST_SCAN: usize = 4096;

/// Computes what depends on constants alone. Where the evaluation fails (an index out of range, say) the program stays
/// as it is, and the run says what is wrong.
pub fn fold_constants(program: &Program, device: &dyn Evaluate) -> Rewritten {
    let program = &fold_in_bodies(program, device)?;
    let known = Known::of(program);
    let wanted = known.wanted(program);
    if wanted.is_empty() {
        return Ok(program.clone());
    }
    let Ok(tensors) = device.evaluate(&known.extract(program, &wanted)?) else {
        return Ok(program.clone());
    };
    let mut folded: Vec<Option<Tensor>> = vec![None; program.n_values()];
    wanted.iter().zip(tensors).for_each(|(value, tensor)| folded[value.idx()] = Some(tensor));
    let mut rewriter = Rewriter::new(program);
    for node in program.nodes() {
        // An operation all of whose results are folded, or feed what is folded, is left to the dead-code pass.
        rewriter.keep(node)?;
        for &result in &node.results {
            if let Some(tensor) = folded[result.idx()].take() {
                let new = constant(&mut rewriter, tensor, &node.scope)?;
                rewriter.set(result, new);
            }
        }
    }
    super::dead_code(&rewriter.finish()?)
}

fn fold_in_bodies(program: &Program, device: &dyn Evaluate) -> Rewritten {
    let mut rewriter = Rewriter::new(program);
    for node in program.nodes() {
        let op = in_bodies(&node.op, &mut |body| fold_constants(body, device))?;
        let operands = rewriter.operands(node)?;
        rewriter.replace(node, op, &operands)?;
    }
    rewriter.finish()
}

/// Emits a constant; one number throughout is a scalar and a broadcast, which fusion can absorb.
fn constant(
    rewriter: &mut Rewriter<'_>,
    tensor: Tensor,
    scope: &str,
) -> Result<ValueId, crate::error::ProgramError> {
    let TensorType { dtype, shape } = tensor.ty().clone();
    let size = dtype.size();
    let alike = tensor.bytes().chunks_exact(size).all(|one| *one == tensor.bytes()[..size]);
    if shape.n_elements() < 2 || !alike {
        return rewriter.emit_one(Op::Constant(tensor), &[], scope);
    }
    let scalar = TensorType::new(dtype, Shape::scalar());
    let one = Tensor::from_bytes(scalar, tensor.bytes()[..size].to_vec())?;
    let one = rewriter.emit_one(Op::Constant(one), &[], scope)?;
    rewriter.emit_one(Op::Broadcast { shape, axes: Vec::new() }, &[one], scope)
}

/// Which values are known before the program runs.
struct Known {
    /// By value.
    known: Vec<bool>,
    /// By value: the elements that it holds as data. What is spread or counted out of nothing holds none.
    held: Vec<usize>,
}

impl Known {
    fn of(program: &Program) -> Known {
        let n_values = program.n_values();
        let mut own = Known { known: vec![false; n_values], held: vec![0; n_values] };
        for node in program.nodes() {
            if own.folds(program, node) {
                for &result in &node.results {
                    own.known[result.idx()] = true;
                    if !spreads(&node.op) {
                        own.held[result.idx()] = program.ty(result).shape.n_elements();
                    }
                }
            }
        }
        own
    }

    fn folds(&self, program: &Program, node: &Node) -> bool {
        let fixed = match node.op {
            Op::Constant(_) => return true,
            // A sum over grains or parts of a constant is a count of them, which is known only at run time.
            Op::Input { .. } | Op::Parameter { .. } | Op::GrainSum | Op::AllReduce => false,
            _ => node.operands.iter().all(|operand| self.known[operand.idx()]),
        };
        let held: usize = node.operands.iter().map(|operand| self.held[operand.idx()]).sum();
        let elements = |result: &ValueId| program.ty(*result).shape.n_elements();
        let n_elements: usize = node.results.iter().map(elements).sum();
        let quick = || {
            let cost = Cost::of_node(program, node);
            let long = matches!(&node.op, Op::Scan(scan) if scan.length > LONGEST_SCAN);
            cost.operations.saturating_add(cost.read).saturating_add(cost.written) <= MOST_WORK
                && !long
        };
        fixed && quick() && (spreads(&node.op) || n_elements <= SMALL.max(held))
    }

    /// The known values that something unknown needs and that are worth storing.
    fn wanted(&self, program: &Program) -> Vec<ValueId> {
        let mut needed = vec![false; program.n_values()];
        for node in program.nodes() {
            let known = node.results.first().is_none_or(|result| self.known[result.idx()]);
            if !known {
                node.operands.iter().for_each(|operand| needed[operand.idx()] = true);
            }
        }
        let outputs = program.outputs().iter().map(|output| output.value);
        let updates = program.updates().iter().map(|update| update.value);
        outputs.chain(updates).for_each(|value| needed[value.idx()] = true);
        let mut wanted = Vec::new();
        self.look_through_spreads(program, &mut needed);
        for node in program.nodes() {
            let stored = matches!(node.op, Op::Constant(_)) || spreads(&node.op);
            let results = node.results.iter().filter(|r| needed[r.idx()] && self.known[r.idx()]);
            if !stored {
                wanted.extend(results);
            }
        }
        wanted
    }

    /// A spread value is made at run time, from an operand that is then needed.
    fn look_through_spreads(&self, program: &Program, needed: &mut [bool]) {
        for node in program.nodes().iter().rev() {
            if spreads(&node.op) && needed[node.results[0].idx()] {
                node.operands.iter().for_each(|operand| needed[operand.idx()] = true);
            }
        }
    }

    /// The program that computes the wanted values.
    fn extract(&self, program: &Program, wanted: &[ValueId]) -> Rewritten {
        let mut rewriter = Rewriter::new(program);
        for node in program.nodes() {
            if node.results.iter().all(|result| self.known[result.idx()]) {
                rewriter.keep(node)?;
            }
        }
        let values =
            wanted.iter().map(|&value| rewriter.get(value)).collect::<Result<Vec<_>, _>>()?;
        let mut extract = rewriter.into_program();
        for (idx, value) in values.into_iter().enumerate() {
            extract.add_output(format!("folded{idx}"), value)?;
        }
        super::dead_code(&extract)
    }
}

/// Operations that make large values out of little: kept as they are, though what is computed of them may be folded.
fn spreads(op: &Op) -> bool {
    matches!(op, Op::Broadcast { .. } | Op::Iota { .. })
}
