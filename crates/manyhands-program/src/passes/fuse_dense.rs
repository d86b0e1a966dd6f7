//! Dense layers: a matrix product with its bias and activation, or with the matrix it is added to, in one kernel.

use super::rewrite::{Rewriter, Rewritten, in_bodies};
use crate::dtype::DType;
use crate::op::{Addend, Binary, Op, Unary};
use crate::program::{Node, Program, ValueId};

/// Joins products with bias, activation or accumulation.
pub fn fuse_dense(program: &Program) -> Rewritten {
    let uses = program.use_counts();
    let mut rewriter = Rewriter::new(program);
    for node in program.nodes() {
        match Dense::at(program, &uses, node) {
            Some(dense) => {
                let op = dense.op();
                let operands = [dense.lhs, dense.rhs].into_iter().chain(dense.addend);
                let operands =
                    operands.map(|old| rewriter.get(old)).collect::<Result<Vec<_>, _>>()?;
                rewriter.replace(node, op, &operands)?;
            }
            None => {
                let op = in_bodies(&node.op, &mut fuse_dense)?;
                let operands = rewriter.operands(node)?;
                rewriter.replace(node, op, &operands)?;
            }
        }
    }
    super::dead_code(&rewriter.finish()?)
}

/// A product with what surrounds it, found in a program.
#[derive(Clone, Copy)]
struct Dense {
    lhs: ValueId,
    rhs: ValueId,
    flags: [bool; 2],
    add: Option<Addend>,
    addend: Option<ValueId>,
    activation: Option<Unary>,
}

impl Dense {
    /// What ends at this node.
    fn at(program: &Program, uses: &[usize], node: &Node) -> Option<Dense> {
        match node.op {
            Op::Unary(unary) if is_activation(unary) => {
                let inner = sole(program, uses, node.operands[0])?;
                let dense = Dense::product(program, inner)
                    .or_else(|| Dense::biased(program, uses, inner))?;
                Some(Dense { activation: Some(unary), ..dense })
            }
            Op::Binary(Binary::Add) => Dense::biased(program, uses, node)
                .or_else(|| Dense::accumulated(program, uses, node)),
            _ => None,
        }
    }

    fn product(program: &Program, node: &Node) -> Option<Dense> {
        let Op::Matmul { transpose_lhs, transpose_rhs } = node.op else { return None };
        if program.ty(node.results[0]).dtype != DType::F32 {
            return None;
        }
        Some(Dense {
            lhs: node.operands[0],
            rhs: node.operands[1],
            flags: [transpose_lhs, transpose_rhs],
            add: None,
            addend: None,
            activation: None,
        })
    }

    /// A product and a bias, in either order: a sum of two is the same both ways.
    fn biased(program: &Program, uses: &[usize], node: &Node) -> Option<Dense> {
        if node.op != Op::Binary(Binary::Add) {
            return None;
        }
        let [a, b] = [node.operands[0], node.operands[1]];
        [(a, b), (b, a)].into_iter().find_map(|(product, spread)| {
            let dense = Dense::product(program, sole(program, uses, product)?)?;
            let bias = spread_bias(program, spread)?;
            Some(Dense { add: Some(Addend::Bias), addend: Some(bias), ..dense })
        })
    }

    /// A product added to the parameter that the sum becomes: the parameter is on the left.
    fn accumulated(program: &Program, uses: &[usize], node: &Node) -> Option<Dense> {
        let [parameter, product] = [node.operands[0], node.operands[1]];
        let updated = program
            .updates()
            .iter()
            .any(|update| update.parameter == parameter && update.value == node.results[0]);
        let dense = Dense::product(program, sole(program, uses, product)?)?;
        let (add, addend) = (Some(Addend::Matrix), Some(parameter));
        updated.then_some(Dense { add, addend, ..dense })
    }

    fn op(&self) -> Op {
        Op::Dense {
            transpose_lhs: self.flags[0],
            transpose_rhs: self.flags[1],
            add: self.add,
            activation: self.activation,
        }
    }
}

/// The one value per column that this value repeats, if it does.
pub(super) fn spread_bias(program: &Program, spread: ValueId) -> Option<ValueId> {
    let spread = program.definer(spread);
    let Op::Broadcast { shape, axes } = &spread.op else { return None };
    let bias = spread.operands[0];
    let own = &program.ty(bias).shape;
    (axes[..] == [shape.rank() - 1] && own[..] == [shape.last()]).then_some(bias)
}

/// The node of a value that is used once.
pub(super) fn sole<'a>(program: &'a Program, uses: &[usize], value: ValueId) -> Option<&'a Node> {
    (uses[value.idx()] == 1).then(|| program.definer(value))
}

pub(super) fn is_activation(unary: Unary) -> bool {
    matches!(unary, Unary::Relu | Unary::Gelu | Unary::Tanh | Unary::Logistic | Unary::Silu)
}
