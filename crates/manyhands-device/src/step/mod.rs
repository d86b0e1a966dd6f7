//! Steps on a device: grains one by one or side by side, their sums along the fixed tree, then the update.
//!
//! A program is split at its sums over grains. The per-grain part runs once per grain; every second grain adds its results
//! straight onto its left neighbour's ("accumulating"); larger subtrees are merged; the last additions happen inside the
//! once-a-step part. Which lane does which grain never changes the result: the tree is over grain indices.
//!
//! A *plan* is a program laid out for a number of grains, of which the last may be shorter. Training on full batches, on an
//! epoch's last batch, and evaluation are plans of one executor: they share the parameters, and all buffers that fit.

mod plan;

use std::collections::HashMap;

use manyhands_program::{Program, RANDOM_CONTEXT, Tensor, TensorType};

use crate::device::{BufferId, Device, ExecutableId};
use crate::error::DeviceError;
use plan::Plan;

/// The most grains that a step may have.
const MAX_GRAINS: usize = 1 << 20;

/// Programs ready to run on a device, with their parameters.
pub struct StepExecutor {
    device: Box<dyn Device>,
    n_lanes: usize,
    parameters: HashMap<String, BufferId>,
    plans: Vec<Plan>,
    compiled: Vec<(Program, ExecutableId)>,
    /// Buffers by what they are for. Plans run one after the other, so they may use the same.
    buffers: HashMap<(Purpose, String, TensorType), BufferId>,
    buffer_bytes: usize,
}

/// A plan of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanId(usize);

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Purpose {
    Parameter,
    GrainInput {
        grain: usize,
    },
    GrainOutput {
        grain: usize,
    },
    StepInput,
    StepOutput,
    /// A partial sum that goes into the update.
    Total {
        partial_idx: usize,
    },
    /// A sum that is merged into another; a lane's spare slots serve all of its partial sums, one after the other.
    Spare {
        lane: usize,
        slot: usize,
    },
}

impl StepExecutor {
    /// An executor that shares grains out over `n_lanes` of the device.
    pub fn new(device: Box<dyn Device>, n_lanes: usize) -> StepExecutor {
        StepExecutor {
            device,
            n_lanes: n_lanes.max(1),
            parameters: HashMap::new(),
            plans: Vec::new(),
            compiled: Vec::new(),
            buffers: HashMap::new(),
            buffer_bytes: 0,
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
            let buffer = self.buffer(Purpose::Parameter, name, program.ty(value))?;
            match self.parameters.insert(name.to_string(), buffer) {
                Some(before) if before != buffer => {
                    let (what, name) = ("parameter", name.to_string());
                    let expected = self.device.buffer_type(before)?;
                    self.parameters.insert(name.clone(), before);
                    let found = program.ty(value).clone();
                    return Err(DeviceError::ValueType { what, name, expected, found });
                }
                _ => {}
            }
        }
        let plan = Plan::new(self, program, n_grains, last)?;
        self.plans.push(plan);
        Ok(PlanId(self.plans.len() - 1))
    }

    /// Compiles a program, unless the same was compiled before.
    fn compile(&mut self, program: &Program) -> Result<ExecutableId, DeviceError> {
        if let Some((_, executable)) = self.compiled.iter().find(|(known, _)| known == program) {
            return Ok(*executable);
        }
        let executable = self.device.compile(program)?;
        self.compiled.push((program.clone(), executable));
        Ok(executable)
    }

    fn buffer(
        &mut self,
        purpose: Purpose,
        name: &str,
        ty: &TensorType,
    ) -> Result<BufferId, DeviceError> {
        let key = (purpose, name.to_string(), ty.clone());
        if let Some(&buffer) = self.buffers.get(&key) {
            return Ok(buffer);
        }
        let buffer = self.device.allocate(ty)?;
        self.buffer_bytes += ty.n_bytes();
        self.buffers.insert(key, buffer);
        Ok(buffer)
    }

