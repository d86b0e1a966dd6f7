//! Steps on a device: grains one by one or side by side, their sums along the fixed tree, then the update.
//!
//! A program is split at its sums over grains. The per-grain part runs once per grain; every second grain adds its results
//! straight onto its left neighbour's ("accumulating"); larger subtrees are merged; the last additions happen inside the
//! once-a-step part. Which lane does which grain never changes the result: the tree is over grain indices.
//!
//! A *plan* is a program laid out for a number of grains, of which the last may be shorter. Training on full batches, on an
//! epoch's last batch, and evaluation are plans of one executor: they share the parameters, and all buffers that fit.
//!
//! A step runs in one of two ways, to the same bits: as a whole ([`StepExecutor::run`]), or shared with other workers
//! (`exchange.rs`, `announce.rs`), where each runs some of the grains, they exchange partial sums, and each runs the update.

mod announce;
mod exchange;
mod plan;
mod resources;
mod shared_step;
mod sums;

pub use announce::FollowSums;
pub use exchange::HeldSums;
pub use sums::{Sum, SumLayout};

use manyhands_program::{Program, RANDOM_CONTEXT, Tensor};

use crate::device::{BufferId, Device};
use crate::error::DeviceError;
use plan::Plan;
use resources::{Purpose, Resources};
use shared_step::Held;

/// The most grains that a step may have.
const MAX_GRAINS: usize = 1 << 20;

/// Programs ready to run on a device, with their parameters.
pub struct StepExecutor {
    resources: Resources,
    plans: Vec<Plan>,
    /// The plan whose step is shared with other workers at present, and what is held of that step's sums.
    begun: Option<PlanId>,
    held: Held,
}

/// A plan of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanId(usize);

impl StepExecutor {
    /// An executor that shares grains out over `n_lanes` of the device.
    pub fn new(device: Box<dyn Device>, n_lanes: usize) -> StepExecutor {
        StepExecutor {
            resources: Resources::new(device, n_lanes.max(1)),
            plans: Vec::new(),
            begun: None,
            held: Held::default(),
        }
    }

    /// Compiles a program for steps of `n_grains`. `last` is the same program for fewer samples, and runs the last grain in
    /// its place. Parameters keep their values; new ones are zeros.
    pub fn add_plan(
        &mut self,
        program: &Program,
        n_grains: usize,
        last: Option<&Program>,
    ) -> Result<PlanId, DeviceError> {
        if n_grains == 0 || n_grains > MAX_GRAINS {
            return Err(DeviceError::Grains { found: n_grains, limit: MAX_GRAINS });
        }
        // A parameter that the step does not use is still the program's, and keeps its value.
        for (name, _, value) in program.parameters() {
            let resources = &mut self.resources;
            let buffer = resources.buffer(Purpose::Parameter, name, program.ty(value))?;
            match resources.parameters.insert(name.to_string(), buffer) {
                Some(before) if before != buffer => {
                    let (what, name) = ("parameter", name.to_string());
                    let expected = resources.device.buffer_type(before)?;
                    resources.parameters.insert(name.clone(), before);
                    let found = program.ty(value).clone();
                    return Err(DeviceError::ValueType { what, name, expected, found });
                }
                _ => {}
            }
        }
        let plan = Plan::new(&mut self.resources, program, n_grains, last)?;
        self.plans.push(plan);
        Ok(PlanId(self.plans.len() - 1))
    }

    fn plan(&self, plan: PlanId) -> Result<&Plan, DeviceError> {
        let (what, idx, n) = ("plan", plan.0, self.plans.len());
        self.plans.get(idx).ok_or(DeviceError::NoSuchIndex { what, idx, n })
    }

    /// Runs one whole step on what the inputs hold. A shared step that was begun is forgotten.
    pub fn run(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        self.plan(plan)?;
        self.forget_step();
        let device = &mut self.resources.device;
        self.plans[plan.0].rounds.iter().try_for_each(|launches| device.run(launches))
    }

    /// Tells random operations which seed and step this is; each grain knows its own number.
    pub fn set_random_context(
        &mut self,
        plan: PlanId,
        seed: u64,
        step: u64,
    ) -> Result<(), DeviceError> {
        for grain in 0..self.plan(plan)?.grain_inputs.len() {
            let inputs = &self.plans[plan.0].grain_inputs[grain];
            if let Some(&buffer) = inputs.get(RANDOM_CONTEXT) {
                let context = [seed, step, grain as u64].map(u64::to_le_bytes);
                self.resources.device.write(buffer, context.as_flattened())?;
            }
        }
        Ok(())
    }

    /// Fills an input of one grain.
    pub fn write_grain_input(
        &mut self,
        plan: PlanId,
        grain: usize,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let buffer = self.plan(plan)?.grain_input(grain, name)?;
        self.resources.device.write(buffer, bytes)
    }

