//! All-reduce with fewer bytes on the wire, for slow links. What arrives is near the sum, not the sum: only for those who ask for it.
//!
//! Dense forms go in two rounds: each rank sends every other its part, compressed; the owner of a part decodes and adds in tree order, and sends the
//! sum, compressed again. All ranks decode the same bytes, so all have the same result to the bit. The largest few go in one round, to all.
//!
//! *Error feedback*: what compression took away from a rank's values is kept and added to its values of the next call. Over many calls nothing is lost: the sum
//! of all results and of what is kept is the sum of all that was brought.

use std::borrow::Cow;
use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::element::Reduction;
use super::error::CollectiveError;
use super::group::Group;

/// Values that share a scale in the 8-bit form.
const BLOCK: usize = 256;
/// Values that go at a time.
const PIECE: usize = 128 << 10;
/// The largest number of the 8-bit form.
const LARGEST: f32 = 127.0;
/// Bytes of an index and a value.
const PAIR: usize = 8;

/// How values are made smaller for the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compression {
    /// 16-bit floats with the exponents of f32: an error of at most 1/256 of each value.
    Bf16,
    /// 16-bit floats: an error of at most 1/2048 of each value of usual size. Beyond 65504 it ends.
    F16,
    /// 8-bit integers, with a scale for every 256 values: an error of at most 1/254 of the largest of these.
    EightBit,
    /// Only the largest of each call, this share of all, at least one. The others wait until they have grown, so this makes sense with error feedback alone.
    TopK {
        /// Between 0 and 1.
        share: f32,
    },
}

/// All-reduces of compressed values, always of as many, with what compression took away so far.
#[derive(Clone, Debug)]
pub struct Compressor {
    compression: Compression,
    has_feedback: bool,
    residual: Vec<f32>,
}

impl Compressor {
    /// For values of this length, with error feedback.
    pub fn new(compression: Compression, n: usize) -> Compressor {
        Compressor { compression, has_feedback: true, residual: vec![0.0; n] }
    }

    /// Forgets what compression takes away, so that a call does not depend on those before. The largest few always have feedback.
    pub fn without_feedback(mut self) -> Compressor {
        self.has_feedback = matches!(self.compression, Compression::TopK { .. });
        self
    }

    /// What was taken away and will be added to this rank's values of the next call.
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// All ranks get the sum or mean of what each has, nearly. A rank alone gets its own values, exactly.
    pub fn all_reduce(
        &mut self,
        group: &mut Group,
        values: &mut [f32],
        reduction: Reduction,
    ) -> Result<(), CollectiveError> {
        self.check(values.len(), reduction)?;
        if group.size() == 1 {
            return Ok(());
        }
        if self.has_feedback {
            values.iter_mut().zip(&self.residual).for_each(|(value, kept)| *value += kept);
        }
        match self.compression {
            Compression::TopK { share } => self.largest(group, values, share)?,
            _ => self.dense(group, values)?,
        }
        if reduction == Reduction::Mean {
            let size = group.size() as f32;
            values.iter_mut().for_each(|value| *value /= size);
        }
        Ok(())
    }

    fn check(&self, n: usize, reduction: Reduction) -> Result<(), CollectiveError> {
        let expected = self.residual.len();
        let sentence = match (reduction, self.compression) {
            (Reduction::Min | Reduction::Max | Reduction::Product, _) => {
                format!("compressed values have a sum and a mean, but no {}", reduction.name())
            }
            (_, Compression::TopK { share }) if !(share > 0.0 && share <= 1.0) => {
                format!("a share of {share} of the values is not between 0 and 1")
            }
            _ if n != expected => {
                format!("this compresses {expected} values at a time, not {n}")
            }
            _ => return Ok(()),
        };
        Err(CollectiveError::Misuse(sentence))
    }

    /// Keeps what the others will not see of `values`.
    fn keep(&mut self, range: Range<usize>, values: &[f32], seen: &[f32]) {
        if !self.has_feedback {
            return;
        }
        let pairs = values.iter().zip(seen);
        for (kept, (value, seen)) in self.residual[range].iter_mut().zip(pairs) {
            let difference = value - seen;
            // What is not finite has been seen as such, and would never leave again.
            *kept = if difference.is_finite() { difference } else { 0.0 };
        }
    }

    /// In pieces that stay in the cache, each in two rounds.
    fn dense(&mut self, group: &mut Group, values: &mut [f32]) -> Result<(), CollectiveError> {
        let mut scratch = vec![0.0; values.len().min(PIECE)];
        for (number, piece) in values.chunks_mut(PIECE).enumerate() {
            self.dense_piece(group, piece, number * PIECE, &mut scratch)?;
        }
        Ok(())
    }

