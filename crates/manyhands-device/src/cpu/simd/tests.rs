//! Every instruction set gives the portable one's bits.

use super::*;

/// Applies every operation to two vectors and records the bits.
struct Everything {
    a: [f32; WIDTH],
    b: [f32; WIDTH],
    n: usize,
}

impl Kernel for Everything {
    type Output = Vec<u32>;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) -> Vec<u32> {
        let mut seen = Vec::new();
        // SAFETY: the arrays have sixteen lanes and `n` is at most sixteen.
        unsafe {
            let (a, b) = (l.load(self.a.as_ptr()), l.load_first(self.b.as_ptr(), self.n));
            let mut show = |x: L::F| seen.extend(l.to_array(x).map(f32::to_bits));
            show(b);
            show(l.add(a, b));
            show(l.sub(a, b));
            show(l.mul(a, b));
            show(l.mul_add(a, a, b));
            show(l.max(a, b));
            show(l.min(a, b));
            show(l.neg(a));
            show(l.abs(a));
            show(l.sqrt(l.abs(a)));
            show(l.round(a));
            show(l.floor(a));
            show(l.ceil(a));
            for m in [l.lt(a, b), l.le(a, b), l.eq(a, b), l.mask_not(l.lt(a, b))] {
                show(l.select(m, a, b));
            }
            show(l.select(l.mask_from_bits(0xa5c3), a, b));
            let i = l.shr_i::<7>(l.bits(a));
            show(l.to_f(i));
            show(l.from_bits(l.shl_i::<3>(i)));
            show(l.from_bits(l.shr_i::<3>(l.bits(a))));
            show(l.from_bits(l.and_i(l.add_i(i, l.splat_i(7)), l.sub_i(l.bits(b), i))));
            let mut out = self.a;
            l.store_first(out.as_mut_ptr(), b, self.n);
            seen.extend(out.map(f32::to_bits));
            seen.push(l.sum_lanes(a).to_bits());
            let rows: [L::F; WIDTH] = std::array::from_fn(|i| l.mul(a, l.splat(1.0 + i as f32)));
            for column in l.transpose(rows) {
                seen.extend(l.to_array(column).map(f32::to_bits));
            }
        }
        seen
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let mut state = 7u32;
    for n in (0..=WIDTH).cycle().take(500) {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 65536.0 - 128.0
        };
        let (a, b) = (std::array::from_fn(|_| next()), std::array::from_fn(|_| next()));
        // SAFETY: the instruction sets are the machine's own; the kernel owns its data.
        let want = unsafe { Isa::Portable.run(Everything { a, b, n }) };
        for isa in Isa::available() {
            // SAFETY: as above.
            let got = unsafe { isa.run(Everything { a, b, n }) };
            assert_eq!(got, want, "{}", isa.name());
        }
    }
}

#[test]
fn transpose_turns_rows_into_columns() {
    struct Turn([[f32; WIDTH]; WIDTH]);
    impl Kernel for Turn {
        type Output = [[f32; WIDTH]; WIDTH];
        #[inline(always)]
        unsafe fn run<L: Lanes>(self, l: L) -> Self::Output {
            // SAFETY: every row has sixteen lanes.
            unsafe {
                l.transpose(self.0.map(|row| l.load(row.as_ptr()))).map(|column| l.to_array(column))
            }
        }
    }
    let rows: [[f32; WIDTH]; WIDTH] =
        std::array::from_fn(|i| std::array::from_fn(|j| (100 * i + j) as f32));
    for isa in Isa::available() {
        // SAFETY: the instruction set is the machine's own; the kernel owns its data.
        let turned = unsafe { isa.run(Turn(rows)) };
        for (i, row) in rows.iter().enumerate() {
            for (j, want) in row.iter().enumerate() {
                assert_eq!(turned[j][i], *want, "{} row {i} column {j}", isa.name());
            }
        }
    }
}
