//! Cut programs, made by hand and by [`cut`], laid out over meshes of all shapes.

use expect_test::expect;
use proptest::prelude::*;

use super::*;
use crate::builder::Builder;
use crate::dtype::DType;
use crate::mesh::{Action, ChunkParameter, ChunkPiece, Cutting, Piece, Place, check, cut};
use crate::op::{Init, Role};
use crate::optimizer::{Clip, Optimizer, Sgd};
use crate::partials::sum_name;
use crate::program::Program;
use crate::shape::TensorType;
use crate::training::Training;

/// A program of one piece: sums what it takes with its weight, and gives that under several names.
fn small(name: &str, weight: Option<&str>, takes: &[String], gives: &[String]) -> Piece {
    let g = Builder::new(name);
    let mut sum = g.full(&TensorType::new(DType::F32, [2]), 1.0).unwrap();
    for input in takes {
        sum = (sum + g.input(input, DType::F32, [2]).unwrap()).unwrap();
    }
    if let Some(weight) = weight {
        let weight = g.weight(weight, [2], Init::Constant(1.0)).unwrap();
        sum = (sum + &weight).unwrap();
        if gives.is_empty() {
            g.update(&weight, &sum).unwrap();
        }
    }
    for output in gives {
        g.output(output, &sum).unwrap();
    }
    Piece { name: name.to_string(), program: g.finish(), last: None }
}

/// A chain of chunks: each keeps something for its backward, the last sums the loss, all need a norm of the gradients of all, and the first's
/// weight is used by the last as well.
pub(in crate::mesh) fn chain(n: usize, has_norm: bool, is_tied: bool) -> Chunked {
    let (h, k, d) =
        (|c: usize| format!("h{c}"), |c: usize| format!("kept{c}"), |c: usize| format!("d{c}"));
    let weight = |c: usize| format!("w{c}");
    let mut pieces = Vec::new();
    let mut add = |chunk: usize, phase: Phase, piece: Piece| {
        pieces.push(ChunkPiece { chunk, phase, piece, reduced: Vec::new() });
    };
    for c in 0..n {
        let takes = [if c == 0 { "x".to_string() } else { h(c - 1) }];
        let mut gives = vec![h(c), k(c)];
        gives.extend((c + 1 == n).then(|| sum_name(n)));
        let own = if is_tied && c + 1 == n { weight(0) } else { weight(c) };
        add(c, Phase::Forward, small(&format!("forward {c}"), Some(&own), &takes, &gives));
    }
    for c in (0..n).rev() {
        let mut takes = vec![k(c)];
        takes.extend((c + 1 < n).then(|| d(c + 1)));
        // What the first chunk gives goes straight to others as well.
        takes.extend((c > 1).then(|| h(0)));
        let mut gives = vec![sum_name(c)];
        gives.extend((c > 0).then(|| d(c)));
        add(c, Phase::Backward, small(&format!("backward {c}"), None, &takes, &gives));
    }
    if has_norm {
        let norm = |c: usize| format!("norm{c}");
        for c in 0..n {
            let piece = small(&format!("norm {c}"), None, &[sum_name(c)], &[norm(c)]);
            add(c, Phase::Prepare, piece);
        }
        let all: Vec<String> = (0..n).map(norm).collect();
        add(0, Phase::Prepare, small("scale", None, &all, &["scale".to_string()]));
    }
    for c in 0..n {
        let mut takes = vec![sum_name(c), "rate".to_string()];
        takes.extend((c + 1 < n).then(|| sum_name(n)));
        takes.extend(has_norm.then(|| "scale".to_string()));
        add(c, Phase::Update, small(&format!("update {c}"), Some(&weight(c)), &takes, &[]));
    }
    let parameters = (0..n).map(|c| ChunkParameter {
        name: weight(c),
        role: Role::Weight,
        init: Init::Constant(1.0),
        ty: TensorType::new(DType::F32, [2]),
        chunks: if is_tied && c == 0 && n > 1 { vec![0, n - 1] } else { vec![c] },
    });
    let parameters = parameters.collect();
    let (costs, crossing) = (vec![1.0; n], vec![8; n.saturating_sub(1)]);
    Chunked { n_chunks: n, pieces, parameters, costs, crossing }
}

