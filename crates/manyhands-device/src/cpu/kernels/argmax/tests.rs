//! The first largest, NaN first of all.

use super::*;

fn first_largest(x: impl Iterator<Item = f32>) -> i32 {
    let mut best: Option<(usize, f32)> = None;
    for (idx, x) in x.enumerate() {
        if best.is_none_or(|(_, most)| x > most || x.is_nan() && !most.is_nan()) {
            best = Some((idx, x));
        }
    }
    best.map_or(0, |(idx, _)| idx as i32)
}

#[test]
fn argmax_gives_the_first_largest_on_every_instruction_set_and_cut() {
    let shapes = [[1, 1, 1], [3, 15, 1], [5, 17, 1], [1, 1000, 1], [1, 9, 100], [4, 33, 17]];
    for [outer, axis, inner] in shapes {
        for kind in 0..4 {
            // Few distinct values make ties; the later kinds add NaN and minus infinity.
            let mut x: Vec<f32> =
                (0..outer * axis * inner).map(|i| ((i * 7919) % 11) as f32 - 5.0).collect();
            for i in (0..x.len()).step_by(13) {
                match kind {
                    1 => x[i] = f32::NAN,
                    2 => x[i] = f32::INFINITY,
                    3 => x.fill(f32::NEG_INFINITY),
                    _ => {}
                }
            }
            let want: Vec<i32> = (0..outer * inner)
                .map(|at| (at / inner * axis * inner + at % inner, inner))
                .map(|(at, step)| first_largest((0..axis).map(|a| x[at + a * step])))
                .collect();
            for isa in Isa::available() {
                for count in 1..=5 {
                    let mut got = vec![-1; want.len()];
                    for idx in 0..count {
                        let part = Part { idx, count };
                        let (x, got) = (x.as_ptr(), got.as_mut_ptr());
                        // SAFETY: the slices have the shape given.
                        unsafe { argmax(isa, x, got, outer, axis, inner, part) };
                    }
                    assert_eq!(got, want, "{} in {count} parts", isa.name());
                }
            }
        }
    }
}
