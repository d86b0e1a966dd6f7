//! Errors stay within their bounds, all ranks have the same bits, and with feedback nothing is lost in the long run.

use proptest::prelude::*;

use super::*;
use crate::transport::{Link, in_process};

fn groups(n: usize) -> Vec<Group> {
    let mut links: Vec<Vec<Option<Box<dyn Link>>>> =
        (0..n).map(|_| (0..n).map(|_| None).collect()).collect();
    for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
        let (one, other) = in_process::pair(64 << 10).unwrap();
        links[a][b] = Some(Box::new(one));
        links[b][a] = Some(Box::new(other));
    }
    links.into_iter().enumerate().map(|(rank, links)| Group::new(rank, links).unwrap()).collect()
}

/// `inputs[call][rank]` through one compressor a rank: the results of each call by rank, and what is kept at the end.
type Outcome = (Vec<Vec<Vec<f32>>>, Vec<Vec<f32>>);
fn reduced(compressor: &Compressor, inputs: &[Vec<Vec<f32>>]) -> Outcome {
    let by_rank: Vec<(Vec<Vec<f32>>, Vec<f32>)> = std::thread::scope(|scope| {
        let run = |mut group: Group| {
            scope.spawn(move || {
                let mut compressor = compressor.clone();
                let call = |of_ranks: &Vec<Vec<f32>>| {
                    let mut values = of_ranks[group.rank()].clone();
                    compressor.all_reduce(&mut group, &mut values, Reduction::Sum).unwrap();
                    values
                };
                (inputs.iter().map(call).collect(), compressor.residual().to_vec())
            })
        };
        let threads: Vec<_> = groups(inputs[0].len()).into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let results = (0..inputs.len())
        .map(|call| by_rank.iter().map(|(results, _)| results[call].clone()).collect())
        .collect();
    (results, by_rank.into_iter().map(|(_, kept)| kept).collect())
}

fn values(n: usize) -> impl Strategy<Value = Vec<f32>> {
    proptest::collection::vec(-1000.0f32..1000.0, n)
}

/// Calls of ranks of values.
fn inputs(n_calls: usize) -> impl Strategy<Value = Vec<Vec<Vec<f32>>>> {
    (2usize..5, 1usize..700).prop_flat_map(move |(n_ranks, n)| {
        proptest::collection::vec(proptest::collection::vec(values(n), n_ranks), n_calls)
    })
}

const ALL: [Compression; 4] =
    [Compression::Bf16, Compression::F16, Compression::EightBit, Compression::TopK { share: 0.1 }];

/// The most by which one rounding may change each of these values.
fn bound(compression: Compression, values: &[f32]) -> Vec<f64> {
    let each = |share: f64| values.iter().map(|v| f64::from(v.abs()) * share + 1e-7).collect();
    match compression {
        Compression::Bf16 => each(1.0 / 256.0),
        Compression::F16 => each(1.0 / 2048.0),
        Compression::EightBit => values
            .chunks(BLOCK)
            .flat_map(|block| {
                let largest = block.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
                vec![f64::from(largest) / 254.0 * 1.0001 + 1e-30; block.len()]
            })
            .collect(),
        Compression::TopK { .. } => vec![f64::INFINITY; values.len()],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn one_rounding_stays_within_its_bound(values in values(600)) {
        for compression in &ALL[..3] {
            let mut seen = vec![7.0; 600];
            decode(*compression, &encode(*compression, &values), &mut seen, 0).unwrap();
            for ((value, seen), bound) in values.iter().zip(&seen).zip(bound(*compression, &values)) {
                let error = (f64::from(*value) - f64::from(*seen)).abs();
                prop_assert!(error <= bound, "{compression:?}: {value} became {seen}");
            }
        }
    }

    #[test]
    fn a_dense_sum_stays_within_its_bound_and_is_the_same_everywhere(inputs in inputs(1)) {
        let (n_ranks, n) = (inputs[0].len(), inputs[0][0].len());
        for compression in &ALL[..3] {
            let compressor = Compressor::new(*compression, n).without_feedback();
            let (results, kept) = reduced(&compressor, &inputs);
            prop_assert!(kept.iter().flatten().all(|kept| *kept == 0.0));
            prop_assert!(results[0].iter().all(|result| result == &results[0][0]));
            for part in 0..n_ranks {
                // Blocks begin anew in each rank's part.
                let range = n * part / n_ranks..n * (part + 1) / n_ranks;
                let slices = inputs[0].iter().map(|values| &values[range.clone()]);
                let brought: Vec<Vec<f64>> = slices.map(|s| bound(*compression, s)).collect();
                let sums: Vec<f64> = range.clone()
                    .map(|idx| inputs[0].iter().map(|values| f64::from(values[idx])).sum()).collect();
                let first: Vec<f64> = (0..range.len())
                    .map(|idx| brought.iter().map(|bound| bound[idx]).sum()).collect();
                // The second rounding is of a sum that the first have changed.
                let worst: Vec<f32> =
                    sums.iter().zip(&first).map(|(sum, e)| (sum.abs() + e) as f32 * 1.001).collect();
                let second = bound(*compression, &worst);
                for (place, idx) in range.enumerate() {
                    let error = (f64::from(results[0][0][idx]) - sums[place]).abs();
                    let most = first[place] + second[place] + 1e-3;
                    prop_assert!(error <= most, "{compression:?} {idx}: {error} > {most}");
                }
            }
        }
    }

    #[test]
    fn with_feedback_nothing_is_lost_in_the_long_run(inputs in inputs(6)) {
        let n = inputs[0][0].len();
        for compression in ALL {
            let (results, kept) = reduced(&Compressor::new(compression, n), &inputs);
            for idx in 0..n {
                let brought: f64 = inputs.iter().flatten().map(|v| f64::from(v[idx])).sum();
                let seen: f64 = results.iter().map(|ranks| f64::from(ranks[0][idx])).sum();
                let owed: f64 = kept.iter().map(|kept| f64::from(kept[idx])).sum();
                // Only the roundings of f32 additions themselves are left.
                let most = 24_000.0 * 64.0 * f64::from(f32::EPSILON);
                let lost = (brought - seen - owed).abs();
                prop_assert!(lost <= most, "{compression:?}: {brought} became {seen} and {owed}");
            }
        }
    }

    #[test]
    fn the_largest_are_those_that_go(values in values(300), k in 1usize..300) {
        let bytes = encode_largest(&values, k);
        prop_assert_eq!(bytes.len(), k * PAIR);
        let mut seen = vec![0.0; values.len()];
        add_pairs(&bytes, &mut seen, 0).unwrap();
        let gone = seen.iter().zip(&values).filter(|(seen, _)| **seen != 0.0).map(|(_, v)| v.abs());
        let stayed = seen.iter().zip(&values).filter(|(seen, _)| **seen == 0.0).map(|(_, v)| v.abs());
        prop_assert!(gone.fold(f32::INFINITY, f32::min) >= stayed.fold(0.0, f32::max));
    }

    #[test]
    fn bf16_is_rounded_as_half_does_it(bits in any::<u32>()) {
        let value = f32::from_bits(bits);
        prop_assert_eq!(bf16_bits(value), half::bf16::from_f32(value).to_bits());
    }

    #[test]
    fn any_bytes_are_refused_or_decoded(bytes in proptest::collection::vec(any::<u8>(), 0..600), n in 0usize..300) {
        for compression in ALL {
            let mut values = vec![0.0; n];
            let is_fine = decode(compression, &bytes, &mut values, 1).is_ok();
            prop_assert!(!is_fine || bytes.len() >= n);
            // Whatever they are, pairs lead nowhere outside.
            let _ = add_pairs(&bytes, &mut values, 1);
        }
    }
}

#[test]
fn a_small_gradient_that_is_never_among_the_largest_arrives_in_the_end() {
    let call = vec![vec![10.0, 1.0, 0.0, 0.0]; 2];
    let compressor = Compressor::new(Compression::TopK { share: 0.25 }, 4);
    let (results, _) = reduced(&compressor, &vec![call; 12]);
    assert!(results[..3].iter().all(|ranks| ranks[0][1] == 0.0));
    assert!(results.iter().any(|ranks| ranks[0][1] > 0.0), "it has grown until it was the largest");
}

#[test]
fn what_is_not_finite_is_not_hidden() {
    for compression in ALL {
        let call = vec![vec![1.0, f32::NAN, 2.0], vec![1.0, 1.0, 1.0]];
        let (results, kept) = reduced(&Compressor::new(compression, 3), &[call]);
        assert!(results[0][0].iter().any(|value| value.is_nan()), "{compression:?}");
        assert!(kept.iter().flatten().all(|kept| kept.is_finite()), "{compression:?}");
    }
}

#[test]
fn too_large_for_16_bits_is_made_good_later() {
    let once = vec![vec![100_000.0], vec![0.0]];
    let nothing = vec![vec![0.0], vec![0.0]];
    let (results, _) = reduced(&Compressor::new(Compression::F16, 1), &[once, nothing]);
    assert_eq!(results[0][0][0], 65504.0);
    assert_eq!(results[1][0][0], 100_000.0 - 65504.0);
}

#[test]
fn misuse_is_named() {
    let mut group = groups(1).remove(0);
    let mut refusal = |compression, n, reduction| {
        let mut compressor = Compressor::new(compression, 2);
        compressor.all_reduce(&mut group, &mut vec![0.0; n], reduction).unwrap_err().to_string()
    };
    assert_eq!(
        refusal(Compression::Bf16, 3, Reduction::Sum),
        "this compresses 2 values at a time, not 3"
    );
    assert_eq!(
        refusal(Compression::Bf16, 2, Reduction::Max),
        "compressed values have a sum and a mean, but no max"
    );
    assert_eq!(
        refusal(Compression::TopK { share: 0.0 }, 2, Reduction::Sum),
        "a share of 0 of the values is not between 0 and 1"
    );
}

#[test]
fn values_of_many_pieces_come_together() {
    let n = 2 * PIECE + 5;
    let value = |rank: usize, idx: usize| (idx / 1000) as f32 + rank as f32 * 1000.0;
    let call: Vec<Vec<f32>> =
        (0..3).map(|rank| (0..n).map(|idx| value(rank, idx)).collect()).collect();
    for compression in &ALL[..3] {
        let (results, kept) =
            reduced(&Compressor::new(*compression, n), std::slice::from_ref(&call));
        assert!(results[0].iter().all(|result| result == &results[0][0]));
        for (idx, result) in results[0][0].iter().enumerate() {
            let exact = 3.0 * value(1, idx);
            assert!(
                (result - exact).abs() < exact / 50.0,
                "{compression:?} {idx}: {result} {exact}"
            );
            let owed: f32 = kept.iter().map(|kept| kept[idx]).sum();
            assert!((result + owed - exact).abs() < 0.01, "{compression:?} {idx}");
        }
    }
}
