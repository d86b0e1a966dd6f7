//! Row-sparse parameters: a step updates the rows that it used and no others, to the same bits for any lanes and workers, and
//! for a run that is stopped and goes on.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use manyhands::device::{CpuDevice, Isa, StepExecutor};
use manyhands::layers::{FactorizationMachine, Layer, Mode, Site, SparseLinear};
use manyhands::program::{
    Adam, Builder, Clip, DType, Ftrl, Init, Lamb, Optimizer, Program, ProgramError, Sgd, StepSize,
    Tensor, add_sized_training_step,
};
use manyhands::train::{Callback, Control, Event};
use manyhands::{Error, Job, Registry, Trainer};

const N_ROWS: usize = 9;
const WIDTH: usize = 3;
const N_PAIRS: usize = 2;
/// The size of a full step.
const SIZE: StepSize = StepSize { n_grains: 5, n_samples: 4 };

/// How rows are looked up.
#[derive(Clone, Copy, PartialEq)]
enum Rows {
    /// `take_rows`, twice of the same table.
    Taken,
    /// `gather`, with a dense gradient.
    Gathered,
}

/// A table used twice, and a dense weight, fitted to zeros.
fn program(rows: Rows, n_samples: usize, optimizer: Optimizer, clip: Option<Clip>) -> Program {
    let build = || -> Result<Program, ProgramError> {
        let g = Builder::new("t");
        let table = g.weight("table", [N_ROWS, WIDTH], Init::Normal(1.0))?;
        let dense = g.weight("dense", [WIDTH], Init::Normal(1.0))?;
        let mut sum = g.input("values", DType::F32, [n_samples, WIDTH])?;
        for name in ["left", "right"] {
            let indices = g.input(name, DType::I32, [n_samples, N_PAIRS])?;
            let rows = match rows {
                Rows::Taken => table.take_rows(&indices)?,
                Rows::Gathered => table.gather(0, &indices)?,
            };
            sum = (sum + (rows.sum(&[1])? * &dense)?)?;
        }
        let loss = (&sum * &sum)?.sum_all()?;
        let divisor = g.scalar(DType::F32, n_samples as f64)?;
        add_sized_training_step(&g, &optimizer, clip, &loss, &divisor, Some(SIZE))?;
        Ok(g.finish())
    };
    build().unwrap()
}

/// The indices of a grain: some rows often, some never, and none where `absent`.
fn indices(step: u64, grain: usize, name: &str, n_samples: usize, absent: bool) -> Vec<i32> {
    let index = |place: usize| {
        let mixed = place * 7 + grain * 5 + step as usize * 3 + name.len();
        match mixed % 11 {
            0..=2 if absent => -1,
            _ => (mixed * mixed % 7) as i32,
        }
    };
    (0..n_samples * N_PAIRS).map(index).collect()
}

/// All parameters after three steps of so many grains, the last of which may be short.
fn trained(
    programs: [&Program; 2],
    n_grains: usize,
    [n_lanes, threads_each]: [usize; 2],
    absent: bool,
) -> BTreeMap<String, Vec<f64>> {
    let device = CpuDevice::with_lanes(n_lanes, threads_each, Isa::detect()).unwrap();
    let mut step = StepExecutor::new(Box::new(device), n_lanes);
    let plan = step.add_plan(programs[0], n_grains, Some(programs[1])).unwrap();
    for (name, _, id) in programs[0].parameters() {
        let ty = programs[0].ty(id);
        let is_slot = name.matches('/').count() > 0;
        let value = |at: usize| if is_slot { 0.0 } else { ((at * 37 % 17) as f32 - 8.0) / 5.0 };
        let values: Vec<f32> = (0..ty.shape.n_elements()).map(value).collect();
        step.set_parameter(name, &Tensor::new(ty.shape.clone(), &values).unwrap()).unwrap();
    }
    step.write_scalar(plan, "rate", 0.1).unwrap();
    for number in 1..=3u64 {
        for grain in 0..n_grains {
            let program = programs[usize::from(grain + 1 == n_grains)];
            let values = program.inputs().find(|(name, _)| *name == "values").unwrap().1;
            let n_samples = program.ty(values).shape[0];
            for name in ["left", "right"] {
                let indices = indices(number, grain, name, n_samples, absent);
                let bytes: Vec<u8> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
                step.write_grain_input(plan, grain, name, &bytes).unwrap();
            }
            let value = |at: usize| ((at * 13 + grain * 3) % 7) as f32 / 7.0;
            let bytes: Vec<u8> =
                (0..n_samples * WIDTH).flat_map(|at| value(at).to_le_bytes()).collect();
            step.write_grain_input(plan, grain, "values", &bytes).unwrap();
        }
        if step.has_input(plan, "step") {
            step.write_scalar(plan, "step", number as f32).unwrap();
        }
        step.set_random_context(plan, 3, number).unwrap();
        step.run(plan).unwrap();
    }
    let names = programs[0].parameters().map(|(name, ..)| name.to_string());
    names.map(|name| (name.clone(), step.parameter(&name).unwrap().to_f64())).collect()
}