    /// One piece, whose first value has the number `start`.
    fn dense_piece(
        &mut self,
        group: &mut Group,
        values: &mut [f32],
        start: usize,
        scratch: &mut [f32],
    ) -> Result<(), CollectiveError> {
        let (rank, size, compression) = (group.rank(), group.size(), self.compression);
        let edge = |part: usize| values.len() * part / size;
        let parts: Vec<Range<usize>> = (0..size).map(|part| edge(part)..edge(part + 1)).collect();
        let encoded: Vec<Vec<u8>> =
            parts.iter().map(|part| encode(compression, &values[part.clone()])).collect();
        let n_kept = if self.has_feedback { size } else { 0 };
        for (part, bytes) in parts.iter().zip(&encoded).take(n_kept) {
            let seen = &mut scratch[part.clone()];
            decode(compression, bytes, seen, rank)?;
            self.keep(start + part.start..start + part.end, &values[part.clone()], seen);
        }
        let slices: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();
        let brought = group.all_to_all_uneven(&slices)?;
        let own = parts[rank].clone();
        let mut decoded = vec![vec![0.0; own.len()]; size];
        for (from, (bytes, values)) in brought.iter().zip(&mut decoded).enumerate() {
            decode(compression, bytes, values, from)?;
        }
        add_in_tree_order(&mut decoded);
        let bytes = encode(compression, &decoded[0]);
        if self.has_feedback {
            // The second rounding is the owner's to make good: it adds to what it owes for its own values.
            let seen = &mut scratch[own.clone()];
            decode(compression, &bytes, seen, rank)?;
            let owed = decoded[0].iter().zip(seen).map(|(sum, seen)| sum - *seen);
            for (kept, owed) in self.residual[start + own.start..].iter_mut().zip(owed) {
                *kept += if owed.is_finite() { owed } else { 0.0 };
            }
        }
        let sums = group.all_gather_uneven(&bytes)?;
        for (from, (part, bytes)) in parts.into_iter().zip(&sums).enumerate() {
            decode(compression, bytes, &mut values[part], from)?;
        }
        Ok(())
    }

    fn largest(
        &mut self,
        group: &mut Group,
        values: &mut [f32],
        share: f32,
    ) -> Result<(), CollectiveError> {
        let n = values.len();
        let k = ((n as f64 * f64::from(share)).ceil() as usize).clamp(n.min(1), n);
        let bytes = encode_largest(values, k);
        let mut seen = vec![0.0; n];
        add_pairs(&bytes, &mut seen, group.rank())?;
        self.keep(0..n, values, &seen);
        let all = group.all_gather_uneven(&bytes)?;
        values.fill(0.0);
        for (from, bytes) in all.iter().enumerate() {
            add_pairs(bytes, values, from)?;
        }
        Ok(())
    }
}

/// The values in their form, as many bytes as [`encoded_len`] says.
pub(crate) fn encode(compression: Compression, values: &[f32]) -> Vec<u8> {
    match compression {
        Compression::Bf16 => {
            let halves: Vec<u16> = values.iter().map(|value| bf16_bits(*value)).collect();
            bytemuck::cast_slice(&halves).to_vec()
        }
        Compression::F16 => {
            let values: Vec<f32> = values.iter().map(|value| saturated(*value)).collect();
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(&values);
            bytemuck::cast_slice(&halves).to_vec()
        }
        Compression::EightBit => {
            let mut bytes = Vec::with_capacity(eight_bit_len(values.len()));
            values.chunks(BLOCK).for_each(|block| encode_block(block, &mut bytes));
            bytes
        }
        Compression::TopK { .. } => encode_largest(values, values.len()),
    }
}

/// Finite values stay finite: what is beyond the largest number can be made good later, infinity cannot.
fn saturated(value: f32) -> f32 {
    match value.is_finite() {
        true => value.clamp(f16::MIN.to_f32_const(), f16::MAX.to_f32_const()),
        false => value,
    }
}

/// The nearest bf16, of two the even one, as vector code.
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // A NaN stays one, whatever of it is cut off.
    let bits = if value.is_nan() { bits | 0x40_0000 } else { rounded };
    (bits >> 16) as u16
}

/// Bytes of so many values in the 8-bit form.
fn eight_bit_len(n: usize) -> usize {
    n + size_of::<f32>() * n.div_ceil(BLOCK)
}

