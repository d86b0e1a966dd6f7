//! Faults planted into worker programs, and times put on them.

use proptest::prelude::*;

use super::*;
use crate::mesh::lower::tests::chain;
use crate::mesh::{Action, Mesh, Schedule, SumInto, bubble, lower};

fn workers(data: usize, pipeline: usize, n_grains: usize) -> Vec<WorkerProgram> {
    let mesh = Mesh { data, pipeline, tensor: 1 };
    lower(&chain(pipeline, true, true), mesh, n_grains, Schedule::OneFOneB, 1).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn an_action_that_is_missing_is_found(
        (data, pipeline) in (1..4usize, 1..4usize),
        n_grains in 1..7usize,
        worker in 0..16usize,
        at in 0..1000usize,
    ) {
        let mut workers = workers(data, pipeline, n_grains);
        let worker = worker % workers.len();
        let at = at % workers[worker].actions.len();
        let removed = workers[worker].actions.remove(at);
        // What is not forgotten costs memory, and nothing else is wrong with it.
        let is_harmless = matches!(removed, Action::Forget { .. })
            || (removed == Action::Commit && workers.len() == 1);
        prop_assert!(check(&workers).is_err() != is_harmless, "{removed:?}");
    }

    #[test]
    fn sums_in_another_order_than_the_tree_are_found(n_grains in 3..9usize, at in 0..8usize) {
        let mut workers = workers(1, 1, n_grains);
        let sums: Vec<&mut SumInto> = workers[0]
            .actions
            .iter_mut()
            .filter_map(|action| match action {
                Action::Run { sums: Some(sums), .. } => Some(sums),
                _ => None,
            })
            .collect();
        let n = sums.len();
        for (idx, sum) in sums.into_iter().enumerate() {
            if idx == at % n {
                *sum = match *sum {
                    SumInto::Write(slot) => SumInto::Accumulate(slot),
                    SumInto::Accumulate(slot) => SumInto::Write(slot),
                    SumInto::Value => SumInto::Write(0),
                };
            }
        }
        prop_assert!(check(&workers).is_err());
    }
}

#[test]
fn workers_that_wait_for_each_other_are_named() {
    let mut workers = workers(1, 2, 1);
    for worker in &mut workers {
        let is_receive = |action: &Action| matches!(action, Action::Receive { .. });
        let at = worker.actions.iter().position(is_receive).unwrap();
        let receive = worker.actions.remove(at);
        worker.actions.insert(0, receive);
    }
    let fault = check(&workers).unwrap_err().to_string();
    assert!(fault.contains("worker 0 waits to receive"), "{fault}");
    assert!(fault.contains("worker 1 waits to receive"), "{fault}");
}

/// A second for what runs for a grain, nothing for the rest.
struct Seconds;

impl Costs for Seconds {
    fn run(&self, _: usize, _: usize, grain: Option<usize>) -> f64 {
        if grain.is_some() { 1.0 } else { 0.0 }
    }

    fn message(&self, _: usize, _: usize, _: usize) -> f64 {
        0.0
    }

    fn exchange(&self, _: usize, _: usize, _: bool) -> f64 {
        0.0
    }
}

#[test]
fn the_share_of_waiting_is_that_of_the_schedule() {
    for (pipeline, n_grains) in [(1, 4), (2, 4), (4, 8), (3, 5)] {
        let simulated = simulate(&workers(1, pipeline, n_grains), &Seconds).unwrap();
        let share = simulated.waiting.iter().sum::<f64>() / (simulated.seconds * pipeline as f64);
        let formula = bubble(Schedule::OneFOneB, pipeline, 1, n_grains);
        assert!((share - formula).abs() < 1e-9, "{share} {formula}");
        assert_eq!(simulated.spans.len(), 2 * pipeline * n_grains);
    }
}
