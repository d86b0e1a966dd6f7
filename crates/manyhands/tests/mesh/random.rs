//! Random models on random meshes: layers of every kind, optimizers, grains, stages, replicas, levels and schedules, against one worker.
//!
//! A case that fails is made smaller and printed whole.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use manyhands::Registry;
use manyhands::losses::{CrossEntropy, Loss, SquaredError};
use manyhands::model::{InputSpec, Model, TargetSpec};
use manyhands::net::transport::in_process;
use manyhands::program::mesh::{CutError, check};
use manyhands::program::{Adagrad, Adam, AdamW, Ftrl, RmsProp, Sgd, Value};

use super::*;

const N_CLASSES: usize = 5;
/// The largest gives weights of which replicas have shards.
const WIDTHS: [usize; 4] = [4, 10, 70, 70];
/// Small, so that letters have to wait for room.
const CAPACITY: usize = 16 << 10;
const MOST_WORKERS: usize = 8;

/// A model as it is drawn: numbers that are read as layers which fit, so that any of them may be left out.
#[derive(Clone, Debug)]
enum Drawn {
    /// What goes in, and for each layer its kind, its width, and whether something from before is joined to it.
    Layers { input: u8, layers: Vec<(u8, usize, Option<usize>)>, has_numbers: bool },
    /// Layers of one width that share so many weights, by the weight of each; a table of tokens that also is the head, or not.
    Tied { weights: Vec<usize>, is_head_tied: bool },
}

/// What a layer gives for a sample.
#[derive(Clone, Copy, PartialEq)]
enum Gives {
    Flat(usize),
    /// Elements of a width.
    Sequence(usize, usize),
    /// A square with channels.
    Image(usize, usize),
}

fn flat_layer(kind: u8, width: usize, n: usize) -> (Json, Gives) {
    let same = Gives::Flat(n);
    match kind % 7 {
        0 => (json!(format!("dense {width} relu")), Gives::Flat(width)),
        1 => (json!(format!("dense {width} tanh")), Gives::Flat(width)),
        2 => (json!("layer_norm"), same),
        3 => (json!("batch_norm"), same),
        4 => (json!("dropout 0.3"), same),
        5 => (json!("gelu"), same),
        _ => {
            let layers = json!([format!("dense {width} silu"), "layer_norm", format!("dense {n}")]);
            (json!({ "residual": { "layers": layers } }), same)
        }
    }
}

fn sequence_layer(kind: u8, width: usize, length: usize, n: usize) -> (Json, Gives) {
    let (same, wide) = (Gives::Sequence(length, n), Gives::Sequence(length, width));
    match kind % 14 {
        0 => (json!(format!("lstm {width} sequences=true")), wide),
        1 => (json!(format!("gru {width} sequences=true")), wide),
        2 => (json!(format!("simple_rnn {width} sequences=true")), wide),
        3 => {
            let layer = json!({ "layer": format!("lstm {width} sequences=true") });
            (json!({ "bidirectional": layer }), Gives::Sequence(length, 2 * width))
        }
        4 => (json!(format!("transformer 2 hidden={width} causal=true dropout=0.2")), same),
        5 => (json!(format!("transformer 2 hidden={width}")), same),
        6 => (json!("attention 2 causal=true"), same),
        7 => (json!("layer_norm"), same),
        8 => (json!(format!("dense {width} gelu")), wide),
        9 => (json!(format!("conv1d {width} 3 relu padding=same")), wide),
        10 => (json!("position_embedding"), same),
        11 => (json!("dropout 0.2"), same),
        12 => (json!(format!("lstm {width}")), Gives::Flat(width)),
        _ => (json!("global_average_pool"), Gives::Flat(n)),
    }
}

fn image_layer(kind: u8, width: usize, side: usize, n: usize) -> (Json, Gives) {
    let same = Gives::Image(side, n);
    match kind % 9 {
        0 | 1 => (json!(format!("conv2d {width} 3 relu padding=same")), Gives::Image(side, width)),
        2 if side > 2 => (json!("max_pool 2"), Gives::Image(side / 2, n)),
        3 if side > 2 => (json!("average_pool 2"), Gives::Image(side / 2, n)),
        4 => (json!("batch_norm"), same),
        5 => (json!("dropout 0.2"), same),
        6 => {
            let layers = [format!("conv2d {n} 3 relu padding=same"), "batch_norm".to_string()];
            (json!({ "residual": { "layers": layers } }), same)
        }
        7 => (json!("global_max_pool"), Gives::Flat(n)),
        _ => (json!("flatten"), Gives::Flat(side * side * n)),
    }
}

