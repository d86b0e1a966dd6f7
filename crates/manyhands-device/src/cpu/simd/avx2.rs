//! [`Lanes`] on AVX2 with FMA: two registers, low lanes first.

use std::arch::x86_64::*;

use super::{Kernel, Lanes};

#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// # Safety
/// The machine has AVX2 and FMA; the kernel's arguments are sound.
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the feature is enabled here; the arguments are the caller's word.
    unsafe { kernel.run(Avx2(())) }
}

/// # Safety
/// As for [`run`].
#[inline(never)]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn run_outlined<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: as for `run`.
    unsafe { kernel.run(Avx2(())) }
}

/// Eight rows of eight, turned.
#[inline(always)]
unsafe fn transpose8(r: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: AVX2 is enabled in every caller.
    unsafe {
        let zero = _mm256_setzero_ps();
        let mut quads = [zero; 8];
        for q in 0..2 {
            let [a, b, c, d] = [r[4 * q], r[4 * q + 1], r[4 * q + 2], r[4 * q + 3]];
            let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            quads[4 * q] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
            quads[4 * q + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
            quads[4 * q + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
            quads[4 * q + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
        }
        let mut out = [zero; 8];
        for c in 0..4 {
            out[c] = _mm256_permute2f128_ps::<0x20>(quads[c], quads[4 + c]);
            out[4 + c] = _mm256_permute2f128_ps::<0x31>(quads[c], quads[4 + c]);
        }
        out
    }
}

type F = [__m256; 2];
type I = [__m256i; 2];

/// Ones in the first `n` lanes of sixteen are the sixteen words from `16 - n` on.
static FIRST: [i32; 32] = {
    let mut words = [0; 32];
    let mut i = 0;
    while i < 16 {
        words[i] = -1;
        i += 1;
    }
    words
};

#[inline(always)]
unsafe fn first(n: usize) -> I {
    // SAFETY: `n` is at most 16, so both loads stay inside the 32 words.
    unsafe {
        let p = FIRST.as_ptr().add(16 - n);
        [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())]
    }
}

/// Methods that apply one intrinsic to each half.
macro_rules! halves {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name(self, $($arg: $ty),*) -> $out {
            // SAFETY: AVX2 and FMA are enabled in every caller (`run`).
            unsafe { half!($body, $($arg),*) }
        }
    )*};
}

