//! Operations that combine many elements into one.

use manyhands_program::{Op, Reduction, SQUARE_BLOCK};

use super::element::{Float, Number, total};
use super::memory::Call;
use super::{with_float, with_number};

pub(super) fn run(op: &Op, call: &Call<'_>) {
    let dtype = call.operand_type(0).dtype;
    match op {
        Op::Reduce { kind, axes } => {
            with_number!(dtype, T => reduce::<T>(*kind, axes, call));
        }
        Op::Argmax { axis } => with_number!(dtype, T => argmax::<T>(*axis, call)),
        Op::BlockSquareSums => with_float!(dtype, T => {
            let x = call.operand::<T>(0);
            let square = |x: &T| x.wide() * x.wide();
            let block = |i: usize| &x[i * SQUARE_BLOCK..x.len().min((i + 1) * SQUARE_BLOCK)];
            call.result::<T>(0).fill(|i| T::narrow(total(block(i).iter().map(square))));
        }),
        _ => unreachable!("`run` sends no other operation here"),
    }
}

/// Where element `position` lies, counted over those axes for which `reduced` is as said; the
/// other axes stay at their first place.
fn offset(sizes: &[usize], axes: &[usize], reduced: bool, position: usize) -> usize {
    let (mut rest, mut at, mut step) = (position, 0, 1);
    for (axis, &size) in sizes.iter().enumerate().rev() {
        if axes.contains(&axis) == reduced {
            at += rest % size * step;
            rest /= size;
        }
        step *= size;
    }
    at
}

fn reduce<T: Number>(kind: Reduction, axes: &[usize], call: &Call<'_>) {
    let (x, sizes) = (call.operand::<T>(0), call.sizes(0));
    let n: usize = axes.iter().map(|&axis| sizes[axis]).product();
    call.result::<T>(0).fill(|kept| {
        let first = if n == 0 { 0 } else { offset(sizes, axes, false, kept) };
        let elements = (0..n).map(|i| x[first + offset(sizes, axes, true, i)]);
        match kind {
            Reduction::Sum => T::from_sum(elements.map(T::to_sum).fold(T::ZERO.to_sum(), T::sum)),
            Reduction::Product => {
                T::from_sum(elements.map(T::to_sum).fold(T::count(1).to_sum(), T::product))
            }
            Reduction::Max => elements.fold(T::LEAST, T::larger),
            Reduction::Min => elements.fold(T::MOST, T::smaller),
        }
    });
}

/// The first NaN, where there is one, else the first largest.
fn argmax<T: Number>(axis: usize, call: &Call<'_>) {
    let (x, sizes) = (call.operand::<T>(0), call.sizes(0));
    let (size, inner) = (sizes[axis], sizes[axis + 1..].iter().product::<usize>());
    call.result::<i32>(0).fill(|kept| {
        let first = kept / inner * size * inner + kept % inner;
        let mut best = 0;
        for i in 1..size {
            let (leader, own) = (x[first + best * inner], x[first + i * inner]);
            if !leader.is_nan() && (own.is_nan() || own > leader) {
                best = i;
            }
        }
        best as i32
    });
}
