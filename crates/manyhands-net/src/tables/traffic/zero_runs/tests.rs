//! Bytes with many and with few zeros come back; bytes that lie about their length are refused.

use proptest::prelude::*;

use super::*;

fn there_and_back(bytes: &[u8]) -> usize {
    let mut out = vec![7];
    let saved = encode(bytes, &mut out);
    assert_eq!(saved, Saved { before: bytes.len() as u64, after: out.len() as u64 - 1 });
    let mut again = vec![9; bytes.len()];
    decode(&out[1..], &mut again).unwrap();
    assert_eq!(again, bytes);
    assert!(out.len() - 1 <= bytes.len() + 1, "never more than a byte longer");
    out.len() - 1
}

/// Runs of zeros and of other bytes, of all lengths.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let run = prop_oneof![
        (0usize..300).prop_map(|n| vec![0; n]),
        (0usize..12).prop_map(|n| vec![0; n]),
        proptest::collection::vec(any::<u8>(), 0..40),
    ];
    proptest::collection::vec(run, 0..20).prop_map(|runs| runs.concat())
}

proptest! {
    #[test]
    fn all_bytes_come_back(bytes in bytes()) {
        there_and_back(&bytes);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        form in 0u8..3, rest in proptest::collection::vec(any::<u8>(), 0..60), n in 0usize..100,
    ) {
        let _ = decode(&[vec![form], rest].concat(), &mut vec![0; n]);
    }
}

#[test]
fn zeros_cost_next_to_nothing() {
    assert!(there_and_back(&[0; 1 << 20]) < 8);
    let mut values = vec![0f32; 1000];
    values[500] = 1.5;
    assert!(there_and_back(bytemuck::cast_slice(&values)) < 16);
    there_and_back(&[]);
    there_and_back(&[1]);
}

#[test]
fn the_bits_of_negative_zero_come_back() {
    let values = [0.0f32, -0.0, 0.0, f32::NAN];
    there_and_back(bytemuck::cast_slice(&values));
}

#[test]
fn runs_that_do_not_come_to_the_length_are_refused() {
    let check = |bytes: &[u8], n: usize| {
        let error = decode(bytes, &mut vec![0; n]).unwrap_err();
        assert!(matches!(error, TrafficError::WrongRuns { .. }), "{error}");
    };
    check(&[], 0);
    check(&[9], 0);
    check(&[PLAIN, 1, 2], 3);
    check(&[RUNS, 5, 0], 4);
    check(&[RUNS, 5, 0], 6);
    check(&[RUNS, 0, 4, 1, 2, 3], 4);
    check(&[RUNS, 5], 5);
    check(&[RUNS, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0], 4);
}