/// A scale, then a byte a value. What is not finite makes the scale NaN and with it the whole block: it must not be hidden.
fn encode_block(block: &[f32], bytes: &mut Vec<u8>) {
    let is_finite = block.iter().all(|value| value.is_finite());
    let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let scale = if is_finite { largest / LARGEST } else { f32::NAN };
    let number = |value: &f32| match scale > 0.0 {
        true => (value / scale).round_ties_even().clamp(-LARGEST, LARGEST) as i8 as u8,
        false => 0,
    };
    bytes.extend_from_slice(&scale.to_le_bytes());
    bytes.extend(block.iter().map(number));
}

fn encode_largest(values: &[f32], k: usize) -> Vec<u8> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    // Of equal ones the first, so that what goes depends on the values alone. NaN counts as the largest.
    let size = |idx: &u32| values[*idx as usize].abs();
    if k < values.len() {
        order.select_nth_unstable_by(k, |a, b| size(b).total_cmp(&size(a)).then(a.cmp(b)));
    }
    order.truncate(k);
    order.sort_unstable();
    let pair = |idx: u32| [idx.to_le_bytes(), values[idx as usize].to_le_bytes()];
    order.into_iter().flat_map(pair).flatten().collect()
}

/// Bytes of so many values.
pub(crate) fn encoded_len(compression: Compression, n: usize) -> usize {
    match compression {
        Compression::Bf16 | Compression::F16 => 2 * n,
        Compression::EightBit => eight_bit_len(n),
        Compression::TopK { .. } => PAIR * n,
    }
}

/// Fills `values` with what was encoded.
pub(crate) fn decode(
    compression: Compression,
    bytes: &[u8],
    values: &mut [f32],
    from: usize,
) -> Result<(), CollectiveError> {
    if bytes.len() != encoded_len(compression, values.len()) {
        return Err(malformed(from));
    }
    match compression {
        Compression::Bf16 => {
            for (value, half) in values.iter_mut().zip(&*aligned::<u16>(bytes)) {
                *value = f32::from_bits(u32::from(*half) << 16);
            }
        }
        Compression::F16 => aligned::<f16>(bytes).convert_to_f32_slice(values),
        Compression::EightBit => {
            let blocks = bytes.chunks(size_of::<f32>() + BLOCK);
            blocks.zip(values.chunks_mut(BLOCK)).for_each(|(from, to)| decode_block(from, to));
        }
        Compression::TopK { .. } => {
            values.fill(0.0);
            add_pairs(bytes, values, from)?;
        }
    }
    Ok(())
}

/// The same where it lies as 16 bits must, or a copy that does.
fn aligned<H: bytemuck::Pod>(bytes: &[u8]) -> Cow<'_, [H]> {
    if let Ok(halves) = bytemuck::try_cast_slice(bytes) {
        return Cow::Borrowed(halves);
    }
    let mut halves = vec![H::zeroed(); bytes.len() / size_of::<H>()];
    bytemuck::cast_slice_mut(&mut halves).copy_from_slice(bytes);
    Cow::Owned(halves)
}

fn decode_block(block: &[u8], values: &mut [f32]) {
    let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    for (value, number) in values.iter_mut().zip(&block[4..]) {
        *value = f32::from(*number as i8) * scale;
    }
}

fn add_pairs(bytes: &[u8], values: &mut [f32], from: usize) -> Result<(), CollectiveError> {
    if !bytes.len().is_multiple_of(PAIR) {
        return Err(malformed(from));
    }
    for pair in bytes.chunks_exact(PAIR) {
        let idx = u32::from_le_bytes([pair[0], pair[1], pair[2], pair[3]]) as usize;
        let value = f32::from_le_bytes([pair[4], pair[5], pair[6], pair[7]]);
        *values.get_mut(idx).ok_or_else(|| malformed(from))? += value;
    }
    Ok(())
}

fn malformed(from: usize) -> CollectiveError {
    let sentence = format!(
        "what rank {from} sent is not what this compression sends: do all ranks use the same?"
    );
    CollectiveError::Misuse(sentence)
}

/// The first becomes the sum of all, as the tree over ranks has it.
fn add_in_tree_order(parts: &mut [Vec<f32>]) {
    let n = parts.len();
    if n < 2 {
        return;
    }
    let (left, right) = parts.split_at_mut(n.next_power_of_two() / 2);
    add_in_tree_order(left);
    add_in_tree_order(right);
    left[0].iter_mut().zip(&right[0]).for_each(|(a, b)| *a += b);
}

#[cfg(test)]
mod tests;