fn adam() -> Optimizer {
    Optimizer::Adam(Adam { rate: 0.1, ..Adam::default() })
}

#[test]
fn lanes_and_threads_leave_no_trace_with_short_steps_and_grains() {
    let clip = Some(Clip::GlobalNorm(2.0));
    for optimizer in [adam(), Optimizer::Ftrl(Ftrl { l1: 0.01, ..Ftrl::default() })] {
        let full = program(Rows::Taken, 4, optimizer, clip);
        let short = program(Rows::Taken, 3, optimizer, clip);
        for n_grains in 1..=SIZE.n_grains {
            let alone = trained([&full, &short], n_grains, [1, 1], true);
            for setup in [[1, 2], [2, 1], [3, 1], [2, 2], [5, 1]] {
                let found = trained([&full, &short], n_grains, setup, true);
                assert!(found == alone, "{n_grains} grains with {setup:?}");
            }
        }
    }
}

#[test]
fn plain_descent_on_rows_is_plain_descent_on_the_whole_table() {
    // Rows without a gradient stay where they are either way, so the two ways have the same numbers.
    let optimizer = Optimizer::Sgd(Sgd { rate: 0.1, ..Sgd::default() });
    let both = [Rows::Taken, Rows::Gathered].map(|rows| {
        let [full, short] = [4, 3].map(|n| program(rows, n, optimizer, None));
        trained([&full, &short], 5, [2, 1], false)
    });
    for (name, taken) in &both[0] {
        for (a, b) in taken.iter().zip(&both[1][name]) {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{name}: {a} and {b}");
        }
    }
}

#[test]
fn rows_that_no_step_used_keep_their_bits_and_so_does_their_state() {
    let used: Vec<i32> = (1..=3)
        .flat_map(|step| (0..5).map(move |grain| (step, grain)))
        .flat_map(|(step, grain)| {
            let n = if grain == 4 { 3 } else { 4 };
            ["left", "right"].into_iter().flat_map(move |name| indices(step, grain, name, n, true))
        })
        .collect();
    let [full, short] = [4, 3].map(|n| program(Rows::Taken, n, adam(), None));
    let after = trained([&full, &short], 5, [2, 1], true);
    let mut n_unused = 0;
    for row in 0..N_ROWS {
        let own = row * WIDTH..(row + 1) * WIDTH;
        let start = |at: usize| f64::from(((at * 37 % 17) as f32 - 8.0) / 5.0);
        let is_still =
            after["table"][own.clone()].iter().eq(&own.clone().map(start).collect::<Vec<_>>());
        let has_state = after["table/mean"][own].iter().any(|&mean| mean != 0.0);
        let is_used = used.contains(&(row as i32));
        assert_eq!((is_still, has_state), (!is_used, is_used), "row {row}");
        n_unused += usize::from(!is_used);
    }
    assert!(n_unused > 0 && n_unused < N_ROWS);
}

