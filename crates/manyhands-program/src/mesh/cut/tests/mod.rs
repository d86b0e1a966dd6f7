//! Cut programs do what the uncut ones do, operation by operation.

mod models;
mod symbols;

use std::collections::BTreeSet;

use expect_test::expect;
use proptest::prelude::*;

use super::*;
use crate::ProgramError;

const EVERY: [Activations; 3] = [Activations::Keep, Activations::Selected, Activations::Again];

fn cutting(n_chunks: usize, recompute: Activations) -> Cutting<'static> {
    Cutting { recompute, ..Cutting::balanced(n_chunks) }
}

/// Cuts a program and runs a step of it and of the uncut one.
fn check(program: &Program, last: &Program, cutting: &Cutting<'_>) -> Chunked {
    let chunked = cut(program, Some(last), cutting).unwrap();
    let (_, whole, short) = split_alike(program, Some(last), true).unwrap();
    let inputs = program.inputs().map(|(name, _)| name.to_string());
    let outputs = program.outputs().iter().map(|output| output.name.clone());
    let names: BTreeSet<String> = inputs.chain(outputs).collect();
    let expected = symbols::uncut(&whole, &short.unwrap(), 5);
    let found = symbols::in_pieces(&chunked, &names, 5);
    assert_eq!(found, expected, "{} chunks, {:?}", cutting.n_chunks, cutting.recompute);
    assert!(chunked.parameters.iter().all(|parameter| {
        parameter.chunks.iter().collect::<BTreeSet<_>>().len() == parameter.chunks.len()
    }));
    chunked
}

fn check_all(model: fn(usize) -> Result<Program, ProgramError>) {
    let (program, last) = (model(4).unwrap(), model(3).unwrap());
    for n_chunks in 1..=6 {
        for recompute in EVERY {
            check(&program, &last, &cutting(n_chunks, recompute));
        }
    }
}

#[test]
fn a_cut_mlp_does_the_same() {
    check_all(models::plain_mlp);
}

#[test]
fn a_cut_cnn_with_residual_batch_norm_and_dropout_does_the_same() {
    check_all(models::cnn);
}

#[test]
fn a_cut_transformer_with_a_tied_embedding_does_the_same() {
    check_all(models::transformer);
}

#[test]
fn cut_scans_do_the_same() {
    check_all(models::recurrent);
}

#[test]
fn clipping_by_the_norm_of_all_chunks_does_the_same() {
    check_all(models::clipped_mlp);
}

#[test]
fn lamb_does_the_same() {
    check_all(models::lamb_mlp);
}

#[test]
fn conds_and_outputs_of_grains_do_the_same() {
    check_all(models::choosing);
}

#[test]
fn a_last_grain_of_one_sample_is_cut_as_the_others_are() {
    for model in [models::plain_mlp, models::cnn, models::transformer, models::recurrent] {
        let (program, last) = (model(4).unwrap(), model(1).unwrap());
        check(&program, &last, &cutting(3, Activations::Keep));
    }
}

#[test]
fn what_updates_of_all_chunks_take_travels_as_a_scalar() {
    let chunked = cut(&models::plain_mlp(4).unwrap(), None, &Cutting::balanced(3)).unwrap();
    for own in chunked.pieces.iter().filter(|own| own.phase == Phase::Prepare) {
        for output in own.piece.program.outputs() {
            let ty = own.piece.program.ty(output.value);
            assert_eq!(ty.shape.rank(), 0, "{} gives {}", own.piece.name, output.name);
        }
    }
}

#[test]
fn sums_over_tensor_parts_are_between_pieces() {
    check_all(models::in_parts);
    let chunked = cut(&models::in_parts(4).unwrap(), None, &Cutting::balanced(2)).unwrap();
    let ops = chunked.pieces.iter().flat_map(|own| own.piece.program.nodes());
    assert!(ops.into_iter().all(|node| node.op != Op::AllReduce));
    assert!(chunked.pieces.iter().map(|own| own.reduced.len()).sum::<usize>() >= 6);
}

