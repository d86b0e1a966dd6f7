//! Copies, elementwise expressions, randomness, and the plain evaluator for everything else.

use manyhands_program::{Distribution, Expression, Op, Shape, Spread, TensorType, Term, Unary};

use super::Lowered;
use crate::cpu::instruction::{Action, Context};
use crate::cpu::kernels::fused::{self, Tape};
use crate::cpu::kernels::layout::{LayoutPlan, ScatterAddPlan};
use crate::cpu::kernels::{bytes, plain as plain_kernels, random as random_kernels};
use crate::cpu::memory::{Copy, Place};

/// The most operands or results of a fused or plain kernel; more are possible but never made.
const MAX_OPERANDS: usize = 40;

/// Copies bytes from one place to another.
pub(super) fn copy(out: &mut Lowered<'_>, from: Place, to: Place, n_bytes: usize) {
    out.emit(0, copy_action(Copy { from, to, n_bytes }));
}

pub(super) fn copy_action(copy: Copy) -> Action {
    Box::new(move |context, part| {
        let range = part.range(copy.n_bytes, 4096);
        let from = context.at::<u8>(copy.from).wrapping_add(range.start);
        let to = context.at::<u8>(copy.to).wrapping_add(range.start);
        // SAFETY: the plan gives both places so many bytes, and they are different buffers.
        unsafe { std::ptr::copy_nonoverlapping(from, to, range.len()) };
        Ok(())
    })
}

pub(super) fn fused(out: &mut Lowered<'_>, expression: &Expression) {
    let shapes: Vec<&Shape> =
        (0..out.node.operands.len()).map(|idx| &out.operand_type(idx).shape).collect();
    let operands = (0..shapes.len()).map(|idx| out.operand(idx)).collect();
    let results = (0..out.node.results.len()).map(|idx| out.result(idx)).collect();
    let tape = Tape::new(expression, &out.result_type(0).shape, &shapes);
    emit_tape(out, tape, operands, results);
}

/// One elementwise operation that no pass has fused: the same kernel, so the same bits.
pub(super) fn elementwise(out: &mut Lowered<'_>) {
    let n_operands = out.node.operands.len() as u32;
    let mut terms: Vec<Term> = (0..n_operands).map(Term::Operand).collect();
    terms.push(match out.node.op {
        Op::Unary(unary) => Term::Unary(unary, 0),
        Op::Binary(binary) => Term::Binary(binary, 0, 1),
        _ => unreachable!("only unary and binary operations come here"),
    });
    let operands = vec![Spread::Full; n_operands as usize];
    fused(out, &Expression { operands, terms, results: vec![n_operands] });
}

/// Applies a unary operation to the result, in place.
pub(super) fn activation(out: &mut Lowered<'_>, unary: Unary) {
    let expression = Expression {
        operands: vec![Spread::Full],
        terms: vec![Term::Operand(0), Term::Unary(unary, 0)],
        results: vec![1],
    };
    let shape = &out.result_type(0).shape;
    let tape = Tape::new(&expression, shape, &[shape]);
    let place = out.result(0);
    emit_tape(out, tape, vec![place], vec![place]);
}

fn emit_tape(out: &mut Lowered<'_>, tape: Tape, operands: Vec<Place>, results: Vec<Place>) {
    assert!(
        operands.len() <= MAX_OPERANDS && results.len() <= MAX_OPERANDS,
        "fusion has its limits"
    );
    out.emit(
        tape.scratch_len(),
        Box::new(move |context, part| {
            let mut from = [std::ptr::null(); MAX_OPERANDS];
            let mut to = [std::ptr::null_mut(); MAX_OPERANDS];
            for (pointer, &place) in from.iter_mut().zip(&operands) {
                *pointer = context.at::<f32>(place).cast_const();
            }
            for (pointer, &place) in to.iter_mut().zip(&results) {
                *pointer = context.at::<f32>(place);
            }
            let (from, to) = (&from[..operands.len()], &to[..results.len()]);
            // SAFETY: the plan gives every place the bytes of its type; a result takes over at most one full operand.
            unsafe { fused::run(context.isa, &tape, from, to, context.scratch.cast(), part) };
            Ok(())
        }),
    );
}

/// Sums of i32, which are codes of rows: there are as many as a step has features.
pub(super) fn add_integers(out: &mut Lowered<'_>) {
    let n = out.result_type(0).shape.n_elements();
    let (left, right, to) = (out.operand(0), out.operand(1), out.result(0));
    out.emit(
        0,
        Box::new(move |context, part| {
            let (left, right, to) =
                (context.at::<i32>(left), context.at::<i32>(right), context.at::<i32>(to));
            for at in part.range(n, 1024) {
                // SAFETY: all three have `n` elements; where the result takes an operand over, each is read before it is written.
                unsafe { *to.add(at) = (*left.add(at)).wrapping_add(*right.add(at)) };
            }
            Ok(())
        }),
    );
}

/// Bytes as f32.
pub(super) fn widen(out: &mut Lowered<'_>) {
    let n = out.result_type(0).shape.n_elements();
    let (from, to) = (out.operand(0), out.result(0));
    out.emit(
        0,
        Box::new(move |context, part| {
            let (from, to) = (context.at::<u8>(from).cast_const(), context.at(to));
            // SAFETY: the operand has `n` bytes and the result `n` floats; no result overlaps an operand of another type.
            unsafe { bytes::widen(context.isa, from, to, n, part) };
            Ok(())
        }),
    );
}

