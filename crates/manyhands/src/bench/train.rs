//! Measures the training step of a case.

use std::time::Instant;

use manyhands_device::{CpuDevice, Isa, PlanId, StepExecutor};
use manyhands_program::{DType, Init, Op, Program};
use serde::Serialize;

use super::Case;
use super::probe::core_to_core_nanoseconds;
use crate::error::Error;
use crate::initial::initial_value;

/// What to measure.
#[derive(Clone, Debug)]
pub struct TrainBench {
    /// The model.
    pub case: Case,
    /// Threads of each worker.
    pub n_threads: usize,
    /// Workers in this process, each with the case's batch.
    pub n_workers: usize,
    /// Samples per grain; the batch unless said.
    pub grain: Option<usize>,
    /// Steps in a group; the fastest group counts.
    pub n_steps: usize,
    /// Groups.
    pub n_groups: usize,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct TrainReport {
    /// The model.
    pub case: &'static str,
    /// Threads of each worker.
    pub threads: usize,
    /// Workers.
    pub workers: usize,
    /// Samples per grain.
    pub grain: usize,
    /// Samples of all workers per second, in the fastest group.
    pub samples_per_second: f64,
    /// Milliseconds per step, in the fastest group.
    pub ms_per_step: f64,
    /// Milliseconds per step, in the middle group.
    pub median_ms_per_step: f64,
    /// Bytes that a step takes, as planned before it ran.
    pub peak_bytes: usize,
    /// Milliseconds to compile.
    pub compile_ms: f64,
    /// The loss after the last step.
    pub loss: f64,
    /// The instruction set.
    pub hardware: &'static str,
    /// Nanoseconds from core to core before and after, where two threads ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_to_core_ns: Option<[f64; 2]>,
}

/// The seed of data and initial weights.
const SEED: u64 = 1;

impl TrainBench {
    /// The case as PyTorch's script measures it.
    pub fn new(case: Case) -> TrainBench {
        let n_steps = match case {
            Case::Tiny => 200,
            Case::Mlp => 20,
            Case::Cnn | Case::Lm => 10,
        };
        TrainBench { case, n_threads: 1, n_workers: 1, grain: None, n_steps, n_groups: 5 }
    }

    /// Runs the measurement.
    pub fn run(&self) -> Result<TrainReport, Error> {
        let grain = self.grain.unwrap_or(self.case.batch());
        if grain == 0 || !self.case.batch().is_multiple_of(grain) {
            return Err(Error::Grain { grain, batch: self.case.batch() });
        }
        let n_grains = self.case.batch() / grain * self.n_workers;
        let several = self.n_threads * self.n_workers > 1;
        let near_before = several.then(core_to_core_nanoseconds);
        let isa = Isa::detect();
        let device = CpuDevice::with_lanes(self.n_workers, self.n_threads, isa)?;
        let start = Instant::now();
        let program = self.case.training_program(grain)?;
        let mut step = StepExecutor::new(Box::new(device), self.n_workers);
        let plan = step.add_plan(&program, n_grains, None)?;
        let compile_ms = start.elapsed().as_secs_f64() * 1e3;
        self.fill(&mut step, plan, &program, n_grains)?;
        let mut times = self.time(&mut step, plan)?;
        times.sort_by(f64::total_cmp);
        let loss = f64::from(step.step_scalar(plan, "loss")?);
        let near_after = several.then(core_to_core_nanoseconds);
        Ok(TrainReport {
            case: self.case.name(),
            threads: self.n_threads,
            workers: self.n_workers,
            grain,
            samples_per_second: (self.case.batch() * self.n_workers) as f64 / times[0],
            ms_per_step: times[0] * 1e3,
            median_ms_per_step: times[times.len() / 2] * 1e3,
            peak_bytes: step.peak_bytes()?,
            compile_ms,
            loss,
            hardware: isa.name(),
            core_to_core_ns: near_before.zip(near_after).map(|(before, after)| [before, after]),
        })
    }

    /// Random data, initial weights, and the inputs that stay the same.
    fn fill(
        &self,
        step: &mut StepExecutor,
        plan: PlanId,
        program: &Program,
        n_grains: usize,
    ) -> Result<(), Error> {
        for node in program.nodes() {
            if let Op::Parameter { name, init, .. } = &node.op {
                let ty = program.ty(node.results[0]);
                let value = initial_value(step.device_mut(), SEED, name, ty, *init)?;
                step.set_parameter(name, &value)?;
            }
        }
        for (name, value) in program.inputs().filter(|(name, _)| matches!(*name, "x" | "labels")) {
            let ty = program.ty(value);
            for grain in 0..n_grains {
                let data = format!("data/{name}/{grain}");
                let values = match ty.dtype {
                    DType::I32 => {
                        let mut uniform = ty.clone();
                        uniform.dtype = DType::F32;
                        let init = Init::Uniform(1.0);
                        let raw = initial_value(step.device_mut(), SEED, &data, &uniform, init)?;
                        let n_classes = self.case.n_classes() as f64;
                        let label =
                            |x: f64| ((x + 1.0) / 2.0 * n_classes).min(n_classes - 1.0) as i32;
                        let labels: Vec<i32> = raw.to_f64().into_iter().map(label).collect();
                        labels.iter().flat_map(|label| label.to_le_bytes()).collect()
                    }
                    _ => {
                        let init = Init::Normal(1.0);
                        let value = initial_value(step.device_mut(), SEED, &data, ty, init)?;
                        value.bytes().to_vec()
                    }
                };
                step.write_grain_input(plan, grain, name, &values)?;
            }
        }
        step.write_scalar(plan, "rate", self.case.rate())?;
        Ok(())
    }

    /// Seconds per step of each group.
    fn time(&self, step: &mut StepExecutor, plan: PlanId) -> Result<Vec<f64>, Error> {
        const WARM_UP: usize = 5;
        let mut number = 0.0f32;
        let mut one = |step: &mut StepExecutor| -> Result<(), Error> {
            number += 1.0;
            // Optimizers without a step count have no such input.
            if step.has_input(plan, "step") {
                step.write_scalar(plan, "step", number)?;
            }
            Ok(step.run(plan)?)
        };
        for _ in 0..WARM_UP {
            one(step)?;
        }
        let mut times = Vec::new();
        for _ in 0..self.n_groups {
            let start = Instant::now();
            for _ in 0..self.n_steps {
                one(step)?;
            }
            times.push(start.elapsed().as_secs_f64() / self.n_steps as f64);
        }
        Ok(times)
    }
}