/// A row that comes up in the first step alone: with a dense gradient its momentum would carry it on.
#[test]
fn a_row_stands_still_in_a_step_that_does_not_use_it() {
    let g = Builder::new("t");
    let table = g.weight("table", [3, 1], Init::Constant(1.0)).unwrap();
    let indices = g.input("indices", DType::I32, [1]).unwrap();
    let loss = table.take_rows(&indices).unwrap().sum_all().unwrap();
    let divisor = g.scalar(DType::F32, 1.0).unwrap();
    let momentum = Optimizer::Sgd(Sgd { rate: 0.5, momentum: 0.9, ..Sgd::default() });
    let size = Some(StepSize { n_grains: 1, n_samples: 1 });
    add_sized_training_step(&g, &momentum, None, &loss, &divisor, size).unwrap();
    let program = g.finish();
    let device = CpuDevice::with_lanes(1, 1, Isa::detect()).unwrap();
    let mut step = StepExecutor::new(Box::new(device), 1);
    let plan = step.add_plan(&program, 1, None).unwrap();
    for (name, start) in [("table", 1f32), ("table/momentum", 0.0)] {
        step.set_parameter(name, &Tensor::new([3, 1], &[start; 3]).unwrap()).unwrap();
    }
    step.write_scalar(plan, "rate", 0.5).unwrap();
    for (number, index) in [(1, 0i32), (2, 2), (3, -1)] {
        step.write_grain_input(plan, 0, "indices", &index.to_le_bytes()).unwrap();
        if step.has_input(plan, "step") {
            step.write_scalar(plan, "step", number as f32).unwrap();
        }
        step.set_random_context(plan, 0, number).unwrap();
        step.run(plan).unwrap();
    }
    assert_eq!(step.parameter("table").unwrap().to_f64(), [0.5, 1.0, 0.5]);
    assert_eq!(step.parameter("table/momentum").unwrap().to_f64(), [1.0, 0.0, 1.0]);
}

#[test]
fn what_cannot_be_row_sparse_is_refused_in_a_sentence() {
    let refused = |optimizer: &Optimizer, size, other_use: bool| {
        let g = Builder::new("t");
        let table = g.weight("table", [3, 2], Init::Constant(1.0)).unwrap();
        let indices = g.input("indices", DType::I32, [1]).unwrap();
        let mut loss = table.take_rows(&indices).unwrap().sum_all().unwrap();
        if other_use {
            loss = (loss + table.sum_all().unwrap()).unwrap();
        }
        let divisor = g.scalar(DType::F32, 1.0).unwrap();
        let step = add_sized_training_step(&g, optimizer, None, &loss, &divisor, size);
        step.unwrap_err().to_string()
    };
    let error = refused(&Optimizer::Lamb(Lamb::default()), Some(SIZE), false);
    assert!(error.contains("one that treats each element by itself (not lamb)"), "{error}");
    let error = refused(&adam(), None, false);
    assert!(error.contains("how many grains of how many samples"), "{error}");
    let error = refused(&adam(), Some(SIZE), true);
    assert!(error.contains("`reduce` uses it too"), "{error}");
}

/// What a layer gives for these pairs, of two samples of three pairs, with such numbers in its tables.
fn layer_output(
    layer: &dyn Layer,
    indices: [i32; 6],
    values: [f32; 6],
    tables: &[(&str, Vec<usize>, Vec<f32>)],
) -> Vec<f64> {
    let g = Builder::new("t");
    let inputs = [
        g.input("indices", DType::I32, [2, 3]).unwrap(),
        g.input("values", DType::F32, [2, 3]).unwrap(),
    ];
    let registry = Registry::default();
    let site = Site {
        builder: &g,
        mode: Mode::Evaluating,
        n_categories: Some(4),
        layers: &registry.layers,
    };
    g.output("y", &layer.build(&site, &inputs).unwrap()).unwrap();
    let device = CpuDevice::with_lanes(1, 1, Isa::detect()).unwrap();
    let mut step = StepExecutor::new(Box::new(device), 1);
    let plan = step.add_plan(&g.finish(), 1, None).unwrap();
    for (name, shape, numbers) in tables {
        step.set_parameter(name, &Tensor::new(&shape[..], numbers).unwrap()).unwrap();
    }
    let bytes: Vec<u8> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
    step.write_grain_input(plan, 0, "indices", &bytes).unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    step.write_grain_input(plan, 0, "values", &bytes).unwrap();
    step.run(plan).unwrap();
    step.grain_output(plan, 0, "y").unwrap().to_f64()
}