#[test]
fn one_chunk_that_keeps_everything_is_the_uncut_grain_half() {
    let program = models::plain_mlp(4).unwrap();
    let chunked = cut(&program, None, &Cutting::balanced(1)).unwrap();
    let phases: Vec<Phase> = chunked.pieces.iter().map(|own| own.phase).collect();
    // The loss is known before the commit.
    assert_eq!(phases, [Phase::Whole, Phase::Prepare, Phase::Update]);
}

#[test]
fn gradients_come_out_where_their_weights_live() {
    for n_chunks in 2..=6 {
        for model in [models::plain_mlp, models::cnn, models::lamb_mlp] {
            let chunked = cut(&model(4).unwrap(), None, &Cutting::balanced(n_chunks)).unwrap();
            for own in chunked.pieces.iter().filter(|own| own.phase == Phase::Update) {
                let taken = own.piece.program.inputs();
                let taken = taken.filter(|(name, value)| {
                    is_sum(name) && own.piece.program.ty(*value).shape.rank() > 0
                });
                let sums = chunks_of_sums(&chunked.pieces);
                for (name, _) in taken {
                    assert_eq!(sums[name], own.chunk, "{n_chunks} chunks: {name}");
                }
            }
            assert!(chunked.parameters.iter().all(|parameter| parameter.chunks.len() == 1));
        }
    }
}

#[test]
fn a_tied_weight_lives_in_its_first_chunk_and_has_a_copy_in_the_other() {
    let chunked = cut(&models::transformer(4).unwrap(), None, &Cutting::balanced(3)).unwrap();
    let embedding = chunked.parameters.iter().find(|parameter| parameter.name == "embedding");
    assert_eq!(embedding.unwrap().chunks, [0, 2]);
}

#[test]
fn computing_again_keeps_less() {
    let program = models::transformer(4).unwrap();
    let kept = EVERY.map(|recompute| {
        let chunked = cut(&program, None, &cutting(2, recompute)).unwrap();
        let forward = chunked.pieces.iter().filter(|own| own.phase == Phase::Forward);
        forward.map(|own| own.piece.program.outputs().len()).sum::<usize>()
    });
    assert!(kept[0] > kept[1] && kept[1] > kept[2], "{kept:?}");
}

#[test]
fn layers_can_be_named() {
    let (program, last) = (models::transformer(4).unwrap(), models::transformer(3).unwrap());
    let places = Places::Before(vec!["head".to_string(), "block1".to_string()]);
    let chunked = check(&program, &last, &Cutting { places, ..Cutting::balanced(3) });
    let home = |name: &str| {
        chunked.parameters.iter().find(|parameter| parameter.name == name).unwrap().chunks[0]
    };
    assert_eq!([home("embedding"), home("block0/down"), home("block1/norm1/scale")], [0, 0, 1]);
}

#[test]
fn costs_can_be_given() {
    let program = models::plain_mlp(4).unwrap();
    let last_is_dear = |program: &Program, node: usize| {
        if program.nodes()[node].scope.starts_with("head") { 100.0 } else { 0.01 }
    };
    let cutting =
        Cutting { cost: Some(&last_is_dear), crossing_weight: 0.0, ..Cutting::balanced(2) };
    let chunked = cut(&program, None, &cutting).unwrap();
    assert!(chunked.costs.iter().all(|&cost| cost > 50.0), "{:?}", chunked.costs);
}

#[test]
fn a_program_is_cut_at_positions_that_another_size_of_it_was_cut_at() {
    for model in [models::plain_mlp, models::cnn, models::transformer, models::recurrent] {
        let (program, last) = (model(4).unwrap(), model(3).unwrap());
        for n_chunks in 1..=5 {
            let found = positions(&program, None, &Cutting::balanced(n_chunks)).unwrap();
            assert_eq!(found.len() + 1, n_chunks);
            let at = Cutting { places: Places::At(found), ..Cutting::balanced(n_chunks) };
            let balanced = cut(&program, None, &Cutting::balanced(n_chunks)).unwrap();
            assert_eq!(cut(&program, None, &at).unwrap(), balanced);
            check(&last, &program, &at);
        }
    }
}

