//! Some rows of a block as records, and where each of them goes.

use crate::layout::Field;

/// Stands for a part: the row is left out.
pub(crate) const DROPPED: u8 = u8::MAX;

/// Records being written, and the part of each.
pub(crate) struct Rows<'a> {
    pub(crate) records: &'a mut [u8],
    pub(crate) width: usize,
    /// The part of each row, or [`DROPPED`].
    pub(crate) parts: &'a mut [u8],
}

impl Rows<'_> {
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(crate) fn field(&self, row: usize, field: &Field) -> &[u8] {
        &self.records[row * self.width + field.offset..][..field.bytes()]
    }

    pub(crate) fn field_mut(&mut self, row: usize, field: &Field) -> &mut [u8] {
        &mut self.records[row * self.width + field.offset..][..field.bytes()]
    }

    /// Writes numbers into a field of all rows.
    pub(crate) fn put<T: Copy, const N: usize>(
        &mut self,
        field: &Field,
        numbers: &[T],
        bytes: impl Fn(T) -> [u8; N],
    ) {
        let rows = self.records.chunks_exact_mut(self.width);
        if field.n == 1 {
            for (row, &number) in rows.zip(numbers) {
                row[field.offset..field.offset + N].copy_from_slice(&bytes(number));
            }
            return;
        }
        for (row, numbers) in rows.zip(numbers.chunks_exact(field.n)) {
            let out = &mut row[field.offset..field.offset + field.n * N];
            for (out, &number) in out.as_chunks_mut::<N>().0.iter_mut().zip(numbers) {
                *out = bytes(number);
            }
        }
    }
}
