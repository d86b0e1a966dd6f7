use super::*;
use crate::choice::Choice;

fn catalog() -> Catalog<dyn Schedule> {
    let mut catalog = Catalog::new("schedule");
    add_built_in(&mut catalog);
    catalog
}

fn factors(choice: &str, n_steps: usize, steps_per_epoch: usize, monitored: &[f64]) -> Vec<f64> {
    let schedule = catalog().make(&Choice::from(choice)).unwrap();
    let at = |step| Position { step, n_steps, steps_per_epoch, monitored };
    (0..n_steps).map(|step| schedule.factor(&at(step))).collect()
}

#[track_caller]
fn check(choice: &str, n_steps: usize, steps_per_epoch: usize, expected: &[f64]) {
    let found = factors(choice, n_steps, steps_per_epoch, &[]);
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-14, "{choice}: found {found}, expected {expected}");
    }
}

#[track_caller]
fn refused(choice: &str, text: &str) {
    let error = catalog().make(&Choice::from(choice)).err().unwrap().to_string();
    assert!(error.contains(text), "{error}");
}

#[test]
fn constant_changes_nothing() {
    check("constant", 3, 1, &[1.0; 3]);
}

#[test]
fn step_falls_at_the_right_epoch() {
    check("step 2 0.5", 6, 1, &[1.0, 1.0, 0.5, 0.5, 0.25, 0.25]);
    check("step 1 0.5", 6, 2, &[1.0, 1.0, 0.5, 0.5, 0.25, 0.25]);
    check("step 3 0.5 steps", 6, 2, &[1.0, 1.0, 1.0, 0.5, 0.5, 0.5]);
}

#[test]
fn exponential_falls_after_every_epoch_or_step() {
    check("exponential 0.5", 4, 2, &[1.0, 1.0, 0.5, 0.5]);
    check("exponential 0.5 unit=steps", 4, 2, &[1.0, 0.5, 0.25, 0.125]);
}

#[test]
fn linear_falls_evenly() {
    check("linear", 4, 1, &[1.0, 0.75, 0.5, 0.25]);
    check("linear 0.5", 4, 1, &[1.0, 0.875, 0.75, 0.625]);
}

/// What bench/oracle/record_schedules.py recorded.
fn recorded() -> serde_json::Map<String, serde_json::Value> {
    serde_json::from_str(include_str!("torch.json")).unwrap()
}

fn recorded_rates(name: &str) -> Vec<f64> {
    serde_json::from_value(recorded()[name].clone()).unwrap()
}

#[test]
fn schedules_are_those_of_pytorch() {
    let names = ["step 2 0.5", "exponential 0.9", "linear 0.2", "cosine 0.1"];
    for name in names.into_iter().chain(["one_cycle", "one_cycle 0.5 10 100"]) {
        check(name, 8, 1, &recorded_rates(name));
    }
}

#[test]
fn plateau_is_that_of_pytorch() {
    let (monitored, name) = (recorded_rates("monitored"), "plateau 1 0.5 0.01 0.2");
    let found: Vec<f64> = (0..=monitored.len())
        .map(|n_epochs| factors(name, 1, 1, &monitored[..n_epochs])[0])
        .collect();
    assert_eq!(found, recorded_rates(name));
}

#[test]
fn one_cycle_has_no_holes_for_few_steps() {
    for n_steps in 1..40 {
        for rise in ["0", "0.3", "1"] {
            let found = factors(&format!("one_cycle {rise}"), n_steps, 1, &[]);
            assert!(found.iter().all(|factor| (0.0..=1.0).contains(factor)), "{found:?}");
        }
    }
}

#[test]
fn a_plateau_of_a_negated_metric_counts_as_one() {
    let found = factors("plateau patience=1 factor=0.5", 1, 1, &[-0.9, -0.9, -0.9]);
    assert_eq!(found, [0.5]);
}

#[test]
fn warm_up_rises_to_one_in_equal_parts() {
    let found: Vec<f64> = (0..6).map(|step| warm_up(4, step)).collect();
    assert_eq!(found, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
    assert_eq!(warm_up(0, 0), 1.0);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    refused("step 0", "nonzero");
    refused("step 2 -1", "a number above 0");
    refused("cosine 2", "a number from 0 to 1");
    refused("plateau least=-1", "a number of at least 0");
    refused("exponential", "missing field `decay`");
    refused("cosin", "did you mean `cosine`");
}
