//! Features by their hash: names and values become buckets of a table of fixed size, so that nothing needs to be learned of
//! them, and values that come later have a bucket too. Two features may share one.
//!
//! Models are saved with what their buckets mean, so this function must never change: FNV-1a over the bytes, mixed as SplitMix64
//! does, of which the first bits are the bucket.

use crate::random::mix;

/// The most bits of a bucket: indexes are i32.
pub(crate) const MOST_BITS: u32 = 30;

/// What was hashed so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FeatureHash(u64);

impl FeatureHash {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// With these bytes behind those before.
    #[must_use]
    pub(crate) fn with(self, bytes: &[u8]) -> Self {
        let next = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Self(bytes.iter().fold(self.0, next))
    }

    /// The bucket among `2^bits`.
    pub(crate) fn bucket(self, bits: u32) -> i32 {
        (mix(self.0) >> (u64::BITS - bits.clamp(1, MOST_BITS))) as i32
    }

    /// The bucket of a feature that has a number for a name, as in libsvm files.
    pub(crate) fn of_index(index: u64, bits: u32) -> i32 {
        Self::new().with(&index.to_le_bytes()).bucket(bits)
    }

    /// What the values of a column are hashed behind: `column=`.
    pub(crate) fn of_column(column: &str) -> Self {
        Self::new().with(column.as_bytes()).with(b"=")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_never_change() {
        assert_eq!(FeatureHash::of_index(0, 20), 529_392);
        assert_eq!(FeatureHash::of_index(7, 20), 713_299);
        assert_eq!(FeatureHash::of_column("city").with(b"Oslo").bucket(20), 433_740);
        assert_eq!(FeatureHash::new().with(b"city=Oslo").bucket(10), 423);
    }

    #[test]
    fn features_spread_evenly_over_buckets() {
        let mut counts = [0u32; 16];
        for index in 0..16_000 {
            counts[FeatureHash::of_index(index, 4) as usize] += 1;
        }
        assert!(counts.iter().all(|&n| (900..1100).contains(&n)), "{counts:?}");
    }
}
