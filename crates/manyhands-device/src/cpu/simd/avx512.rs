//! [`Lanes`] on AVX-512: one register.

use std::arch::x86_64::*;

use super::{Kernel, Lanes};

#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// # Safety
/// The machine has AVX-512 F, BW, DQ and VL; the kernel's arguments are sound.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the feature is enabled here; the arguments are the caller's word.
    unsafe { kernel.run(Avx512(())) }
}

/// # Safety
/// As for [`run`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn run_outlined<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: as for `run`.
    unsafe { kernel.run(Avx512(())) }
}

#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
const UP: i32 = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;

/// Methods that are one intrinsic each.
macro_rules! intrinsics {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe)] // mask arithmetic is plain integers
        unsafe fn $name(self, $($arg: $ty),*) -> $out {
            // SAFETY: AVX-512 is enabled in every caller (`run`); pointers are the caller's word.
            unsafe { $body }
        }
    )*};
}

// SAFETY: values exist only inside `run`, where the features are enabled; masked forms touch no lane beyond the mask.
unsafe impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    type M = __mmask16;

    const TILE_ROWS: usize = 14;
    const TILE_VECTORS: usize = 2;

    intrinsics! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        load(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        store(p: *mut f32, x: __m512) -> () = _mm512_storeu_ps(p, x);
        load_first(p: *const f32, n: usize) -> __m512 = _mm512_maskz_loadu_ps(first(n), p);
        store_first(p: *mut f32, x: __m512, n: usize) -> () = _mm512_mask_storeu_ps(p, first(n), x);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        mul_add(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        sqrt(a: __m512) -> __m512 = _mm512_sqrt_ps(a);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        neg(a: __m512) -> __m512 = _mm512_xor_ps(a, _mm512_set1_ps(-0.0));
        abs(a: __m512) -> __m512 = _mm512_abs_ps(a);
        round(a: __m512) -> __m512 = _mm512_roundscale_ps::<NEAREST>(a);
        floor(a: __m512) -> __m512 = _mm512_roundscale_ps::<DOWN>(a);
        ceil(a: __m512) -> __m512 = _mm512_roundscale_ps::<UP>(a);
        lt(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        le(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b);
        eq(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b);
        select(m: __mmask16, yes: __m512, no: __m512) -> __m512 = _mm512_mask_blend_ps(m, no, yes);
        mask_and(a: __mmask16, b: __mmask16) -> __mmask16 = a & b;
        mask_or(a: __mmask16, b: __mmask16) -> __mmask16 = a | b;
        mask_not(a: __mmask16) -> __mmask16 = !a;
        mask_from_bits(bits: u16) -> __mmask16 = bits;
        splat_i(x: i32) -> __m512i = _mm512_set1_epi32(x);
        load_i(p: *const i32) -> __m512i = _mm512_loadu_si512(p.cast());
        add_i(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        sub_i(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        and_i(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        or_i(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        bits(a: __m512) -> __m512i = _mm512_castps_si512(a);
        from_bits(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
        to_f(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
    }

    #[inline(always)]
    unsafe fn shl_i<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: AVX-512 is enabled in every caller.
        unsafe { _mm512_slli_epi32::<BITS>(a) }
    }
    #[inline(always)]
    unsafe fn shr_i<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: AVX-512 is enabled in every caller.
        unsafe { _mm512_srai_epi32::<BITS>(a) }
    }
    #[inline(always)]
    unsafe fn transpose(self, r: [__m512; 16]) -> [__m512; 16] {
        // SAFETY: AVX-512 is enabled in every caller.
        unsafe {
            let zero = _mm512_setzero_ps();
            // Pairs of rows interleaved, then pairs of pairs: quad `q`, column `c` of each 128-bit block.
            let mut quads = [zero; 16];
            for q in 0..4 {
                let [a, b, c, d] = [r[4 * q], r[4 * q + 1], r[4 * q + 2], r[4 * q + 3]];
                let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                quads[4 * q] = _mm512_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
                quads[4 * q + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
                quads[4 * q + 2] = _mm512_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
                quads[4 * q + 3] = _mm512_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
            }
            // Then the 128-bit blocks: block `c / 4` of every quad makes one column.
            let mut out = [zero; 16];
            for c in 0..4 {
                let [q0, q1, q2, q3] = [quads[c], quads[4 + c], quads[8 + c], quads[12 + c]];
                let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(q0, q1);
                let high = _mm512_shuffle_f32x4::<0b11_01_11_01>(q0, q1);
                let low_next = _mm512_shuffle_f32x4::<0b10_00_10_00>(q2, q3);
                let high_next = _mm512_shuffle_f32x4::<0b11_01_11_01>(q2, q3);
                out[c] = _mm512_shuffle_f32x4::<0b10_00_10_00>(low, low_next);
                out[8 + c] = _mm512_shuffle_f32x4::<0b11_01_11_01>(low, low_next);
                out[4 + c] = _mm512_shuffle_f32x4::<0b10_00_10_00>(high, high_next);
                out[12 + c] = _mm512_shuffle_f32x4::<0b11_01_11_01>(high, high_next);
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn prefetch(self, p: *const f32) {
        // SAFETY: a prefetch faults nowhere.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn outline<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` exists only where the features are there; the arguments are the caller's word.
        unsafe { run_outlined(kernel) }
    }
}
