//! Meshes give the bits of one worker: models, stages, replicas and schedules against a run of the whole program.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

mod asynchronous;
mod parts;
mod random;

use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use manyhands::bench::Case;
use manyhands::device::{CpuDevice, StepExecutor};
use manyhands::initial_value;
use manyhands::mesh::{AllLinks, Team, TeamStep, linked};
use manyhands::net::transport::{Link, TcpLink, shared_memory};
use manyhands::program::mesh::{
    Activations, Cutting, Level, Mesh, Schedule, Shares, WorkerProgram, cut, lower_parts, mirror,
    shard,
};
use manyhands::program::{
    Builder, Clip, DType, Init, Lamb, Op, Optimizer, Program, ProgramError, Role,
    RunningStatistics, TensorType, Training,
};

const SEED: u64 = 7;
const N_STEPS: u64 = 3;

/// The bytes of an input of a grain: unlike those of others.
fn batch(ty: &TensorType, n_classes: usize, name: &str) -> Vec<u8> {
    let mut device = CpuDevice::new(1).unwrap();
    let floats = TensorType::new(DType::F32, ty.shape.clone());
    let raw = initial_value(&mut device, 5, name, &floats, Init::Uniform(1.0)).unwrap();
    if ty.dtype == DType::F32 {
        return raw.bytes().to_vec();
    }
    let label = |x: f64| (((x + 1.0) / 2.0 * n_classes as f64) as i32).min(n_classes as i32 - 1);
    raw.to_f64().into_iter().flat_map(|x| label(x).to_le_bytes()).collect()
}

type Inputs = Arc<HashMap<(usize, String), Vec<u8>>>;

/// A training program, that of a shorter last grain where there is one, and how many grains a step has.
struct Trained {
    program: Program,
    last: Option<Program>,
    n_classes: usize,
    n_grains: usize,
}

impl Trained {
    fn of(case: Case, grain: usize, n_grains: usize) -> Trained {
        let program = case.training_program(grain).unwrap();
        Trained { program, last: None, n_classes: case.n_classes(), n_grains }
    }

    /// The inputs of all grains of each step.
    fn inputs(&self) -> Vec<Inputs> {
        let of_step = |step: u64| {
            let mut all = HashMap::new();
            for grain in 0..self.n_grains {
                let last = self.last.as_ref().filter(|_| grain + 1 == self.n_grains);
                let program = last.unwrap_or(&self.program);
                let is_data = |name: &str| !["rate", "step", "random"].contains(&name);
                let data = program.inputs().filter(|(name, _)| is_data(name));
                for (name, value) in data {
                    let seed = format!("{name}/{step}/{grain}");
                    let bytes = batch(program.ty(value), self.n_classes, &seed);
                    all.insert((grain, name.to_string()), bytes);
                }
            }
            Arc::new(all)
        };
        (1..=N_STEPS).map(of_step).collect()
    }

    fn workers(&self, how: &How) -> Vec<WorkerProgram> {
        let How { mesh, schedule, level, recompute, is_mirrored, n_pieces } = *how;
        let per_stage = how.chunks_per_stage();
        let cutting = Cutting { recompute, ..Cutting::balanced(how.n_chunks() * n_pieces) };
        let chunked = cut(&self.program, self.last.as_ref(), &cutting).unwrap();
        let chunked = chunked.grouped(n_pieces);
        let shares = match level {
            Some(Level::Gradients | Level::Weights) => Shares::Rounds,
            _ => Shares::Blocks,
        };
        let (parts, n_grains) = ([chunked], self.n_grains);
        let workers = lower_parts(&parts, mesh, n_grains, schedule, per_stage, shares).unwrap();
        let workers = match level {
            Some(level) => shard(workers, mesh, level).unwrap(),
            None => workers,
        };
        if is_mirrored { mirror(workers).unwrap() } else { workers }
    }
}

/// How a program is spread.
#[derive(Clone, Copy, Debug)]
struct How {
    mesh: Mesh,
    schedule: Schedule,
    level: Option<Level>,
    recompute: Activations,
    is_mirrored: bool,
    /// How many pieces a chunk has in each phase.
    n_pieces: usize,
}

impl How {
    fn chunks_per_stage(&self) -> usize {
        if self.schedule == Schedule::Interleaved { 2 } else { 1 }
    }

    fn n_chunks(&self) -> usize {
        self.mesh.pipeline * self.chunks_per_stage()
    }
}

