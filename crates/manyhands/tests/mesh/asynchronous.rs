//! Asynchronous pipelines: every grain is an update of its own, forward and backward of a grain see the same weights, and which those are follows from
//! the schedule alone. Held against matrices in double precision that are updated by hand.

use manyhands::checkpoint::NamedTensor;
use manyhands::program::Sgd;
use manyhands::program::mesh::{Places, lower};

use super::*;

const N_LAYERS: usize = 4;
const WIDTH: usize = 6;
const GRAIN: usize = 3;
const N_GRAINS: usize = 7;
const RATE: f32 = 0.2;
const MOMENTUM: f64 = 0.5;

fn weight_name(layer: usize) -> String {
    format!("layer{layer}/weight")
}

/// Square layers with tanh, and the squared distance to a target.
fn program() -> Result<Program, ProgramError> {
    let g = Builder::new("layers");
    let mut h = g.input("x", DType::F32, [GRAIN, WIDTH])?;
    for layer in 0..N_LAYERS {
        h = g.scope(&format!("layer{layer}"), |g| {
            h.matmul(&g.weight("weight", [WIDTH, WIDTH], Init::Normal(0.5))?)?.tanh()
        })?;
    }
    let off = (h - g.input("target", DType::F32, [GRAIN, WIDTH])?)?;
    let loss = (&off * &off)?.sum_all()?;
    let divisor = g.scalar(DType::F32, GRAIN as f64)?;
    let optimizer = Optimizer::Sgd(Sgd { momentum: MOMENTUM, ..Sgd::default() });
    Training { optimizer, clip: None }.add_step(&g, &loss, &divisor)?;
    Ok(g.finish())
}

/// One layer for each stage but the last, which has the rest.
fn stage_of(layer: usize, n_stages: usize) -> usize {
    layer.min(n_stages - 1)
}

fn workers(n_stages: usize, recompute: Activations) -> Vec<WorkerProgram> {
    let places = Places::Before((1..n_stages).map(|stage| format!("layer{stage}")).collect());
    let cutting = Cutting { recompute, places, ..Cutting::balanced(n_stages) };
    let chunked = cut(&program().unwrap(), None, &cutting).unwrap();
    let mesh = Mesh { pipeline: n_stages, ..Mesh::default() };
    lower(&chunked, mesh, N_GRAINS, Schedule::Asynchronous, 1).unwrap()
}

fn inputs(n_steps: u64) -> Vec<Inputs> {
    let ty = TensorType::new(DType::F32, [GRAIN, WIDTH]);
    let of_step = |step: u64| {
        let of_grain = |grain: usize| {
            ["x", "target"].map(|name| {
                let bytes = batch(&ty, 0, &format!("{name}/{step}/{grain}"));
                ((grain, name.to_string()), bytes)
            })
        };
        Arc::new((0..N_GRAINS).flat_map(of_grain).collect::<HashMap<_, _>>())
    };
    (1..=n_steps).map(of_step).collect()
}

/// What a team came to: its parameters before the first step, the losses, and its parameters at the end.
fn trained(
    workers: Vec<WorkerProgram>,
    steps: &[Inputs],
) -> (Vec<NamedTensor>, Vec<f32>, Vec<NamedTensor>) {
    let links = linked(workers.len()).unwrap();
    let mut team =
        Team::start(workers.into_iter().map(|one| vec![one]).collect(), 1, links).unwrap();
    team.init(SEED).unwrap();
    let before = team.tensors().unwrap();
    let mut losses = Vec::new();
    for (step, inputs) in (1..).zip(steps) {
        let inputs = Arc::clone(inputs);
        team.submit(&TeamStep { plan: 0, step, rate: RATE, seed: 3, inputs });
    }
    for _ in steps {
        losses.push(team.finish().unwrap().loss.unwrap());
    }
    (before, losses, team.tensors().unwrap())
}

/// Rows of numbers in double precision.
#[derive(Clone, Debug)]
struct Matrix {
    n_columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn of(tensor: &NamedTensor) -> Matrix {
        Matrix { n_columns: WIDTH, values: tensor.tensor.to_f64() }
    }

