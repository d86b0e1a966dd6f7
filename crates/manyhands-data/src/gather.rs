//! From records to what a model reads: numbers are scaled, values become indexes or ones among zeros.
//!
//! This runs once per sample and epoch, on a thread that shares the processor with training, so steps work on whole runs of
//! numbers in loops that compilers turn into vector code.

use std::sync::Arc;

use crate::encoding::Scale;
use crate::layout::Scalar;

/// From record numbers to indexes: entry 0 for what is missing, entry `id + 1` for value `id`. Without it the record has indexes.
pub(crate) type Indexes = Option<Arc<[i32]>>;

/// Makes part of one row of an input. `from` and `to` are places, in bytes, in the record and in the row.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Bytes as they are.
    Copy { from: usize, n: usize, to: usize },
    /// Bytes divided by 255.
    Bytes { from: usize, n: usize, to: usize },
    /// Numbers, each with its own scale.
    Numbers { from: usize, scalar: Scalar, scales: Scales, to: usize },
    /// One among `n` zeros.
    OneHot { from: usize, n: usize, indexes: Indexes, to: usize },
    /// Indexes.
    Indexes { from: usize, scalar: Scalar, n: usize, indexes: Indexes, to: usize },
    /// One index, the same for all rows.
    Constant { index: i32, to: usize },
    /// 1 where there is an index, 0 where none is.
    Present { from: usize, to: usize },
}

/// The scales of a run of numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scales {
    offset: Vec<f64>,
    inverse: Vec<f64>,
    /// What a missing number becomes.
    fill: Vec<f32>,
}

impl Scales {
    pub(crate) fn push(&mut self, scale: &Scale) {
        self.offset.push(scale.offset);
        self.inverse.push(scale.inverse);
        self.fill.push(scale.apply(scale.mean));
    }

    fn len(&self) -> usize {
        self.offset.len()
    }
}

/// One input, or the target: the rows of the sample that it is made of, and how.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    /// The first of the sample's rows that it sees.
    pub(crate) first_row: usize,
    pub(crate) n_rows: usize,
    /// Bytes that a row becomes.
    pub(crate) row_bytes: usize,
    pub(crate) steps: Vec<Step>,
}

impl Output {
    /// Bytes that a sample becomes.
    pub(crate) fn sample_bytes(&self) -> usize {
        self.n_rows * self.row_bytes
    }

    /// Adds a step, joined with the one before where they are one run.
    pub(crate) fn push(&mut self, step: Step) {
        if let Some(Step::Numbers { from, scalar, scales, to }) = self.steps.last_mut()
            && let Step::Numbers { from: from2, scalar: scalar2, scales: scales2, to: to2 } = &step
            && scalar == scalar2
            && *from + scales.len() * scalar.bytes() == *from2
            && *to + scales.len() * 4 == *to2
        {
            scales.offset.extend_from_slice(&scales2.offset);
            scales.inverse.extend_from_slice(&scales2.inverse);
            scales.fill.extend_from_slice(&scales2.fill);
            return;
        }
        self.steps.push(step);
    }

    /// Makes the sample whose rows are these records.
    #[inline]
    pub(crate) fn write(&self, records: &[u8], width: usize, out: &mut [u8]) {
        let records = &records[self.first_row * width..(self.first_row + self.n_rows) * width];
        if let [Step::Indexes { scalar, n, indexes, .. }] = self.steps.as_slice()
            && n * scalar.bytes() == width
        {
            // Records are nothing but indexes, so the whole sample is one run.
            return write_indexes(records, *scalar, indexes, out);
        }
        for (row, out) in
            records.chunks_exact(width).zip(out.chunks_exact_mut(self.row_bytes.max(1)))
        {
            self.steps.iter().for_each(|step| step.write(row, out));
        }
    }
}

impl Step {
    fn write(&self, row: &[u8], out: &mut [u8]) {
        match self {
            Self::Copy { from, n, to } => {
                out[*to..to + n].copy_from_slice(&row[*from..from + n]);
            }
            Self::Bytes { from, n, to } => write_bytes(&row[*from..from + n], &mut out[*to..]),
            Self::Numbers { from, scalar, scales, to } => {
                let row = &row[*from..from + scales.len() * scalar.bytes()];
                write_numbers(row, *scalar, scales, &mut out[*to..to + scales.len() * 4]);
            }
            Self::OneHot { from, n, indexes, to } => {
                let out = &mut out[*to..to + n * 4];
                out.fill(0);
                let at = index(read_i32(row, *from), indexes) as usize;
                out[at * 4..at * 4 + 4].copy_from_slice(&1f32.to_ne_bytes());
            }
            Self::Indexes { from, scalar, n, indexes, to } => {
                let row = &row[*from..from + n * scalar.bytes()];
                write_indexes(row, *scalar, indexes, &mut out[*to..to + n * 4]);
            }
            Self::Constant { index, to } => {
                out[*to..to + 4].copy_from_slice(&index.to_ne_bytes());
            }
            Self::Present { from, to } => {
                let value = if read_i32(row, *from) < 0 { 0f32 } else { 1.0 };
                out[*to..to + 4].copy_from_slice(&value.to_ne_bytes());
            }
        }
    }
}