/// A network of so many layers, with its training step.
fn layers(n_layers: usize, clip: Option<Clip>) -> Program {
    let g = Builder::new("layers");
    let mut x = g.input("x", DType::F32, [4, 3]).unwrap();
    for layer in 0..n_layers {
        let w = g.weight(&format!("w{layer}"), [3, 3], Init::Normal(0.5)).unwrap();
        x = x.matmul(&w).unwrap().relu().unwrap();
    }
    let loss = (&x * &x).unwrap().sum_all().unwrap();
    let divisor = g.scalar(DType::F32, 4.0).unwrap();
    let optimizer = Optimizer::Sgd(Sgd { rate: 0.1, ..Sgd::default() });
    Training { optimizer, clip }.add_step(&g, &loss, &divisor).unwrap();
    g.finish()
}

const KINDS: [Schedule; 3] = [Schedule::Gpipe, Schedule::OneFOneB, Schedule::Interleaved];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn all_meshes_grains_and_schedules_fit_together(
        (data, pipeline, tensor) in (1..5usize, 1..5usize, 1..3usize),
        n_grains in 1..10usize,
        kind in 0..3usize,
        per_stage in 1..4usize,
        (has_norm, is_tied, in_rounds) in (any::<bool>(), any::<bool>(), any::<bool>()),
    ) {
        let per_stage = if kind == 2 { per_stage } else { 1 };
        let chunked = chain(pipeline * per_stage, has_norm, is_tied);
        let mesh = Mesh { data, pipeline, tensor };
        let shares = if in_rounds { Shares::Rounds } else { Shares::Blocks };
        let mut chunked = chunked;
        if tensor > 1 {
            chunked.pieces[0].reduced = vec!["h0".to_string()];
            let last = chunked.pieces.iter_mut().find(|piece| piece.phase == Phase::Backward);
            last.unwrap().reduced = vec![sum_name(pipeline * per_stage - 1)];
        }
        let parts = vec![chunked; tensor];
        let workers = lower_parts(&parts, mesh, n_grains, KINDS[kind], per_stage, shares).unwrap();
        prop_assert_eq!(workers.len(), mesh.n_workers());
        let checked = check(&workers);
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    }

    #[test]
    fn asynchronous_pipelines_fit_together(pipeline in 1..5usize, n_grains in 1..10usize) {
        let mesh = Mesh { pipeline, ..Mesh::default() };
        let chunked = chain(pipeline, false, false);
        let workers = lower(&chunked, mesh, n_grains, Schedule::Asynchronous, 1).unwrap();
        let checked = check(&workers);
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
        // A stage keeps as many versions of its weight as grains are on their way behind it.
        for (stage, worker) in workers.iter().enumerate() {
            let (mut now, mut most) = (0usize, 0);
            for action in &worker.actions {
                match action {
                    Action::Copy { .. } => now += 1,
                    Action::Forget { values, .. } => {
                        now -= values.iter().filter(|name| name.starts_with("kept/")).count();
                    }
                    _ => {}
                }
                most = most.max(now);
            }
            prop_assert!(most <= pipeline - stage, "stage {stage} keeps {most}");
        }
    }
}

#[test]
fn programs_that_were_really_cut_fit_together() {
    for clip in [None, Some(Clip::GlobalNorm(1.0))] {
        for (pipeline, per_stage, kind) in [
            (1, 1, Schedule::OneFOneB),
            (1, 3, Schedule::OneFOneB),
            (2, 1, Schedule::Gpipe),
            (3, 1, Schedule::OneFOneB),
            (2, 2, Schedule::Interleaved),
        ] {
            let chunked =
                cut(&layers(6, clip), None, &Cutting::balanced(pipeline * per_stage)).unwrap();
            for data in 1..4 {
                let mesh = Mesh { data, pipeline, tensor: 1 };
                let workers = lower(&chunked, mesh, 5, kind, per_stage).unwrap();
                let checked = check(&workers);
                assert!(checked.is_ok(), "{mesh}: {}", checked.unwrap_err());
            }
        }
    }
}

