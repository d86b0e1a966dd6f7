//! Rows that are picked by index, and rows that are added at an index.

use std::ops::Range;

use manyhands_program::{DType, TensorType};

use crate::cpu::kernels::Part;
use crate::cpu::kernels::fault::Fault;
use crate::cpu::simd::{Isa, Kernel, Lanes, WIDTH};

/// A tensor seen around one axis, and how many indices pick from it.
#[derive(Clone, Copy, Debug)]
struct Around {
    /// Product of the sizes before the axis.
    outer: usize,
    /// The axis.
    size: usize,
    /// Product of the sizes after it.
    inner: usize,
    n_indices: usize,
    /// Whether indices are i64, else i32.
    wide: bool,
}

impl Around {
    fn new(axis: usize, tensor: &TensorType, indices: &TensorType) -> Around {
        let sizes = &tensor.shape;
        Around {
            outer: sizes[..axis].iter().product(),
            size: sizes[axis],
            inner: sizes[axis + 1..].iter().product(),
            n_indices: indices.shape.n_elements(),
            wide: indices.dtype == DType::I64,
        }
    }

    /// Whether the index at a position is below zero.
    ///
    /// # Safety
    /// As of [`Around::index`].
    #[inline(always)]
    unsafe fn is_below_zero(&self, indices: *const u8, position: usize) -> bool {
        // SAFETY: as the caller says.
        unsafe {
            match self.wide {
                true => *indices.cast::<i64>().add(position) < 0,
                false => *indices.cast::<i32>().add(position) < 0,
            }
        }
    }

    /// The index at a position, if it is inside the axis.
    ///
    /// # Safety
    /// There are indices of the right type, and the position is one of theirs.
    #[inline(always)]
    unsafe fn index(&self, indices: *const u8, position: usize) -> Result<usize, Fault> {
        // SAFETY: as the caller says.
        let index = unsafe {
            if self.wide {
                *indices.cast::<i64>().add(position)
            } else {
                i64::from(*indices.cast::<i32>().add(position))
            }
        };
        // A negative index is a very large one when seen without its sign.
        if (index as u64) < self.size as u64 {
            return Ok(index as usize);
        }
        Err(Fault::IndexOutOfRange { index, size: self.size, position })
    }
}

/// Picks rows by index along an axis.
#[derive(Clone, Debug)]
pub(super) struct Gather {
    around: Around,
    /// An index below zero picks zeros.
    or_zeros: bool,
}

impl Gather {
    pub(super) fn new(axis: usize, x: &TensorType, indices: &TensorType) -> Gather {
        Gather { around: Around::new(axis, x, indices), or_zeros: false }
    }

    /// With zeros where an index is below zero.
    pub(super) fn or_zeros(mut self) -> Gather {
        self.or_zeros = true;
        self
    }

    /// # Safety
    /// As of [`super::LayoutPlan::run`].
    pub(super) unsafe fn run<T: Copy>(
        &self,
        src: *const T,
        indices: *const u8,
        dst: *mut T,
        part: Part,
    ) -> Result<(), Fault> {
        let Around { outer, size, inner, n_indices, .. } = self.around;
        if outer == 0 {
            // There is nothing to pick, but a bad index is a fault all the same.
            // SAFETY: as the caller says.
            return (0..n_indices).try_for_each(|position| unsafe {
                self.around.index(indices, position).map(|_| ())
            });
        }
        let rows = part.range(outer * n_indices, super::line::<T>().div_ceil(inner.max(1)));
        for row in rows {
            let (block, position) = (row / n_indices, row % n_indices);
            // SAFETY: as the caller says; the index is checked before it is used.
            unsafe {
                if self.or_zeros && self.around.is_below_zero(indices, position) {
                    std::ptr::write_bytes(dst.add(row * inner), 0, inner);
                    continue;
                }
                let index = self.around.index(indices, position)?;
                let from = src.add((block * size + index) * inner);
                if inner == 1 {
                    *dst.add(row) = *from;
                } else {
                    std::ptr::copy_nonoverlapping(from, dst.add(row * inner), inner);
                }
            }
        }
        Ok(())
    }
}

/// Adds rows of f32 to a tensor at indices along an axis, in the order of the indices.
///
/// Every part walks over all indices and adds only to what is its own, columns or rows, so each
/// element's sum has one order whatever the number of parts.
#[derive(Clone, Debug)]
pub(crate) struct ScatterAddPlan(Around);

