//! The rows of tables: what grains took of them put side by side, merged, and put back.

use manyhands_program::DType;

use super::Lowered;
use crate::cpu::kernels::tables::{GrainPlan, MergeArguments, MergePlan, PutPlan};
use crate::cpu::memory::Place;

/// The most uses of one table whose rows are merged without memory of their own for the operands.
const MOST_USES: usize = 16;

pub(super) fn put_grain(out: &mut Lowered<'_>, n_grains: usize) {
    let ty = out.operand_type(1);
    let neutral = neutral(ty.dtype);
    let plan = GrainPlan { n_grains, n_bytes: ty.n_bytes(), neutral, element: ty.dtype.size() };
    let (random, value, to) = (out.operand(0), out.operand(1), out.result(0));
    let base = (out.node.operands.len() > 2).then(|| out.operand(2));
    out.emit(
        0,
        Box::new(move |context, part| {
            let value = context.at::<u8>(value).cast_const();
            let base = base.map(|base| context.at::<u8>(base).cast_const());
            // SAFETY: the context of random numbers is i64[3]; the plan gives every place the bytes of its type; the result is the
            // base itself or overlaps nothing.
            unsafe {
                let [_, _, grain] = *context.at::<[i64; 3]>(random);
                Ok(plan.run(grain, value, base, context.at(to), part)?)
            }
        }),
    );
}

/// What changes nothing when it is added: -0.0, or 0 of integers.
fn neutral(dtype: DType) -> [u8; 8] {
    let mut bytes = [0; 8];
    if dtype.is_float() {
        bytes[dtype.size() - 1] = 0x80;
    }
    bytes
}

pub(super) fn merge_rows(out: &mut Lowered<'_>, most: usize) {
    let n_uses = out.node.operands.len() / 2;
    assert!(n_uses <= MOST_USES, "a table is not used so often");
    let shape = |idx: usize| &out.operand_type(idx).shape;
    let uses = (0..n_uses).map(|idx| [shape(2 * idx)[0], shape(2 * idx)[1]]).collect();
    let plan = MergePlan::new(uses, shape(1)[2], most);
    let operands: Vec<[Place; 2]> =
        (0..n_uses).map(|idx| [out.operand(2 * idx), out.operand(2 * idx + 1)]).collect();
    let (rows, sums) = (out.result(0), out.result(1));
    out.emit_bytes(
        plan.scratch_bytes(),
        Box::new(move |context, part| {
            let mut codes = [std::ptr::null(); MOST_USES];
            let mut values = [std::ptr::null(); MOST_USES];
            for (idx, &[own_codes, own_values]) in operands.iter().enumerate() {
                codes[idx] = context.at::<i32>(own_codes).cast_const();
                values[idx] = context.at::<f32>(own_values).cast_const();
            }
            let arguments = MergeArguments {
                codes: &codes[..operands.len()],
                values: &values[..operands.len()],
                rows: context.at(rows),
                sums: context.at(sums),
                scratch: context.scratch,
            };
            // SAFETY: the plan gives every place the bytes of its type, and this thread its scratch; results overlap nothing.
            Ok(unsafe { plan.run(context.isa, arguments, part) }?)
        }),
    );
}

pub(super) fn put_rows(out: &mut Lowered<'_>) {
    let table = out.operand_type(0);
    let row_bytes = table.shape[1] * table.dtype.size();
    let (n_rows, n_put) = (table.shape[0], out.operand_type(1).shape[0]);
    let plan = PutPlan { n_rows, n_put, row_bytes };
    let (table, rows, values, to) = (out.operand(0), out.operand(1), out.operand(2), out.result(0));
    out.emit(
        0,
        Box::new(move |context, part| {
            let table = context.at::<u8>(table).cast_const();
            let rows = context.at::<i32>(rows).cast_const();
            let values = context.at::<u8>(values).cast_const();
            // SAFETY: the plan gives every place the bytes of its type; the result is the table itself or overlaps nothing.
            Ok(unsafe { plan.run(table, rows, values, context.at(to), part) }?)
        }),
    );
}
