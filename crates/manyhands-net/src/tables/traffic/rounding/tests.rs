//! Errors are within their bounds, and with feedback nothing is lost in the long run.

use proptest::prelude::*;

use super::*;

const ALL: [Rounding; 3] = [Rounding::None, Rounding::F16, Rounding::EightBit];

fn there_and_back(rounding: Rounding, values: &[f32]) -> Vec<f32> {
    let mut bytes = Vec::new();
    let saved = rounding.encode(values, &mut bytes);
    assert_eq!(saved, Saved { before: 4 * values.len() as u64, after: bytes.len() as u64 });
    assert_eq!(bytes.len(), rounding.n_bytes(values.len()));
    let mut again = vec![7.0; values.len()];
    rounding.decode(&bytes, &mut again).unwrap();
    again
}

fn values(n: usize) -> impl Strategy<Value = Vec<f32>> {
    proptest::collection::vec(prop_oneof![Just(0.0f32), -100.0f32..100.0], n)
}

proptest! {
    #[test]
    fn errors_are_within_their_bounds(values in values(700)) {
        prop_assert_eq!(&there_and_back(Rounding::None, &values), &values);
        for (value, again) in values.iter().zip(there_and_back(Rounding::F16, &values)) {
            prop_assert!((value - again).abs() <= value.abs() / 2048.0 + 1e-7);
        }
        let again = there_and_back(Rounding::EightBit, &values);
        for (values, again) in values.chunks(256).zip(again.chunks(256)) {
            let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            for (value, again) in values.iter().zip(again) {
                prop_assert!((value - again).abs() <= largest / 253.0);
            }
        }
    }

    #[test]
    fn what_arrived_and_what_is_kept_is_what_was_pushed(
        pushes in proptest::collection::vec((0usize..40, 1usize..40, values(80)), 1..10),
    ) {
        for rounding in ALL {
            let mut feedback = DenseFeedback::new(rounding, 80);
            let (mut pushed, mut arrived) = (vec![0f64; 80], vec![0f64; 80]);
            for (first, n, values) in &pushes {
                let (update, mut bytes, mut seen) = (&values[..*n], Vec::new(), vec![0.0; *n]);
                feedback.encode(*first, update, &mut bytes).unwrap();
                rounding.decode(&bytes, &mut seen).unwrap();
                for (idx, (update, seen)) in update.iter().zip(seen).enumerate() {
                    pushed[first + idx] += f64::from(*update);
                    arrived[first + idx] += f64::from(seen);
                }
            }
            for ((pushed, arrived), kept) in pushed.iter().zip(arrived).zip(feedback.kept()) {
                prop_assert!((pushed - arrived - f64::from(*kept)).abs() < 1e-3);
            }
        }
    }

    #[test]
    fn rows_have_feedback_too(
        pushes in proptest::collection::vec(proptest::collection::btree_set(0u64..30, 1..20), 1..10),
    ) {
        for rounding in ALL {
            let mut feedback = RowFeedback::new(rounding, 3, 1000);
            let (mut pushed, mut arrived) = (vec![0f64; 90], vec![0f64; 90]);
            for (number, keys) in pushes.iter().enumerate() {
                let keys: Vec<u64> = keys.iter().copied().collect();
                let update: Vec<f32> =
                    (0..keys.len() * 3).map(|idx| ((idx * 7 + number * 5) % 23) as f32 * 0.37).collect();
                let (mut bytes, mut seen) = (Vec::new(), vec![0.0; update.len()]);
                feedback.encode(&keys, &update, &mut bytes).unwrap();
                rounding.decode(&bytes, &mut seen).unwrap();
                for (idx, (update, seen)) in update.iter().zip(seen).enumerate() {
                    let place = keys[idx / 3] as usize * 3 + idx % 3;
                    pushed[place] += f64::from(*update);
                    arrived[place] += f64::from(seen);
                }
            }
            prop_assert_eq!(feedback.n_without(), 0);
            for (place, (pushed, arrived)) in pushed.iter().zip(arrived).enumerate() {
                let kept = feedback.kept(place as u64 / 3).map_or(0.0, |kept| kept[place % 3]);
                prop_assert!((pushed - arrived - f64::from(kept)).abs() < 1e-4);
            }
        }
    }
}

#[test]
fn rows_beyond_the_bound_are_rounded_without_feedback_and_counted() {
    let mut feedback = RowFeedback::new(Rounding::EightBit, 1, 2);
    let mut bytes = Vec::new();
    feedback.encode(&[1, 2, 3], &[1.0, 0.333, 0.777], &mut bytes).unwrap();
    assert_eq!(feedback.n_without(), 1);
    assert!(feedback.kept(2).is_some() && feedback.kept(3).is_none());
}

#[test]
fn what_is_not_finite_arrives_and_is_not_kept() {
    for rounding in [Rounding::F16, Rounding::EightBit] {
        let (mut feedback, mut bytes) = (DenseFeedback::new(rounding, 2), Vec::new());
        feedback.encode(0, &[f32::INFINITY, 1.0], &mut bytes).unwrap();
        let mut seen = [0.0; 2];
        rounding.decode(&bytes, &mut seen).unwrap();
        assert!(!seen[0].is_finite());
        assert!(feedback.kept().iter().all(|kept| kept.is_finite()));
    }
}

#[test]
fn other_lengths_are_refused() {
    for rounding in ALL {
        let n = rounding.n_bytes(300);
        for n in [0, n - 1, n + 1] {
            assert!(rounding.decode(&vec![0; n], &mut [0.0; 300]).is_err(), "{rounding:?} {n}");
        }
    }
    let mut feedback = DenseFeedback::new(Rounding::F16, 10);
    assert!(feedback.encode(9, &[0.0; 2], &mut Vec::new()).is_err());
    assert!(feedback.encode(11, &[], &mut Vec::new()).is_err());
    let mut feedback = RowFeedback::new(Rounding::F16, 2, 10);
    assert!(feedback.encode(&[1, 2], &[0.0; 3], &mut Vec::new()).is_err());
}