    fn of_bytes(bytes: &[u8]) -> Matrix {
        let float = |four: &[u8]| f64::from(f32::from_le_bytes(four.try_into().unwrap()));
        Matrix { n_columns: WIDTH, values: bytes.chunks(4).map(float).collect() }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.n_columns + column]
    }

    fn transposed(&self) -> Matrix {
        let n_rows = self.values.len() / self.n_columns;
        let column = |c: usize| (0..n_rows).map(move |r| self.at(r, c));
        Matrix { n_columns: n_rows, values: (0..self.n_columns).flat_map(column).collect() }
    }

    fn times(&self, other: &Matrix) -> Matrix {
        let n_rows = self.values.len() / self.n_columns;
        let cell =
            |r: usize, c: usize| (0..self.n_columns).map(|k| self.at(r, k) * other.at(k, c)).sum();
        let row = |r: usize| (0..other.n_columns).map(move |c| cell(r, c));
        Matrix { n_columns: other.n_columns, values: (0..n_rows).flat_map(row).collect() }
    }

    fn with(&self, other: &Matrix, f: impl Fn(f64, f64) -> f64) -> Matrix {
        let values = self.values.iter().zip(&other.values).map(|(a, b)| f(*a, *b)).collect();
        Matrix { n_columns: self.n_columns, values }
    }
}

/// The loss of a grain with these weights, and their gradients.
fn gradients(weights: &[&Matrix], x: &Matrix, target: &Matrix) -> (f64, Vec<Matrix>) {
    let mut given = vec![x.clone()];
    for weight in weights {
        let h = given.last().unwrap().times(weight);
        given.push(Matrix { values: h.values.iter().map(|v| v.tanh()).collect(), ..h });
    }
    let off = given.last().unwrap().with(target, |a, b| a - b);
    let loss = off.values.iter().map(|v| v * v).sum::<f64>() / GRAIN as f64;
    let mut back = Matrix { values: off.values.iter().map(|v| 2.0 * v).collect(), ..off };
    let mut all = Vec::new();
    for layer in (0..weights.len()).rev() {
        let inner = back.with(&given[layer + 1], |d, h| d * (1.0 - h * h));
        let mut gradient = given[layer].transposed().times(&inner);
        gradient.values.iter_mut().for_each(|v| *v /= GRAIN as f64);
        all.push(gradient);
        back = inner.times(&weights[layer].transposed());
    }
    all.reverse();
    (loss, all)
}

/// How many grains of a step a stage has gone back through when another comes in.
type Seen = fn(grain: usize, n_stages: usize, stage: usize) -> usize;

/// With one forward and one backward in turn, a stage is behind by as many grains as there are stages after it.
fn by_the_schedule(grain: usize, n_stages: usize, stage: usize) -> usize {
    grain.saturating_sub(n_stages - 1 - stage)
}

/// Losses of steps and the last weights, with each grain's weights as `seen` says.
fn expected(
    before: &[NamedTensor],
    steps: &[Inputs],
    n_stages: usize,
    seen: Seen,
) -> (Vec<f64>, Vec<Matrix>) {
    let find = |layer: usize| before.iter().find(|one| one.name == weight_name(layer)).unwrap();
    let mut weights: Vec<Matrix> = (0..N_LAYERS).map(|layer| Matrix::of(find(layer))).collect();
    let mut velocities: Vec<Matrix> =
        weights.iter().map(|weight| weight.with(weight, |_, _| 0.0)).collect();
    let mut losses = Vec::new();
    for inputs in steps {
        // By layer: its weights after each grain of the step.
        let mut versions: Vec<Vec<Matrix>> = weights.into_iter().map(|one| vec![one]).collect();
        let mut sum = 0.0;
        for grain in 0..N_GRAINS {
            let of = |name: &str| Matrix::of_bytes(&inputs[&(grain, name.to_string())]);
            let kept =
                |layer: usize| &versions[layer][seen(grain, n_stages, stage_of(layer, n_stages))];
            let kept: Vec<&Matrix> = (0..N_LAYERS).map(kept).collect();
            let (loss, gradients) = gradients(&kept, &of("x"), &of("target"));
            sum += loss;
            for (layer, gradient) in gradients.iter().enumerate() {
                let velocity = velocities[layer].with(gradient, |v, g| MOMENTUM * v + g);
                let next = versions[layer][grain].with(&velocity, |w, v| w - f64::from(RATE) * v);
                versions[layer].push(next);
                velocities[layer] = velocity;
            }
        }
        weights = versions.into_iter().map(|mut of| of.pop().unwrap()).collect();
        losses.push(sum / N_GRAINS as f64);
    }
    (losses, weights)
}