fn on(data: usize, pipeline: usize) -> How {
    How {
        mesh: Mesh { data, pipeline, tensor: 1 },
        schedule: Schedule::OneFOneB,
        level: None,
        recompute: Activations::Keep,
        is_mirrored: false,
        n_pieces: 1,
    }
}

/// The loss of each step and all parameters after the last.
type Outcome = (Vec<f32>, Vec<(String, Vec<u8>)>);

fn alone(trained: &Trained, steps: &[Inputs]) -> Outcome {
    let mut executor = StepExecutor::new(Box::new(CpuDevice::new(1).unwrap()), 1);
    let Trained { program, last, n_grains, .. } = trained;
    let plan = executor.add_plan(program, *n_grains, last.as_ref()).unwrap();
    for node in program.nodes() {
        if let Op::Parameter { name, init, .. } = &node.op {
            let ty = program.ty(node.results[0]);
            let value = initial_value(executor.device_mut(), SEED, name, ty, *init).unwrap();
            executor.set_parameter(name, &value).unwrap();
        }
    }
    let mut losses = Vec::new();
    for (step, inputs) in (1..).zip(steps) {
        for ((grain, name), bytes) in inputs.iter() {
            executor.write_grain_input(plan, *grain, name, bytes).unwrap();
        }
        for (name, value) in [("rate", 0.01), ("step", step as f32)] {
            if executor.has_input(plan, name) {
                executor.write_scalar(plan, name, value).unwrap();
            }
        }
        executor.set_random_context(plan, 3, step).unwrap();
        executor.run(plan).unwrap();
        losses.push(executor.step_scalar(plan, "loss").unwrap());
    }
    let names = program.parameters().map(|(name, ..)| name.to_string());
    let parameters = names.map(|name| {
        let bytes = executor.parameter(&name).unwrap().bytes().to_vec();
        (name, bytes)
    });
    (losses, sorted(parameters.collect()))
}

