//! [`Lanes`] in plain Rust: the definition that the others must match bit for bit.

use super::{Kernel, Lanes, WIDTH};

/// Arrays of sixteen; the compiler vectorises what it can.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// `a * b + c` with one rounding. Where the hardware has no such instruction the C library would be called, and those
/// differ; this one is Rust.
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
        a.mul_add(b, c)
    } else {
        libm::fmaf(a, b, c)
    }
}

#[inline(always)]
fn map(a: [f32; WIDTH], f: impl Fn(f32) -> f32) -> [f32; WIDTH] {
    std::array::from_fn(|i| f(a[i]))
}

#[inline(always)]
fn zip<A: Copy, B: Copy, C>(a: [A; WIDTH], b: [B; WIDTH], f: impl Fn(A, B) -> C) -> [C; WIDTH] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

// SAFETY: needs no instructions beyond the target's; pointers as the trait says.
unsafe impl Lanes for Portable {
    type F = [f32; WIDTH];
    type I = [i32; WIDTH];
    type M = [bool; WIDTH];

    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn splat(self, x: f32) -> Self::F {
        [x; WIDTH]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: the caller gives sixteen valid lanes.
        unsafe { p.cast::<[f32; WIDTH]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: Self::F) {
        // SAFETY: the caller gives sixteen valid lanes.
        unsafe { p.cast::<[f32; WIDTH]>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::F {
        let mut out = [0.0; WIDTH];
        for (i, lane) in out.iter_mut().enumerate().take(n) {
            // SAFETY: the caller gives `n` valid lanes.
            *lane = unsafe { *p.add(i) };
        }
        out
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, x: Self::F, n: usize) {
        for (i, lane) in x.iter().enumerate().take(n) {
            // SAFETY: the caller gives `n` valid lanes.
            unsafe { *p.add(i) = *lane };
        }
    }
    #[inline(always)]
    unsafe fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| fused(a[i], b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn sqrt(self, a: Self::F) -> Self::F {
        map(a, f32::sqrt)
    }
    #[inline(always)]
    unsafe fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn neg(self, a: Self::F) -> Self::F {
        map(a, |a| -a)
    }
    #[inline(always)]
    unsafe fn abs(self, a: Self::F) -> Self::F {
        map(a, f32::abs)
    }
    #[inline(always)]
    unsafe fn round(self, a: Self::F) -> Self::F {
        map(a, libm::rintf)
    }
    #[inline(always)]
    unsafe fn floor(self, a: Self::F) -> Self::F {
        map(a, libm::floorf)
    }
    #[inline(always)]
    unsafe fn ceil(self, a: Self::F) -> Self::F {
        map(a, libm::ceilf)
    }
    #[inline(always)]
    unsafe fn lt(self, a: Self::F, b: Self::F) -> Self::M {
        zip(a, b, |a, b| a < b)
    }
    #[inline(always)]
    unsafe fn le(self, a: Self::F, b: Self::F) -> Self::M {
        zip(a, b, |a, b| a <= b)
    }
    #[inline(always)]
    unsafe fn eq(self, a: Self::F, b: Self::F) -> Self::M {
        zip(a, b, |a, b| a == b)
    }
    #[inline(always)]
    unsafe fn select(self, m: Self::M, yes: Self::F, no: Self::F) -> Self::F {
        std::array::from_fn(|i| if m[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    unsafe fn mask_and(self, a: Self::M, b: Self::M) -> Self::M {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn mask_or(self, a: Self::M, b: Self::M) -> Self::M {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn mask_not(self, a: Self::M) -> Self::M {
        std::array::from_fn(|i| !a[i])
    }
    #[inline(always)]
    unsafe fn mask_from_bits(self, bits: u16) -> Self::M {
        std::array::from_fn(|i| bits >> i & 1 == 1)
    }
    #[inline(always)]
    unsafe fn splat_i(self, x: i32) -> Self::I {
        [x; WIDTH]
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> Self::I {
        // SAFETY: the caller gives sixteen valid lanes.
        unsafe { p.cast::<[i32; WIDTH]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn add_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn sub_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    unsafe fn and_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn or_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn shl_i<const BITS: u32>(self, a: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i] << BITS)
    }
    #[inline(always)]
    unsafe fn shr_i<const BITS: u32>(self, a: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i] >> BITS)
    }
    #[inline(always)]
    unsafe fn bits(self, a: Self::F) -> Self::I {
        std::array::from_fn(|i| a[i].to_bits() as i32)
    }
    #[inline(always)]
    unsafe fn from_bits(self, a: Self::I) -> Self::F {
        std::array::from_fn(|i| f32::from_bits(a[i] as u32))
    }
    #[inline(always)]
    unsafe fn to_f(self, a: Self::I) -> Self::F {
        std::array::from_fn(|i| a[i] as f32)
    }
    #[inline(always)]
    unsafe fn transpose(self, rows: [Self::F; WIDTH]) -> [Self::F; WIDTH] {
        std::array::from_fn(|j| std::array::from_fn(|i| rows[i][j]))
    }
    #[inline(always)]
    unsafe fn prefetch(self, _: *const f32) {}
    #[inline(never)]
    unsafe fn outline<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: the arguments are the caller's word.
        unsafe { kernel.run(self) }
    }
}
