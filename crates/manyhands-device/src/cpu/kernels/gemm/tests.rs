//! Equality by bits with the triple loop.

use super::*;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next() as f32 / (1u64 << 30) as f32 - 1.0).collect()
    }
}

/// How the elements of an operand lie: rows contiguous, columns contiguous, or neither.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Rows,
    Columns,
    Neither,
}

const LAYOUTS: [Layout; 3] = [Layout::Rows, Layout::Columns, Layout::Neither];

fn strided(layout: Layout, rows: usize, columns: usize, extra: usize) -> (Strided, usize) {
    let (row, col) = match layout {
        Layout::Rows => (columns + extra, 1),
        Layout::Columns => (1, rows + extra),
        Layout::Neither => (2 * (columns + extra), 2),
    };
    let len = rows.saturating_sub(1) * row + columns.saturating_sub(1) * col + 1;
    (Strided { ptr: std::ptr::null(), row, col }, len)
}

fn naive(g: &Gemm, c: &mut [f32], a: &[f32], b: &[f32], bias: Option<&[f32]>) {
    for i in 0..g.m {
        for j in 0..g.n {
            let old = c[i * g.c_row + j];
            let mut x = if g.resume { old } else { 0.0 };
            for k in 0..g.k {
                let (a, b) = (a[i * g.a.row + k * g.a.col], b[k * g.b.row + j * g.b.col]);
                x = a.mul_add(b, x);
            }
            if g.finish.accumulate {
                x += old;
            }
            if let Some(bias) = bias {
                x += bias[j];
            }
            if g.finish.activation == Activation::Relu && x < 0.0 {
                x = 0.0;
            }
            c[i * g.c_row + j] = x;
        }
    }
}

/// Runs one shape on every instruction set, cut in every one of `part_counts`, and compares with the triple loop.
fn check(
    random: &mut Random,
    (m, n, k): (usize, usize, usize),
    (a_layout, b_layout): (Layout, Layout),
    finish: usize,
    part_counts: &[usize],
) {
    let extra = [0, 0, 3][random.below(3)];
    let (mut a, a_len) = strided(a_layout, m, k, extra);
    let (mut b, b_len) = strided(b_layout, k, n, extra);
    let (a_values, b_values) = (random.values(a_len), random.values(b_len));
    let bias = random.values(n);
    (a.ptr, b.ptr) = (a_values.as_ptr(), b_values.as_ptr());
    let c_row = n + extra;
    let before = random.values(m * c_row + 1);
    let with_bias = finish & 2 != 0;
    let mut g = Gemm {
        m,
        n,
        k,
        a,
        b,
        c: std::ptr::null_mut(),
        c_row,
        resume: finish & 8 != 0,
        finish: Finish {
            accumulate: finish & 1 != 0,
            bias: if with_bias { bias.as_ptr() } else { std::ptr::null() },
            activation: if finish & 4 != 0 { Activation::Relu } else { Activation::None },
        },
    };
    let mut want = before.clone();
    naive(&g, &mut want, &a_values, &b_values, with_bias.then_some(&bias[..]));
    for isa in Isa::available() {
        for &count in part_counts {
            let mut got = before.clone();
            g.c = got.as_mut_ptr();
            let mut scratch = vec![f32::NAN; scratch_len(isa, &g, count)];
            for idx in 0..count {
                // SAFETY: every buffer has the length that the shape asks for.
                unsafe { gemm(isa, &g, &mut scratch, Part { idx, count }) };
            }
            let same = got.iter().zip(&want).all(|(x, y)| x.to_bits() == y.to_bits());
            let name = isa.name();
            assert!(
                same,
                "{m}x{n}x{k} {a_layout:?} {b_layout:?} finish {finish} {name} in {count} differs"
            );
        }
    }
}

#[test]
fn every_layout_and_shape_gives_the_bits_of_the_triple_loop() {
    let mut random = Random(1);
    let sizes =
        [0, 1, 2, 3, 7, 10, 13, 14, 15, 16, 17, 28, 29, 31, 32, 33, 48, 61, 64, 65, 97, 128];
    for round in 0..1500 {
        let mut size = || sizes[random.below(sizes.len())];
        let shape = (size(), size(), size());
        let layouts = (LAYOUTS[round % 3], LAYOUTS[round / 3 % 3]);
        let finish = random.below(16);
        check(&mut random, shape, layouts, finish, &[1, 1 + round % 5]);
    }
}

#[test]
fn many_parts_of_one_product_make_the_whole() {
    let mut random = Random(2);
    for count in [2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 30, 64] {
        for layouts in [(Layout::Rows, Layout::Rows), (Layout::Columns, Layout::Rows)] {
            check(&mut random, (67, 83, 19), layouts, 0, &[count]);
            check(&mut random, (3, 200, 19), layouts, 0, &[count]);
            check(&mut random, (200, 5, 19), layouts, 0, &[count]);
        }
    }
}

#[test]
fn long_sums_go_on_where_a_block_stopped() {
    let mut random = Random(3);
    for (m, n, k) in [(5, 40, 1500), (33, 17, 2049), (64, 64, 1024), (1, 1, 3000), (20, 1, 2500)] {
        for a in LAYOUTS {
            for b in [Layout::Rows, Layout::Columns] {
                for finish in [0, 1, 7, 8] {
                    check(&mut random, (m, n, k), (a, b), finish, &[1, 3]);
                }
            }
        }
    }
}

#[test]
fn blocked_shapes_give_the_bits_of_the_triple_loop() {
    let mut random = Random(4);
    for (m, n, k) in [(300, 100, 512), (70, 600, 512), (512, 10, 128), (32, 512, 200)] {
        for a in [Layout::Rows, Layout::Columns] {
            for b in [Layout::Rows, Layout::Columns] {
                check(&mut random, (m, n, k), (a, b), 0, &[1, 2]);
            }
        }
    }
}

#[test]
fn relu_keeps_nan() {
    let (a, b, mut c) = ([f32::NAN, -1.0], [1.0], [0.0; 2]);
    let g = Gemm {
        m: 2,
        n: 1,
        k: 1,
        a: Strided { ptr: a.as_ptr(), row: 1, col: 1 },
        b: Strided { ptr: b.as_ptr(), row: 1, col: 1 },
        c: c.as_mut_ptr(),
        c_row: 1,
        resume: false,
        finish: Finish { activation: Activation::Relu, ..Finish::NONE },
    };
    for isa in Isa::available() {
        let mut scratch = vec![0.0; scratch_len(isa, &g, 1)];
        // SAFETY: the arrays have the shape's elements.
        unsafe { gemm(isa, &g, &mut scratch, Part::WHOLE) };
        assert!(c[0].is_nan() && c[1] == 0.0);
    }
}
