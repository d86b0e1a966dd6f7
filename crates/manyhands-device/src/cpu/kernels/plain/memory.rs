//! The memory of one call, seen as slices of elements: everything unsafe of the evaluator is here.

use std::marker::PhantomData;

use manyhands_program::TensorType;

use super::element::Cell;
use super::{Operand, ResultSlot};

/// The operands, results and scratch memory of one operation.
///
/// Invariant: all of it is as [`super::run`] asks, which makes the methods safe.
pub(super) struct Call<'a> {
    operands: &'a [Operand<'a>],
    results: &'a [ResultSlot<'a>],
    scratch: *mut u8,
}

impl<'a> Call<'a> {
    /// # Safety
    /// The memory is as [`super::run`] asks, for as long as the call lives.
    pub(super) unsafe fn new(
        operands: &'a [Operand<'a>],
        results: &'a [ResultSlot<'a>],
        scratch: *mut u8,
    ) -> Call<'a> {
        Call { operands, results, scratch }
    }

    pub(super) fn n_operands(&self) -> usize {
        self.operands.len()
    }

    pub(super) fn operand_type(&self, idx: usize) -> &'a TensorType {
        self.operands[idx].ty
    }

    pub(super) fn result_type(&self, idx: usize) -> &'a TensorType {
        self.results[idx].ty
    }

    /// The sizes of an operand.
    pub(super) fn sizes(&self, idx: usize) -> &'a [usize] {
        &self.operands[idx].ty.shape
    }

    /// The elements of an operand.
    pub(super) fn operand<T: Cell>(&self, idx: usize) -> &'a [T] {
        assert_eq!(self.operands[idx].ty.dtype, T::DTYPE, "the element type of operand {idx}");
        self.raw_operand(idx)
    }

    /// The elements of an operand as bits of their size.
    pub(super) fn raw_operand<T: Copy>(&self, idx: usize) -> &'a [T] {
        let Operand { ty, data } = &self.operands[idx];
        assert_eq!(ty.dtype.size(), size_of::<T>(), "the element size of operand {idx}");
        let n = ty.shape.n_elements();
        if n == 0 {
            return &[];
        }
        // SAFETY: by the invariant the operand has its elements, aligned, and nothing writes them
        // while the call lives; any bits are an element, since `T` is a number or a `Truth`.
        unsafe { std::slice::from_raw_parts(data.cast::<T>(), n) }
    }

    /// Where the elements of a result go.
    pub(super) fn result<T: Cell>(&self, idx: usize) -> Place<'a, T> {
        assert_eq!(self.results[idx].ty.dtype, T::DTYPE, "the element type of result {idx}");
        self.raw_result(idx)
    }

    /// Where the elements of a result go, as bits of their size.
    pub(super) fn raw_result<T: Copy>(&self, idx: usize) -> Place<'a, T> {
        let ResultSlot { ty, data } = &self.results[idx];
        assert_eq!(ty.dtype.size(), size_of::<T>(), "the element size of result {idx}");
        Place { data: data.cast::<T>(), n: ty.shape.n_elements(), memory: PhantomData }
    }

    /// The first `n` doubles of the scratch memory, set to zero. There is one scratch memory, so a
    /// call takes it once.
    pub(super) fn take_scratch(&mut self, n: usize) -> &'a mut [f64] {
        let data = std::mem::replace(&mut self.scratch, std::ptr::null_mut()).cast::<f64>();
        if n == 0 {
            return &mut [];
        }
        assert!(!data.is_null(), "scratch memory is taken once");
        // SAFETY: callers ask for no more than `scratch_bytes` says, and by the invariant so much
        // is there, aligned and apart from everything else; it is written before it is seen.
        unsafe {
            std::ptr::write_bytes(data, 0, n);
            std::slice::from_raw_parts_mut(data, n)
        }
    }
}

/// The memory of a result, which is written element by element and never read before.
pub(super) struct Place<'a, T> {
    data: *mut T,
    n: usize,
    memory: PhantomData<&'a mut T>,
}

impl<T: Copy> Place<'_, T> {
    pub(super) fn len(&self) -> usize {
        self.n
    }

    /// The address of the first element.
    pub(super) fn data(&self) -> *mut T {
        self.data
    }

    pub(super) fn set(&self, idx: usize, value: T) {
        assert!(idx < self.n, "element {idx} of {}", self.n);
        // SAFETY: the index is inside, and the result's memory may be written.
        unsafe { self.data.add(idx).write(value) }
    }

    /// Sets every element, in order.
    pub(super) fn fill(&self, mut value: impl FnMut(usize) -> T) {
        for idx in 0..self.n {
            self.set(idx, value(idx));
        }
    }

    /// Replaces an element.
    ///
    /// # Safety
    /// The element was set before.
    pub(super) unsafe fn replace(&self, idx: usize, change: impl FnOnce(T) -> T) {
        assert!(idx < self.n, "element {idx} of {}", self.n);
        // SAFETY: the index is inside and the element was set, says the caller.
        let old = unsafe { self.data.add(idx).read() };
        self.set(idx, change(old));
    }
}
