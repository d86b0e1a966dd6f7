//! The rows of tables: what grains took of them put side by side, merged, and put back.

mod merge;
#[cfg(test)]
mod tests;

pub(crate) use merge::{MergeArguments, MergePlan};

use super::Part;
use super::fault::Fault;

/// Puts the value of a grain into its place among those of all grains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrainPlan {
    pub(crate) n_grains: usize,
    /// Bytes of one grain's value.
    pub(crate) n_bytes: usize,
    /// What changes nothing when it is added: the bytes of an element, the lowest first.
    pub(crate) neutral: [u8; 8],
    /// Bytes of an element.
    pub(crate) element: usize,
}

impl GrainPlan {
    /// Does one part. Without a base the other places get what is neutral; where the base is the result itself, they stay.
    ///
    /// # Safety
    /// The value has the plan's bytes, the result and the base as many for each grain; the result overlaps no value, nor the
    /// base unless it is the same.
    pub(crate) unsafe fn run(
        &self,
        grain: i64,
        value: *const u8,
        base: Option<*const u8>,
        result: *mut u8,
        part: Part,
    ) -> Result<(), Fault> {
        let &GrainPlan { n_grains, n_bytes, neutral, element } = self;
        let place = usize::try_from(grain).ok().filter(|&grain| grain < n_grains);
        let Some(own) = place else {
            return Err(Fault::IndexOutOfRange { index: grain, size: n_grains, position: 0 });
        };
        for grain in 0..n_grains {
            let range = part.range(n_bytes, 4096);
            let (at, n) = (grain * n_bytes + range.start, range.len());
            // SAFETY: as the caller says; the range lies inside the value.
            unsafe {
                let to = result.add(at);
                match base {
                    _ if grain == own => {
                        std::ptr::copy_nonoverlapping(value.add(range.start), to, n);
                    }
                    Some(base) if base == result.cast_const() => {}
                    Some(base) => std::ptr::copy_nonoverlapping(base.add(at), to, n),
                    None => match element {
                        2 => fill(to, n, u64::from_le_bytes(neutral) as u16),
                        4 => fill(to, n, u64::from_le_bytes(neutral) as u32),
                        _ => fill(to, n, u64::from_le_bytes(neutral)),
                    },
                }
            }
        }
        Ok(())
    }
}

/// Fills bytes with an element.
///
/// # Safety
/// There are so many bytes, aligned to the element, of which they are a multiple.
unsafe fn fill<T: Copy>(to: *mut u8, n_bytes: usize, element: T) {
    // SAFETY: as the caller says.
    unsafe {
        std::slice::from_raw_parts_mut(to.cast::<T>(), n_bytes / size_of::<T>()).fill(element)
    };
}

/// Replaces rows of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutPlan {
    /// Rows of the table.
    pub(crate) n_rows: usize,
    /// How many rows are put.
    pub(crate) n_put: usize,
    /// Bytes of a row.
    pub(crate) row_bytes: usize,
}

impl PutPlan {
    /// Does one part: the rows of the table that are its own, whichever are put.
    ///
    /// # Safety
    /// Table and result have the plan's rows, rows and values as many as are put; the result overlaps neither, nor the table
    /// unless it is the same.
    pub(crate) unsafe fn run(
        &self,
        table: *const u8,
        rows: *const i32,
        values: *const u8,
        result: *mut u8,
        part: Part,
    ) -> Result<(), Fault> {
        let &PutPlan { n_rows, n_put, row_bytes } = self;
        // SAFETY: as the caller says.
        let rows = unsafe { std::slice::from_raw_parts(rows, n_put) };
        let beyond = |&(_, &row): &(usize, &i32)| row >= 0 && row as usize >= n_rows;
        if let Some((position, &row)) = rows.iter().enumerate().find(beyond) {
            return Err(Fault::IndexOutOfRange { index: row.into(), size: n_rows, position });
        }
        let own = part.range(n_rows, 4096usize.div_ceil(row_bytes.max(1)));
        let (start, n) = (own.start * row_bytes, own.len() * row_bytes);
        // SAFETY: as the caller says; every row that is put lies inside.
        unsafe {
            if table != result.cast_const() {
                std::ptr::copy_nonoverlapping(table.add(start), result.add(start), n);
            }
            for (position, &row) in rows.iter().enumerate() {
                if row >= 0 && own.contains(&(row as usize)) {
                    let from = values.add(position * row_bytes);
                    let to = result.add(row as usize * row_bytes);
                    std::ptr::copy_nonoverlapping(from, to, row_bytes);
                }
            }
        }
        Ok(())
    }
}