    /// Fills an input that is the same for all grains of a step, wherever it is used.
    pub fn write_shared_input(
        &mut self,
        plan: PlanId,
        name: &str,
        value: &Tensor,
    ) -> Result<(), DeviceError> {
        let buffers: Vec<BufferId> = self.plan(plan)?.shared_input(name).collect();
        if buffers.is_empty() {
            return Err(no_such("input", name));
        }
        buffers.iter().try_for_each(|&buffer| self.write_checked(buffer, name, "input", value))
    }

    /// As [`StepExecutor::write_shared_input`], for an f32 scalar such as the rate. Allocates nothing.
    pub fn write_scalar(
        &mut self,
        plan: PlanId,
        name: &str,
        value: f32,
    ) -> Result<(), DeviceError> {
        self.plan(plan)?;
        let mut found = false;
        for buffer in self.plans[plan.0].shared_input(name) {
            self.resources.device.write(buffer, &value.to_le_bytes())?;
            found = true;
        }
        if found { Ok(()) } else { Err(no_such("input", name)) }
    }

    fn write_checked(
        &mut self,
        buffer: BufferId,
        name: &str,
        what: &'static str,
        value: &Tensor,
    ) -> Result<(), DeviceError> {
        let expected = self.resources.device.buffer_type(buffer)?;
        if expected != *value.ty() {
            let (name, found) = (name.to_string(), value.ty().clone());
            return Err(DeviceError::ValueType { what, name, expected, found });
        }
        self.resources.device.write(buffer, value.bytes())
    }

    /// Whether a plan has an input of this name.
    pub fn has_input(&self, plan: PlanId, name: &str) -> bool {
        self.plan(plan).is_ok_and(|plan| plan.shared_input(name).next().is_some())
    }

    /// The value of an output of the once-a-step part after the last step.
    pub fn step_output(&self, plan: PlanId, name: &str) -> Result<Tensor, DeviceError> {
        self.resources.device.download(self.plan(plan)?.step_output(name)?)
    }

    /// As [`StepExecutor::step_output`], for an f32 scalar such as the loss. Allocates nothing.
    pub fn step_scalar(&self, plan: PlanId, name: &str) -> Result<f32, DeviceError> {
        let mut bytes = [0; 4];
        self.resources.device.read(self.plan(plan)?.step_output(name)?, &mut bytes)?;
        Ok(f32::from_le_bytes(bytes))
    }

    /// The value of an output of one grain after the last step.
    pub fn grain_output(
        &self,
        plan: PlanId,
        grain: usize,
        name: &str,
    ) -> Result<Tensor, DeviceError> {
        self.resources.device.download(self.plan(plan)?.grain_output(grain, name)?)
    }

    /// A parameter's present value.
    pub fn parameter(&self, name: &str) -> Result<Tensor, DeviceError> {
        let buffer =
            self.resources.parameters.get(name).ok_or_else(|| no_such("parameter", name))?;
        self.resources.device.download(*buffer)
    }

    /// Gives a parameter a value.
    pub fn set_parameter(&mut self, name: &str, value: &Tensor) -> Result<(), DeviceError> {
        let buffer =
            *self.resources.parameters.get(name).ok_or_else(|| no_such("parameter", name))?;
        self.write_checked(buffer, name, "parameter", value)
    }

    /// As [`StepExecutor::set_parameter`], from little-endian bytes of exactly its size. Allocates nothing.
    pub fn write_parameter(&mut self, name: &str, bytes: &[u8]) -> Result<(), DeviceError> {
        let buffer =
            *self.resources.parameters.get(name).ok_or_else(|| no_such("parameter", name))?;
        self.resources.device.write(buffer, bytes)
    }

    /// As [`StepExecutor::write_parameter`], with bytes that `fill` writes where they belong.
    pub fn fill_parameter(
        &mut self,
        name: &str,
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let buffer =
            *self.resources.parameters.get(name).ok_or_else(|| no_such("parameter", name))?;
        self.resources.device.write_with(buffer, &mut fill)
    }

    /// The device that it runs on.
    pub fn device_mut(&mut self) -> &mut dyn Device {
        self.resources.device.as_mut()
    }

    /// The bytes that the plans take: buffers held here, constants, and the temporaries and scratch of the largest program,
    /// temporaries once per lane.
    pub fn peak_bytes(&self) -> Result<usize, DeviceError> {
        let n_lanes = self.plans.iter().map(|plan| plan.n_lanes).max().unwrap_or(1);
        let (mut constants, mut temporary, mut scratch) = (0, 0, 0);
        for &(_, executable) in &self.resources.compiled {
            let memory = self.resources.device.memory(executable)?;
            constants += memory.constant_bytes;
            temporary = temporary.max(memory.temporary_bytes);
            scratch = scratch.max(memory.scratch_bytes);
        }
        Ok(self.resources.buffer_bytes + constants + temporary * n_lanes + scratch)
    }
}

fn no_such(what: &'static str, name: &str) -> DeviceError {
    DeviceError::NoSuchName { what, name: name.to_string() }
}