#[test]
fn positions_of_another_program_are_refused() {
    let program = models::plain_mlp(4).unwrap();
    for positions in [vec![], vec![0], vec![13], vec![3, 3], vec![4, 2], vec![1, 2]] {
        let n_chunks = if positions.len() == 2 { 3 } else { 2 };
        let places = Places::At(positions.clone());
        let outcome = cut(&program, None, &Cutting { places, ..Cutting::balanced(n_chunks) });
        let is_refused = matches!(outcome, Err(CutError::Positions { .. }));
        assert_eq!(is_refused, positions != [1, 2], "{positions:?}: {outcome:?}");
    }
}

#[test]
fn a_probe_has_every_operation_in_one_part() {
    for model in [models::plain_mlp, models::cnn, models::transformer, models::recurrent] {
        let program = model(4).unwrap();
        let probe = probe(&program, true).unwrap();
        let n = probe.programs.len();
        assert!(n > 4, "{n}");
        // What parts take comes to what their operations take, wherever the program is then cut.
        let seconds: Vec<f64> = (1..=n).map(|part| part as f64).collect();
        let of_nodes = probe.of_nodes(&seconds);
        let cost = |program: &Program, node: usize| {
            assert_eq!(program.nodes().len(), of_nodes.len());
            of_nodes[node]
        };
        for n_chunks in 1..=4 {
            let cutting = Cutting { cost: Some(&cost), ..Cutting::balanced(n_chunks) };
            let all: f64 = cut(&program, None, &cutting).unwrap().costs.iter().sum();
            let expected = seconds.iter().sum::<f64>();
            assert!((all - expected).abs() < 1e-6 * expected, "{all}, not {expected}");
        }
    }
}

fn refused(
    n_chunks: usize,
    before: &[&str],
    model: fn(usize) -> Result<Program, ProgramError>,
) -> String {
    let places = match before {
        [] => Places::Balanced,
        names => Places::Before(names.iter().map(ToString::to_string).collect()),
    };
    let cutting = Cutting { places, ..Cutting::balanced(n_chunks) };
    cut(&model(4).unwrap(), None, &cutting).unwrap_err().to_string()
}

