//! Attention, reading queries, keys and values where they lie: often side by side in one buffer.

use manyhands_program::{AttentionSpec, DType, Op, Program, ValueId};

use super::Lowered;
use crate::cpu::instruction::Context;
use crate::cpu::kernels::attention::{self as kernel, Attention, Tokens, TokensMut};
use crate::cpu::memory::{Place, side_by_side_row, side_by_side_target};

/// Rows of tokens: where they lie, and how far apart.
#[derive(Clone, Copy)]
struct Rows {
    place: Place,
    row: usize,
    batch: usize,
}

impl Rows {
    fn of(program: &Program, value: ValueId, place: Place) -> Rows {
        let shape = &program.ty(value).shape;
        let joined = side_by_side_target(program, value);
        let joined = joined.map(|(whole, _)| program.ty(whole).shape.last());
        let row = side_by_side_row(program, value).or(joined).unwrap_or(shape[2]);
        Rows { place, row, batch: shape[1] * row }
    }

    fn read(self, context: &Context<'_>) -> Tokens {
        let ptr = context.at::<f32>(self.place).cast_const();
        Tokens { ptr, row: self.row, batch: self.batch }
    }

    fn write(self, context: &Context<'_>) -> TokensMut {
        TokensMut { ptr: context.at(self.place), row: self.row, batch: self.batch }
    }
}

pub(super) fn attention(out: &mut Lowered<'_>, spec: &AttentionSpec) {
    let program = out.env.program;
    let rows = |idx: usize| Rows::of(program, out.node.operands[idx], out.operand(idx));
    let [q, k, v] = [rows(0), rows(1), rows(2)];
    let (q_shape, k_shape) = (&out.operand_type(0).shape, &out.operand_type(1).shape);
    let mask = spec.masked.then(|| out.operand(3));
    let mask_per_batch = spec.masked && out.operand_type(3).shape.rank() == 3;
    let nowhere = Tokens { ptr: std::ptr::null(), row: 0, batch: 0 };
    let shape = Shape(Attention {
        n_batches: q_shape[0],
        n_heads: spec.heads,
        depth: q_shape[2] / spec.heads,
        n_queries: q_shape[1],
        n_keys: k_shape[1],
        scale: spec.scale as f32,
        causal: spec.causal,
        mask: std::ptr::null(),
        mask_batch: if mask_per_batch { q_shape[1] * k_shape[1] } else { 0 },
        q: nowhere,
        k: nowhere,
        v: nowhere,
    });
    let bind = move |context: &Context<'_>| Attention {
        mask: mask.map_or(std::ptr::null(), |place| context.at::<u8>(place).cast_const()),
        q: q.read(context),
        k: k.read(context),
        v: v.read(context),
        ..shape.get()
    };
    let results: Vec<Rows> = (out.node.results.iter().enumerate())
        .map(|(idx, &value)| Rows::of(program, value, out.result(idx)))
        .collect();
    if matches!(out.node.op, Op::Attention(_)) {
        out.emit(
            shape.get().scratch_len(),
            Box::new(move |context, part| {
                let (bound, to) = (bind(context), results[0].write(context));
                // SAFETY: the plan gives every place the bytes of its type; the result overlaps no operand.
                unsafe {
                    kernel::attention(context.isa, &bound, to, context.scratch_f32(), part);
                }
                Ok(())
            }),
        );
        return;
    }
    let dy = rows(out.node.operands.len() - 1);
    out.emit(
        shape.get().grad_scratch_len(),
        Box::new(move |context, part| {
            let bound = bind(context);
            let to = [0, 1, 2].map(|idx: usize| results[idx].write(context));
            // SAFETY: the plan gives every place the bytes of its type; no result overlaps an operand.
            unsafe {
                let (dy, scratch) = (dy.read(context), context.scratch_f32());
                kernel::attention_grad(context.isa, &bound, dy, to, scratch, part);
            }
            Ok(())
        }),
    );
}

/// The numbers of an attention; its pointers are null until it is bound.
#[derive(Clone, Copy)]
struct Shape(Attention);

// SAFETY: the pointers inside are null and never followed.
unsafe impl Send for Shape {}
// SAFETY: as above.
unsafe impl Sync for Shape {}

impl Shape {
    fn get(&self) -> Attention {
        self.0
    }
}

/// Whether a node can read an operand as rows of a wider buffer.
pub(in crate::cpu) fn reads_rows(
    program: &Program,
    node: &manyhands_program::Node,
    operand: usize,
) -> bool {
    matches!(node.op, Op::Attention(_) | Op::AttentionGrad(_))
        && operand < 3
        && program.ty(node.operands[operand]).dtype == DType::F32
}

/// Whether the node that makes a value can write it as rows of a wider buffer.
pub(in crate::cpu) fn writes_rows(program: &Program, value: ValueId) -> bool {
    matches!(program.definer(value).op, Op::AttentionGrad(_))
        && program.ty(value).dtype == DType::F32
}
