//! Known answers, moments, and the functions that are written out against those of the standard library.

use super::*;

const NORMAL: RowInit = RowInit::Normal { std: 1.0, seed: 7 };

fn row(init: RowInit, table: u64, key: u64, width: usize) -> Vec<f32> {
    let mut row = vec![9.9; width];
    init.fill(table, key, &mut row);
    row
}

#[test]
fn philox_gives_the_published_answers() {
    let check = |counter, key, want| assert_eq!(philox(counter, key), want);
    check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    check([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
}

#[test]
fn the_bits_of_a_row_never_change() {
    let bits = |init| row(init, 3, 1 << 40, 5).into_iter().map(f32::to_bits).collect::<Vec<_>>();
    expect_test::expect![[r#"
        [
            3222719030,
            3217879524,
            1076449294,
            1067296437,
            3204130942,
        ]
    "#]]
    .assert_debug_eq(&bits(NORMAL));
    expect_test::expect![[r#"
        [
            3212256576,
            1044549056,
            3212361978,
            3210509966,
            1051746484,
        ]
    "#]]
    .assert_debug_eq(&bits(RowInit::Uniform { low: -1.0, high: 1.0, seed: 7 }));
}

#[test]
fn seed_table_key_and_column_all_change_a_value() {
    let one = row(NORMAL, 1, 1, 8);
    for other in [row(NORMAL, 2, 1, 8), row(NORMAL, 1, 2, 8), row(NORMAL, 1, 1 << 32, 8)] {
        assert!(one.iter().zip(&other).all(|(one, other)| one != other));
    }
    assert_ne!(one, row(RowInit::Normal { std: 1.0, seed: 8 }, 1, 1, 8));
    assert!(one.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn a_narrow_row_is_the_beginning_of_a_wide_one() {
    for init in [NORMAL, RowInit::Uniform { low: 0.0, high: 2.0, seed: 1 }] {
        let wide = row(init, 1, 5, 23);
        (0..23).for_each(|width| assert_eq!(row(init, 1, 5, width), wide[..width]));
    }
}

#[test]
fn rows_have_the_moments_of_their_distribution() {
    let moments = |init| {
        let values: Vec<f64> =
            (0..20_000).flat_map(|key| row(init, 1, key, 10)).map(f64::from).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n)
    };
    let (mean, variance) = moments(RowInit::Normal { std: 0.5, seed: 3 });
    assert!(mean.abs() < 0.005 && (variance - 0.25).abs() < 0.005, "{mean} {variance}");
    let (mean, variance) = moments(RowInit::Uniform { low: -1.0, high: 3.0, seed: 3 });
    assert!((mean - 1.0).abs() < 0.01 && (variance - 16.0 / 12.0).abs() < 0.01);
    assert_eq!(moments(RowInit::Constant(2.5)), (2.5, 0.0));
    assert_eq!(moments(RowInit::Zeros), (0.0, 0.0));
}

#[test]
fn logarithm_sine_and_cosine_are_right() {
    for k in 1..=10_000u32 {
        let x = f64::from(k) / 10_000.0;
        assert!((ln(x) - x.ln()).abs() < 1e-14 * (1.0 + x.ln().abs()), "{x}");
        let (sin, cos) = sin_cos_of_turn(x);
        let angle = x * std::f64::consts::TAU;
        assert!((sin - angle.sin()).abs() < 1e-14 && (cos - angle.cos()).abs() < 1e-14, "{x}");
    }
    assert_eq!(ln(1.0), 0.0);
    assert!((ln(2f64.powi(-24)) + 24.0 * LN_2).abs() < 1e-14);
}