/// Where random numbers are drawn from, as the operands say at run time.
fn random_place(context: &Context<'_>, key: u64, operands: &[Place]) -> random_kernels::Place {
    // SAFETY: the first operand is i64[3], the others are i32 scalars.
    unsafe {
        let numbers = *context.at::<[i64; 3]>(operands[0]);
        let iterations = operands[1..].iter().map(|&place| *context.at::<i32>(place));
        plain_kernels::place(key, numbers, iterations)
    }
}

pub(super) fn random(out: &mut Lowered<'_>) {
    let n = out.result_type(0).shape.n_elements();
    let to = out.result(0);
    let operands: Vec<Place> = (0..out.node.operands.len()).map(|idx| out.operand(idx)).collect();
    match out.node.op {
        Op::Random { distribution, key, .. } => out.emit(
            0,
            Box::new(move |context, part| {
                let place = random_place(context, key, &operands);
                let (isa, to) = (context.isa, context.at(to));
                // SAFETY: the result has `n` floats.
                unsafe {
                    match distribution {
                        Distribution::Uniform => random_kernels::uniform(isa, place, to, n, part),
                        Distribution::Normal => random_kernels::normal(isa, place, to, n, part),
                    }
                }
                Ok(())
            }),
        ),
        Op::Dropout { rate, key } if out.result_type(0).dtype == manyhands_program::DType::F32 => {
            out.emit(
                0,
                Box::new(move |context, part| {
                    let place = random_place(context, key, &operands[1..]);
                    let (isa, from, to) = (context.isa, context.at(operands[0]), context.at(to));
                    // SAFETY: operand and result have `n` floats.
                    unsafe { random_kernels::dropout(isa, place, rate as f32, from, to, n, part) };
                    Ok(())
                }),
            );
        }
        _ => plain(out),
    }
}

/// The plain evaluator, on one thread.
pub(super) fn plain(out: &mut Lowered<'_>) {
    let op = out.node.op.clone();
    assert!(plain_kernels::supported(&op), "what it has not, has its own kernel");
    let types = |n: usize, ty: &dyn Fn(usize) -> TensorType| (0..n).map(ty).collect::<Vec<_>>();
    let operand_types = types(out.node.operands.len(), &|idx| out.operand_type(idx).clone());
    let result_types = types(out.node.results.len(), &|idx| out.result_type(idx).clone());
    let operands: Vec<Place> = (0..operand_types.len()).map(|idx| out.operand(idx)).collect();
    let results: Vec<Place> = (0..result_types.len()).map(|idx| out.result(idx)).collect();
    assert!(
        operands.len() <= MAX_OPERANDS,
        "operations of any number of operands have own kernels"
    );
    let scratch = plain_kernels::scratch_bytes(&op, &operand_types.iter().collect::<Vec<_>>());
    out.emit_bytes(
        scratch,
        Box::new(move |context, part| {
            if part.idx != 0 {
                return Ok(());
            }
            let operand = |idx: usize| plain_kernels::Operand {
                ty: &operand_types[idx.min(operand_types.len() - 1)],
                data: operands
                    .get(idx)
                    .map_or(std::ptr::null(), |&p| context.at::<u8>(p).cast_const()),
            };
            let result = |idx: usize| plain_kernels::ResultSlot {
                ty: &result_types[idx.min(result_types.len() - 1)],
                data: results.get(idx).map_or(std::ptr::null_mut(), |&p| context.at(p)),
            };
            let to: [_; 4] = std::array::from_fn(result);
            let to = &to[..results.len()];
            // SAFETY: the plan gives every place the bytes of its type; no result overlaps an operand.
            unsafe {
                if operands.is_empty() {
                    return Ok(plain_kernels::run(&op, &[], to, context.scratch)?);
                }
                let from: [_; MAX_OPERANDS] = std::array::from_fn(operand);
                Ok(plain_kernels::run(&op, &from[..operands.len()], to, context.scratch)?)
            }
        }),
    );
}

/// Operations that only move elements.
pub(super) fn layout(out: &mut Lowered<'_>) {
    let types: Vec<&TensorType> =
        (0..out.node.operands.len()).map(|idx| out.operand_type(idx)).collect();
    let Some(plan) = LayoutPlan::new(&out.node.op, &types) else { return plain(out) };
    let operands: Vec<Place> = (0..types.len()).map(|idx| out.operand(idx)).collect();
    let to = out.result(0);
    out.emit(
        0,
        Box::new(move |context, part| {
            let operand = |idx: usize| context.at::<u8>(operands[idx]).cast_const();
            // SAFETY: the plan gives every place the bytes of its type; the result overlaps no operand.
            Ok(unsafe { plan.run(context.isa, operand, context.at(to), part) }?)
        }),
    );
}

/// Adds rows onto a base, in place where the plan lets the result take the base over.
pub(super) fn scatter_add(out: &mut Lowered<'_>, axis: usize) {
    let plan = ScatterAddPlan::new(axis, out.operand_type(0), out.operand_type(1));
    let (base, indices, updates, to) =
        (out.operand(0), out.operand(1), out.operand(2), out.result(0));
    out.emit(
        0,
        Box::new(move |context, part| {
            let indices = context.at::<u8>(indices).cast_const();
            let updates = context.at::<f32>(updates).cast_const();
            let base = Some(context.at::<f32>(base).cast_const());
            // SAFETY: the plan gives every place the bytes of its type; the result is the base itself or overlaps nothing.
            Ok(unsafe { plan.run(context.isa, base, indices, updates, context.at(to), part) }?)
        }),
    );
}
