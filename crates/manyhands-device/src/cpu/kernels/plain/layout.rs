//! Operations that move elements: for each element of the result, where it comes from.
//!
//! Positions are taken apart axis by axis, innermost first, for each element anew: any number of
//! axes, and nothing to allocate.

use manyhands_program::{DType, Op};

use super::element::{Cell, Number};
use super::memory::Call;
use super::{with_bits, with_number};
use crate::cpu::kernels::fault::Fault;

pub(super) fn run(op: &Op, call: &Call<'_>) -> Result<(), Fault> {
    let dtype = call.operand_type(0).dtype;
    match op {
        Op::Concatenate { axis } => with_bits!(dtype.size(), T => concatenate::<T>(*axis, call)),
        Op::Pad { low, interior, .. } => {
            with_bits!(dtype.size(), T => pad::<T>(low, interior, call))
        }
        Op::Gather { axis } => {
            return with_bits!(dtype.size(), T => gather::<T>(*axis, call));
        }
        Op::ScatterAdd { axis } => {
            return with_number!(dtype, T => scatter_add::<T>(*axis, call));
        }
        _ => with_bits!(dtype.size(), T => {
            let x = call.raw_operand::<T>(0);
            call.raw_result::<T>(0).fill(|i| x[origin(op, call, i)]);
        }),
    }
    Ok(())
}

/// The element of the only operand that becomes element `position` of the result.
fn origin(op: &Op, call: &Call<'_>, position: usize) -> usize {
    let from = call.sizes(0);
    let to = &call.result_type(0).shape;
    match op {
        Op::Reshape { .. } => position,
        Op::Broadcast { axes, .. } => {
            let (mut rest, mut at, mut step) = (position, 0, 1);
            let mut own = axes.len();
            for (axis, &size) in to.iter().enumerate().rev() {
                if own > 0 && axes[own - 1] == axis {
                    own -= 1;
                    if from[own] > 1 {
                        at += rest % size * step;
                    }
                    step *= from[own];
                }
                rest /= size;
            }
            at
        }
        Op::Transpose { order } => {
            let (mut rest, mut at) = (position, 0);
            for (&axis, &size) in order.iter().zip(to.iter()).rev() {
                at += rest % size * from[axis + 1..].iter().product::<usize>();
                rest /= size;
            }
            at
        }
        Op::Slice { start, stride, .. } => {
            let (mut rest, mut at, mut step) = (position, 0, 1);
            for (axis, &size) in to.iter().enumerate().rev() {
                at += (start[axis] + rest % size * stride[axis]) * step;
                step *= from[axis];
                rest /= size;
            }
            at
        }
        _ => unreachable!("`run` handles every other operation"),
    }
}

fn concatenate<T: Copy>(axis: usize, call: &Call<'_>) {
    let out = call.raw_result::<T>(0);
    let inner: usize = call.sizes(0)[axis + 1..].iter().product();
    let width = call.result_type(0).shape[axis] * inner;
    let mut before = 0;
    for idx in 0..call.n_operands() {
        let own = call.sizes(idx)[axis] * inner;
        for (i, &element) in call.raw_operand::<T>(idx).iter().enumerate() {
            out.set(i / own * width + before + i % own, element);
        }
        before += own;
    }
}

fn pad<T: Copy>(low: &[usize], interior: &[usize], call: &Call<'_>) {
    let (x, value) = (call.raw_operand::<T>(0), call.raw_operand::<T>(1)[0]);
    let (from, to) = (call.sizes(0), &call.result_type(0).shape);
    let origin = |position: usize| {
        let (mut rest, mut at, mut step) = (position, 0, 1);
        for (axis, &size) in to.iter().enumerate().rev() {
            let past_low = (rest % size).checked_sub(low[axis])?;
            let own = past_low / (interior[axis] + 1);
            if past_low % (interior[axis] + 1) != 0 || own >= from[axis] {
                return None;
            }
            at += own * step;
            step *= from[axis];
            rest /= size;
        }
        Some(at)
    };
    call.raw_result::<T>(0).fill(|i| origin(i).map_or(value, |at| x[at]));
}

/// Calls `each` with every index, its position among them, and its range-checked value.
pub(super) fn for_each_index(
    call: &Call<'_>,
    operand: usize,
    size: usize,
    mut each: impl FnMut(usize, usize),
) -> Result<(), Fault> {
    let mut check = |position: usize, index: i64| {
        match usize::try_from(index).ok().filter(|&own| own < size) {
            Some(own) => each(position, own),
            None => return Err(Fault::IndexOutOfRange { index, size, position }),
        }
        Ok(())
    };
    match call.operand_type(operand).dtype {
        DType::I32 => {
            let indices = call.operand::<i32>(operand).iter().enumerate();
            indices.map(|(i, &index)| (i, i64::from(index))).try_for_each(|(i, n)| check(i, n))
        }
        _ => call.operand::<i64>(operand).iter().enumerate().try_for_each(|(i, &n)| check(i, n)),
    }
}

/// The sizes around an axis: the product of those before, its own, the product of those after.
fn around(sizes: &[usize], axis: usize) -> (usize, usize, usize) {
    (sizes[..axis].iter().product(), sizes[axis], sizes[axis + 1..].iter().product())
}

fn gather<T: Copy>(axis: usize, call: &Call<'_>) -> Result<(), Fault> {
    let (outer, size, inner) = around(call.sizes(0), axis);
    let n_indices = call.operand_type(1).shape.n_elements();
    let (x, out) = (call.raw_operand::<T>(0), call.raw_result::<T>(0));
    for_each_index(call, 1, size, |position, index| {
        for o in 0..outer {
            for i in 0..inner {
                let to = (o * n_indices + position) * inner + i;
                out.set(to, x[(o * size + index) * inner + i]);
            }
        }
    })
}

fn scatter_add<T: Number + Cell>(axis: usize, call: &Call<'_>) -> Result<(), Fault> {
    let (outer, size, inner) = around(call.sizes(0), axis);
    let n_indices = call.operand_type(1).shape.n_elements();
    let (base, updates) = (call.operand::<T>(0), call.operand::<T>(2));
    let out = call.result::<T>(0);
    out.fill(|i| base[i]);
    for_each_index(call, 1, size, |position, index| {
        for o in 0..outer {
            for i in 0..inner {
                let update = updates[(o * n_indices + position) * inner + i];
                // SAFETY: `fill` has set every element.
                unsafe { out.replace((o * size + index) * inner + i, |old| old.add(update)) };
            }
        }
    })
}
