//! Known answers, independence of cuts, and the moments of the distributions.

use super::*;

const PLACE: Place = Place { seed: 42, operation: 7, step: 3, grain: 1, iteration: 0 };

fn same_everywhere(n: usize, run: impl Fn(Isa, *mut f32, Part)) -> Vec<f32> {
    let bits = |out: &[f32]| -> Vec<u32> { out.iter().map(|x| x.to_bits()).collect() };
    let mut first: Option<Vec<f32>> = None;
    for isa in Isa::available() {
        for count in 1..=5 {
            let mut out = vec![7.7; n];
            (0..count).for_each(|idx| run(isa, out.as_mut_ptr(), Part { idx, count }));
            let want = first.get_or_insert_with(|| out.clone());
            assert_eq!(bits(want), bits(&out), "{} in {count} parts", isa.name());
        }
    }
    first.unwrap_or_default()
}

#[test]
fn philox_gives_the_published_answers() {
    let check = |counter: [u32; 4], key: [u32; 2], want: [u32; 4]| {
        let got = philox(counter.map(u64::from), key);
        assert_eq!(got.map(|word| word as u32), want);
    };
    check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    check([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    // The digits of pi, the third of Random123's vectors.
    check(
        [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
        [0xa409_3822, 0x299f_31d0],
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
    );
}

#[test]
fn an_element_uses_its_word_of_its_block() {
    for n in [0, 1, 15, 16, 17, 63, 64, 65, 100, 1000] {
        let got = same_everywhere(n, |isa, out, part| {
            // SAFETY: the vector has `n` elements.
            unsafe { uniform(isa, PLACE, out, n, part) }
        });
        for (e, got) in got.iter().enumerate() {
            let counter = [(e / 4) as u32, PLACE.iteration, PLACE.grain, PLACE.step];
            let word = philox(counter.map(u64::from), PLACE.key())[e % 4] as u32;
            assert_eq!(*got, (word >> 8) as f32 / 16_777_216.0);
        }
    }
}

#[test]
fn every_part_of_a_place_changes_the_values() {
    let draw = |place: Place| {
        let mut out = [0.0; 4];
        // SAFETY: the array has four elements.
        unsafe { uniform(Isa::detect(), place, out.as_mut_ptr(), 4, Part::WHOLE) };
        out
    };
    let others = [
        Place { seed: 43, ..PLACE },
        Place { operation: 8, ..PLACE },
        Place { step: 4, ..PLACE },
        Place { grain: 2, ..PLACE },
        Place { iteration: 1, ..PLACE },
    ];
    assert!(others.into_iter().all(|place| draw(place) != draw(PLACE)));
}

#[test]
fn uniform_and_normal_values_have_the_right_moments() {
    let n = 1 << 18;
    let moments = |x: &[f32]| {
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n as f64;
        let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n as f64;
        (mean, variance)
    };
    // SAFETY: the vectors have `n` elements.
    let x = same_everywhere(n, |isa, out, part| unsafe { uniform(isa, PLACE, out, n, part) });
    assert!(x.iter().all(|x| (0.0..1.0).contains(x)));
    let (mean, variance) = moments(&x);
    assert!((mean - 0.5).abs() < 0.003 && (variance - 1.0 / 12.0).abs() < 0.001);
    // SAFETY: as above.
    let x = same_everywhere(n, |isa, out, part| unsafe { normal(isa, PLACE, out, n, part) });
    let (mean, variance) = moments(&x);
    assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    let beyond_two = x.iter().filter(|x| x.abs() > 2.0).count() as f64 / n as f64;
    assert!((beyond_two - 0.0455).abs() < 0.002, "{beyond_two}");
    assert!(x.iter().all(|x| x.abs() < 6.0));
}

#[test]
fn normal_values_are_box_and_mullers_of_the_uniform_ones() {
    let n = 1000;
    let (mut u, mut z) = (vec![0.0; n], vec![0.0; n]);
    // SAFETY: the vectors have `n` elements.
    unsafe {
        uniform(Isa::detect(), PLACE, u.as_mut_ptr(), n, Part::WHOLE);
        normal(Isa::detect(), PLACE, z.as_mut_ptr(), n, Part::WHOLE);
    }
    for (u, z) in u.chunks(2).zip(z.chunks(2)) {
        let radius = (-2.0 * (f64::from(u[0]) + 2f64.powi(-24)).ln()).sqrt();
        let angle = std::f64::consts::TAU * f64::from(u[1]);
        assert!((radius * angle.cos() - f64::from(z[0])).abs() < 3e-6);
        assert!((radius * angle.sin() - f64::from(z[1])).abs() < 3e-6);
    }
}

#[test]
fn dropout_is_its_mask_times_a_factor() {
    for n in [0, 1, 17, 100, 1000] {
        for rate in [0.0, 0.1, 0.5, 1.0] {
            let x: Vec<f32> = (0..n).map(|i| i as f32 - 3.0).collect();
            let mask = same_everywhere(n, |isa, out, part| {
                // SAFETY: the vector has `n` elements.
                unsafe { keep_mask(isa, PLACE, rate, out, n, part) }
            });
            let y = same_everywhere(n, |isa, out, part| {
                // SAFETY: the vectors have `n` elements.
                unsafe { dropout(isa, PLACE, rate, x.as_ptr(), out, n, part) }
            });
            for ((x, mask), y) in x.iter().zip(&mask).zip(&y) {
                assert_eq!(*y, if *mask == 0.0 { 0.0 } else { x * (1.0 / (1.0 - rate)) });
            }
            let kept = mask.iter().sum::<f32>() / n as f32;
            assert!(n < 1000 || (kept - (1.0 - rate)).abs() < 0.05, "{kept} of {rate}");
        }
    }
}