/// The nodes of a model, and the shape of a sample that goes in; none for tokens, of which there are five in a sample.
fn nodes(input: u8, layers: &[(u8, usize, Option<usize>)]) -> (Vec<Json>, Option<Vec<usize>>) {
    let mut nodes: Vec<Json> = Vec::new();
    let mut given: Vec<(String, Gives)> = Vec::new();
    let (first, shape) = match input % 4 {
        0 => (Gives::Flat(9), Some(vec![9])),
        1 => (Gives::Sequence(5, 6), Some(vec![5, 6])),
        2 => (Gives::Image(6, 2), Some(vec![6, 6, 2])),
        _ => (Gives::Sequence(5, 10), None),
    };
    let mut now = ("x".to_string(), first);
    if shape.is_none() {
        nodes.push(json!({ "name": "table", "layer": "embedding 10", "inputs": ["x"] }));
        now.0 = "table".to_string();
    }
    for (idx, &(kind, width, joined)) in layers.iter().enumerate() {
        let (layer, gives) = match now.1 {
            Gives::Flat(n) => flat_layer(kind, width, n),
            Gives::Sequence(length, n) => sequence_layer(kind, width, length, n),
            Gives::Image(side, n) => image_layer(kind, width, side, n),
        };
        let name = format!("n{idx}");
        nodes.push(json!({ "name": name, "layer": layer, "inputs": [now.0] }));
        now = (name, gives);
        // What was given long before goes past the layers between.
        let known = given.iter().filter(|(_, before)| *before == now.1).map(|(name, _)| name);
        let known: Vec<&String> = known.collect();
        if let Some(joined) = joined.filter(|_| !known.is_empty()) {
            let (name, before) = (format!("add{idx}"), known[joined % known.len()]);
            nodes.push(json!({ "name": name, "layer": "add", "inputs": [now.0, before] }));
            now.0 = name;
        }
        given.push(now.clone());
    }
    if !matches!(now.1, Gives::Flat(_)) {
        nodes.push(json!({ "name": "flat", "layer": "flatten", "inputs": [now.0] }));
        now.0 = "flat".to_string();
    }
    let head = format!("dense {N_CLASSES}");
    nodes.push(json!({ "name": "head", "layer": head, "inputs": [now.0] }));
    (nodes, shape)
}

impl Drawn {
    fn program(&self, training: &Training, grain: usize) -> Program {
        match self {
            Drawn::Layers { input, layers, has_numbers } => {
                layered(*input, layers, *has_numbers, training, grain)
            }
            Drawn::Tied { weights, is_head_tied } => {
                tied(weights, *is_head_tied, training, grain).unwrap()
            }
        }
    }
}

fn layered(
    input: u8,
    layers: &[(u8, usize, Option<usize>)],
    has_numbers: bool,
    training: &Training,
    grain: usize,
) -> Program {
    let (nodes, shape) = nodes(input, layers);
    let spec = serde_json::from_value(json!({ "node": nodes })).unwrap();
    let input = InputSpec {
        name: "x".to_string(),
        dtype: if shape.is_some() { DType::F32 } else { DType::I32 },
        n_categories: shape.is_none().then_some(N_CLASSES + 2),
        is_image: shape.as_ref().is_some_and(|shape| shape.len() == 3),
        shape: shape.unwrap_or(vec![5]),
    };
    let classes = TargetSpec { dtype: DType::I32, shape: vec![], n_classes: Some(N_CLASSES) };
    let numbers = TargetSpec { dtype: DType::F32, shape: vec![N_CLASSES], n_classes: None };
    let (target, loss): (TargetSpec, Box<dyn Loss>) = match has_numbers {
        true => (numbers, Box::new(SquaredError {})),
        false => (classes, Box::new(CrossEntropy::default())),
    };
    let model = Model::new(&spec, &Registry::default(), &[input], target).unwrap();
    let Training { optimizer, clip } = training;
    model.training_program(grain, loss.as_ref(), optimizer, *clip, None).unwrap()
}

fn tied(
    weights: &[usize],
    is_head_tied: bool,
    training: &Training,
    grain: usize,
) -> Result<Program, ProgramError> {
    const WIDTH: usize = 70;
    let g = Builder::new("tied");
    let x = g.input("x", DType::I32, [grain, 3])?;
    let table = g.weight("table", [N_CLASSES, WIDTH], Init::Normal(0.7))?;
    let n_weights = weights.iter().max().map_or(0, |most| most + 1);
    let weight = |idx: usize| g.weight(&format!("w{idx}"), [WIDTH, WIDTH], Init::Normal(0.4));
    let all: Vec<Value> = (0..n_weights).map(weight).collect::<Result<_, _>>()?;
    let mut h = table.gather(0, &x)?.mean(&[1])?;
    for idx in weights {
        h = (h.matmul(&all[*idx])?.tanh()? + &h)?;
    }
    let logits = match is_head_tied {
        true => h.matmul_with(false, &table, true)?,
        false => h.matmul(&g.weight("head", [WIDTH, N_CLASSES], Init::Normal(0.4))?)?,
    };
    let labels = g.input("labels", DType::I32, [grain])?;
    let loss = logits.cross_entropy(&labels)?.sum_all()?;
    let divisor = g.scalar(DType::F32, grain as f64)?;
    training.add_step(&g, &loss, &divisor)?;
    Ok(g.finish())
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let width = proptest::sample::select(&WIDTHS[..]);
    let layer = (any::<u8>(), width, proptest::option::of(0..8usize));
    let layers = proptest::collection::vec(layer, 1..7);
    let layers = (any::<u8>(), layers, any::<bool>())
        .prop_map(|(input, layers, has_numbers)| Drawn::Layers { input, layers, has_numbers });
    let weights = proptest::collection::vec(0..3usize, 1..6);
    let tied = (weights, any::<bool>())
        .prop_map(|(weights, is_head_tied)| Drawn::Tied { weights, is_head_tied });
    prop_oneof![5 => layers, 1 => tied]
}

