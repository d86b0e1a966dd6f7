//! Counter-based randomness: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1,
//! 2, 3", 2011).
//!
//! A value is a function of where it stands and of nothing else, so any thread, worker or rerun
//! draws the same one. Element `e` uses word `e % 4` of the block with counter
//! `[e / 4, iteration, grain, step]`, lowest word first, so an array may have 2^34 elements. The
//! key is 64 bits, low word first: `mix(mix(seed) ^ operation)`, where `mix` is the finaliser of
//! SplitMix64 (a bijection, so two operations of a job never share a key).
//!
//! A uniform value is the upper 24 bits of a word times 2^-24: from 0 to 1, 1 excluded. Normal
//! values come in pairs (Box and Muller): words 0 and 1 of a block make elements 0 and 1, words 2
//! and 3 make 2 and 3. With u1 from the first word, moved up by 2^-24 so that it is never 0, and u2
//! from the second, they are sqrt(-2 log u1) times the cosine and the sine of 2 pi u2.

use std::ops::Range;

use super::Part;
use crate::cpu::math::{cos, log, sin};
use crate::cpu::simd::{Isa, Kernel, Lanes, WIDTH};

/// Where a random array stands: all that its values depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The job's seed.
    pub seed: u64,
    /// The key of the operation, fixed when the program was built.
    pub operation: u64,
    /// The step of the training.
    pub step: u32,
    /// The grain within the step.
    pub grain: u32,
    /// The iteration of the scan around the operation, 0 outside of one.
    pub iteration: u32,
}

impl Place {
    fn key(&self) -> [u32; 2] {
        let key = mix(mix(self.seed) ^ self.operation);
        [key as u32, (key >> 32) as u32]
    }
}

/// The finaliser of SplitMix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Philox4x32-10: ten rounds on a counter of four words. Words stand in the lower halves of u64,
/// with anything above them, since that is how vector units multiply 32 bits by 32; written for one
/// counter, so that the compiler can do a loop over counters in vectors.
#[inline(always)]
fn philox(counter: [u64; 4], mut key: [u32; 2]) -> [u64; 4] {
    const LOW: u64 = 0xffff_ffff;
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    for _ in 0..10 {
        let p0 = (c0 & LOW) * 0xd251_1f53;
        let p1 = (c2 & LOW) * 0xcd9e_8d57;
        c0 = (p1 >> 32) ^ c1 ^ u64::from(key[0]);
        c1 = p1;
        c2 = (p0 >> 32) ^ c3 ^ u64::from(key[1]);
        c3 = p0;
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    [c0, c1, c2, c3]
}

/// Elements that one call of [`philox`] serves.
const GROUP: usize = 4 * WIDTH;

/// The words of elements `at..at + 64`: word `w` of the i-th block is `words[w][i]`.
#[allow(clippy::needless_range_loop)] // four arrays go side by side
#[inline(always)]
fn words(place: &Place, key: [u32; 2], at: usize) -> [[u32; WIDTH]; 4] {
    let [iteration, grain, step] = [place.iteration, place.grain, place.step].map(u64::from);
    let block = (at / 4) as u64;
    let mut words = [[0; WIDTH]; 4];
    for i in 0..WIDTH {
        let made = philox([block + i as u64, iteration, grain, step], key);
        words[0][i] = made[0] as u32;
        words[1][i] = made[1] as u32;
        words[2][i] = made[2] as u32;
        words[3][i] = made[3] as u32;
    }
    words
}

/// The upper 24 bits of a word as a number from 0 to 1.
#[inline(always)]
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// What a kernel writes for a group of 64 elements.
trait Group {
    /// Makes the values of a group; `l` is there for those that need arithmetic on vectors.
    ///
    /// # Safety
    /// Inside a kernel.
    unsafe fn values<L: Lanes>(&self, l: L, words: [[u32; WIDTH]; 4]) -> [f32; GROUP];

    /// Writes the first `n` values of the group at element `at`.
    ///
    /// # Safety
    /// The outputs have `n` elements from `at` on.
    unsafe fn write(&self, at: usize, n: usize, values: &[f32; GROUP]);
}

struct Fill<G> {
    place: Place,
    group: G,
    range: Range<usize>,
}

impl<G: Group> Kernel for Fill<G> {
    type Output = ();

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let key = self.place.key();
        // Parts begin at whole groups, so each element meets the same words in any cut.
        for at in self.range.clone().step_by(GROUP) {
            let n = GROUP.min(self.range.end - at);
            // SAFETY: the range is inside the outputs.
            unsafe {
                let values = self.group.values(l, words(&self.place, key, at));
                self.group.write(at, n, &values);
            }
        }
    }
}

/// Words in the order of their elements, each through `map`.
#[inline(always)]
fn in_order(words: [[u32; WIDTH]; 4], map: impl Fn(u32) -> f32) -> [f32; GROUP] {
    let mut out = [0.0; GROUP];
    for (i, block) in out.chunks_exact_mut(4).enumerate() {
        for (w, value) in block.iter_mut().enumerate() {
            *value = map(words[w][i]);
        }
    }
    out
}

/// Copies to an array of f32.
struct Store(*mut f32);