fn read_i32(row: &[u8], at: usize) -> i32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&row[at..at + 4]);
    i32::from_ne_bytes(bytes)
}

#[inline]
fn index(id: i32, indexes: &Indexes) -> i32 {
    match indexes {
        None => id,
        Some(indexes) => indexes[(id + 1) as usize],
    }
}

fn write_bytes(from: &[u8], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has these instructions, as it was just asked.
        return unsafe { divide_wide(from, out) };
    }
    divide(from, out);
}

/// The same divisions, eight at a time: this runs beside training on the same cores, so that its time counts.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn divide_wide(from: &[u8], out: &mut [u8]) {
    divide(from, out);
}

#[inline(always)]
fn divide(from: &[u8], out: &mut [u8]) {
    let (out, _) = out.as_chunks_mut::<4>();
    for (out, &byte) in out.iter_mut().zip(from) {
        *out = (f32::from(byte) / 255.0).to_ne_bytes();
    }
}

fn write_indexes(from: &[u8], scalar: Scalar, indexes: &Indexes, out: &mut [u8]) {
    let (out, _) = out.as_chunks_mut::<4>();
    match scalar {
        Scalar::U8 => {
            for (out, &byte) in out.iter_mut().zip(from) {
                *out = index(i32::from(byte), indexes).to_ne_bytes();
            }
        }
        _ => {
            let (ids, _) = from.as_chunks::<4>();
            for (out, &id) in out.iter_mut().zip(ids) {
                *out = index(i32::from_ne_bytes(id), indexes).to_ne_bytes();
            }
        }
    }
}

fn write_numbers(from: &[u8], scalar: Scalar, scales: &Scales, out: &mut [u8]) {
    match scalar {
        Scalar::U8 => scale_run(from.iter().map(|&byte| f64::from(byte)), scales, out),
        Scalar::I32 => {
            let (numbers, _) = from.as_chunks::<4>();
            scale_run(numbers.iter().map(|&n| f64::from(i32::from_ne_bytes(n))), scales, out);
        }
        Scalar::F32 => {
            let (numbers, _) = from.as_chunks::<4>();
            scale_run(numbers.iter().map(|&n| f64::from(f32::from_ne_bytes(n))), scales, out);
        }
        Scalar::F64 => {
            let (numbers, _) = from.as_chunks::<8>();
            scale_run(numbers.iter().map(|&n| f64::from_ne_bytes(n)), scales, out);
        }
    }
}

#[inline(always)]
fn scale_run(numbers: impl Iterator<Item = f64>, scales: &Scales, out: &mut [u8]) {
    let (out, _) = out.as_chunks_mut::<4>();
    let scales = scales.offset.iter().zip(&scales.inverse).zip(&scales.fill);
    for ((out, number), ((&offset, &inverse), &fill)) in out.iter_mut().zip(numbers).zip(scales) {
        let scaled = ((number - offset) * inverse) as f32;
        // Only what is missing is not a number: such cells of the files are errors.
        *out = if number.is_nan() { fill } else { scaled }.to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_ne_bytes(b)).collect()
    }

    #[test]
    fn a_row_of_every_kind_of_field_becomes_features() {
        let scale = Scale { mean: 5.0, offset: 1.0, inverse: 0.5 };
        let mut scales = Scales::default();
        scales.push(&scale);
        let mut record = vec![0u8, 51, 255];
        record.extend(f64::NAN.to_ne_bytes());
        record.extend(9f64.to_ne_bytes());
        record.extend(1i32.to_ne_bytes());
        let mut output = Output { first_row: 0, n_rows: 1, row_bytes: 32, steps: vec![] };
        output.push(Step::Bytes { from: 0, n: 3, to: 0 });
        let number =
            |from, to| Step::Numbers { from, scalar: Scalar::F64, scales: scales.clone(), to };
        output.push(number(3, 12));
        output.push(number(11, 16));
        let indexes = Some(Arc::from([2, 1, 0]));
        output.push(Step::OneHot { from: 19, n: 3, indexes, to: 20 });
        assert_eq!(output.steps.len(), 3, "the two numbers are one run");
        let mut out = vec![7; 32];
        output.write(&record, record.len(), &mut out);
        assert_eq!(floats(&out), [0.0, 0.2, 1.0, 2.0, 4.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn tokens_are_copied_in_one_run() {
        let indexes: Indexes = Some(Arc::from([9, 5, 6, 7]));
        let step = Step::Indexes { from: 0, scalar: Scalar::U8, n: 1, indexes, to: 0 };
        let output = Output { first_row: 1, n_rows: 3, row_bytes: 4, steps: vec![step] };
        let mut out = vec![0; 12];
        output.write(&[0, 0, 1, 2], 1, &mut out);
        let ids: Vec<i32> = out.as_chunks::<4>().0.iter().map(|&b| i32::from_ne_bytes(b)).collect();
        assert_eq!(ids, [5, 6, 7]);
    }
}