fn sorted(mut all: Vec<(String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    all.sort();
    all
}

fn together(workers: Vec<WorkerProgram>, links: AllLinks, steps: &[Inputs]) -> Outcome {
    let programs = workers.into_iter().map(|one| vec![one]).collect();
    let mut team = Team::start(programs, 1, links).unwrap();
    team.init(SEED).unwrap();
    let mut losses = Vec::new();
    for (step, inputs) in (1..).zip(steps) {
        let inputs = Arc::clone(inputs);
        team.submit(&TeamStep { plan: 0, step, rate: 0.01, seed: 3, inputs });
    }
    for _ in steps {
        losses.push(team.finish().unwrap().loss.unwrap());
    }
    let tensors = team.tensors().unwrap();
    let parameters = tensors.into_iter().map(|one| (one.name, one.tensor.bytes().to_vec()));
    (losses, sorted(parameters.collect()))
}

fn check(trained: &Trained, ways: &[How]) {
    let steps = trained.inputs();
    let expected = alone(trained, &steps);
    for how in ways {
        let links = linked(how.mesh.n_workers()).unwrap();
        let found = together(trained.workers(how), links, &steps);
        assert!(found == expected, "{} in {} grains, {how:?}", trained.program.name(), steps.len());
    }
}

/// Meshes of these stages, with one replica and two, and every schedule.
fn meshes(stages: &[usize]) -> Vec<How> {
    let schedules = [Schedule::Gpipe, Schedule::OneFOneB, Schedule::Interleaved];
    let of = |pipeline: usize| {
        let all = [1, 2]
            .into_iter()
            .flat_map(move |data| schedules.map(|schedule| How { schedule, ..on(data, pipeline) }));
        // One stage has nothing to schedule.
        all.filter(move |how| pipeline > 1 || how.schedule == Schedule::OneFOneB)
    };
    stages.iter().copied().flat_map(of).collect()
}

#[test]
fn a_small_network_has_the_bits_of_one_worker_on_any_mesh() {
    for n_grains in [1, 4, 5] {
        check(&Trained::of(Case::Tiny, 4, n_grains), &meshes(&[1, 2]));
    }
}

#[test]
fn a_dense_network_has_the_bits_of_one_worker_on_any_mesh() {
    check(&Trained::of(Case::Mlp, 4, 4), &meshes(&[1, 2]));
}

#[test]
fn a_convolutional_network_has_the_bits_of_one_worker_on_any_mesh() {
    check(&Trained::of(Case::Cnn, 2, 4), &meshes(&[2, 3]));
}

#[test]
fn a_transformer_has_the_bits_of_one_worker_on_any_mesh() {
    let interleaved = How { schedule: Schedule::Interleaved, ..on(1, 4) };
    check(&Trained::of(Case::Lm, 1, 4), &[on(2, 2), on(1, 4), interleaved]);
}

/// Running statistics, dropout, attention, a recurrence, a weight that is used twice, clipping by the norm of all gradients, LAMB.
fn everything(grain: usize) -> Result<Program, ProgramError> {
    let g = Builder::new("everything");
    let x = g.input("x", DType::F32, [grain, 5, 13])?;
    let shared = g.weight("shared", [13, 13], Init::Normal(0.3))?;
    let h = x.reshape([grain * 5, 13])?.matmul(&shared)?;
    let scale = g.weight("scale", [13], Init::Constant(1.0))?;
    let bias = g.weight("bias", [13], Init::Constant(0.1))?;
    let [h, mean, variance] = h.batch_norm(&scale, &bias, 1e-5)?;
    let statistic = |name: &str, value| {
        let ty = TensorType::new(DType::F32, [13]);
        g.parameter(name, ty, Role::Statistic, Init::Constant(value))
    };
    let (running_mean, running_variance) = (statistic("mean", 0.0)?, statistic("variance", 1.0)?);
    RunningStatistics::default().add_updates(
        &g,
        [&mean, &variance],
        [&running_mean, &running_variance],
        grain * 5,
    )?;
    let h = h.gelu()?.dropout(0.3)?.reshape([grain, 5, 13])?;
    let h = (&h + &h.attention(&h, &h, 1, true, None)?)?;
    let steps = h.transpose(&[1, 0, 2])?;
    let start = g.full(&TensorType::new(DType::F32, [grain, 13]), 0.0)?;
    let (last, _) = g.scan(&[&start], &[&steps], true, |_, carried, items| {
        let sum = (items[0].matmul(&shared)? + &carried[0])?;
        Ok((vec![sum.tanh()?], vec![]))
    })?;
    let logits = last[0].matmul(&g.weight("head", [13, 7], Init::Normal(0.3))?)?;
    let labels = g.input("labels", DType::I32, [grain])?;
    let loss = logits.cross_entropy(&labels)?.sum_all()?;
    let divisor = g.scalar(DType::F32, grain as f64)?;
    let optimizer = Optimizer::Lamb(Lamb::default());
    Training { optimizer, clip: Some(Clip::GlobalNorm(0.5)) }.add_step(&g, &loss, &divisor)?;
    Ok(g.finish())
}

#[test]
fn a_network_with_everything_has_the_bits_of_one_worker_on_any_mesh() {
    let program = everything(3).unwrap();
    let trained = Trained { program, last: None, n_classes: 7, n_grains: 5 };
    let again = How { recompute: Activations::Again, ..on(1, 3) };
    let mirrored = How { is_mirrored: true, ..on(1, 2) };
    check(&trained, &[&meshes(&[1, 2])[..], &[on(1, 3), on(2, 3), again, mirrored]].concat());
}

#[test]
fn a_short_last_grain_is_part_of_the_step() {
    let program = |grain| Case::Tiny.training_program(grain).unwrap();
    // One sample lets more of a program be left out than several do.
    for last in [5, 1] {
        let (program, last) = (program(16), Some(program(last)));
        let trained = Trained { program, last, n_classes: 10, n_grains: 3 };
        check(&trained, &meshes(&[1, 2]));
    }
}

#[test]
fn state_that_is_spread_over_replicas_has_the_bits_of_one_worker() {
    let trained = Trained::of(Case::Mlp, 4, 5);
    for level in [Level::Slots, Level::Gradients, Level::Weights] {
        let ways = [on(2, 1), on(3, 1), on(2, 2)];
        check(&trained, &ways.map(|how| How { level: Some(level), ..how }));
        // A mirror holds shards of one stage with a worker of another.
        check(&trained, &ways.map(|how| How { level: Some(level), is_mirrored: true, ..how }));
    }
}

fn shared_memory_pair() -> (Box<dyn Link>, Box<dyn Link>) {
    let (a, b) = UnixStream::pair().unwrap();
    let other = std::thread::spawn(move || {
        shared_memory::accept(b, Instant::now() + Duration::from_secs(5)).unwrap()
    });
    let a = shared_memory::offer(a, 64 << 10).unwrap();
    (Box::new(a), Box::new(other.join().unwrap()))
}

fn tcp_pair() -> (Box<dyn Link>, Box<dyn Link>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (b, _) = listener.accept().unwrap();
    (Box::new(TcpLink::new(a).unwrap()), Box::new(TcpLink::new(b).unwrap()))
}

/// The two ends of a link.
type TwoEnds = (Box<dyn Link>, Box<dyn Link>);

/// Links between all of so many workers, each pair made by `pair`.
fn links_of(n: usize, pair: fn() -> TwoEnds) -> AllLinks {
    let mut links: AllLinks = (0..n).map(|_| (0..n).map(|_| None).collect()).collect();
    for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
        let (one, other) = pair();
        (links[a][b], links[b][a]) = (Some(one), Some(other));
    }
    links
}