    fn plan(&self, plan: PlanId) -> Result<&Plan, DeviceError> {
        let (what, idx, n) = ("plan", plan.0, self.plans.len());
        self.plans.get(idx).ok_or(DeviceError::NoSuchIndex { what, idx, n })
    }

    /// Runs one step on what the inputs hold.
    pub fn run(&mut self, plan: PlanId) -> Result<(), DeviceError> {
        let n = self.plans.len();
        let missing = DeviceError::NoSuchIndex { what: "plan", idx: plan.0, n };
        let plan = self.plans.get(plan.0).ok_or(missing)?;
        plan.rounds.iter().try_for_each(|launches| self.device.run(launches))
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
                self.device.write(buffer, context.as_flattened())?;
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
        self.device.write(buffer, bytes)
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
            self.device.write(buffer, &value.to_le_bytes())?;
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
        let expected = self.device.buffer_type(buffer)?;
        if expected != *value.ty() {
            let (name, found) = (name.to_string(), value.ty().clone());
            return Err(DeviceError::ValueType { what, name, expected, found });
        }
        self.device.write(buffer, value.bytes())
    }

    /// Whether a plan has an input of this name.
    pub fn has_input(&self, plan: PlanId, name: &str) -> bool {
        self.plan(plan).is_ok_and(|plan| plan.shared_input(name).next().is_some())
    }

    /// The value of an output of the once-a-step part after the last step.
    pub fn step_output(&self, plan: PlanId, name: &str) -> Result<Tensor, DeviceError> {
        self.device.download(self.plan(plan)?.step_output(name)?)
    }

    /// As [`StepExecutor::step_output`], for an f32 scalar such as the loss. Allocates nothing.
    pub fn step_scalar(&self, plan: PlanId, name: &str) -> Result<f32, DeviceError> {
        let mut bytes = [0; 4];
        self.device.read(self.plan(plan)?.step_output(name)?, &mut bytes)?;
        Ok(f32::from_le_bytes(bytes))
    }

    /// The value of an output of one grain after the last step.
    pub fn grain_output(
        &self,
        plan: PlanId,
        grain: usize,
        name: &str,
    ) -> Result<Tensor, DeviceError> {
        self.device.download(self.plan(plan)?.grain_output(grain, name)?)
    }

    /// A parameter's present value.
    pub fn parameter(&self, name: &str) -> Result<Tensor, DeviceError> {
        let buffer = self.parameters.get(name).ok_or_else(|| no_such("parameter", name))?;
        self.device.download(*buffer)
    }

    /// Gives a parameter a value.
    pub fn set_parameter(&mut self, name: &str, value: &Tensor) -> Result<(), DeviceError> {
        let buffer = *self.parameters.get(name).ok_or_else(|| no_such("parameter", name))?;
        self.write_checked(buffer, name, "parameter", value)
    }

    /// The device that it runs on.
    pub fn device_mut(&mut self) -> &mut dyn Device {
        self.device.as_mut()
    }

    /// The bytes that the plans take: buffers held here, constants, and the temporaries and scratch of the largest program,
    /// temporaries once per lane.
    pub fn peak_bytes(&self) -> Result<usize, DeviceError> {
        let n_lanes = self.plans.iter().map(|plan| plan.n_lanes).max().unwrap_or(1);
        let (mut constants, mut temporary, mut scratch) = (0, 0, 0);
        for &(_, executable) in &self.compiled {
            let memory = self.device.memory(executable)?;
            constants += memory.constant_bytes;
            temporary = temporary.max(memory.temporary_bytes);
            scratch = scratch.max(memory.scratch_bytes);
        }
        Ok(self.buffer_bytes + constants + temporary * n_lanes + scratch)
    }
}

fn no_such(what: &'static str, name: &str) -> DeviceError {
    DeviceError::NoSuchName { what, name: name.to_string() }
}