impl Store {
    /// # Safety
    /// The array has `n` elements from `at` on.
    #[inline(always)]
    unsafe fn write(&self, at: usize, n: usize, values: &[f32; GROUP]) {
        // SAFETY: as the caller says; a group has at least `n` values.
        unsafe {
            if n == GROUP {
                self.0.add(at).cast::<[f32; GROUP]>().write_unaligned(*values);
            } else {
                std::ptr::copy_nonoverlapping(values.as_ptr(), self.0.add(at), n);
            }
        }
    }
}

struct Uniform(Store);

impl Group for Uniform {
    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn values<L: Lanes>(&self, _: L, words: [[u32; WIDTH]; 4]) -> [f32; GROUP] {
        in_order(words, unit)
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn write(&self, at: usize, n: usize, values: &[f32; GROUP]) {
        // SAFETY: as the caller says.
        unsafe { self.0.write(at, n, values) }
    }
}

/// Fills `dst` with uniform values from 0 to 1, 1 excluded.
///
/// # Safety
/// `isa` is available; `dst` has `n` elements.
pub(crate) unsafe fn uniform(isa: Isa, place: Place, dst: *mut f32, n: usize, part: Part) {
    let group = Uniform(Store(dst));
    // SAFETY: as the caller says.
    unsafe { isa.run(Fill { place, group, range: part.range(n, GROUP) }) }
}

struct Normal(Store);

impl Group for Normal {
    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn values<L: Lanes>(&self, l: L, words: [[u32; WIDTH]; 4]) -> [f32; GROUP] {
        let mut made = [[0u32; WIDTH]; 4];
        for pair in [0, 2] {
            let above = words[pair].map(|word| unit(word) + 1.0 / 16_777_216.0);
            let turn = words[pair + 1].map(unit);
            // SAFETY: the arrays have sixteen lanes.
            unsafe {
                let radius = l.sqrt(l.mul(log(l, l.load(above.as_ptr())), l.splat(-2.0)));
                let angle = l.mul(l.load(turn.as_ptr()), l.splat(std::f32::consts::TAU));
                made[pair] = l.to_array(l.mul(radius, cos(l, angle))).map(f32::to_bits);
                made[pair + 1] = l.to_array(l.mul(radius, sin(l, angle))).map(f32::to_bits);
            }
        }
        in_order(made, f32::from_bits)
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn write(&self, at: usize, n: usize, values: &[f32; GROUP]) {
        // SAFETY: as the caller says.
        unsafe { self.0.write(at, n, values) }
    }
}

/// Fills `dst` with values of the standard normal distribution.
///
/// # Safety
/// `isa` is available; `dst` has `n` elements.
pub(crate) unsafe fn normal(isa: Isa, place: Place, dst: *mut f32, n: usize, part: Part) {
    let group = Normal(Store(dst));
    // SAFETY: as the caller says.
    unsafe { isa.run(Fill { place, group, range: part.range(n, GROUP) }) }
}

struct Dropout {
    rate: f32,
    /// What a kept element is multiplied by.
    factor: f32,
    /// The elements, or nothing for ones.
    src: Option<*const f32>,
    dst: Store,
}

impl Group for Dropout {
    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn values<L: Lanes>(&self, _: L, words: [[u32; WIDTH]; 4]) -> [f32; GROUP] {
        in_order(words, |word| if unit(word) < self.rate { 0.0 } else { self.factor })
    }

    // SAFETY: the caller keeps what the trait asks.
    #[inline(always)]
    unsafe fn write(&self, at: usize, n: usize, factors: &[f32; GROUP]) {
        // SAFETY: as the caller says, for the source too.
        unsafe {
            let mut values = *factors;
            if let Some(src) = self.src {
                let product = |x: f32, factor: f32| if factor == 0.0 { 0.0 } else { x * factor };
                if n == GROUP {
                    let x = src.add(at).cast::<[f32; GROUP]>().read_unaligned();
                    values = std::array::from_fn(|i| product(x[i], factors[i]));
                } else {
                    for (i, value) in values.iter_mut().enumerate().take(n) {
                        *value = product(*src.add(at + i), factors[i]);
                    }
                }
            }
            self.dst.write(at, n, &values);
        }
    }
}

/// Fills `dst` with 0 (with probability `rate`) and 1.
///
/// # Safety
/// `isa` is available; `dst` has `n` elements.
pub(crate) unsafe fn keep_mask(
    isa: Isa,
    place: Place,
    rate: f32,
    dst: *mut f32,
    n: usize,
    part: Part,
) {
    let group = Dropout { rate, factor: 1.0, src: None, dst: Store(dst) };
    // SAFETY: as the caller says.
    unsafe { isa.run(Fill { place, group, range: part.range(n, GROUP) }) }
}

/// `y` = x times 1 / (1 - rate) where [`keep_mask`] of the same place is 1, and 0 elsewhere. Called
/// again with the gradient of `y` for `x`, it gives the gradient of `x`.
///
/// # Safety
/// `isa` is available; `x` and `y` have `n` elements and may be the same.
pub(crate) unsafe fn dropout(
    isa: Isa,
    place: Place,
    rate: f32,
    x: *const f32,
    y: *mut f32,
    n: usize,
    part: Part,
) {
    let group = Dropout { rate, factor: 1.0 / (1.0 - rate), src: Some(x), dst: Store(y) };
    // SAFETY: as the caller says.
    unsafe { isa.run(Fill { place, group, range: part.range(n, GROUP) }) }
}

#[cfg(test)]
mod tests;