impl ScatterAddPlan {
    /// The plan for a base of this type, and indices of this one.
    pub(crate) fn new(axis: usize, base: &TensorType, indices: &TensorType) -> ScatterAddPlan {
        ScatterAddPlan(Around::new(axis, base, indices))
    }

    /// Does one part. Without a base it is zeros; where the base is the result itself, nothing is
    /// copied. On a fault nothing has been written.
    ///
    /// # Safety
    /// `isa` is available. The pointers are valid for all elements of the types that the plan was
    /// made for, aligned to them; the result overlaps neither indices nor updates, nor the base
    /// unless it is the same.
    pub(crate) unsafe fn run(
        &self,
        isa: Isa,
        base: Option<*const f32>,
        indices: *const u8,
        updates: *const f32,
        result: *mut f32,
        part: Part,
    ) -> Result<(), Fault> {
        let around = self.0;
        for position in 0..around.n_indices {
            // SAFETY: as the caller says.
            unsafe { around.index(indices, position)? };
        }
        // Columns share the work evenly whatever the indices are, but only where there are enough.
        let by_columns = around.inner >= 2 * WIDTH * part.count;
        let n_rows = around.outer * around.size;
        let (rows, columns) = if by_columns {
            (0..n_rows, part.range(around.inner, WIDTH))
        } else {
            (part.range(n_rows, WIDTH.div_ceil(around.inner.max(1))), 0..around.inner)
        };
        if rows.is_empty() || columns.is_empty() {
            return Ok(());
        }
        // SAFETY: as the caller says; every index has been checked.
        unsafe {
            start(base, result, around.inner, &rows, &columns);
            isa.run(AddRows { around, indices, updates, result, rows, columns });
        }
        Ok(())
    }
}

/// Copies the part's own block of the base, or of zeros, to the result.
///
/// # Safety
/// Rows and columns lie inside both.
unsafe fn start(
    base: Option<*const f32>,
    result: *mut f32,
    inner: usize,
    rows: &Range<usize>,
    columns: &Range<usize>,
) {
    if base == Some(result.cast_const()) {
        return;
    }
    let (rows, n) = if columns.len() == inner {
        (rows.start..rows.start + 1, rows.len() * inner)
    } else {
        (rows.clone(), columns.len())
    };
    for row in rows {
        let at = row * inner + columns.start;
        // SAFETY: as the caller says.
        unsafe {
            match base {
                Some(base) => std::ptr::copy_nonoverlapping(base.add(at), result.add(at), n),
                None => std::ptr::write_bytes(result.add(at), 0, n),
            }
        }
    }
}

struct AddRows {
    around: Around,
    indices: *const u8,
    updates: *const f32,
    result: *mut f32,
    /// The rows of the result, counted over outer and axis, that are this part's.
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Kernel for AddRows {
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let Around { outer, size, inner, n_indices, .. } = self.around;
        for block in 0..outer {
            if self.rows.end <= block * size || (block + 1) * size <= self.rows.start {
                continue;
            }
            for position in 0..n_indices {
                // SAFETY: the plan has checked every index; rows and columns lie inside.
                unsafe {
                    let Ok(index) = self.around.index(self.indices, position) else { return };
                    let row = block * size + index;
                    if !self.rows.contains(&row) {
                        continue;
                    }
                    let update = (block * n_indices + position) * inner + self.columns.start;
                    let update = self.updates.add(update);
                    let own = self.result.add(row * inner + self.columns.start);
                    add_row(l, own, update, self.columns.len());
                }
            }
        }
    }
}

/// # Safety
/// Both have `n` elements.
#[inline(always)]
unsafe fn add_row<L: Lanes>(l: L, own: *mut f32, update: *const f32, n: usize) {
    let mut at = 0;
    // SAFETY: as the caller says; partial vectors touch only what is inside.
    unsafe {
        while at + WIDTH <= n {
            l.store(own.add(at), l.add(l.load(own.add(at)), l.load(update.add(at))));
            at += WIDTH;
        }
        if at < n {
            let sum =
                l.add(l.load_first(own.add(at), n - at), l.load_first(update.add(at), n - at));
            l.store_first(own.add(at), sum, n - at);
        }
    }
}
