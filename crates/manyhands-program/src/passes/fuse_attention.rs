//! Attention written out (heads split off, scores, scale, mask, softmax, weighted sum, heads joined) becomes one
//! operation. Only where the scale multiplies the scores: multiplying the queries beforehand rounds differently.

use super::rewrite::{Rewriter, Rewritten, in_bodies, splat};
use crate::dtype::DType;
use crate::error::ProgramError;
use crate::op::{AttentionSpec, Binary, Comparison, Op};
use crate::program::{Node, Program, ValueId};
use crate::shape::Shape;

/// Puts the attention operation in place of its parts. Run it before taking gradients: the parts of a written-out
/// attention that gradients use stay.
pub fn fuse_attention(program: &Program) -> Rewritten {
    let uses = program.use_counts();
    let mut rewriter = Rewriter::new(program);
    for node in program.nodes() {
        match (Finder { program, uses: &uses }).attention(node) {
            Some(found) => found.emit(&mut rewriter, node)?,
            None => {
                let op = in_bodies(&node.op, &mut fuse_attention)?;
                let operands = rewriter.operands(node)?;
                rewriter.replace(node, op, &operands)?;
            }
        }
    }
    super::dead_code(&rewriter.finish()?)
}

/// Attention as found, in values of the old program.
struct Attention {
    query: ValueId,
    key: ValueId,
    value: ValueId,
    heads: usize,
    scale: f64,
    causal: bool,
}

impl Attention {
    fn emit(self, rewriter: &mut Rewriter<'_>, node: &Node) -> Result<(), ProgramError> {
        let mut operands = Vec::with_capacity(3);
        for old in [self.query, self.key, self.value] {
            operands.push(rewriter.get(old)?);
        }
        let spec = AttentionSpec {
            heads: self.heads,
            causal: self.causal,
            scale: self.scale,
            masked: false,
        };
        rewriter.replace(node, Op::Attention(spec), &operands)
    }
}

/// A value seen as heads: `[batch, heads, rows, d]`, or `[batch, heads, d, rows]` where it is upright.
struct Heads {
    source: ValueId,
    heads: usize,
    flipped: bool,
}

struct Finder<'a> {
    program: &'a Program,
    uses: &'a [usize],
}