#[test]
fn refusals_say_what_would_fit() {
    let refusals = [
        refused(0, &[], models::plain_mlp),
        refused(1000, &[], models::plain_mlp),
        refused(2, &["dense7"], models::plain_mlp),
        refused(2, &["dense0"], models::plain_mlp),
        refused(3, &["dense1"], models::plain_mlp),
        refused(3, &["dense1", "dense1"], models::plain_mlp),
        refused(2, &["cell1/gate"], models::recurrent),
    ];
    expect![[r#"
        a program is cut into at least 1 chunk, not 0
        1000 chunks are too many: the way to the loss has 13 operations behind which it can be cut, so at most 13 chunks; fewer stages, or fewer chunks at each, would do
        there is no layer `dense7` to cut before; there are dense0, dense1, dense2, head
        `dense0` is where the model begins, so a cut before it leaves the first chunk empty; name a later layer
        3 chunks take 2 named layers to cut before, one less than there are chunks; 1 given
        `dense1` and `dense1` are the same place to cut before; name different ones
        `cell1/gate` lies inside the body of a scan, which runs as one operation; cut before `cell1`, or behind it
    "#]].assert_eq(&(refusals.join("\n") + "\n"));
}

#[test]
fn a_program_that_does_not_train_is_refused() {
    let g = crate::Builder::new("prediction");
    let x = g.input("x", crate::DType::F32, [4, 3]).unwrap();
    g.output("y", &x.relu().unwrap()).unwrap();
    let error = cut(&g.finish(), None, &Cutting::balanced(2)).unwrap_err();
    assert!(matches!(error, CutError::NoTraining { .. }), "{error}");
}

#[test]
fn another_program_for_the_last_grain_is_refused() {
    let (program, other) = (models::plain_mlp(4).unwrap(), models::choosing(3).unwrap());
    let error = cut(&program, Some(&other), &Cutting::balanced(2)).unwrap_err();
    assert!(matches!(error, CutError::LastDiffers { .. }), "{error}");
}

#[test]
fn pieces_are_plain_programs() {
    let program = models::mlp(4, 1, crate::Optimizer::Sgd(crate::Sgd::default()), None).unwrap();
    let chunked = cut(&program, None, &Cutting::balanced(2)).unwrap();
    let mut text = String::new();
    for own in &chunked.pieces {
        text += &format!("# {}\n{}", own.piece.name, own.piece.program);
    }
    expect![[r##"
        # forward 0
        program mlp {
          %0 = input {name: "x"} : f32[4, 8]
          %1 = parameter {name: "dense0/w", role: weight, init: normal(0.1)} : f32[8, 8] @ "dense0"
          %2 = matmul %0, %1 : f32[4, 8] @ "dense0"
          %3 = parameter {name: "dense0/b", role: weight, init: normal(0.1)} : f32[8] @ "dense0"
          %4 = broadcast %3 {axes: [1]} : f32[4, 8] @ "dense0"
          %5 = add %2, %4 : f32[4, 8] @ "dense0"
          %6 = relu %5 : f32[4, 8]
          output v7 = %6
        }
        # forward 1
        program mlp {
          %0 = input {name: "v7"} : f32[4, 8]
          %1 = parameter {name: "head/w", role: weight, init: normal(0.1)} : f32[8, 3] @ "head"
          %2 = matmul %0, %1 : f32[4, 3] @ "head"
          %3 = parameter {name: "head/b", role: weight, init: normal(0.1)} : f32[3] @ "head"
          %4 = broadcast %3 {axes: [1]} : f32[4, 3] @ "head"
          %5 = add %2, %4 : f32[4, 3] @ "head"
          %6 = argmax %5 {axis: 1} : i32[4]
          %7 = input {name: "labels"} : i32[4]
          %8 = eq %6, %7 : bool[4]
          %9 = cast %8 : f32[4]
          %10 = reduce %9 {kind: sum, axes: [0]} : f32[]
          %11 = cross_entropy %5, %7 : f32[4]
          %12 = reduce %11 {kind: sum, axes: [0]} : f32[]
          %13 = constant {splat: 4.0} : f32[]
          output v12 = %5
          output "grain_sum#0" = %10
          output "grain_sum#1" = %12
          output "grain_sum#2" = %13
          output best = %6
        }
        # backward 1
        program mlp {
          %0 = input {name: "v12"} : f32[4, 3] @ "head"
          %1 = input {name: "labels"} : i32[4]
          %2 = constant {splat: 1.0} : f32[]
          %3 = broadcast %2 {axes: []} : f32[4]
          %4 = cross_entropy_grad %0, %1, %3 : f32[4, 3]
          %5 = reduce %4 {kind: sum, axes: [0]} : f32[3] @ "head"
          %6 = parameter {name: "head/w", role: weight, init: normal(0.1)} : f32[8, 3] @ "head"
          %7 = matmul %4, %6 {transpose_rhs: true} : f32[4, 8] @ "head"
          %8 = input {name: "v7"} : f32[4, 8]
          %9 = matmul %8, %4 {transpose_lhs: true} : f32[8, 3] @ "head"
          output v24 = %7
          output "grain_sum#5" = %9
          output "grain_sum#6" = %5
        }
        # backward 0
        program mlp {
          %0 = input {name: "v7"} : f32[4, 8]
          %1 = constant {splat: 0.0} : f32[]
          %2 = broadcast %1 {axes: []} : f32[4, 8]
          %3 = gt %0, %2 : bool[4, 8]
          %4 = input {name: "v24"} : f32[4, 8] @ "head"
          %5 = select %3, %4, %2 : f32[4, 8]
          %6 = reduce %5 {kind: sum, axes: [0]} : f32[8] @ "dense0"
          %7 = input {name: "x"} : f32[4, 8]
          %8 = matmul %7, %5 {transpose_lhs: true} : f32[8, 8] @ "dense0"
          output "grain_sum#3" = %8
          output "grain_sum#4" = %6
        }
        # prepare 1
        program mlp {
          %0 = constant {splat: 1.0} : f32[]
          %1 = input {name: "grain_sum#2"} : f32[]
          %2 = div %0, %1 : f32[]
          %3 = input {name: "grain_sum#1"} : f32[]
          %4 = div %3, %1 : f32[]
          output s8 = %2
          output loss = %4
        }
        # update 0
        program mlp {
          %0 = input {name: "s8"} : f32[]
          %1 = broadcast %0 {axes: []} : f32[8, 8]
          %2 = input {name: "grain_sum#3"} : f32[8, 8]
          %3 = mul %2, %1 : f32[8, 8]
          %4 = broadcast %0 {axes: []} : f32[8]
          %5 = input {name: "grain_sum#4"} : f32[8]
          %6 = mul %5, %4 : f32[8]
          %7 = input {name: "rate"} : f32[]
          %8 = broadcast %7 {axes: []} : f32[8, 8]
          %9 = mul %3, %8 : f32[8, 8]
          %10 = parameter {name: "dense0/w", role: weight, init: normal(0.1)} : f32[8, 8] @ "dense0"
          %11 = sub %10, %9 : f32[8, 8]
          %12 = broadcast %7 {axes: []} : f32[8]
          %13 = mul %6, %12 : f32[8]
          %14 = parameter {name: "dense0/b", role: weight, init: normal(0.1)} : f32[8] @ "dense0"
          %15 = sub %14, %13 : f32[8]
          update %10 = %11
          update %14 = %15
        }
        # update 1
        program mlp {
          %0 = input {name: "s8"} : f32[]
          %1 = broadcast %0 {axes: []} : f32[8, 3]
          %2 = input {name: "grain_sum#5"} : f32[8, 3]
          %3 = mul %2, %1 : f32[8, 3]
          %4 = broadcast %0 {axes: []} : f32[3]
          %5 = input {name: "grain_sum#6"} : f32[3]
          %6 = mul %5, %4 : f32[3]
          %7 = input {name: "rate"} : f32[]
          %8 = broadcast %7 {axes: []} : f32[8, 3]
          %9 = mul %3, %8 : f32[8, 3]
          %10 = parameter {name: "head/w", role: weight, init: normal(0.1)} : f32[8, 3] @ "head"
          %11 = sub %10, %9 : f32[8, 3]
          %12 = broadcast %7 {axes: []} : f32[3]
          %13 = mul %6, %12 : f32[3]
          %14 = parameter {name: "head/b", role: weight, init: normal(0.1)} : f32[3] @ "head"
          %15 = sub %14, %13 : f32[3]
          %16 = input {name: "grain_sum#0"} : f32[]
          output right = %16
          update %10 = %11
          update %14 = %15
        }
    "##]]
    .assert_eq(&text);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_stack_of_layers_can_be_cut_anywhere(
        draws in prop::collection::vec((0..8usize, 0..8usize, any::<bool>()), 1..9),
        n_chunks in 1..7usize,
        recompute in prop::sample::select(&EVERY[..]),
        costs in prop::collection::vec(0.1..10.0f64, 16),
    ) {
        let (program, last) = (models::stack(4, &draws).unwrap(), models::stack(3, &draws).unwrap());
        let cost = |_: &Program, node: usize| costs[node % costs.len()];
        let cutting = Cutting { cost: Some(&cost), ..cutting(n_chunks, recompute) };
        if let Err(CutError::TooManyChunks { most, .. }) = cut(&program, None, &cutting) {
            prop_assert!(most < n_chunks);
        } else {
            check(&program, &last, &cutting);
        }
    }
}
