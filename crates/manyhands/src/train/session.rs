//! A model on a device: the plans of training and answering, the parameters, and the copying in and out.

use std::collections::HashMap;

use manyhands_data::Batch;
use manyhands_device::{CpuDevice, Isa, PlanId, StepExecutor};
use manyhands_program::{Op, Program, RATE, Role, STEP, Tensor};

use super::event::SetUp;
use super::recipe::{Purpose, Recipe};
use crate::checkpoint::NamedTensor;
use crate::error::Error;
use crate::initial::initial_value;
use crate::machine::Machine;
use crate::model::LABEL;

/// A recipe on a device.
pub(crate) struct Session<'a> {
    recipe: &'a Recipe,
    executor: StepExecutor,
    plans: HashMap<(Purpose, usize), PlanId>,
    /// The inputs of the programs, with their places in a batch.
    inputs: Vec<(String, usize)>,
    parameters: Vec<(String, Role)>,
    set_up: SetUp,
}

impl<'a> Session<'a> {
    /// Starts the threads. Parameters are zeros until [`Session::initialise`] or [`Session::load`].
    pub(crate) fn new(recipe: &'a Recipe, set_up: &SetUp) -> Result<Session<'a>, Error> {
        let device = CpuDevice::with_lanes(set_up.workers, set_up.threads, Isa::detect())?;
        let places = recipe.encoding.inputs().iter().map(|input| input.name.as_str());
        let place = |name: &str| places.clone().position(|one| one == name);
        let inputs = recipe.model.inputs();
        let inputs = inputs.filter_map(|input| Some((input.name.clone(), place(&input.name)?)));
        Ok(Session {
            recipe,
            executor: StepExecutor::new(Box::new(device), set_up.workers),
            plans: HashMap::new(),
            inputs: inputs.collect(),
            parameters: Vec::new(),
            set_up: set_up.clone(),
        })
    }

    /// How the machine is used.
    pub(crate) fn set_up(&self) -> &SetUp {
        &self.set_up
    }

    /// Goes on with other workers and threads, the parameters as they are. Plans are made anew when they are asked for.
    pub(crate) fn move_to(&mut self, set_up: &SetUp) -> Result<(), Error> {
        let tensors = self.tensors()?;
        // The memory and the threads of the old device go before those of the new one come.
        self.executor = StepExecutor::new(Box::new(CpuDevice::new(1)?), 1);
        let mut other = Session::new(self.recipe, set_up)?;
        other.plan(Purpose::Train, self.recipe.batch)?;
        other.load(&tensors)?;
        *self = other;
        Ok(())
    }

    /// The plan for so many samples, compiled when it is first asked for: an epoch has two sizes of batches.
    pub(crate) fn plan(&mut self, purpose: Purpose, n_samples: usize) -> Result<PlanId, Error> {
        if let Some(&plan) = self.plans.get(&(purpose, n_samples)) {
            return Ok(plan);
        }
        let recipe = self.recipe;
        let (program, last) =
            recipe.grain_programs(n_samples, |grain| recipe.program(purpose, grain))?;
        if self.plans.is_empty() {
            refuse_too_large(&program)?;
        }
        let n_grains = self.recipe.n_grains(n_samples);
        let plan = self.executor.add_plan(&program, n_grains, last.as_ref())?;
        self.note_parameters(&program);
        self.plans.insert((purpose, n_samples), plan);
        Ok(plan)
    }

    fn note_parameters(&mut self, program: &Program) {
        for (name, role, _) in program.parameters() {
            if !self.parameters.iter().any(|(known, _)| known == name) {
                self.parameters.push((name.to_string(), role));
            }
        }
    }

    /// Gives every parameter of the training program its first value.
    pub(crate) fn initialise(&mut self, seed: u64) -> Result<(), Error> {
        let program = self.recipe.program(Purpose::Train, self.recipe.grain)?;
        for node in program.nodes() {
            if let Op::Parameter { name, init, .. } = &node.op {
                let ty = program.ty(node.results[0]);
                let value = initial_value(self.executor.device_mut(), seed, name, ty, *init)?;
                self.executor.set_parameter(name, &value)?;
            }
        }
        Ok(())
    }

    /// Gives parameters their values. All that the plans have must be there, in the right shape.
    pub(crate) fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), Error> {
        for (name, _) in &self.parameters {
            let found = tensors.iter().find(|tensor| tensor.name == *name);
            let tensor = found.ok_or_else(|| Error::MissingParameter { name: name.clone() })?;
            self.executor.set_parameter(name, &tensor.tensor)?;
        }
        Ok(())
    }