/// How far weights are off, over their norm: the most of all layers.
fn distance(found: &[NamedTensor], expected: &[Matrix]) -> f64 {
    let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let of = |layer: usize| {
        let found = found.iter().find(|one| one.name == weight_name(layer)).unwrap();
        let off = Matrix::of(found).with(&expected[layer], |a, b| a - b);
        norm(&off.values) / norm(&expected[layer].values)
    };
    (0..expected.len()).map(of).fold(0.0, f64::max)
}

#[test]
fn a_grain_sees_the_same_weights_on_its_way_back_in_an_asynchronous_pipeline() {
    let steps = inputs(3);
    for n_stages in 1..=N_LAYERS {
        for recompute in [Activations::Keep, Activations::Selected, Activations::Again] {
            let (before, losses, after) = trained(workers(n_stages, recompute), &steps);
            let (expected_losses, weights) = expected(&before, &steps, n_stages, by_the_schedule);
            let off = distance(&after, &weights);
            assert!(off < 1e-5, "{n_stages} stages, {recompute:?}: off by {off}");
            for (loss, expected) in losses.iter().zip(&expected_losses) {
                let off = (f64::from(*loss) - expected).abs() / expected;
                assert!(off < 1e-5, "{n_stages} stages: {losses:?}, not {expected_losses:?}");
            }
            // Other versions of the weights would have been told from these.
            let (_, newest) = expected(&before, &steps, n_stages, |grain, _, _| grain);
            let (_, oldest) = expected(&before, &steps, n_stages, |_, _, _| 0);
            let others = [distance(&after, &newest), distance(&after, &oldest)];
            let is_told = others[1] > 1e-3 && (n_stages == 1 || others[0] > 1e-3);
            assert!(is_told, "{n_stages} stages: {others:?}");
        }
    }
}

#[test]
fn one_asynchronous_stage_is_steps_of_one_grain() {
    let steps = inputs(3);
    let (_, losses, after) = trained(workers(1, Activations::Keep), &steps);
    let mut executor = StepExecutor::new(Box::new(CpuDevice::new(1).unwrap()), 1);
    let program = program().unwrap();
    let plan = executor.add_plan(&program, 1, None).unwrap();
    for node in program.nodes() {
        if let Op::Parameter { name, init, .. } = &node.op {
            let ty = program.ty(node.results[0]);
            let value = initial_value(executor.device_mut(), SEED, name, ty, *init).unwrap();
            executor.set_parameter(name, &value).unwrap();
        }
    }
    executor.write_scalar(plan, "rate", RATE).unwrap();
    for (inputs, loss) in steps.iter().zip(losses) {
        let mut sum = -0.0;
        for grain in 0..N_GRAINS {
            for name in ["x", "target"] {
                let bytes = &inputs[&(grain, name.to_string())];
                executor.write_grain_input(plan, 0, name, bytes).unwrap();
            }
            executor.run(plan).unwrap();
            sum += executor.step_scalar(plan, "loss").unwrap();
        }
        assert_eq!(loss, sum / N_GRAINS as f32);
    }
    for one in after {
        assert!(executor.parameter(&one.name).unwrap() == one.tensor, "{}", one.name);
    }
}

#[test]
fn an_asynchronous_pipeline_learns_and_does_the_same_every_time() {
    // The same grains again and again: there is something to learn.
    let steps = vec![inputs(1).remove(0); 60];
    let run = || trained(workers(3, Activations::Keep), &steps);
    let (_, losses, after) = run();
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    assert!(last < 0.5 * first, "from {first} to {last}");
    let (_, again, after_again) = run();
    assert_eq!(losses, again);
    for (one, other) in after.iter().zip(&after_again) {
        assert!(one.name == other.name && one.tensor == other.tensor, "{}", one.name);
    }
}
