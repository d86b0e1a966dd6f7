//! Random numbers and dropout, drawn by the generator that the fast kernels use.

use manyhands_program::{DType, Distribution};

use super::element::Float;
use super::memory::Call;
use super::with_float;
use crate::cpu::kernels::{Part, random};
use crate::cpu::simd::Isa;

/// Where the values of a random operation stand, from its key, the random context (seed, step,
/// grain) and the iterations of the scans around it, outermost first.
///
/// The innermost iteration has a counter of its own; those further out are mixed into the key.
pub(crate) fn place(
    key: u64,
    [seed, step, grain]: [i64; 3],
    iterations: impl IntoIterator<Item = i32>,
) -> random::Place {
    let (mut operation, mut innermost) = (key, None);
    for iteration in iterations {
        if let Some(outer) = innermost.replace(iteration as u32) {
            // An odd factor makes this a bijection of the key for each iteration, and the one added
            // tells iteration 0 of a scan from no scan.
            let mixed = (operation ^ (u64::from(outer) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            operation = mixed ^ (mixed >> 29);
        }
    }
    random::Place {
        seed: seed as u64,
        operation,
        step: step as u32,
        grain: grain as u32,
        iteration: innermost.unwrap_or(0),
    }
}

/// The place of a call whose random operands begin at `first`.
fn place_of(call: &Call<'_>, key: u64, first: usize) -> random::Place {
    let context = call.operand::<i64>(first);
    let iterations = (first + 1..call.n_operands()).map(|idx| call.operand::<i32>(idx)[0]);
    place(key, [context[0], context[1], context[2]], iterations)
}

pub(super) fn fill(distribution: Distribution, key: u64, call: &Call<'_>) {
    let (place, out) = (place_of(call, key, 0), call.result::<f32>(0));
    let draw = match distribution {
        Distribution::Uniform => random::uniform,
        Distribution::Normal => random::normal,
    };
    // SAFETY: every machine has the portable instructions, and the result its elements.
    unsafe { draw(Isa::Portable, place, out.data(), out.len(), Part::WHOLE) };
}

/// The doubles of scratch memory that dropout needs: a mask of f32 where the type is another.
pub(super) fn n_dropout_scratch(dtype: DType, n_elements: usize) -> usize {
    if dtype == DType::F32 { 0 } else { n_elements.div_ceil(2) }
}

pub(super) fn dropout(rate: f64, key: u64, call: &mut Call<'_>) {
    let place = place_of(call, key, 1);
    let ty = call.operand_type(0);
    if ty.dtype == DType::F32 {
        let (x, y) = (call.operand::<f32>(0), call.result::<f32>(0));
        let (x, y, n) = (x.as_ptr(), y.data(), y.len());
        // SAFETY: every machine has the portable instructions; both have `n` elements.
        unsafe { random::dropout(Isa::Portable, place, rate as f32, x, y, n, Part::WHOLE) };
        return;
    }
    let n = ty.shape.n_elements();
    let mask = call.take_scratch(n_dropout_scratch(ty.dtype, n)).as_mut_ptr().cast::<f32>();
    // SAFETY: every machine has the portable instructions, and the scratch has room for `n` floats.
    unsafe { random::keep_mask(Isa::Portable, place, rate as f32, mask, n, Part::WHOLE) };
    // SAFETY: the mask has been written whole, and is aligned as doubles are.
    let mask: &[f32] = if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(mask, n) } };
    with_float!(ty.dtype, T => scale_kept::<T>(1.0 / (1.0 - rate), mask, call));
}

fn scale_kept<T: Float>(factor: f64, mask: &[f32], call: &Call<'_>) {
    let x = call.operand::<T>(0);
    let kept = |i: usize| T::narrow(x[i].wide() * factor);
    call.result::<T>(0).fill(|i| if mask[i] == 0.0 { T::ZERO } else { kept(i) });
}
