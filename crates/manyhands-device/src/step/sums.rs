//! The sums over grains of a plan, as they lie one after the other in a slot.

use manyhands_program::{DType, Program, TensorType, is_sum};

use crate::device::group_offsets;

/// One sum over grains in the flat bytes of a set of sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Its name among the outputs of the per-grain part.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Where it begins, in bytes; a multiple of [`GROUP_ALIGNMENT`](crate::GROUP_ALIGNMENT).
    pub offset: usize,
    /// How many elements it has.
    pub n_elements: usize,
}

/// How a set of sums lies in memory: a function of the program alone, so the same on all workers.
///
/// The order is that in which the per-grain part makes them, so a part of the bytes at the beginning is final before the
/// rest. Between two sums and after the last lie zeros, up to the next multiple of 64 bytes; they may be added as the sums are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumLayout {
    /// The sums, by offset.
    pub sums: Vec<Sum>,
    /// The bytes of a whole set.
    pub n_bytes: usize,
}

impl SumLayout {
    /// The layout of a per-grain part's sums, and their types in that order.
    pub(super) fn new(grain: &Program) -> (SumLayout, Vec<TensorType>) {
        let sums = grain.outputs().iter().filter(|output| is_sum(&output.name));
        let mut sums: Vec<_> = sums.collect();
        // Two names of one value keep the order of the outputs.
        sums.sort_by_key(|output| grain.definer_idx(output.value));
        let types: Vec<TensorType> = sums.iter().map(|sum| grain.ty(sum.value).clone()).collect();
        let (offsets, n_bytes) = group_offsets(&types);
        let sums = sums.iter().zip(&types).zip(offsets).map(|((sum, ty), offset)| Sum {
            name: sum.name.clone(),
            dtype: ty.dtype,
            offset,
            n_elements: ty.shape.n_elements(),
        });
        (SumLayout { sums: sums.collect(), n_bytes }, types)
    }
}