impl Finder<'_> {
    /// The attention that ends at this node: the reshape that joins the heads.
    fn attention(&self, node: &Node) -> Option<Attention> {
        let Op::Reshape { shape } = &node.op else { return None };
        if shape.rank() != 3 || self.program.ty(node.results[0]).dtype != DType::F32 {
            return None;
        }
        let joined = self.sole(node.operands[0])?;
        let mixed = match &joined.op {
            Op::Transpose { order } if order[..] == [0, 2, 1, 3] => {
                self.sole(joined.operands[0])?
            }
            // One head has nothing to join.
            Op::Matmul { .. } if self.shape(joined.results[0])[1] == 1 => joined,
            _ => return None,
        };
        let Op::Matmul { transpose_lhs: false, transpose_rhs } = mixed.op else { return None };
        let value = self.heads(mixed.operands[1])?;
        let weights = self.sole(mixed.operands[0])?;
        if value.flipped != transpose_rhs || weights.op != Op::Softmax {
            return None;
        }
        let (scores, causal) = self.unmasked(weights.operands[0])?;
        let (scores, scale) = self.unscaled(scores)?;
        let scores = self.sole(scores)?;
        let Op::Matmul { transpose_lhs: false, transpose_rhs } = scores.op else { return None };
        let (query, key) = (self.heads(scores.operands[0])?, self.heads(scores.operands[1])?);
        let upright = !query.flipped && key.flipped != transpose_rhs;
        let alike = query.heads == key.heads && key.heads == value.heads;
        let fits = self.shape(query.source) == shape
            && self.shape(key.source) == self.shape(value.source)
            && self.shape(key.source)[2] == shape[2];
        (upright && alike && fits).then_some(Attention {
            query: query.source,
            key: key.source,
            value: value.source,
            heads: query.heads,
            scale,
            causal,
        })
    }

    fn shape(&self, value: ValueId) -> &Shape {
        &self.program.ty(value).shape
    }

    /// The node of a value that is used once.
    fn sole(&self, value: ValueId) -> Option<&Node> {
        (self.uses[value.idx()] == 1).then(|| self.program.definer(value))
    }

    /// What was cut into heads: transposes of a reshape of `[batch, rows, heads * d]`.
    fn heads(&self, value: ValueId) -> Option<Heads> {
        let mut node = self.program.definer(value);
        let mut order = [0, 1, 2, 3];
        while let Op::Transpose { order: inner } = &node.op {
            if inner.len() != 4 {
                return None;
            }
            order.iter_mut().for_each(|axis| *axis = inner[*axis]);
            node = self.program.definer(node.operands[0]);
        }
        let Op::Reshape { shape: cut } = &node.op else { return None };
        let source = node.operands[0];
        let (whole, flipped) = (self.shape(source), order[..] == [0, 2, 3, 1]);
        if whole.rank() != 3 || cut.rank() != 4 || whole[0] != cut[0] {
            return None;
        }
        let split = cut[1] == whole[1] && cut[2] * cut[3] == whole[2];
        if split && (flipped || order[..] == [0, 2, 1, 3]) {
            return Some(Heads { source, heads: cut[2], flipped });
        }
        // One head may have been split off without a transpose.
        let single = cut[1] == 1 && cut[2] == whole[1] && cut[3] == whole[2];
        let flipped = order[..] == [0, 1, 3, 2];
        (single && (flipped || order[..] == [0, 1, 2, 3])).then_some(Heads {
            source,
            heads: 1,
            flipped,
        })
    }

    /// The scores before the causal mask, which puts minus infinity at later keys, and whether there is one. Other masks
    /// are left as they are: of a query that sees no key the parts make NaN, and the operation zeros.
    fn unmasked(&self, value: ValueId) -> Option<(ValueId, bool)> {
        let node = self.sole(value)?;
        if node.op != Op::Select {
            return Some((value, false));
        }
        let [condition, yes, no] = [node.operands[0], node.operands[1], node.operands[2]];
        if self.shape(condition).rank() != 4 {
            return None;
        }
        let endless = |value| splat(self.program, value) == Some(f64::NEG_INFINITY);
        let (scores, blocks) = match (endless(yes), endless(no)) {
            (false, true) => (yes, false),
            (true, false) => (no, true),
            _ => return None,
        };
        if self.is_causal(condition, blocks) {
            return Some((scores, true));
        }
        let spread = self.program.definer(condition);
        let Op::Broadcast { axes, .. } = &spread.op else { return None };
        let causal = axes[..] == [2, 3] && self.is_causal(spread.operands[0], blocks);
        causal.then_some((scores, true))
    }

    /// Whether the truth value says that the query comes no earlier than the key (or, of blocked pairs, that it does).
    fn is_causal(&self, truth: ValueId, blocks: bool) -> bool {
        let shape = self.shape(truth);
        let node = self.program.definer(truth);
        let (Op::Compare(comparison), [.., n_queries, n_keys]) = (&node.op, &shape[..]) else {
            return false;
        };
        let [query, key] = [shape.rank() - 2, shape.rank() - 1].map(Some);
        let counted = [0, 1].map(|operand| self.counted_axis(node.operands[operand]));
        let looks = match (comparison, blocks) {
            (Comparison::Ge, false) | (Comparison::Lt, true) => counted == [query, key],
            (Comparison::Le, false) | (Comparison::Gt, true) => counted == [key, query],
            _ => false,
        };
        looks && n_queries == n_keys
    }

    /// The axis along which a value counts 0, 1, 2, ...
    fn counted_axis(&self, value: ValueId) -> Option<usize> {
        let node = self.program.definer(value);
        match &node.op {
            Op::Iota { axis, .. } => Some(*axis),
            Op::Broadcast { shape, axes } => {
                let inner = self.counted_axis(node.operands[0])?;
                let axis = axes[inner];
                (self.shape(node.operands[0])[inner] == shape[axis]).then_some(axis)
            }
            _ => None,
        }
    }

    /// The scores before they are scaled, and the scale.
    fn unscaled(&self, value: ValueId) -> Option<(ValueId, f64)> {
        let node = self.sole(value)?;
        let number = |operand: usize| splat(self.program, node.operands[operand]);
        match node.op {
            Op::Binary(Binary::Mul) => match (number(0), number(1)) {
                (_, Some(scale)) => Some((node.operands[0], scale)),
                (Some(scale), None) => Some((node.operands[1], scale)),
                _ => None,
            },
            Op::Binary(Binary::Div) => {
                // Dividing by a power of two is multiplying by its inverse; by anything else it rounds differently.
                let divisor = number(1).filter(|&d| d > 0.0 && d.log2().fract() == 0.0)?;
                Some((node.operands[0], 1.0 / divisor))
            }
            _ => Some((value, 1.0)),
        }
    }
}
