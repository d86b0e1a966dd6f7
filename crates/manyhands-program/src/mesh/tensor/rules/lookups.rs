//! Tables that are cut along their rows: a part looks up the rows that are its own, and the sum over parts has all of them.

use crate::dtype::DType;
use crate::error::ProgramError;
use crate::mesh::tensor::layout::{Cut, Layout, shaped};
use crate::mesh::tensor::parts::{Lookup, Parts};
use crate::op::{Binary, Comparison, Op};
use crate::program::{Node, Program, ValueId};
use crate::shape::{Shape, TensorType};

/// Writes a lookup in a cut table, or the gradient of one; says whether it was one.
pub(super) fn apply(parts: &mut Parts<'_>, node: &Node) -> Result<bool, ProgramError> {
    match node.op {
        Op::Gather { axis: 0 } => {
            let layout = parts.layout(node.operands[0]);
            let Some(cut) = layout.cut_at(0).filter(|cut| cut.blocks.len() == 1) else {
                return Ok(false);
            };
            let table = parts.get(node.operands[0], &layout)?;
            let lookup = lookup(parts, node.operands[1], cut)?;
            let rows = parts.emit(Op::Gather { axis: 0 }, &[table, lookup.own])?;
            let kept = only_inside(parts, lookup, rows)?;
            parts.bind(node.results[0], Layout::Partial, kept)?;
            Ok(true)
        }
        Op::ScatterAdd { axis: 0 } => scatter_add(parts, node),
        _ => Ok(false),
    }
}

/// The gradient of a table whose rows were looked up: each part adds up those of its own rows.
fn scatter_add(parts: &mut Parts<'_>, node: &Node) -> Result<bool, ProgramError> {
    let table = parts.old.ty(node.operands[0]).clone();
    let key = (node.operands[1], table.shape[0]);
    let Some(&lookup) = parts.lookups.get(&key) else { return Ok(false) };
    if !is_zero(parts.old, node.operands[0]) {
        return Ok(false);
    }
    let Some(cut) = Cut::even(0, table.shape[0], 1, parts.n_parts) else { return Ok(false) };
    let zeros = parts.full(&shaped(&table, cut.local(&table.shape, parts.n_parts)), 0.0)?;
    let rows = parts.get(node.operands[2], &Layout::Whole)?;
    let kept = only_inside(parts, lookup, rows)?;
    let sum = parts.emit(Op::ScatterAdd { axis: 0 }, &[zeros, lookup.own, kept])?;
    parts.bind(node.results[0], Layout::Split(cut), sum)?;
    Ok(true)
}

/// The indices as each part sees them.
pub(super) fn lookup(
    parts: &mut Parts<'_>,
    indices: ValueId,
    cut: &Cut,
) -> Result<Lookup, ProgramError> {
    let key = (indices, cut.blocks[0]);
    if let Some(known) = parts.lookups.get(&key) {
        return Ok(*known);
    }
    let ty = parts.old.ty(indices).clone();
    let share = cut.blocks[0] / parts.n_parts;
    let whole = parts.get(indices, &Layout::Whole)?;
    let mut spread = |value: &dyn Fn(usize) -> f64| {
        let scalar = parts.scalar_each(ty.dtype, value)?;
        parts.emit(Op::Broadcast { shape: ty.shape.clone(), axes: Vec::new() }, &[scalar])
    };
    let first = spread(&|part| (part * share) as f64)?;
    let (zero, end) = (spread(&|_| 0.0)?, spread(&|_| share as f64)?);
    let own = parts.emit(Op::Binary(Binary::Sub), &[whole, first])?;
    let after = parts.emit(Op::Compare(Comparison::Ge), &[own, zero])?;
    let before = parts.emit(Op::Compare(Comparison::Lt), &[own, end])?;
    let inside = parts.emit(Op::Binary(Binary::And), &[after, before])?;
    let own = parts.emit(Op::Select, &[inside, own, zero])?;
    let lookup = Lookup { own, inside };
    parts.lookups.insert(key, lookup);
    Ok(lookup)
}

/// Rows where they are the part's own, zeros elsewhere.
fn only_inside(
    parts: &mut Parts<'_>,
    lookup: Lookup,
    rows: ValueId,
) -> Result<ValueId, ProgramError> {
    let ty: TensorType = parts.ty(rows).clone();
    let axes: Vec<usize> = (0..parts.ty(lookup.inside).shape.rank()).collect();
    let shape: Shape = ty.shape.clone();
    let inside = parts.emit(Op::Broadcast { shape, axes }, &[lookup.inside])?;
    debug_assert_eq!(parts.ty(inside).dtype, DType::Bool);
    let zeros = parts.full(&ty, 0.0)?;
    parts.emit(Op::Select, &[inside, rows, zeros])
}

fn is_zero(program: &Program, value: ValueId) -> bool {
    let node = program.definer(value);
    match &node.op {
        Op::Constant(tensor) => tensor.splat_value() == Some(0.0),
        Op::Broadcast { .. } => is_zero(program, node.operands[0]),
        _ => false,
    }
}
