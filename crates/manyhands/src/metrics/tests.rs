use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::choice::Choice;

fn made(choice: &str) -> Box<dyn Metric> {
    let mut catalog = Catalog::new("metric");
    add_built_in(&mut catalog);
    catalog.make(&Choice::from(choice)).unwrap()
}

fn classes<'a>(predictions: &'a [f32], width: usize, right: &'a [i32]) -> Scored<'a> {
    Scored { predictions, width, targets: Targets::Classes(right), losses: &[] }
}

fn numbers<'a>(predictions: &'a [f32], right: &'a [f32]) -> Scored<'a> {
    Scored { predictions, width: 1, targets: Targets::Numbers(right), losses: &[] }
}

fn value(choice: &str, scored: &Scored) -> f64 {
    let mut metric = made(choice);
    metric.add(scored);
    metric.value()
}

fn list<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Compares with what bench/oracle/record_metrics.py recorded.
#[test]
fn metrics_are_those_of_scikit_learn() {
    let recorded: Value = serde_json::from_str(include_str!("sklearn.json")).unwrap();
    let mut n_compared = 0;
    for (name, case) in recorded["cases"].as_object().unwrap() {
        let predictions: Vec<f32> = list(&case["predictions"]);
        let right: Vec<f32> = list(&case["right"]);
        let right_classes: Vec<i32> = right.iter().map(|class| *class as i32).collect();
        let scored = match case["width"].as_u64() {
            Some(width) => classes(&predictions, width as usize, &right_classes),
            None => numbers(&predictions, &right),
        };
        for (choice, expected) in case["values"].as_object().unwrap() {
            let (found, expected) = (value(choice, &scored), expected.as_f64().unwrap());
            let error = (found - expected).abs();
            assert!(error < 1e-7, "{name}, {choice}: found {found}, expected {expected}");
            n_compared += 1;
        }
        if let Some(expected) = case.get("confusion") {
            let mut metric = made("confusion");
            metric.add(&scored);
            assert_eq!(metric.detail().as_ref(), Some(expected), "{name}");
        }
    }
    assert!(n_compared > 50, "only {n_compared} values were compared");
}

#[test]
fn accuracy_of_one_probability_is_that_of_the_second_class() {
    let scored = classes(&[0.9, 0.2, 0.5, 0.6], 1, &[1, 0, 0, 0]);
    assert_eq!(value("accuracy", &scored), 0.75);
}

#[test]
fn top_k_places_the_earlier_of_equals_first() {
    let row = [0.3, 0.3, 0.1, 0.3];
    let hits = |k: usize, class| value(&format!("top_k {k}"), &classes(&row, 4, &[class]));
    assert_eq!(
        [hits(1, 0), hits(1, 1), hits(2, 1), hits(2, 3), hits(3, 3)],
        [1.0, 0.0, 1.0, 0.0, 1.0]
    );
    assert_eq!([hits(3, 2), hits(4, 2)], [0.0, 1.0]);
}

#[test]
fn a_prediction_that_is_not_a_number_is_never_right() {
    let nan = f32::NAN;
    assert_eq!(value("accuracy", &classes(&[nan, nan, nan], 3, &[0])), 0.0);
    assert_eq!(value("accuracy", &classes(&[nan], 1, &[0])), 0.0);
    assert_eq!(value("top_k 2", &classes(&[nan, 0.1, nan], 3, &[0])), 0.0);
}

#[test]
fn the_area_of_ordered_scores_is_one_and_of_equal_scores_a_half() {
    assert_eq!(value("auc", &classes(&[0.1, 0.4, 0.35, 0.8], 1, &[0, 0, 1, 1])), 0.75);
    assert_eq!(value("auc", &classes(&[0.1, 0.2, 0.3], 1, &[0, 0, 1])), 1.0);
    assert_eq!(value("auc", &classes(&[0.5, 0.5, 0.5], 1, &[0, 0, 1])), 0.5);
    assert!(value("auc", &classes(&[0.5, 0.5], 1, &[1, 1])).is_nan());
}