#[test]
fn links_make_no_difference() {
    let dense = Trained::of(Case::Mlp, 16, 4);
    let everything = everything(3).unwrap();
    let everything = Trained { program: everything, last: None, n_classes: 7, n_grains: 5 };
    let sharded = |level| How { level: Some(level), n_pieces: 2, ..on(2, 2) };
    let mirrored = How { is_mirrored: true, schedule: Schedule::Interleaved, ..on(1, 3) };
    let ways = [
        (&dense, on(2, 2)),
        (&dense, sharded(Level::Weights)),
        (&everything, sharded(Level::Slots)),
        (&everything, sharded(Level::Gradients)),
        (&everything, mirrored),
    ];
    for (trained, how) in ways {
        let steps = trained.inputs();
        let expected = alone(trained, &steps);
        for pair in [shared_memory_pair, tcp_pair] {
            let links = links_of(how.mesh.n_workers(), pair);
            assert!(together(trained.workers(&how), links, &steps) == expected, "{how:?}");
        }
    }
}

#[test]
fn a_worker_without_its_input_is_named_and_ends_the_step() {
    let trained = Trained::of(Case::Tiny, 4, 4);
    let programs = trained.workers(&on(1, 2)).into_iter().map(|one| vec![one]).collect();
    let mut team = Team::start(programs, 1, linked(2).unwrap()).unwrap();
    team.init(SEED).unwrap();
    let mut some = (*trained.inputs()[0]).clone();
    some.remove(&(2, "x".to_string()));
    team.submit(&TeamStep { plan: 0, step: 1, rate: 0.01, seed: 3, inputs: Arc::new(some) });
    let error = team.finish().unwrap_err();
    assert_eq!(error.to_string(), "the input `x` of grain 2 was not handed to worker 0");
}

#[test]
fn steps_of_two_sizes_share_the_parameters() {
    let sizes = [Trained::of(Case::Tiny, 4, 4), Trained::of(Case::Tiny, 4, 2)];
    let inputs = sizes.each_ref().map(|trained| trained.inputs()[0].clone());
    let mut executor = StepExecutor::new(Box::new(CpuDevice::new(1).unwrap()), 1);
    let add = |one: &Trained| executor.add_plan(&one.program, one.n_grains, None).unwrap();
    let plans = sizes.each_ref().map(add);
    let how = on(2, 2);
    let [full, short] = sizes.each_ref().map(|trained| trained.workers(&how));
    let programs = full.into_iter().zip(short).map(|(full, short)| vec![full, short]).collect();
    let mut team = Team::start(programs, 1, linked(4).unwrap()).unwrap();
    team.init(SEED).unwrap();
    for one in team.tensors().unwrap() {
        executor.set_parameter(&one.name, &one.tensor).unwrap();
    }
    for (step, plan) in [(1, 0), (2, 0), (3, 1), (4, 0), (5, 1)] {
        for ((grain, name), bytes) in inputs[plan].iter() {
            executor.write_grain_input(plans[plan], *grain, name, bytes).unwrap();
        }
        executor.write_scalar(plans[plan], "rate", 0.01).unwrap();
        executor.run(plans[plan]).unwrap();
        let inputs = Arc::clone(&inputs[plan]);
        team.submit(&TeamStep { plan, step, rate: 0.01, seed: 3, inputs });
        let loss = team.finish().unwrap().loss.unwrap();
        assert_eq!(loss, executor.step_scalar(plans[plan], "loss").unwrap());
    }
    for one in team.tensors().unwrap() {
        assert!(executor.parameter(&one.name).unwrap() == one.tensor, "{}", one.name);
    }
}