fn training() -> impl Strategy<Value = Training> {
    let optimizers = vec![
        Optimizer::Sgd(Sgd::default()),
        Optimizer::Sgd(Sgd { momentum: 0.9, nesterov: true, ..Sgd::default() }),
        Optimizer::Adagrad(Adagrad::default()),
        Optimizer::RmsProp(RmsProp { momentum: 0.5, centered: true, ..RmsProp::default() }),
        Optimizer::Adam(Adam { weight_decay: 0.01, ..Adam::default() }),
        Optimizer::AdamW(AdamW::default()),
        Optimizer::Lamb(Lamb::default()),
        Optimizer::Ftrl(Ftrl { l1: 0.001, ..Ftrl::default() }),
    ];
    let clips = vec![None, Some(Clip::Value(0.05)), Some(Clip::GlobalNorm(0.3))];
    let choices = (proptest::sample::select(optimizers), proptest::sample::select(clips));
    choices.prop_map(|(optimizer, clip)| Training { optimizer, clip })
}

fn how() -> impl Strategy<Value = How> {
    let mesh = (1..5usize, 1..5usize).prop_filter("workers", |(a, b)| a * b <= MOST_WORKERS);
    let levels = vec![None, Some(Level::Slots), Some(Level::Gradients), Some(Level::Weights)];
    let schedules = vec![Schedule::Gpipe, Schedule::OneFOneB, Schedule::Interleaved];
    let activations = vec![Activations::Keep, Activations::Selected, Activations::Again];
    let settings = (
        proptest::sample::select(levels),
        proptest::sample::select(schedules),
        proptest::sample::select(activations),
    );
    (mesh, settings, any::<bool>(), 1..4usize).prop_map(
        |((data, pipeline), (level, schedule, recompute), is_mirrored, n_pieces)| How {
            level: level.filter(|_| data > 1),
            schedule,
            recompute,
            is_mirrored,
            n_pieces,
            ..on(data, pipeline)
        },
    )
}

/// Samples in a grain, those in the last one if it is shorter, and grains.
fn grains() -> impl Strategy<Value = (usize, Option<usize>, usize)> {
    let sizes = (1..5usize, proptest::option::of(1..4usize), 1..8usize);
    sizes.prop_map(|(grain, last, n)| (grain, last.filter(|last| *last < grain), n))
}

/// Into how many chunks a program can be cut.
fn most_chunks(program: &Program) -> usize {
    match cut(program, None, &Cutting::balanced(usize::MAX)) {
        Err(CutError::TooManyChunks { most, .. }) => most,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a program in countless chunks"),
    }
}

/// The same with no more chunks and pieces than there can be.
fn fitting(mut how: How, program: &Program) -> How {
    let most = most_chunks(program);
    if how.n_chunks() > most {
        how.schedule = Schedule::OneFOneB;
    }
    how.mesh.pipeline = how.mesh.pipeline.min(most);
    how.n_pieces = how.n_pieces.min(most / how.n_chunks());
    how
}

fn narrow_pair() -> (Box<dyn Link>, Box<dyn Link>) {
    let (one, other) = in_process::pair(CAPACITY).unwrap();
    (Box::new(one), Box::new(other))
}

fn bits((losses, parameters): Outcome) -> (Vec<u32>, Vec<(String, Vec<u8>)>) {
    (losses.into_iter().map(f32::to_bits).collect(), parameters)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100,
        max_shrink_iters: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_models_have_the_bits_of_one_worker_on_random_meshes(
        model in drawn(),
        training in training(),
        how in how(),
        (grain, last, n_grains) in grains(),
    ) {
        let program = model.program(&training, grain);
        let last = last.map(|last| model.program(&training, last));
        let how = fitting(how, &program);
        let trained = Trained { program, last, n_classes: N_CLASSES, n_grains };
        let steps = trained.inputs();
        let expected = alone(&trained, &steps);
        prop_assert!(expected.0.iter().all(|loss| loss.is_finite()), "{:?}", expected.0);
        let workers = trained.workers(&how);
        check(&workers).unwrap();
        let found = together(workers, links_of(how.mesh.n_workers(), narrow_pair), &steps);
        let (found, expected) = (bits(found), bits(expected));
        let names = |all: &[(String, Vec<u8>)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        prop_assert_eq!(names(&found.1), names(&expected.1));
        let unlike = found.1.iter().zip(&expected.1).filter(|(one, other)| one != other);
        let unlike: Vec<&String> = unlike.map(|((name, _), _)| name).collect();
        prop_assert!(unlike.is_empty(), "{:?} on {} differ", unlike, how.mesh);
        prop_assert_eq!(found.0, expected.0);
    }
}
