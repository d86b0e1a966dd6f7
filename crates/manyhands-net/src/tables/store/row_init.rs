//! What a row has before anybody pushes to it: a function of seed, table, key and column, so any server at any time makes the same bits.
//!
//! Chance is counter-based: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the key `mix(mix(seed) ^ table)`, `mix`
//! being the finaliser of SplitMix64. Column `c` of row `k` uses word `c % 4` of the block with the counter `[c / 4, k's low half, k's high half, 0]`. A
//! uniform number is the upper 24 bits of a word times 2^-24. Normal ones come in pairs (Box and Muller), from words 0 and 1, and 2 and 3. The logarithm, sine
//! and cosine are written out here, in f64: C libraries differ.

use std::f64::consts::{FRAC_PI_2, LN_2, SQRT_2};

use serde::{Deserialize, Serialize};

/// What a new row of a table has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RowInit {
    /// Zeros.
    #[default]
    Zeros,
    /// The same in all columns.
    Constant(f32),
    /// Normal numbers around 0.
    Normal {
        /// Their standard deviation.
        std: f32,
        /// What chance starts from.
        seed: u64,
    },
    /// Numbers from `low` to `high`, the latter excluded up to rounding.
    Uniform {
        /// The lowest.
        low: f32,
        /// The highest.
        high: f32,
        /// What chance starts from.
        seed: u64,
    },
}

impl RowInit {
    /// Fills the new row of this key.
    pub fn fill(self, table: u64, key: u64, row: &mut [f32]) {
        match self {
            RowInit::Zeros => row.fill(0.0),
            RowInit::Constant(value) => row.fill(value),
            RowInit::Normal { std, seed } => {
                let chance = chance_key(seed, table);
                for (block, values) in row.chunks_mut(4).enumerate() {
                    let [a, b, c, d] = words(chance, key, block as u32);
                    let made = [normal_pair(a, b), normal_pair(c, d)];
                    for (value, made) in values.iter_mut().zip(made.as_flattened()) {
                        *value = std * *made;
                    }
                }
            }
            RowInit::Uniform { low, high, seed } => {
                let chance = chance_key(seed, table);
                for (block, values) in row.chunks_mut(4).enumerate() {
                    for (value, word) in values.iter_mut().zip(words(chance, key, block as u32)) {
                        *value = low + (high - low) * unit(word);
                    }
                }
            }
        }
    }
}

fn chance_key(seed: u64, table: u64) -> [u32; 2] {
    let key = mix(mix(seed) ^ table);
    [key as u32, (key >> 32) as u32]
}

/// The finaliser of SplitMix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn words(chance: [u32; 2], key: u64, block: u32) -> [u32; 4] {
    philox([block, key as u32, (key >> 32) as u32, 0], chance)
}

/// Philox4x32-10: ten rounds on a counter of four words.
fn philox(counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    for _ in 0..10 {
        let p0 = u64::from(c0) * 0xd251_1f53;
        let p1 = u64::from(c2) * 0xcd9e_8d57;
        c0 = (p1 >> 32) as u32 ^ c1 ^ key[0];
        c1 = p1 as u32;
        c2 = (p0 >> 32) as u32 ^ c3 ^ key[1];
        c3 = p0 as u32;
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    [c0, c1, c2, c3]
}

/// The upper 24 bits of a word as a number from 0 to 1, 1 excluded.
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Two normal numbers of two words. The first is moved up by 2^-24, so that it has a logarithm.
fn normal_pair(radius: u32, angle: u32) -> [f32; 2] {
    let radius = (-2.0 * ln(f64::from((radius >> 8) + 1) * (1.0 / 16_777_216.0))).sqrt();
    let (sin, cos) = sin_cos_of_turn(f64::from(unit(angle)));
    [(radius * cos) as f32, (radius * sin) as f32]
}

/// The series of artanh(s) / s: 1 over the odd numbers.
const ARTANH: [f64; 10] = {
    let mut terms = [1.0; 10];
    let mut k = 1;
    while k < terms.len() {
        terms[k] = 1.0 / (2 * k + 1) as f64;
        k += 1;
    }
    terms
};
/// The series of sin(x) / x and of cos(x), without the signs: 1 over factorials.
const SINE: [f64; 8] = inverse_factorials(1);
const COSINE: [f64; 8] = inverse_factorials(0);

/// 1 / first!, 1 / (first + 2)!, and so on.
const fn inverse_factorials(first: usize) -> [f64; 8] {
    let mut terms = [1.0; 8];
    let mut factorial = 1.0;
    let mut k = 1;
    while k < terms.len() {
        factorial *= ((2 * k + first - 1) * (2 * k + first)) as f64;
        terms[k] = 1.0 / factorial;
        k += 1;
    }
    terms
}

/// The natural logarithm of a normal number above 0: the exponent apart, and of the rest m near 1 twice the series of artanh((m - 1) / (m + 1)).
fn ln(x: f64) -> f64 {
    const FRACTION: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    let m = f64::from_bits((bits & FRACTION) | (1023 << 52));
    let (m, exponent) = if m > SQRT_2 { (m * 0.5, exponent + 1) } else { (m, exponent) };
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let series = ARTANH.iter().rev().fold(0.0, |sum, term| sum * square + term);
    f64::from(exponent) * LN_2 + 2.0 * s * series
}

/// Sine and cosine of a share of a full turn, from 0 to 1.
fn sin_cos_of_turn(turn: f64) -> (f64, f64) {
    let quarters = turn * 4.0;
    // The nearest quarter, and what remains: at most an eighth of a turn.
    let nearest = (quarters + 0.5) as i32;
    let x = (quarters - f64::from(nearest)) * FRAC_PI_2;
    let square = x * x;
    let series = |terms: [f64; 8]| terms.iter().rev().fold(0.0, |sum, term| sum * -square + term);
    let (sin, cos) = (x * series(SINE), series(COSINE));
    match nearest & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

#[cfg(test)]
mod tests;