#[test]
fn layers_on_pairs_are_the_sums_that_they_are_defined_as() {
    let (indices, values) = ([3, 0, -1, 2, 2, 1], [0.5, -2.0, 9.0, 1.0, 3.0, -1.0]);
    let weight: Vec<f32> = vec![0.5, -1.0, 2.0, 0.25];
    let factors: Vec<f32> = vec![1.0, -0.5, 0.5, 2.0, -1.0, 0.25, 3.0, 1.5];
    let samples: [Vec<(usize, f64)>; 2] =
        [vec![(3, 0.5), (0, -2.0)], vec![(2, 1.0), (2, 3.0), (1, -1.0)]];
    let linear = |sample: &Vec<(usize, f64)>| {
        0.75 + sample.iter().map(|&(i, x)| f64::from(weight[i]) * x).sum::<f64>()
    };
    let pairwise = |sample: &Vec<(usize, f64)>| {
        let dot = |i: usize, j: usize| {
            (0..2).map(|f| f64::from(factors[2 * i + f] * factors[2 * j + f])).sum::<f64>()
        };
        let of = |a: usize, b: usize| {
            let ((i, x), (j, y)) = (sample[a], sample[b]);
            dot(i, j) * x * y
        };
        let n = sample.len();
        (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).map(|(a, b)| of(a, b)).sum::<f64>()
    };
    let mut tables = vec![("weight", vec![4, 1], weight.clone()), ("bias", vec![1], vec![0.75])];
    let layer: SparseLinear = serde_json::from_str(r#"{"units": 1}"#).unwrap();
    let found = layer_output(&layer, indices, values, &tables);
    assert_eq!(found, samples.iter().map(linear).collect::<Vec<_>>());
    tables.push(("factors", vec![4, 2], factors.clone()));
    let layer: FactorizationMachine = serde_json::from_str(r#"{"rank": 2}"#).unwrap();
    let found = layer_output(&layer, indices, values, &tables);
    for (found, sample) in found.iter().zip(&samples) {
        let wanted = linear(sample) + pairwise(sample);
        assert!((found - wanted).abs() < 1e-5, "{found} is not {wanted}");
    }
}

/// Samples of up to four of 40 features; the label depends on the first.
fn lines() -> String {
    let line = |sample: usize| {
        let n = sample % 5;
        let features = (0..n).map(|place| {
            let index = (sample * 17 + place * 11) % 40;
            format!(" {index}:{}", 1.0 + (sample % 3) as f64 / 4.0)
        });
        let label = (sample * 17 % 40 < 20) as u8;
        format!("{label}{}\n", features.collect::<String>())
    };
    (0..190).map(line).collect()
}

fn job(layers: &str, optimizer: &str) -> Job {
    Job::builder()
        .train("train.libsvm")
        .test(0.2)
        .layers([layers])
        .optimizer(optimizer)
        .epochs(3)
        .set("train.loss=binary_cross_entropy")
        .set("train.metrics=[\"auc\"]")
        .set("train.grain=5")
        .set("train.batch=35")
        .set("output.tensorboard=false")
        .build()
        .unwrap()
}

/// Raises the flag after so many steps.
struct StopAfter(usize, Arc<AtomicBool>);

impl Callback for StopAfter {
    fn on_event(&mut self, event: &Event) -> Control {
        if matches!(event, Event::Step(_)) {
            self.0 = self.0.saturating_sub(1);
            self.1.store(self.0 == 0, Ordering::Relaxed);
        }
        Control::Continue
    }
}

fn model(out: &Path) -> Vec<u8> {
    fs::read(out.join("model.safetensors")).unwrap()
}

#[test]
fn jobs_on_pairs_end_in_the_same_bytes_with_any_workers_and_when_stopped() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("train.libsvm"), lines()).unwrap();
    for (at, (layers, optimizer)) in [
        ("sparse_linear 1", "ftrl rate=0.5 l1=0.001"),
        ("factorization_machine 4", "adam rate=0.05"),
    ]
    .into_iter()
    .enumerate()
    {
        let job = job(layers, optimizer);
        let out = |name: &str| folder.path().join(format!("{at}-{name}"));
        let trainer = |out: &Path| Trainer::new(job.clone(), folder.path()).out(out).threads(1);
        trainer(&out("one")).workers(1).run().unwrap();
        for n_workers in 2..=4 {
            let many = out(&n_workers.to_string());
            trainer(&many).workers(n_workers).run().unwrap();
            assert!(model(&many) == model(&out("one")), "{layers} with {n_workers}");
        }
        let stopped = out("stopped");
        let flag = Arc::new(AtomicBool::new(false));
        let callback = StopAfter(7, Arc::clone(&flag));
        let ended = trainer(&stopped).workers(2).callback(callback).stop_flag(flag).run();
        assert!(matches!(ended, Err(Error::Interrupted { .. })));
        Trainer::resume(&stopped).unwrap().workers(3).threads(1).run().unwrap();
        assert!(model(&stopped) == model(&out("one")), "{layers}, stopped");
    }
}