#[test]
fn perplexity_is_the_exponential_of_the_mean_loss() {
    let losses = [3.0_f32.ln(); 5];
    let targets = Targets::Classes(&[0; 5]);
    let scored = Scored { predictions: &[1.0; 5], width: 1, targets, losses: &losses };
    assert!((value("perplexity", &scored) - 3.0).abs() < 1e-6);
}

#[test]
fn errors_of_numbers_follow_their_formulas() {
    let scored = numbers(&[1.0, 2.0, 6.0], &[1.0, 4.0, 4.0]);
    assert!((value("rmse", &scored) - (8.0_f64 / 3.0).sqrt()).abs() < 1e-15);
    assert!((value("mae", &scored) - 4.0 / 3.0).abs() < 1e-15);
    assert!((value("r2", &scored) - (1.0 - 8.0 / 6.0)).abs() < 1e-15);
}

#[test]
fn r2_of_a_label_that_never_changes() {
    assert_eq!(value("r2", &numbers(&[2.0, 2.0], &[2.0, 2.0])), 1.0);
    assert_eq!(value("r2", &numbers(&[2.0, 2.5], &[2.0, 2.0])), 0.0);
}

#[test]
fn nothing_taken_in_says_nothing() {
    let mut catalog = Catalog::new("metric");
    add_built_in(&mut catalog);
    for entry in catalog.entries() {
        assert!(made(entry.name()).value().is_nan(), "{}", entry.name());
    }
}

#[test]
fn metrics_that_do_not_fit_a_model_say_so() {
    let refused = |choice: &str, predicted| made(choice).check(predicted).unwrap_err().to_string();
    assert!(refused("accuracy", Predicted::Numbers).contains("try rmse"));
    assert!(refused("rmse", Predicted::Classes(3)).contains("try accuracy"));
    assert!(refused("f1 binary", Predicted::Classes(3)).contains("there are 3"));
    assert!(refused("top_k 5", Predicted::Classes(5)).contains("k must be below"));
    assert_eq!(made("f1 binary").check(Predicted::Classes(2)), Ok(()));
    assert_eq!(made("mae").check(Predicted::Numbers), Ok(()));
}

#[test]
fn the_matrix_has_a_row_for_each_right_class() {
    let mut metric = made("confusion");
    metric.add(&classes(&[0.9, 0.1, 0.2, 0.8, 0.7, 0.3], 2, &[0, 1, 1]));
    assert_eq!(metric.detail(), Some(json!([[1, 0], [1, 1]])));
    assert_eq!(metric.value(), 2.0 / 3.0);
}

proptest! {
    /// However the samples are cut into batches, the bits of every metric are the same.
    #[test]
    fn batches_make_no_difference(
        samples in prop::collection::vec(([0.0_f32..1.0, 0.0..1.0, 0.0..1.0], 0..3_i32, 0.0_f32..5.0), 1..40),
        batch in 1_usize..10,
    ) {
        let predictions: Vec<f32> = samples.iter().flat_map(|sample| sample.0).collect();
        let right: Vec<i32> = samples.iter().map(|sample| sample.1).collect();
        let losses: Vec<f32> = samples.iter().map(|sample| sample.2).collect();
        let right_numbers: Vec<f32> = right.iter().map(|class| *class as f32).collect();
        let mut catalog = Catalog::new("metric");
        add_built_in(&mut catalog);
        for entry in catalog.entries() {
            let is_about_numbers = ["rmse", "mae", "r2"].contains(&entry.name());
            let width = if is_about_numbers { 1 } else { 3 };
            let part = |from: usize, to: usize| Scored {
                predictions: &predictions[from * width..to * width],
                width,
                targets: if is_about_numbers {
                    Targets::Numbers(&right_numbers[from..to])
                } else {
                    Targets::Classes(&right[from..to])
                },
                losses: &losses[from..to],
            };
            let whole = value(entry.name(), &part(0, samples.len()));
            let mut metric = made(entry.name());
            for from in (0..samples.len()).step_by(batch) {
                metric.add(&part(from, samples.len().min(from + batch)));
            }
            prop_assert_eq!(metric.value().to_bits(), whole.to_bits(), "{}", entry.name());
        }
    }
}
