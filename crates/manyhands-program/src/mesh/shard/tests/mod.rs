//! Sharded worker programs against those with everything everywhere and against the program itself: the same bits.

mod run_workers;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::grains::{GrainSplit, maximal_subtrees_of, split_grains};
use crate::mesh::{
    Action, Along, Axis, Cutting, Holding, Into, Piece, Schedule, Shares, SumInto, check, cut,
    lower_parts, shard_ranges,
};
use crate::op::{Init, Role, SQUARE_BLOCK};
use crate::passes::interpreter;
use crate::{
    Adam, Builder, Clip, DType, Ftrl, Lamb, Op, Optimizer, Program, Sgd, Tensor, Training,
};
use run_workers::{Tensors, Workers, joined};

/// A network of two layers: two weights that can be cut, one of them not into equal shards, and two that are small.
fn network(optimizer: Optimizer, clip: Option<Clip>) -> Program {
    let g = Builder::new("network");
    let x = g.input("x", DType::F32, [2, 64]).unwrap();
    let y = g.input("y", DType::F32, [2, 50]).unwrap();
    let first = g.weight("first", [64, 96], Init::Normal(0.1)).unwrap();
    let bias = g.weight("bias", [96], Init::Constant(0.1)).unwrap();
    let second = g.weight("second", [96, 50], Init::Normal(0.1)).unwrap();
    let hidden = (x.matmul(&first).unwrap() + &bias).unwrap().relu().unwrap();
    let miss = (hidden.matmul(&second).unwrap() - &y).unwrap();
    let loss = (&miss * &miss).unwrap().sum_all().unwrap();
    let divisor = g.scalar(DType::F32, 2.0).unwrap();
    Training { optimizer, clip }.add_step(&g, &loss, &divisor).unwrap();
    g.finish()
}