    /// All parameters with their present values.
    pub(crate) fn tensors(&self) -> Result<Vec<NamedTensor>, Error> {
        let parameters = self.parameters.iter();
        parameters
            .map(|(name, role)| {
                let tensor = self.executor.parameter(name)?;
                Ok(NamedTensor { name: name.clone(), role: *role, tensor })
            })
            .collect()
    }

    /// Copies a batch into the inputs of a plan, grain by grain.
    fn feed(&mut self, plan: PlanId, batch: &Batch, purpose: Purpose) -> Result<(), Error> {
        let (grain, n_samples) = (self.recipe.grain, batch.n_samples());
        for grain_idx in 0..self.recipe.n_grains(n_samples) {
            let samples = grain_idx * grain..n_samples.min((grain_idx + 1) * grain);
            for (name, place) in &self.inputs {
                let bytes = batch.input(*place, samples.clone());
                self.executor.write_grain_input(plan, grain_idx, name, bytes)?;
            }
            if purpose != Purpose::Predict {
                let target = batch.target(samples).ok_or(Error::NoLabels)?;
                self.executor.write_grain_input(plan, grain_idx, LABEL, target)?;
            }
        }
        Ok(())
    }

    /// Copies in what a training step needs. `step` is 1 at the first.
    pub(crate) fn prepare_step(
        &mut self,
        batch: &Batch,
        rate: f64,
        seed: u64,
        step: u64,
    ) -> Result<PlanId, Error> {
        let plan = self.plan(Purpose::Train, batch.n_samples())?;
        self.feed(plan, batch, Purpose::Train)?;
        // An optimizer may use neither the rate nor the step.
        for (name, value) in [(RATE, rate as f32), (STEP, step as f32)] {
            if self.executor.has_input(plan, name) {
                self.executor.write_scalar(plan, name, value)?;
            }
        }
        self.executor.set_random_context(plan, seed, step)?;
        Ok(plan)
    }

    /// Runs a training step that was prepared, and gives its mean loss.
    pub(crate) fn step(&mut self, plan: PlanId) -> Result<f32, Error> {
        self.executor.run(plan)?;
        Ok(self.executor.step_scalar(plan, manyhands_program::LOSS)?)
    }

    /// Runs a batch without training, and hands the outputs of each grain in order to `take`.
    pub(crate) fn answer(
        &mut self,
        batch: &Batch,
        purpose: Purpose,
        outputs: &[&str],
        take: &mut dyn FnMut(&[Tensor]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let plan = self.plan(purpose, batch.n_samples())?;
        self.feed(plan, batch, purpose)?;
        self.executor.run(plan)?;
        for grain_idx in 0..self.recipe.n_grains(batch.n_samples()) {
            let output = |name: &&str| self.executor.grain_output(plan, grain_idx, name);
            let tensors = outputs.iter().map(output).collect::<Result<Vec<_>, _>>()?;
            take(&tensors)?;
        }
        Ok(())
    }

    /// The bytes that the plans take.
    pub(crate) fn peak_bytes(&self) -> Result<usize, Error> {
        Ok(self.executor.peak_bytes()?)
    }

    /// Runs a program that looks into a training step, and gives its outputs by name: those of each grain in the order of
    /// the program, then those of the step.
    pub(crate) fn probe(
        &mut self,
        batch: &Batch,
        (seed, step): (u64, u64),
    ) -> Result<Vec<(String, Tensor)>, Error> {
        let (recipe, n_samples) = (self.recipe, batch.n_samples());
        let (program, last) =
            recipe.grain_programs(n_samples, |grain| recipe.probe_program(grain))?;
        let n_grains = recipe.n_grains(n_samples);
        let plan = self.executor.add_plan(&program, n_grains, last.as_ref())?;
        self.feed(plan, batch, Purpose::Train)?;
        self.executor.set_random_context(plan, seed, step)?;
        self.executor.run(plan)?;
        let mut outputs = Vec::new();
        for output in program.outputs() {
            let name = &output.name;
            if let Ok(tensor) = self.executor.step_output(plan, name) {
                outputs.push((name.clone(), tensor));
                continue;
            }
            for grain_idx in 0..n_grains {
                let tensor = self.executor.grain_output(plan, grain_idx, name)?;
                outputs.push((name.clone(), tensor));
            }
        }
        Ok(outputs)
    }
}

/// Refuses a model whose parameters, with a gradient for each weight, do not fit into what is free: the system would end the
/// process without a word.
fn refuse_too_large(program: &Program) -> Result<(), Error> {
    let bytes = program.parameters().map(|(_, role, value)| {
        let bytes = program.ty(value).n_bytes() as u64;
        if role == Role::Weight && !program.updates().is_empty() { 2 * bytes } else { bytes }
    });
    let needed = bytes.sum();
    match Machine::look().usable_memory_bytes() {
        Some(free) if needed > free => Err(Error::TooLarge { needed, free }),
        _ => Ok(()),
    }
}
