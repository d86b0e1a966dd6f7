//! Small cases checked by hand, and identities that hold for all element types.

use manyhands_program::{DType, Op, Shape, Tensor, TensorType};

use super::*;

mod elements;
mod networks;

/// Runs one operation over memory that holds rubbish.
pub(crate) fn evaluate(
    op: &Op,
    operands: &[Tensor],
    result_types: &[TensorType],
) -> Result<Vec<Tensor>, Fault> {
    let types: Vec<&TensorType> = operands.iter().map(|operand| operand.ty()).collect();
    assert!(supported(op));
    let aligned: Vec<Vec<u64>> = operands
        .iter()
        .map(|operand| {
            let mut words = vec![0u64; operand.bytes().len().div_ceil(8)];
            for (i, &byte) in operand.bytes().iter().enumerate() {
                words[i / 8] |= u64::from(byte) << (8 * (i % 8));
            }
            words
        })
        .collect();
    let views: Vec<Operand<'_>> = operands
        .iter()
        .zip(&aligned)
        .map(|(operand, words)| Operand { ty: operand.ty(), data: words.as_ptr().cast() })
        .collect();
    let mut memory: Vec<Vec<u64>> = result_types
        .iter()
        .map(|ty| vec![0xa5a5_a5a5_a5a5_a5a5; ty.n_bytes().div_ceil(8)])
        .collect();
    let slots: Vec<ResultSlot<'_>> = result_types
        .iter()
        .zip(&mut memory)
        .map(|(ty, words)| ResultSlot { ty, data: words.as_mut_ptr().cast() })
        .collect();
    let mut scratch = vec![f64::NAN; scratch_bytes(op, &types) / 8];
    // SAFETY: all memory has the size of its type, aligned to 8.
    unsafe { run(op, &views, &slots, scratch.as_mut_ptr().cast())? };
    let results = result_types.iter().zip(&memory).map(|(ty, words)| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Tensor::from_bytes(ty.clone(), bytes[..ty.n_bytes()].to_vec()).expect("a whole tensor")
    });
    Ok(results.collect())
}

/// A tensor of small numbers in no particular order.
pub(crate) fn scrambled(dtype: DType, shape: impl Into<Shape>, seed: u64) -> Tensor {
    let shape = shape.into();
    let mut state = seed;
    let mut bytes = Vec::new();
    for _ in 0..shape.n_elements() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let value = ((state >> 40) % 201) as f64 / 16.0 - 6.25;
        let own = Tensor::scalar(dtype, if dtype.is_float() { value } else { value.trunc() });
        bytes.extend_from_slice(own.bytes());
    }
    Tensor::from_bytes(TensorType::new(dtype, shape), bytes).expect("so many elements")
}
