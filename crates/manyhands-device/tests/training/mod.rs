//! A small model with all that could tell workers apart, and executors that train it.

#![allow(dead_code)] // each test file uses its part of this

use manyhands_device::{CpuDevice, Isa, PlanId, StepExecutor};
use manyhands_program::{
    Builder, Clip, DType, Init, Optimizer, Program, ProgramError, Role, RunningStatistics, Tensor,
    TensorType, Training,
};

/// The samples of a full grain.
pub(crate) const GRAIN: usize = 4;

/// A weight that is used twice, batch statistics, randomness, a norm over all gradients, a sum of integers, an output per grain.
pub(crate) fn program(grain: usize, optimizer: Optimizer) -> Result<Program, ProgramError> {
    let g = Builder::new("model");
    let x = g.input("x", DType::F32, [grain, 7])?;
    let labels = g.input("labels", DType::I32, [grain])?;
    let shared = g.weight("shared", [7, 7], Init::Normal(0.3))?;
    let (scale, bias) =
        (g.weight("scale", [7], Init::Constant(1.0))?, g.weight("bias", [7], Init::Constant(0.1))?);
    let [h, mean, variance] = x.matmul(&shared)?.batch_norm(&scale, &bias, 1e-5)?;
    let statistic = |name: &str, value| {
        g.parameter(name, TensorType::new(DType::F32, [7]), Role::Statistic, Init::Constant(value))
    };
    let running = [statistic("mean", 0.0)?, statistic("variance", 1.0)?];
    RunningStatistics::default().add_updates(
        &g,
        [&mean, &variance],
        [&running[0], &running[1]],
        grain,
    )?;
    let h = h.gelu()?.dropout(0.3)?.matmul(&shared)?.tanh()?;
    let logits = h.matmul(&g.weight("head", [7, 21], Init::Normal(0.3))?)?;
    g.output("logits", &logits)?;
    let seen = labels.greater(&g.scalar(DType::I32, 1.0)?)?.cast(DType::I32)?.sum_all()?;
    g.output("seen", &seen.grain_sum()?)?;
    let loss = logits.cross_entropy(&labels)?.sum_all()?;
    let divisor = g.scalar(DType::F32, grain as f64)?;
    Training { optimizer, clip: Some(Clip::GlobalNorm(0.5)) }.add_step(&g, &loss, &divisor)?;
    Ok(g.finish())
}

/// Numbers between -1 and 1 that depend on a name and nothing else.
fn noise(name: &str) -> impl FnMut() -> f32 + use<> {
    let mut state = name.bytes().fold(7u64, |hash, byte| hash * 31 + u64::from(byte));
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// A model on a device of its own.
pub(crate) struct Worker {
    pub(crate) step: StepExecutor,
    pub(crate) plan: PlanId,
    pub(crate) n_grains: usize,
    names: Vec<String>,
    last: Option<usize>,
}

impl Worker {
    /// A worker whose steps have `n_grains`, the last of them with `last` samples.
    pub(crate) fn new(
        optimizer: Optimizer,
        n_grains: usize,
        last: Option<usize>,
        n_lanes: usize,
    ) -> Worker {
        let device = CpuDevice::with_lanes(n_lanes, 1, Isa::detect()).unwrap();
        let mut step = StepExecutor::new(Box::new(device), n_lanes);
        let full = program(GRAIN, optimizer).unwrap();
        let short = last.map(|samples| program(samples, optimizer).unwrap());
        let plan = step.add_plan(&full, n_grains, short.as_ref()).unwrap();
        let mut names = Vec::new();
        for (name, role, value) in full.parameters() {
            names.push(name.to_string());
            if role == Role::Weight {
                let mut noise = noise(name);
                let shape = full.ty(value).shape.clone();
                let values: Vec<f32> = (0..shape.n_elements()).map(|_| noise()).collect();
                step.set_parameter(name, &Tensor::new(shape, &values).unwrap()).unwrap();
            }
        }
        Worker { step, plan, n_grains, names, last }
    }

    /// Fills the inputs of one grain of a step.
    pub(crate) fn write_grain(&mut self, number: u64, grain: usize) {
        let short = self.last.filter(|_| grain + 1 == self.n_grains);
        let n_samples = short.unwrap_or(GRAIN);
        let mut noise = noise(&format!("{number}/{grain}"));
        let x: Vec<u8> = (0..n_samples * 7).flat_map(|_| noise().to_le_bytes()).collect();
        let label = |x: f32| ((x + 1.0) * 10.5) as i32 % 21;
        let labels: Vec<u8> = (0..n_samples).flat_map(|_| label(noise()).to_le_bytes()).collect();
        self.step.write_grain_input(self.plan, grain, "x", &x).unwrap();
        self.step.write_grain_input(self.plan, grain, "labels", &labels).unwrap();
    }

    /// Fills what all grains of a step share.
    pub(crate) fn write_step(&mut self, number: u64) {
        self.step.write_scalar(self.plan, "rate", 0.05).unwrap();
        // Not every optimizer asks for the number of the step.
        if self.step.has_input(self.plan, "step") {
            self.step.write_scalar(self.plan, "step", number as f32).unwrap();
        }
        self.step.set_random_context(self.plan, 3, number).unwrap();
    }

    /// A whole step on this worker alone.
    pub(crate) fn run_alone(&mut self, number: u64) {
        self.write_step(number);
        (0..self.n_grains).for_each(|grain| self.write_grain(number, grain));
        self.step.run(self.plan).unwrap();
    }

    /// The bytes of everything that a step changes or says.
    pub(crate) fn state(&self) -> Vec<Vec<u8>> {
        let output = |name| self.step.step_output(self.plan, name).unwrap().bytes().to_vec();
        let parameter = |name: &String| self.step.parameter(name).unwrap().bytes().to_vec();
        self.names.iter().map(parameter).chain(["loss", "seen"].map(output)).collect()
    }
}