/// Numbers that look random.
fn numbers(ty: &crate::TensorType, seed: usize) -> Tensor {
    let number = |idx: usize| {
        let mixed =
            (idx as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (seed as u64 * 0x517c_c1b7);
        let mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
        (mixed as f32 / (1u64 << 24) as f32 - 0.5) * 0.4
    };
    let all: Vec<f32> = (0..ty.shape.n_elements()).map(number).collect();
    Tensor::new(ty.shape.clone(), &all).unwrap()
}

fn first_parameters(program: &Program) -> Tensors {
    let first = |(seed, (name, role, value)): (usize, (&str, Role, crate::ValueId))| {
        let ty = program.ty(value);
        let tensor = match role {
            Role::Weight => numbers(ty, seed),
            _ => Tensor::filled(ty.clone(), 0.0).unwrap(),
        };
        (name.to_string(), tensor)
    };
    program.parameters().enumerate().map(first).collect()
}

/// What is handed to a grain of a step, or to what runs once.
fn inputs(program: &Program, step: usize, grain: Option<usize>) -> Tensors {
    let given = |(name, value): (&str, crate::ValueId)| {
        let tensor = match name {
            "rate" => Tensor::scalar(DType::F32, 0.01),
            "step" => Tensor::scalar(DType::F32, step as f64),
            _ => numbers(program.ty(value), 100 * step + grain.unwrap_or(0) + name.len()),
        };
        (name.to_string(), tensor)
    };
    program.inputs().map(given).collect()
}

/// Two steps without any workers.
fn plainly(program: &Program, n_grains: usize) -> Tensors {
    let GrainSplit { grain: half, step, .. } = split_grains(program).unwrap();
    let mut parameters = first_parameters(program);
    for number in 1..=2 {
        let mut sums: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for grain in 0..n_grains {
            let mut arguments = inputs(program, number, Some(grain));
            arguments.extend(parameters.clone());
            for (name, tensor) in interpreter::run(&half, &arguments.into_iter().collect()) {
                sums.entry(name).or_default().push((grain..grain + 1, tensor));
            }
        }
        let mut arguments = inputs(program, number, None);
        arguments.extend(parameters.clone());
        arguments.extend(sums.into_iter().map(|(name, parts)| (name, joined(n_grains, parts))));
        for (name, tensor) in interpreter::run(&step, &arguments.into_iter().collect()) {
            if let Some(name) = name.strip_prefix("parameter \"") {
                parameters.insert(name.trim_end_matches('"').to_string(), tensor);
            }
        }
    }
    parameters
}

/// Replicas that have everything, with grains dealt in turn.
fn replicas(program: &Program, n: usize, n_grains: usize) -> Vec<WorkerProgram> {
    let GrainSplit { grain, step, .. } = split_grains(program).unwrap();
    let own = |worker: usize| (worker..n_grains).step_by(n);
    let brings: Vec<_> = (0..n)
        .map(|worker| {
            let ranges: Vec<_> = own(worker).map(|grain| grain..grain + 1).collect();
            maximal_subtrees_of(&ranges, n_grains)
        })
        .collect();
    let piece = |name: &str, program: &Program| Piece {
        name: name.to_string(),
        program: program.clone(),
        last: None,
    };
    let holdings: Vec<Holding> = program
        .nodes()
        .iter()
        .filter_map(|node| match &node.op {
            Op::Parameter { name, role, init, .. } => Some(Holding {
                name: name.clone(),
                role: *role,
                init: *init,
                ty: program.ty(node.results[0]).clone(),
                along: Along::Whole,
                is_copy: false,
            }),
            _ => None,
        })
        .collect();
    let worker = |worker: usize| {
        let run = |(slot, grain): (usize, usize)| Action::Run {
            piece: 0,
            grain: Some(grain),
            sums: Some(SumInto::Write(slot)),
        };
        let mut actions: Vec<Action> = own(worker).enumerate().map(run).collect();
        let (among, brings) = ((0..n).collect(), brings.clone());
        actions.push(Action::Total { piece: 0, sums: None, among, brings, into: Into::Whole });
        actions.push(Action::Commit);
        actions.push(Action::Run { piece: 1, grain: None, sums: None });
        let pieces = vec![piece("whole", &grain), piece("update", &step)];
        WorkerProgram { worker, n_grains, pieces, actions, holdings: holdings.clone() }
    };
    (0..n).map(worker).collect()
}

fn after_two_steps(workers: &[WorkerProgram], program: &Program) -> Tensors {
    let mut running = Workers::new(workers, &first_parameters(program));
    for step in 1..=2 {
        running.step(&|grain| inputs(program, step, grain));
    }
    running.parameters()
}

/// Asserts that all levels give the bits of the program itself.
fn same_bits(optimizer: Optimizer, clip: Option<Clip>, n: usize, n_grains: usize) {
    let program = network(optimizer, clip);
    let expected = plainly(&program, n_grains);
    let mesh = Mesh { data: n, ..Mesh::default() };
    let workers = replicas(&program, n, n_grains);
    assert!(after_two_steps(&workers, &program) == expected, "without sharding");
    for level in [Level::Slots, Level::Gradients, Level::Weights] {
        let sharded = shard(workers.clone(), mesh, level).unwrap();
        let cut = sharded[0].holdings.iter().filter(|own| own.along != Along::Whole).count();
        assert!(cut > 0 || matches!(optimizer, Optimizer::Sgd(own) if own.momentum == 0.0));
        check(&sharded).unwrap();
        let found = after_two_steps(&sharded, &program);
        for (name, tensor) in &expected {
            assert!(found[name] == *tensor, "{name} differs at {level} on {n} workers");
        }
    }
}

#[test]
fn adam_has_the_same_bits_on_two_workers() {
    same_bits(Optimizer::Adam(Adam::default()), None, 2, 4);
}

#[test]
fn momentum_has_the_same_bits_on_three_workers_with_grains_left_over() {
    let momentum = Sgd { momentum: 0.9, ..Sgd::default() };
    same_bits(Optimizer::Sgd(momentum), Some(Clip::Value(0.05)), 3, 5);
}

#[test]
fn plain_descent_and_ftrl_have_the_same_bits() {
    same_bits(Optimizer::Sgd(Sgd::default()), None, 2, 3);
    same_bits(Optimizer::Ftrl(Ftrl { l1: 0.001, ..Ftrl::default() }), None, 2, 2);
}

#[test]
fn clipping_by_norm_has_the_same_bits_on_four_workers() {
    same_bits(Optimizer::Adam(Adam::default()), Some(Clip::GlobalNorm(0.5)), 4, 5);
}

#[test]
fn lamb_has_the_same_bits_with_norms_of_norms() {
    same_bits(Optimizer::Lamb(Lamb::default()), Some(Clip::GlobalNorm(0.5)), 2, 3);
    same_bits(Optimizer::Lamb(Lamb::default()), None, 4, 4);
}

#[test]
fn a_worker_without_any_grain_takes_part() {
    same_bits(Optimizer::Adam(Adam::default()), None, 4, 2);
}

/// Asserts that all levels give the bits of the program itself, and pass the check, on a pipeline of replicas.
fn same_bits_in_a_pipeline(
    optimizer: Optimizer,
    clip: Option<Clip>,
    kind: Schedule,
    n_grains: usize,
) {
    let program = network(optimizer, clip);
    let expected = plainly(&program, n_grains);
    let mesh = Mesh { data: 2, pipeline: 2, tensor: 1 };
    let chunked = cut(&program, None, &Cutting::balanced(2)).unwrap();
    let workers = lower_parts(&[chunked], mesh, n_grains, kind, 1, Shares::Rounds).unwrap();
    for level in [None, Some(Level::Slots), Some(Level::Gradients), Some(Level::Weights)] {
        let workers = match level {
            Some(level) => shard(workers.clone(), mesh, level).unwrap(),
            None => workers.clone(),
        };
        check(&workers).unwrap();
        let found = after_two_steps(&workers, &program);
        for (name, tensor) in &expected {
            assert!(found[name] == *tensor, "{name} differs at {level:?}");
        }
    }
}

#[test]
fn pipelines_of_replicas_have_the_same_bits() {
    let lamb = Optimizer::Lamb(Lamb::default());
    same_bits_in_a_pipeline(lamb, Some(Clip::GlobalNorm(0.5)), Schedule::Gpipe, 4);
    same_bits_in_a_pipeline(Optimizer::Adam(Adam::default()), None, Schedule::OneFOneB, 5);
}

/// A network of so many equal layers, each with a weight that can be cut.
fn deep_network(n_layers: usize) -> Program {
    let g = Builder::new("deep");
    let mut x = g.input("x", DType::F32, [2, 64]).unwrap();
    for layer in 0..n_layers {
        let weight = g.weight(&format!("w{layer}"), [64, 64], Init::Normal(0.1)).unwrap();
        x = x.matmul(&weight).unwrap().relu().unwrap();
    }
    let loss = x.sum_all().unwrap();
    let divisor = g.scalar(DType::F32, 2.0).unwrap();
    let training = Training { optimizer: Optimizer::Sgd(Sgd::default()), clip: None };
    training.add_step(&g, &loss, &divisor).unwrap();
    g.finish()
}

#[test]
fn replicas_without_a_grain_keep_nobody_waiting_in_a_pipeline() {
    for n_pieces in 1..4 {
        let program = deep_network(3 * n_pieces);
        for (data, pipeline) in [(2, 2), (2, 3), (3, 2), (4, 2)] {
            let mesh = Mesh { data, pipeline, tensor: 1 };
            let chunked = cut(&program, None, &Cutting::balanced(pipeline * n_pieces)).unwrap();
            let chunked = chunked.grouped(n_pieces);
            for kind in [Schedule::Gpipe, Schedule::OneFOneB] {
                for n_grains in 1..10 {
                    let chunked = std::slice::from_ref(&chunked);
                    let workers =
                        lower_parts(chunked, mesh, n_grains, kind, 1, Shares::Rounds).unwrap();
                    for level in [Level::Gradients, Level::Weights] {
                        let found = check(&shard(workers.clone(), mesh, level).unwrap());
                        let case =
                            format!("{mesh}, {n_pieces} pieces, {kind:?}, {n_grains} grains");
                        assert!(found.is_ok(), "{level} on {case}: {found:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn small_parameters_stay_whole_and_say_why() {
    let program = network(Optimizer::Adam(Adam::default()), None);
    let mesh = Mesh { data: 2, ..Mesh::default() };
    let found = sharded_parameters(&replicas(&program, 2, 2), mesh).unwrap();
    let of = |name: &str| found.iter().find(|one| one.name == name).unwrap().verdict.clone();
    for name in ["first", "first/mean", "second", "second/mean_square"] {
        assert_eq!(of(name), Verdict::Spread, "{name}");
    }
    let Verdict::Whole(reason) = of("bias/mean") else { panic!("it is spread") };
    let sentence = "it is small: 96 elements, and shards are of at least one block of 1024 for each of 2 replicas and 4096 elements in all";
    assert_eq!(reason.to_string(), sentence);
}

#[test]
fn state_is_spread_level_by_level() {
    let program = network(Optimizer::Adam(Adam::default()), None);
    let (n, n_grains) = (2, 4);
    let mesh = Mesh { data: n, ..Mesh::default() };
    let workers = replicas(&program, n, n_grains);
    let weights = 4 * (64 * 96 + 96 * 50);
    let of = |level| {
        let sharded = shard(workers.clone(), mesh, level).unwrap();
        let all: Vec<Traffic> = sharded.iter().map(traffic).collect();
        let held = all.iter().map(|one| one.held).sum::<usize>();
        let (sums, shards) = all.iter().fold((0, 0), |(a, b), t| (a + t.sums, b + t.shards));
        (held, sums, shards)
    };
    let whole: usize = workers.iter().map(|worker| traffic(worker).held).sum();
    let [one, two, three] = [Level::Slots, Level::Gradients, Level::Weights].map(of);
    assert_eq!(whole - one.0, 2 * weights, "half of both slots on both");
    assert_eq!(two.0, one.0);
    assert_eq!(one.0 - three.0, weights);
    assert_eq!(one.2, weights, "new weights");
    assert_eq!(two.1 - one.1, weights, "the sums of two grains a worker, not of one step");
    assert_eq!(three.2, weights, "weights are kept from grain to grain of one piece");
}

#[test]
fn weights_of_the_next_run_are_offered_before_this_one() {
    let program = network(Optimizer::Adam(Adam::default()), None);
    let mesh = Mesh { data: 2, ..Mesh::default() };
    let sharded = shard(replicas(&program, 2, 2), mesh, Level::Weights).unwrap();
    let lines: Vec<String> =
        sharded[0].actions.iter().map(|action| sharded[0].describe(action)).collect();
    let expected = [
        "offer parameter first among 0, 1",
        "offer parameter second among 0, 1",
        "gather parameter first among 0, 1 into whole/first",
        "gather parameter second among 0, 1 into whole/second",
        "run whole of grain 0, sums to slot 0",
        "scatter sums of whole of grains 0, 1 among 0, 1",
    ];
    assert_eq!(lines[..6], expected);
    assert_eq!(sharded[0].n_grains, 2);
}

#[test]
fn what_cannot_be_sharded_is_said() {
    let program = network(Optimizer::Adam(Adam::default()), None);
    let refused = |workers: Vec<WorkerProgram>, mesh, level| {
        shard(workers, mesh, level).unwrap_err().to_string()
    };
    let alone = refused(replicas(&program, 1, 2), Mesh::default(), Level::Slots);
    let sentence = "sharding spreads over replicas, and a mesh of one worker has one: it takes at least 2 along the data axis";
    assert_eq!(alone, sentence);
    let mesh = Mesh { data: 2, ..Mesh::default() };
    let few = refused(replicas(&program, 1, 2), mesh, Level::Slots);
    assert_eq!(few, "a mesh of data 2 has 2 workers, and there are programs for 1");
    let mut blocks = replicas(&program, 2, 4);
    for (worker, grain) in [(0, 1), (1, 2)] {
        let Action::Run { grain: own, .. } = &mut blocks[worker].actions[usize::from(worker == 0)]
        else {
            panic!("grains come first")
        };
        *own = Some(grain);
    }
    let turn = refused(blocks, mesh, Level::Gradients);
    let sentence = "the replicas come to grains [0, 2] together, and sums can be scattered for grains one after the other only: level 2 needs grains dealt to replicas in turn";
    assert_eq!(turn, sentence);
    assert_eq!(
        Level::try_from(4).unwrap_err().to_string(),
        "there is no sharding level 4: 1 spreads the optimizer's state, 2 gradients too, 3 weights too"
    );
    assert_eq!(mesh.along(Axis::Data, 0), [0, 1]);
}

proptest! {
    #[test]
    fn shards_cover_all_elements_once_and_begin_on_edges_of_blocks(
        n_elements in 0usize..200_000, n in 1usize..17,
    ) {
        let ranges = shard_ranges(n_elements, n);
        prop_assert_eq!(ranges.len(), n);
        let mut end = 0;
        for range in &ranges {
            prop_assert_eq!(range.start, end);
            prop_assert!(range.start % SQUARE_BLOCK == 0 || range.start == n_elements);
            end = range.end;
        }
        prop_assert_eq!(end, n_elements);
        let n_blocks = n_elements.div_ceil(SQUARE_BLOCK);
        prop_assert!(n_blocks < n || ranges.iter().all(|range| !range.is_empty()));
    }
}
