//! Rules of operations that move elements, and of reductions.

use super::{Rule, Site};
use crate::mesh::tensor::layout::{Cut, Layout, reshaped};
use crate::op::{Op, Reduction};

pub(super) fn rule(site: &Site<'_, '_>) -> Option<Rule> {
    match &site.node.op {
        Op::Concatenate { axis } => concatenate(site, *axis),
        Op::Gather { axis } => gather(site, *axis),
        Op::ScatterAdd { axis } => scatter_add(site, *axis),
        Op::Reduce { kind: Reduction::Sum, axes } => sum(site, axes),
        op if site.is_partial(0) => {
            let linear = matches!(op, Op::Reshape { .. } | Op::Transpose { .. });
            linear.then(|| Rule::one(vec![Layout::Partial], op.clone(), Layout::Partial))
        }
        op => of_cut(site, op, &site.cut(0)?),
    }
}

fn of_cut(site: &Site<'_, '_>, op: &Op, cut: &Cut) -> Option<Rule> {
    let n_parts = site.n_parts();
    let from = site.parts.old.ty(site.node.operands[0]).shape.clone();
    let one = |op: Op, result: Cut| {
        Rule::one(vec![Layout::Split(cut.clone())], op, Layout::Split(result))
    };
    Some(match op {
        Op::Broadcast { shape, axes } => {
            let result = cut.at(axes[cut.axis]);
            let shape = result.local(shape, n_parts);
            one(Op::Broadcast { shape, axes: axes.clone() }, result)
        }
        Op::Reshape { shape } => {
            let result = reshaped(cut, &from, shape, n_parts)?;
            one(Op::Reshape { shape: result.local(shape, n_parts) }, result)
        }
        Op::Transpose { order } => {
            let axis = order.iter().position(|&axis| axis == cut.axis)?;
            one(op.clone(), cut.at(axis))
        }
        Op::Slice { start, limit, stride } => {
            let (mut start, mut limit) = (start.clone(), limit.clone());
            let axis = cut.axis;
            if stride[axis] != 1 {
                return None;
            }
            let (blocks, before) = cut.between(start[axis], limit[axis], n_parts)?;
            let own = blocks.iter().sum::<usize>() / n_parts;
            (start[axis], limit[axis]) = (before, before + own);
            one(Op::Slice { start, limit, stride: stride.clone() }, Cut::new(axis, blocks))
        }
        Op::Pad { low, high, interior } => pad(site, cut, [low, high, interior])?,
        Op::Reduce { axes, .. } if !axes.contains(&cut.axis) => {
            let before = axes.iter().filter(|&&axis| axis < cut.axis).count();
            one(op.clone(), cut.at(cut.axis - before))
        }
        Op::Argmax { axis } if *axis != cut.axis => {
            one(op.clone(), cut.at(cut.axis - usize::from(*axis < cut.axis)))
        }
        Op::BlockSquareSums if is_only_summed(site) => {
            Rule::one(vec![Layout::Split(cut.clone())], op.clone(), Layout::Partial)
        }
        _ => return None,
    })
}

/// The padding becomes blocks of its own, where parts can have equal shares of them.
fn pad(site: &Site<'_, '_>, cut: &Cut, [low, high, interior]: [&Vec<usize>; 3]) -> Option<Rule> {
    let (axis, n_parts) = (cut.axis, site.n_parts());
    let even = [low[axis], high[axis]].iter().all(|size| size.is_multiple_of(n_parts));
    if !even || interior[axis] != 0 {
        return None;
    }
    let around = |size: usize| (size > 0).then_some(size);
    let blocks = around(low[axis]).into_iter().chain(cut.blocks.iter().copied());
    let blocks = blocks.chain(around(high[axis])).collect();
    let (mut low, mut high) = (low.clone(), high.clone());
    low[axis] /= n_parts;
    high[axis] /= n_parts;
    let op = Op::Pad { low, high, interior: interior.clone() };
    let operands = vec![Layout::Split(cut.clone()), Layout::Whole];
    Some(Rule::one(operands, op, Layout::Split(Cut::new(axis, blocks))))
}

/// Along another axis all operands are cut alike; along the cut one, each is cut by itself.
fn concatenate(site: &Site<'_, '_>, axis: usize) -> Option<Rule> {
    let n = site.node.operands.len();
    let op = site.node.op.clone();
    let cut = (0..n).find_map(|operand| site.cut(operand))?;
    if cut.axis != axis {
        let layout = Layout::Split(cut);
        return Some(Rule::one(vec![layout.clone(); n], op, layout));
    }
    let own = |operand: usize| {
        let found = site.cut(operand).filter(|cut| cut.axis == axis);
        found.or_else(|| Cut::even(axis, site.shape(operand)[axis], 1, site.n_parts()))
    };
    let cuts: Vec<Cut> = (0..n).map(own).collect::<Option<_>>()?;
    let blocks = cuts.iter().flat_map(|cut| cut.blocks.clone()).collect();
    let operands = cuts.into_iter().map(Layout::Split).collect();
    Some(Rule::one(operands, op, Layout::Split(Cut::new(axis, blocks))))
}

/// A table that is cut along another axis than the one that is indexed: each part looks up its share of every row.
fn gather(site: &Site<'_, '_>, axis: usize) -> Option<Rule> {
    let cut = site.cut(0).filter(|cut| cut.axis != axis)?;
    let moved = if cut.axis < axis { cut.axis } else { cut.axis + site.shape(1).len() - 1 };
    let operands = vec![Layout::Split(cut.clone()), Layout::Whole];
    Some(Rule::one(operands, site.node.op.clone(), Layout::Split(cut.at(moved))))
}

fn scatter_add(site: &Site<'_, '_>, axis: usize) -> Option<Rule> {
    let cut = site.cut(2)?;
    let n_indices = site.shape(1).len();
    let own = match cut.axis {
        before if before < axis => before,
        after if after >= axis + n_indices => after + 1 - n_indices,
        _ => return None,
    };
    let result = Layout::Split(cut.at(own));
    let operands = vec![result.clone(), Layout::Whole, Layout::Split(cut)];
    Some(Rule::one(operands, site.node.op.clone(), result))
}

fn sum(site: &Site<'_, '_>, axes: &[usize]) -> Option<Rule> {
    let op = site.node.op.clone();
    match site.layout(0) {
        Layout::Split(cut) if axes.contains(&cut.axis) => {
            Some(Rule::one(vec![Layout::Split(cut)], op, Layout::Partial))
        }
        Layout::Split(cut) => of_cut(site, &op, &cut),
        layout => Some(Rule::one(vec![layout.clone()], op, layout)),
    }
}

/// Whether nothing but the sum over all blocks is asked for: blocks are other ones on a part.
fn is_only_summed(site: &Site<'_, '_>) -> bool {
    let result = site.node.results[0];
    let program = site.parts.old;
    let mut users = program.nodes().iter().filter(|node| node.operands.contains(&result));
    let is_sum =
        |op: &Op| matches!(op, Op::Reduce { kind: Reduction::Sum, axes } if axes.as_slice() == [0]);
    site.parts.uses[result.idx()] == 1 && users.all(|user| is_sum(&user.op))
}
