//! Elementwise fusion: operations on f32 over one shape become one pass over memory.
//!
//! A group grows from an operation towards what it reads, as long as nothing outside the group lies between its members
//! (it would have to run in the middle of it). Values that others need are further results of the group: momentum and the
//! new weight come out of one pass. Nothing is computed twice but comparisons, which are cheaper to repeat than to store.

mod draft;
mod grouping;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use self::draft::Draft;
use self::grouping::{Edges, group};
use super::rewrite::{Rewriter, Rewritten, in_bodies};
use crate::error::ProgramError;
use crate::expression::{Spread, Term};
use crate::op::Op;
use crate::program::{Program, ValueId};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The most terms of a fused expression that this pass makes.
pub const MAX_TERMS: usize = 48;
/// The most operands of a fused expression that this pass makes.
pub const MAX_OPERANDS: usize = 12;
/// The most results of a fused expression that this pass makes.
pub const MAX_RESULTS: usize = 6;

/// Joins elementwise operations on f32.
pub fn fuse_elementwise(program: &Program) -> Rewritten {
    let edges = Edges::of(program);
    let members = group(program, &edges);
    let mut rewriter = Rewriter::new(program);
    for leader in order(program, &edges, &members) {
        if members[leader].is_empty() {
            let node = &program.nodes()[leader];
            let op = in_bodies(&node.op, &mut fuse_elementwise)?;
            let operands = rewriter.operands(node)?;
            rewriter.replace(node, op, &operands)?;
        } else {
            let draft = Draft::of(program, &members[leader], &edges);
            emit(&mut rewriter, draft, program, leader)?;
        }
    }
    rewriter.finish()
}

/// The units (groups by their leaders, and the other operations) in an order where operands come first, as close to the
/// old order as it gets.
fn order(program: &Program, edges: &Edges, members: &[Vec<usize>]) -> Vec<usize> {
    let n_nodes = program.nodes().len();
    let mut leader: Vec<usize> = (0..n_nodes).collect();
    let mut place: Vec<usize> = (0..n_nodes).collect();
    for (own, group) in members.iter().enumerate().filter(|(_, group)| !group.is_empty()) {
        group.iter().for_each(|&member| leader[member] = own);
        // Where its first result was: what waits for that need not wait longer.
        let first = group.iter().find(|&&member| edges.leaves(program, member, group));
        place[own] = first.copied().unwrap_or(own);
    }
    let mut waiting = vec![0usize; n_nodes];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); n_nodes];
    for (idx, &unit) in leader.iter().enumerate().filter(|(idx, _)| edges.needed[*idx]) {
        for &read in &edges.reads[idx] {
            let from = leader[program.definer_idx(read)];
            if from != unit {
                waiting[unit] += 1;
                users[from].push(unit);
            }
        }
    }
    let units = (0..n_nodes).filter(|&idx| edges.needed[idx] && leader[idx] == idx);
    let mut ready: BinaryHeap<Reverse<(usize, usize)>> =
        units.filter(|&unit| waiting[unit] == 0).map(|unit| Reverse((place[unit], unit))).collect();
    let mut ordered = Vec::with_capacity(n_nodes);
    while let Some(Reverse((_, unit))) = ready.pop() {
        ordered.push(unit);
        for &user in &users[unit] {
            waiting[user] -= 1;
            if waiting[user] == 0 {
                ready.push(Reverse((place[user], user)));
            }
        }
    }
    ordered
}

fn emit(
    rewriter: &mut Rewriter<'_>,
    mut draft: Draft,
    program: &Program,
    leader: usize,
) -> Result<(), ProgramError> {
    let node = &program.nodes()[leader];
    let shape = &program.ty(node.results[0]).shape;
    let mut operands = Vec::with_capacity(draft.operands.len());
    for &value in &draft.operands {
        operands.push(rewriter.get(value)?);
    }
    if !draft.expression.operands.contains(&Spread::Full) {
        stretch_one(rewriter, &mut draft, &mut operands, shape, &node.scope)?;
    }
    let results = rewriter.emit(Op::Fused(draft.expression), &operands, &node.scope)?;
    draft.results.iter().zip(results).for_each(|(&old, new)| rewriter.set(old, new));
    Ok(())
}

/// A fused operation takes its shape from a full operand; where there is none, one is stretched beforehand.
fn stretch_one(
    rewriter: &mut Rewriter<'_>,
    draft: &mut Draft,
    operands: &mut Vec<ValueId>,
    shape: &Shape,
    scope: &str,
) -> Result<(), ProgramError> {
    let expression = &mut draft.expression;
    if operands.is_empty() {
        for (idx, term) in expression.terms.iter_mut().enumerate() {
            if let Term::Number(number) = *term {
                let scalar = Tensor::new(Shape::scalar(), &[number])?;
                operands.push(rewriter.emit_one(Op::Constant(scalar), &[], scope)?);
                expression.operands.push(Spread::Scalar);
                expression.terms[idx] = Term::Operand(0);
                break;
            }
        }
    }
    let rank = shape.rank();
    let own = rewriter.program().ty(operands[0]).shape.clone();
    let axes: Vec<usize> = match expression.operands[0] {
        Spread::Leading => (0..own.rank()).collect(),
        Spread::Trailing => (rank - own.rank()..rank).collect(),
        Spread::Full | Spread::Scalar => {
            if own.rank() > 0 {
                let flat = Op::Reshape { shape: Shape::scalar() };
                operands[0] = rewriter.emit_one(flat, &[operands[0]], scope)?;
            }
            Vec::new()
        }
    };
    if rank > 0 {
        let stretched = Op::Broadcast { shape: shape.clone(), axes };
        operands[0] = rewriter.emit_one(stretched, &[operands[0]], scope)?;
    }
    expression.operands[0] = Spread::Full;
    Ok(())
}
