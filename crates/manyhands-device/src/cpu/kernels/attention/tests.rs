//! Equality by bits with attention written out: products as plain chains, and the softmax kernels.

use super::super::softmax::{softmax, softmax_grad};
use super::*;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next() as f32 / (1u64 << 29) as f32 - 2.0).collect()
    }
}

/// The chain over k of a(i, k) b(k, j), for all i and j.
fn chains(
    [m, n, k]: [usize; 3],
    a: impl Fn(usize, usize) -> f32,
    b: impl Fn(usize, usize) -> f32,
) -> Vec<f32> {
    let mut c = Vec::new();
    for i in 0..m {
        for j in 0..n {
            c.push((0..k).fold(0.0, |x, k| a(i, k).mul_add(b(k, j), x)));
        }
    }
    c
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    batches: usize,
    heads: usize,
    depth: usize,
    queries: usize,
    keys: usize,
    causal: bool,
    /// 0 for none, 1 for one, 2 for one a sequence.
    masks: usize,
}

/// Everything attention reads, and what it should give: out, dq, dk, dv.
struct Case {
    shape: Shape,
    inputs: [Vec<f32>; 4],
    mask: Vec<u8>,
    want: [Vec<f32>; 4],
}

const SCALE: f32 = 0.3;

impl Case {
    fn new(random: &mut Random, shape: Shape) -> Case {
        let width = shape.heads * shape.depth;
        let [queries, keys] = [shape.queries, shape.keys].map(|n| shape.batches * n * width);
        let inputs = [queries, keys, keys, queries].map(|n| random.values(n));
        let n_mask = [0, 1, shape.batches][shape.masks] * shape.queries * shape.keys;
        let mask = (0..n_mask).map(|_| u8::from(!random.next().is_multiple_of(4))).collect();
        let want = [queries, queries, keys, keys].map(|n| vec![0.0; n]);
        let mut case = Case { shape, inputs, mask, want };
        for batch in 0..shape.batches {
            for head in 0..shape.heads {
                case.write_out(batch, head);
            }
        }
        case
    }

    fn sees(&self, batch: usize, i: usize, j: usize) -> bool {
        let s = self.shape;
        let pair = i * s.keys + j;
        (!s.causal || j + s.queries <= i + s.keys)
            && match s.masks {
                0 => true,
                1 => self.mask[pair] != 0,
                _ => self.mask[batch * s.queries * s.keys + pair] != 0,
            }
    }

    fn write_out(&mut self, batch: usize, head: usize) {
        let s = self.shape;
        let (tq, tk, d, width) = (s.queries, s.keys, s.depth, s.heads * s.depth);
        let at = move |n: usize, i: usize, e: usize| (batch * n + i) * width + head * d + e;
        let [q, k, v, dout] = &self.inputs;
        let mut p = chains([tq, tk, d], |i, e| q[at(tq, i, e)], |e, j| k[at(tk, j, e)]);
        for (pair, x) in p.iter_mut().enumerate() {
            *x *= SCALE;
            if !self.sees(batch, pair / tk, pair % tk) {
                *x = f32::NEG_INFINITY;
            }
        }
        let blind: Vec<bool> = (0..tq).map(|i| (0..tk).all(|j| !self.sees(batch, i, j))).collect();
        let mut ds = chains([tq, tk, d], |i, e| dout[at(tq, i, e)], |e, j| v[at(tk, j, e)]);
        // SAFETY: the matrices have the shape; in place is allowed.
        unsafe {
            let (p_ptr, ds_ptr) = (p.as_mut_ptr(), ds.as_mut_ptr());
            softmax(Isa::Portable, p_ptr, p_ptr, tq, tk, Part::WHOLE);
            for (pair, x) in p.iter_mut().enumerate() {
                *x = if blind[pair / tk] { 0.0 } else { *x };
            }
            softmax_grad(Isa::Portable, p_ptr, ds_ptr, ds_ptr, tq, tk, Part::WHOLE);
        }
        ds.iter_mut().for_each(|x| *x *= SCALE);
        let results = [
            (tq, chains([tq, d, tk], |i, j| p[i * tk + j], |j, e| v[at(tk, j, e)])),
            (tq, chains([tq, d, tk], |i, j| ds[i * tk + j], |j, e| k[at(tk, j, e)])),
            (tk, chains([tk, d, tq], |j, i| ds[i * tk + j], |i, e| q[at(tq, i, e)])),
            (tk, chains([tk, d, tq], |j, i| p[i * tk + j], |i, e| dout[at(tq, i, e)])),
        ];
        for (want, (n, rows)) in self.want.iter_mut().zip(results) {
            for i in 0..n {
                for e in 0..d {
                    want[at(n, i, e)] = rows[i * d + e];
                }
            }
        }
    }

