//! Bytes beside a message as numbers.

use std::borrow::Cow;

/// Bytes as floats; copied where they do not lie as floats must.
pub fn floats(bytes: &[u8]) -> Cow<'_, [f32]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(floats) => Cow::Borrowed(floats),
        Err(_) => {
            Cow::Owned(bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect())
        }
    }
}

/// Bytes as keys; copied where they do not lie as keys must.
pub fn keys(bytes: &[u8]) -> Cow<'_, [u64]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(keys) => Cow::Borrowed(keys),
        Err(_) => {
            Cow::Owned(bytes.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it)).collect())
        }
    }
}

/// Keys and the values after them, where the lengths fit.
pub fn keys_and_values(bytes: &[u8], n: u64, width: usize) -> Option<(&[u8], &[u8])> {
    let n_keys = usize::try_from(n).ok()?.checked_mul(8)?;
    let n_values = usize::try_from(n).ok()?.checked_mul(width)?.checked_mul(4)?;
    (n_keys.checked_add(n_values)? == bytes.len()).then(|| bytes.split_at(n_keys))
}
