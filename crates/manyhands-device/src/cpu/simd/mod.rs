//! One vector of sixteen f32 lanes, the same on every machine.
//!
//! Kernels are written once against [`Lanes`] and see sixteen lanes whatever the hardware has: one register with AVX-512,
//! two with AVX2, an array elsewhere. Every operation is defined lane by lane with IEEE results (multiply-add is always
//! fused, nothing else ever is), so a kernel gives the same bits on all of them. Invariant **K1**: no kernel may ask how
//! wide the hardware is.
//!
//! A kernel is a struct that holds its arguments and implements [`Kernel`]; [`Isa::run`] carries it into a function
//! compiled for the instruction set, where everything below inlines.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

/// The number of lanes of a vector.
pub(super) const WIDTH: usize = 16;

/// Which instructions a kernel is compiled for. Chosen once, when a device is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX2 with FMA.
    Avx2,
    /// Plain Rust, vectorised by the compiler where it can.
    Portable,
}

impl Isa {
    /// The fastest instruction set that this machine has.
    pub fn detect() -> Isa {
        Isa::available()[0]
    }

    /// Every instruction set that this machine can run, fastest first.
    pub fn available() -> Vec<Isa> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                sets.push(Isa::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                sets.push(Isa::Avx2);
            }
        }
        sets.push(Isa::Portable);
        sets
    }

    /// The name printed in reports.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Portable => "portable",
        }
    }

    /// Runs `kernel` compiled for this instruction set.
    ///
    /// # Safety
    /// The machine must have the instruction set (values of [`Isa::available`] do), and the kernel's own arguments must
    /// be sound.
    #[inline]
    pub(crate) unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: the caller vouches for the instruction set and the arguments.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => avx512::run(kernel),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::run(kernel),
                _ => kernel.run(portable::Portable),
            }
        }
    }
}

/// A piece of work that is compiled once per instruction set.
pub(crate) trait Kernel {
    /// What it gives back.
    type Output;

    /// Does the work. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// Only [`Isa::run`] calls this, so that the instruction set of `lanes` is there; the pointers that the kernel holds
    /// are valid for what it reads and writes.
    unsafe fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Sixteen-lane arithmetic. All methods are safe to call only inside [`Kernel::run`].
///
/// # Safety
/// Every method needs the instruction set of the implementing type; pointers must be valid for the lanes they touch
/// (sixteen, or the first `n` for the `_first` forms, which never touch memory past lane `n`).
#[allow(missing_docs, clippy::missing_safety_doc, clippy::wrong_self_convention)]
pub(crate) unsafe trait Lanes: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32 (also seen as bits of `F`).
    type I: Copy;
    /// Sixteen truth values.
    type M: Copy;

    /// Rows and sixteen-lane columns of the matrix product's register tile that suit the registers there are.
    const TILE_ROWS: usize;
    const TILE_VECTORS: usize;

    unsafe fn splat(self, x: f32) -> Self::F;
    unsafe fn load(self, p: *const f32) -> Self::F;
    unsafe fn store(self, p: *mut f32, x: Self::F);
    /// Loads the first `n` lanes (0 to 16), zero in the others.
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::F;
    /// Stores the first `n` lanes (0 to 16).
    unsafe fn store_first(self, p: *mut f32, x: Self::F, n: usize);

    unsafe fn add(self, a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c` with one rounding.
    unsafe fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn sqrt(self, a: Self::F) -> Self::F;
    /// The larger; `b` where either is NaN or both are zero (x86 `maxps`).
    unsafe fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` where either is NaN or both are zero (x86 `minps`).
    unsafe fn min(self, a: Self::F, b: Self::F) -> Self::F;
    unsafe fn neg(self, a: Self::F) -> Self::F;
    unsafe fn abs(self, a: Self::F) -> Self::F;
    /// Rounds to the nearest integer, ties to even.
    unsafe fn round(self, a: Self::F) -> Self::F;
    unsafe fn floor(self, a: Self::F) -> Self::F;
    unsafe fn ceil(self, a: Self::F) -> Self::F;

    /// Ordered comparison: false where either is NaN.
    unsafe fn lt(self, a: Self::F, b: Self::F) -> Self::M;
    unsafe fn le(self, a: Self::F, b: Self::F) -> Self::M;
    unsafe fn eq(self, a: Self::F, b: Self::F) -> Self::M;
    /// `yes` where the mask holds, `no` elsewhere.
    unsafe fn select(self, m: Self::M, yes: Self::F, no: Self::F) -> Self::F;
    unsafe fn mask_and(self, a: Self::M, b: Self::M) -> Self::M;
    unsafe fn mask_or(self, a: Self::M, b: Self::M) -> Self::M;
    unsafe fn mask_not(self, a: Self::M) -> Self::M;
    /// The mask of sixteen bits, lane 0 lowest.
    unsafe fn mask_from_bits(self, bits: u16) -> Self::M;

    unsafe fn splat_i(self, x: i32) -> Self::I;
    unsafe fn load_i(self, p: *const i32) -> Self::I;
    unsafe fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    unsafe fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    unsafe fn and_i(self, a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or_i(self, a: Self::I, b: Self::I) -> Self::I;
    unsafe fn shl_i<const BITS: u32>(self, a: Self::I) -> Self::I;
    /// Arithmetic shift right.
    unsafe fn shr_i<const BITS: u32>(self, a: Self::I) -> Self::I;
    unsafe fn bits(self, a: Self::F) -> Self::I;
    unsafe fn from_bits(self, a: Self::I) -> Self::F;
    unsafe fn to_f(self, a: Self::I) -> Self::F;

    /// Sixteen rows of sixteen lanes, turned: lane `i` of result `j` is lane `j` of row `i`.
    unsafe fn transpose(self, rows: [Self::F; WIDTH]) -> [Self::F; WIDTH];

    /// Asks for the cache line of `p`, which need not be valid.
    unsafe fn prefetch(self, p: *const f32);

    /// Runs `kernel` as a function of its own, so that a large kernel is compiled once and not into every caller.
    unsafe fn outline<K: Kernel>(self, kernel: K) -> K::Output;

    /// Lanes as an array.
    unsafe fn to_array(self, a: Self::F) -> [f32; WIDTH] {
        let mut out = [0.0; WIDTH];
        // SAFETY: the array has sixteen lanes.
        unsafe { self.store(out.as_mut_ptr(), a) };
        out
    }

    /// The sum of the lanes in one fixed order: lanes sixteen apart by 8, then 4, 2, 1.
    unsafe fn sum_lanes(self, a: Self::F) -> f32 {
        // SAFETY: as the caller's.
        let mut lanes = unsafe { self.to_array(a) };
        let mut half = WIDTH / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
            half /= 2;
        }
        lanes[0]
    }
}

#[cfg(test)]
mod tests;