#[test]
fn what_an_asynchronous_pipeline_cannot_do_is_refused_with_a_reason() {
    let two = Mesh { pipeline: 2, ..Mesh::default() };
    let lowered = |chunked: &Chunked, mesh| lower(chunked, mesh, 4, Schedule::Asynchronous, 1);
    let norm = lowered(&chain(2, true, false), two).unwrap_err();
    assert!(norm.to_string().contains("norm"), "{norm}");
    let tied = lowered(&chain(2, false, true), two).unwrap_err();
    assert!(matches!(tied, LowerError::AsynchronousTied { .. }));
    let replicas = lowered(&chain(2, false, false), Mesh { data: 2, ..two }).unwrap_err();
    assert!(matches!(replicas, LowerError::AsynchronousMesh { .. }));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let chunked = chain(3, false, false);
    let wrong = lower(&chunked, Mesh { pipeline: 2, ..Mesh::default() }, 4, Schedule::Gpipe, 1);
    assert_eq!(
        wrong.unwrap_err().to_string(),
        "2 stages with 1 chunks each are 2 chunks, but the program was cut into 3"
    );
    let parts = lower(&chunked, Mesh { pipeline: 3, tensor: 2, data: 1 }, 4, Schedule::Gpipe, 1);
    assert!(matches!(parts.unwrap_err(), LowerError::Parts { .. }));
}

#[test]
fn copies_of_a_weight_follow_its_home() {
    let mesh = Mesh { pipeline: 2, ..Mesh::default() };
    let workers = lower(&chain(2, false, true), mesh, 2, Schedule::OneFOneB, 1).unwrap();
    let copy = workers[1].holdings.iter().find(|holding| holding.name == "w0").unwrap();
    assert!(copy.is_copy);
    assert!(!workers[0].holdings[0].is_copy);
    let what = vec![Place::Parameter("w0".to_string())];
    let received = Action::Receive { what, grain: None, from: 0 };
    assert_eq!(workers[1].actions.last(), Some(&received));
}

#[test]
fn two_stages_and_two_grains_read_like_this() {
    let mesh = Mesh { pipeline: 2, ..Mesh::default() };
    let workers = lower(&chain(2, false, false), mesh, 2, Schedule::OneFOneB, 1).unwrap();
    let lines = |worker: &WorkerProgram| {
        let lines = worker.actions.iter().map(|action| worker.describe(action));
        lines.collect::<Vec<_>>().join("\n")
    };
    expect![[r#"
        run forward 0 of grain 0
        send h0 of grain 0 to worker 1
        forget h0 of grain 0
        run forward 0 of grain 1
        send h0 of grain 1 to worker 1
        forget h0 of grain 1
        receive d1 of grain 0 from worker 1
        run backward 0 of grain 0, sums to slot 0
        forget d1, kept0 of grain 0
        receive d1 of grain 1 from worker 1
        run backward 0 of grain 1, sums added to slot 0
        forget d1, kept0 of grain 1
        totals of backward 0 among 0
        receive grain_sum#2 from worker 1
        commit
        run update 0
        forget grain_sum#0, grain_sum#2"#]]
    .assert_eq(&lines(&workers[0]));
    expect![[r#"
        receive h0 of grain 0 from worker 0
        run forward 1 of grain 0, sums to slot 0
        forget h0 of grain 0
        run backward 1 of grain 0, sums to slot 0
        forget kept1 of grain 0
        send d1 of grain 0 to worker 0
        forget d1 of grain 0
        receive h0 of grain 1 from worker 0
        run forward 1 of grain 1, sums added to slot 0
        forget h0 of grain 1
        run backward 1 of grain 1, sums added to slot 0
        forget kept1 of grain 1
        send d1 of grain 1 to worker 0
        forget d1 of grain 1
        totals of forward 1 among 1
        send grain_sum#2 to worker 0
        forget grain_sum#2
        totals of backward 1 among 1
        commit
        run update 1
        forget grain_sum#1"#]]
    .assert_eq(&lines(&workers[1]));
}