macro_rules! half {
    ($f:expr, $a:ident) => {
        [$f($a[0]), $f($a[1])]
    };
    ($f:expr, $a:ident, $b:ident) => {
        [$f($a[0], $b[0]), $f($a[1], $b[1])]
    };
    ($f:expr, $a:ident, $b:ident, $c:ident) => {
        [$f($a[0], $b[0], $c[0]), $f($a[1], $b[1], $c[1])]
    };
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
const UP: i32 = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;

// SAFETY: values exist only inside `run`, where the features are enabled; masked forms touch no lane beyond the mask.
unsafe impl Lanes for Avx2 {
    type F = F;
    type I = I;
    type M = F;

    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 1;

    halves! {
        add(a: F, b: F) -> F = _mm256_add_ps;
        sub(a: F, b: F) -> F = _mm256_sub_ps;
        mul(a: F, b: F) -> F = _mm256_mul_ps;
        div(a: F, b: F) -> F = _mm256_div_ps;
        mul_add(a: F, b: F, c: F) -> F = _mm256_fmadd_ps;
        sqrt(a: F) -> F = _mm256_sqrt_ps;
        max(a: F, b: F) -> F = _mm256_max_ps;
        min(a: F, b: F) -> F = _mm256_min_ps;
        neg(a: F) -> F = |x| _mm256_xor_ps(x, _mm256_set1_ps(-0.0));
        abs(a: F) -> F = |x| _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
        round(a: F) -> F = |x| _mm256_round_ps::<NEAREST>(x);
        floor(a: F) -> F = |x| _mm256_round_ps::<DOWN>(x);
        ceil(a: F) -> F = |x| _mm256_round_ps::<UP>(x);
        lt(a: F, b: F) -> F = |a, b| _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        le(a: F, b: F) -> F = |a, b| _mm256_cmp_ps::<_CMP_LE_OQ>(a, b);
        eq(a: F, b: F) -> F = |a, b| _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b);
        select(m: F, yes: F, no: F) -> F = |m, yes, no| _mm256_blendv_ps(no, yes, m);
        mask_and(a: F, b: F) -> F = _mm256_and_ps;
        mask_or(a: F, b: F) -> F = _mm256_or_ps;
        mask_not(a: F) -> F = |x| _mm256_xor_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
        add_i(a: I, b: I) -> I = _mm256_add_epi32;
        sub_i(a: I, b: I) -> I = _mm256_sub_epi32;
        and_i(a: I, b: I) -> I = _mm256_and_si256;
        or_i(a: I, b: I) -> I = _mm256_or_si256;
        bits(a: F) -> I = _mm256_castps_si256;
        from_bits(a: I) -> F = _mm256_castsi256_ps;
        to_f(a: I) -> F = _mm256_cvtepi32_ps;
    }

    #[inline(always)]
    unsafe fn splat(self, x: f32) -> F {
        // SAFETY: AVX2 is enabled in every caller.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn splat_i(self, x: i32) -> I {
        // SAFETY: AVX2 is enabled in every caller.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        // SAFETY: the caller gives sixteen valid lanes.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const i32) -> I {
        // SAFETY: the caller gives sixteen valid lanes.
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())] }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: F) {
        // SAFETY: the caller gives sixteen valid lanes.
        unsafe {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> F {
        // SAFETY: the masks keep both loads to the first `n` lanes.
        unsafe {
            let m = first(n);
            [_mm256_maskload_ps(p, m[0]), _mm256_maskload_ps(p.wrapping_add(8), m[1])]
        }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, x: F, n: usize) {
        // SAFETY: the masks keep both stores to the first `n` lanes.
        unsafe {
            let m = first(n);
            _mm256_maskstore_ps(p, m[0], x[0]);
            _mm256_maskstore_ps(p.wrapping_add(8), m[1], x[1]);
        }
    }
    #[inline(always)]
    unsafe fn mask_from_bits(self, bits: u16) -> F {
        // SAFETY: AVX2 is enabled in every caller.
        unsafe {
            let select = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let expand = |byte: i32| {
                let all = _mm256_and_si256(_mm256_set1_epi32(byte), select);
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(all, select))
            };
            [expand(i32::from(bits & 0xff)), expand(i32::from(bits >> 8))]
        }
    }
    #[inline(always)]
    unsafe fn shl_i<const BITS: u32>(self, a: I) -> I {
        // SAFETY: AVX2 is enabled in every caller. The intrinsics want a signed constant.
        unsafe {
            let n = _mm_cvtsi32_si128(BITS as i32);
            [_mm256_sll_epi32(a[0], n), _mm256_sll_epi32(a[1], n)]
        }
    }
    #[inline(always)]
    unsafe fn shr_i<const BITS: u32>(self, a: I) -> I {
        // SAFETY: AVX2 is enabled in every caller.
        unsafe {
            let n = _mm_cvtsi32_si128(BITS as i32);
            [_mm256_sra_epi32(a[0], n), _mm256_sra_epi32(a[1], n)]
        }
    }
    #[inline(always)]
    unsafe fn transpose(self, rows: [F; 16]) -> [F; 16] {
        // SAFETY: AVX2 is enabled in every caller.
        unsafe {
            let mut out = [self.splat(0.0); 16];
            // Block (i, j) of eight by eight becomes block (j, i).
            for i in 0..2 {
                for j in 0..2 {
                    let block = transpose8(std::array::from_fn(|r| rows[8 * i + r][j]));
                    for (c, column) in block.into_iter().enumerate() {
                        out[8 * j + c][i] = column;
                    }
                }
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