    fn check(&self, count: usize) {
        let s = self.shape;
        let row = s.heads * s.depth;
        let tokens =
            |idx: usize, n: usize| Tokens { ptr: self.inputs[idx].as_ptr(), row, batch: n * row };
        let a = Attention {
            n_batches: s.batches,
            n_heads: s.heads,
            depth: s.depth,
            n_queries: s.queries,
            n_keys: s.keys,
            scale: SCALE,
            causal: s.causal,
            mask: if s.masks == 0 { std::ptr::null() } else { self.mask.as_ptr() },
            mask_batch: if s.masks == 2 { s.queries * s.keys } else { 0 },
            q: tokens(0, s.queries),
            k: tokens(1, s.keys),
            v: tokens(2, s.keys),
        };
        for isa in Isa::available() {
            let mut got = self.want.clone().map(|x| vec![f32::NAN; x.len()]);
            let [out, dq, dk, dv] = [0, 1, 2, 3].map(|idx| {
                let n = if idx < 2 { s.queries } else { s.keys };
                TokensMut { ptr: got[idx].as_mut_ptr(), row, batch: n * row }
            });
            for idx in 0..count {
                let part = Part { idx, count };
                let mut scratch = vec![f32::NAN; a.scratch_len()];
                let mut grad_scratch = vec![f32::NAN; a.grad_scratch_len()];
                // SAFETY: every buffer has the length that the shape asks for.
                unsafe {
                    attention(isa, &a, out, &mut scratch, part);
                    let dout = tokens(3, s.queries);
                    attention_grad(isa, &a, dout, [dq, dk, dv], &mut grad_scratch, part);
                }
            }
            for (name, (got, want)) in
                ["out", "dq", "dk", "dv"].iter().zip(got.iter().zip(&self.want))
            {
                // A zero may have either sign where keys were left out.
                let same =
                    got.iter().zip(want).all(|(x, y)| (x + 0.0).to_bits() == (y + 0.0).to_bits());
                assert!(same, "{name} of {s:?} on {} in {count} parts", isa.name());
            }
        }
    }
}

#[test]
fn attention_gives_the_bits_of_its_parts() {
    let mut random = Random(5);
    for round in 0..150 {
        let mut pick = |from: &[usize]| from[random.next() as usize % from.len()];
        let (queries, keys) =
            (pick(&[1, 2, 5, 16, 31, 32, 33, 40, 70]), pick(&[1, 3, 16, 33, 64, 70]));
        let causal = round % 2 == 0;
        let shape = Shape {
            batches: pick(&[1, 2]),
            heads: pick(&[1, 3]),
            depth: pick(&[1, 4, 16, 20]),
            queries,
            keys: if causal { keys.max(queries) } else { keys },
            causal,
            masks: round / 2 % 3,
        };
        Case::new(&mut random, shape).check(1 + round % 3);
    }
}

#[test]
fn no_queries_give_keys_no_gradient() {
    let shape =
        Shape { batches: 2, heads: 2, depth: 4, queries: 0, keys: 3, causal: true, masks: 0 };
    Case::new(&mut Random(6), shape).check(2);
}

#[test]
fn slices_of_one_buffer_attend_in_place() {
    let (t, d) = (40, 16);
    let buffer = Random(7).values(t * 3 * d);
    let apart = |idx: usize| -> Vec<f32> {
        (0..t).flat_map(|i| buffer[(3 * i + idx) * d..][..d].to_vec()).collect()
    };
    let separate = [0, 1, 2].map(apart);
    let run = |[q, k, v]: [*const f32; 3], row: usize| {
        let tokens = |ptr| Tokens { ptr, row, batch: t * row };
        let a = Attention {
            n_batches: 1,
            n_heads: 1,
            depth: d,
            n_queries: t,
            n_keys: t,
            scale: 0.25,
            causal: true,
            mask: std::ptr::null(),
            mask_batch: 0,
            q: tokens(q),
            k: tokens(k),
            v: tokens(v),
        };
        let mut out = vec![0.0; t * d];
        let mut scratch = vec![0.0; a.scratch_len()];
        let to = TokensMut { ptr: out.as_mut_ptr(), row: d, batch: t * d };
        // SAFETY: every buffer has the length that the shape asks for.
        unsafe { attention(Isa::detect(), &a, to, &mut scratch, Part::WHOLE) };
        out
    };
    let together = run([0, 1, 2].map(|idx| buffer[idx * d..].as_ptr()), 3 * d);
    assert_eq!(together, run(separate.each_ref().map(|x| x.as_ptr()), d));
}
