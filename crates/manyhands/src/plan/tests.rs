#![allow(clippy::unwrap_used)] // a panic is how a test says that it cannot go on

use manyhands_program::mesh::{Cutting, Schedule, Shares, WorkerProgram, cut, lower_parts, shard};

use super::predicted::Timed;
use super::*;
use crate::bench::Case;
use crate::mesh::MeshWorker;

/// Candidates of two workers with so many seconds and bytes each.
fn all(each: [(f64, u64); 3], limit: Option<u64>) -> Vec<Predicted> {
    let own = candidates(2).into_iter().zip(each);
    own.map(|(candidate, (seconds, bytes))| {
        let memory = Memory { parameters: bytes, ..Memory::default() };
        let timed = Timed { seconds, ..Timed::default() };
        Predicted::new(candidate, memory, timed, limit)
    })
    .collect()
}

#[test]
fn every_mesh_of_two_axes_is_a_candidate() {
    let names: Vec<String> = candidates(4).into_iter().map(|one| one.name).collect();
    let expected = [
        "one worker",
        "all_reduce x 4",
        "pipeline x 4",
        "sharded 1 x 4",
        "sharded 2 x 4",
        "sharded 3 x 4",
        "tensor x 4",
        "data 2 x pipeline 2",
        "data 2 x pipeline 2, sharded 3",
    ];
    assert_eq!(names, expected);
    assert_eq!(candidates(1).len(), 1);
    assert!(candidates(6).iter().all(|one| matches!(one.mesh.n_workers(), 1 | 6)));
}

#[test]
fn the_fastest_is_chosen_with_a_reason() {
    let predictions = all([(0.080, 10), (0.040, 10), (0.045, 6)], None);
    let (chosen, advice) = choose(&predictions, None);
    assert_eq!(predictions[chosen.unwrap()].candidate.name, "all_reduce x 2");
    assert_eq!(
        advice,
        "all_reduce x 2 is the fastest, with 40.00 ms a step: 2.00 times as fast as one worker"
    );
}

#[test]
fn of_those_that_are_hardly_slower_the_simplest_is_chosen() {
    let (chosen, advice) = choose(&all([(0.080, 10), (0.041, 10), (0.040, 6)], None), None);
    assert_eq!(chosen, Some(1), "{advice}");
    let expected = "all_reduce x 2 is hardly slower than pipeline x 2, and simpler, with 41.00 ms";
    assert!(advice.starts_with(expected), "{advice}");
    let (chosen, advice) = choose(&all([(0.080, 10), (0.042, 10), (0.040, 6)], None), None);
    assert_eq!(chosen, Some(2), "{advice}");
}

#[test]
fn whether_several_workers_are_worth_it_is_judged_by_the_fastest() {
    let (chosen, advice) = choose(&all([(0.100, 10), (0.097, 10), (0.0945, 6)], None), None);
    assert_eq!(chosen, Some(1), "{advice}");
}

#[test]
fn one_worker_is_enough_where_distributing_would_be_slower() {
    let (chosen, advice) = choose(&all([(1e-6, 10), (3e-6, 10), (2e-6, 6)], None), None);
    assert_eq!(chosen, Some(0));
    assert!(advice.starts_with("one worker is enough, with 0.00 ms a step; dist"), "{advice}");
}

#[test]
fn what_does_not_fit_is_not_chosen() {
    let each = [(0.080, 10_000), (0.040, 10_000), (0.045, 6_000)];
    let limit = Some(8_000);
    let predictions = all(each, limit);
    assert!(!predictions[0].fits && predictions[0].reason.starts_with("needs "));
    let (chosen, advice) = choose(&predictions, limit);
    assert_eq!(chosen, Some(2));
    assert!(advice.ends_with("one worker would not have the memory"), "{advice}");
    let (chosen, advice) = choose(&all(each, Some(1000)), Some(1000));
    assert_eq!(chosen, None);
    assert!(advice.starts_with("nothing fits in 1000 B for each worker: the least is"), "{advice}");
}

#[test]
fn this_machine_has_rates() {
    let rates = Rates::measure(2).unwrap();
    assert!(rates.products > 1e8 && rates.memory > 1e7 && rates.link > 1e6, "{rates:?}");
}

#[test]
fn a_letter_takes_longer_where_its_receiver_has_no_core() {
    let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let measured = Rates::measure(2 * n_cores).unwrap();
    let rates = Rates { link_seconds: 1.0, crowded_seconds: 3.0, link: 500.0, ..measured };
    assert_eq!(rates.sending(1e3, false), 3.0);
    assert_eq!(rates.sending(1e3, true), 5.0);
}

/// The programs of two workers of a small model.
fn workers(pipeline: bool, level: Option<u8>) -> Vec<WorkerProgram> {
    let program = Case::Tiny.training_program(4).unwrap();
    let n = if pipeline { 2 } else { 1 };
    let mesh = Mesh { data: 2 / n, pipeline: n, tensor: 1 };
    let chunked = [cut(&program, None, &Cutting::balanced(n)).unwrap()];
    let shares = if level > Some(1) { Shares::Rounds } else { Shares::Blocks };
    let made = lower_parts(&chunked, mesh, 4, Schedule::default(), 1, shares).unwrap();
    match level {
        Some(level) => shard(made, mesh, level.try_into().unwrap()).unwrap(),
        None => made,
    }
}

#[test]
fn a_layout_on_paper_counts_what_a_real_one_takes() {
    for (pipeline, level) in [(true, None), (false, Some(1)), (false, Some(2)), (false, Some(3))] {
        for program in workers(pipeline, level) {
            let on_paper = MeshWorker::room_for(vec![program.clone()], 1).unwrap();
            let device = manyhands_device::CpuDevice::new(1).unwrap();
            let real = MeshWorker::new(vec![program], Box::new(device)).unwrap();
            assert_eq!(on_paper, real.room().unwrap());
            let held = on_paper.parameters + on_paper.state + on_paper.values;
            assert!(held + on_paper.sums >= real.buffer_bytes() as u64);
        }
    }
}

#[test]
fn a_worker_rehearses_every_piece() {
    for program in workers(true, None) {
        let device = manyhands_device::CpuDevice::new(1).unwrap();
        let mut worker = MeshWorker::new(vec![program.clone()], Box::new(device)).unwrap();
        worker.init(1).unwrap();
        let seconds = worker.rehearse(0, 2).unwrap();
        assert_eq!(seconds.len(), program.actions.len());
        for (action, seconds) in program.actions.iter().zip(seconds) {
            let runs = matches!(action, manyhands_program::mesh::Action::Run { .. });
            assert!(!runs || seconds > 0.0, "{}", program.describe(action));
        }
    }
}
