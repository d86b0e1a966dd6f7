//! A training step on a device: grains one by one or side by side, their sums along the fixed tree, then the update.
//!
//! The training program is split at its sums over grains. The per-grain part runs once per grain; every second grain adds
//! its results straight onto its left neighbour's ("accumulating"); larger subtrees are merged; the last additions happen
//! inside the once-a-step part. Which lane does which grain never changes the result: the tree is over grain indices.

use std::collections::HashMap;

use manyhands_program::{
    GrainAction, Partials, Program, RANDOM_CONTEXT, Tensor, TensorType, accumulating, is_sum,
    joining, merging, partial_sum_name, partials, split_grains, tree_schedule,
};

use crate::device::{BufferId, Device, ExecutableId, Launch};
use crate::error::DeviceError;

/// The most grains that a step may have.
const MAX_GRAINS: usize = 1 << 20;

/// A training program ready to run on a device.
pub struct StepExecutor {
    device: Box<dyn Device>,
    parameters: HashMap<String, BufferId>,
    /// Inputs of the per-grain part, one set per grain.
    grain_inputs: Vec<HashMap<String, BufferId>>,
    /// Inputs of the once-a-step part.
    step_inputs: HashMap<String, BufferId>,
    /// Outputs of the per-grain part, one set per grain, and of the once-a-step part.
    grain_outputs: Vec<HashMap<String, BufferId>>,
    step_outputs: HashMap<String, BufferId>,
    /// Launches that run side by side, round after round; the last is the update.
    rounds: Vec<Vec<Launch>>,
    executables: Vec<ExecutableId>,
    buffer_bytes: usize,
    n_lanes: usize,
}

/// A program with its compiled form.
struct Part {
    program: Program,
    executable: ExecutableId,
}

impl StepExecutor {
    /// Compiles a training program for steps of `n_grains`, shared out over `n_lanes` of the device.
    pub fn new(
        device: Box<dyn Device>,
        program: &Program,
        n_grains: usize,
        n_lanes: usize,
    ) -> Result<StepExecutor, DeviceError> {
        if n_grains == 0 || n_grains > MAX_GRAINS {
            return Err(DeviceError::Grains { found: n_grains, limit: MAX_GRAINS });
        }
        let split = split_grains(program)?;
        let shared = partials(n_grains, n_lanes);
        let step = joining(&split.step, &shared)?;
        let mut executor = StepExecutor {
            device,
            parameters: HashMap::new(),
            grain_inputs: vec![HashMap::new(); n_grains],
            step_inputs: HashMap::new(),
            grain_outputs: vec![HashMap::new(); n_grains],
            step_outputs: HashMap::new(),
            rounds: Vec::new(),
            executables: Vec::new(),
            buffer_bytes: 0,
            n_lanes: n_lanes.clamp(1, n_grains),
        };
        let parts = Parts {
            accumulate: executor.compile(accumulating(&split.grain)?)?,
            merge: executor.compile(merging(&split.grain)?)?,
            write: executor.compile(split.grain)?,
            step: executor.compile(step)?,
        };
        // A parameter that the step does not use is still the program's, and keeps its value.
        for (name, _, value) in program.parameters() {
            let buffer = executor.buffer(program.ty(value))?;
            executor.parameters.insert(name.to_string(), buffer);
        }
        executor.allocate(&parts)?;
        executor.schedule(&parts, &shared)?;
        Ok(executor)
    }

    fn compile(&mut self, program: Program) -> Result<Part, DeviceError> {
        let executable = self.device.compile(&program)?;
        self.executables.push(executable);
        Ok(Part { program, executable })
    }

    fn buffer(&mut self, ty: &TensorType) -> Result<BufferId, DeviceError> {
        self.buffer_bytes += ty.n_bytes();
        self.device.allocate(ty)
    }

    /// Buffers for inputs and outputs.
    fn allocate(&mut self, parts: &Parts) -> Result<(), DeviceError> {
        let grain = &parts.write.program;
        for idx in 0..self.grain_inputs.len() {
            for (name, value) in grain.inputs() {
                let buffer = self.buffer(grain.ty(value))?;
                self.grain_inputs[idx].insert(name.to_string(), buffer);
            }
            for output in grain.outputs().iter().filter(|output| !is_sum(&output.name)) {
                let buffer = self.buffer(grain.ty(output.value))?;
                self.grain_outputs[idx].insert(output.name.clone(), buffer);
            }
        }
        let step = &parts.step.program;
        for (name, value) in step.inputs().filter(|(name, _)| !is_sum(name)) {
            let buffer = self.buffer(step.ty(value))?;
            self.step_inputs.insert(name.to_string(), buffer);
        }
        for output in step.outputs() {
            let buffer = self.buffer(step.ty(output.value))?;
            self.step_outputs.insert(output.name.clone(), buffer);
        }
        Ok(())
    }

    /// Lays out the launches of a step.
    fn schedule(&mut self, parts: &Parts, shared: &Partials) -> Result<(), DeviceError> {
        let n_lanes = shared.partials.iter().map(|partial| partial.lane + 1).max().unwrap_or(1);
        let mut queues: Vec<Vec<Launch>> = vec![Vec::new(); n_lanes];
        // A lane's spare slots serve all of its partial sums, one after the other.
        let mut spares: Vec<Vec<Slot>> = vec![Vec::new(); n_lanes];
        let mut totals = Vec::new();
        for partial in &shared.partials {
            let total = self.slot(&parts.write.program)?;
            let actions = tree_schedule(partial.grains.len());
            let n_slots = actions.iter().map(|action| highest_slot(action) + 1).max().unwrap_or(1);
            while spares[partial.lane].len() + 1 < n_slots {
                let slot = self.slot(&parts.write.program)?;
                spares[partial.lane].push(slot);
            }
            let slot = |idx: usize| match idx {
                0 => &total,
                other => &spares[partial.lane][other - 1],
            };
            for action in actions {
                queues[partial.lane].push(match action {
                    GrainAction::Write { grain, slot: s } => {
                        self.write_launch(parts, partial.grains.start + grain, slot(s))
                    }
                    GrainAction::Accumulate { grain, slot: s } => {
                        self.accumulate_launch(parts, partial.grains.start + grain, slot(s))
                    }
                    GrainAction::Merge { into, from } => {
                        merge_launch(parts, slot(into), slot(from))
                    }
                });
            }
            totals.push(total);
        }
        let n_rounds = queues.iter().map(Vec::len).max().unwrap_or(0);
        for round in 0..n_rounds {
            let launches = queues.iter().filter_map(|queue| queue.get(round).cloned());
            self.rounds.push(launches.collect());
        }
        let update = self.step_launch(parts, &totals);
        self.rounds.push(vec![update]);
        Ok(())
    }

    /// Buffers for one set of sums.
    fn slot(&mut self, grain: &Program) -> Result<Slot, DeviceError> {
        let sums = grain.outputs().iter().filter(|output| is_sum(&output.name));
        sums.map(|output| Ok((output.name.clone(), self.buffer(grain.ty(output.value))?))).collect()
    }

    fn write_launch(&self, parts: &Parts, grain: usize, slot: &Slot) -> Launch {
        let program = &parts.write.program;
        let output =
            |name: &str| slot.get(name).unwrap_or_else(|| &self.grain_outputs[grain][name]);
        Launch {
            executable: parts.write.executable,
            inputs: program.inputs().map(|(name, _)| self.grain_inputs[grain][name]).collect(),
            parameters: program.parameters().map(|(name, ..)| self.parameters[name]).collect(),
            outputs: program.outputs().iter().map(|output_| *output(&output_.name)).collect(),
        }
    }

    fn accumulate_launch(&self, parts: &Parts, grain: usize, slot: &Slot) -> Launch {
        let program = &parts.accumulate.program;
        let parameter = |name: &str| slot.get(name).unwrap_or_else(|| &self.parameters[name]);
        let outputs = program.outputs().iter();
        Launch {
            executable: parts.accumulate.executable,
            inputs: program.inputs().map(|(name, _)| self.grain_inputs[grain][name]).collect(),
            parameters: program.parameters().map(|(name, ..)| *parameter(name)).collect(),
            outputs: outputs.map(|output| self.grain_outputs[grain][&output.name]).collect(),
        }
    }

    fn step_launch(&self, parts: &Parts, totals: &[Slot]) -> Launch {
        let program = &parts.step.program;
        // One total goes by the name of its sum, several by those of its parts.
        let mut sums = HashMap::new();
        for (idx, total) in totals.iter().enumerate() {
            for (name, &buffer) in total {
                let one =
                    if totals.len() == 1 { name.clone() } else { partial_sum_name(name, idx) };
                sums.insert(one, buffer);
            }
        }
        let input = |name: &str| sums.get(name).copied().unwrap_or_else(|| self.step_inputs[name]);
        Launch {
            executable: parts.step.executable,
            inputs: program.inputs().map(|(name, _)| input(name)).collect(),
            parameters: program.parameters().map(|(name, ..)| self.parameters[name]).collect(),
            outputs: program.outputs().iter().map(|o| self.step_outputs[&o.name]).collect(),
        }
    }

    /// Runs one step on what the inputs hold.
    pub fn run(&mut self) -> Result<(), DeviceError> {
        self.rounds.iter().try_for_each(|launches| self.device.run(launches))
    }

    /// Tells random operations which seed and step this is; each grain knows its own number.
    pub fn set_random_context(&mut self, seed: u64, step: u64) -> Result<(), DeviceError> {
        for (grain, inputs) in self.grain_inputs.iter().enumerate() {
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
        grain: usize,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let inputs = self.grain_inputs.get(grain).ok_or_else(|| self.no_such_grain(grain))?;
        let buffer = inputs.get(name).ok_or_else(|| no_such("input", name))?;
        self.device.write(*buffer, bytes)
    }

    /// Fills an input that is the same for all grains of a step, wherever it is used.
    pub fn write_shared_input(&mut self, name: &str, value: &Tensor) -> Result<(), DeviceError> {
        let per_grain = self.grain_inputs.iter().filter_map(|inputs| inputs.get(name));
        let buffers: Vec<BufferId> = per_grain.chain(self.step_inputs.get(name)).copied().collect();
        if buffers.is_empty() {
            return Err(no_such("input", name));
        }
        buffers.iter().try_for_each(|&buffer| self.write_checked(buffer, name, "input", value))
    }

    /// As [`StepExecutor::write_shared_input`], for an f32 scalar such as the rate. Allocates nothing.
    pub fn write_scalar(&mut self, name: &str, value: f32) -> Result<(), DeviceError> {
        let per_grain = self.grain_inputs.iter().filter_map(|inputs| inputs.get(name));
        let mut found = false;
        for &buffer in per_grain.chain(self.step_inputs.get(name)) {
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

    /// Whether the program has an input of this name.
    pub fn has_input(&self, name: &str) -> bool {
        self.step_inputs.contains_key(name) || self.grain_inputs[0].contains_key(name)
    }

    /// The value of an output of the once-a-step part after the last step.
    pub fn step_output(&self, name: &str) -> Result<Tensor, DeviceError> {
        let buffer = self.step_outputs.get(name).ok_or_else(|| no_such("output", name))?;
        self.device.download(*buffer)
    }

    /// The value of an output of one grain after the last step.
    pub fn grain_output(&self, grain: usize, name: &str) -> Result<Tensor, DeviceError> {
        let outputs = self.grain_outputs.get(grain).ok_or_else(|| self.no_such_grain(grain))?;
        self.device.download(*outputs.get(name).ok_or_else(|| no_such("output", name))?)
    }

    fn no_such_grain(&self, idx: usize) -> DeviceError {
        DeviceError::NoSuchIndex { what: "grain", idx, n: self.grain_inputs.len() }
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

    /// The bytes that a step takes: buffers held here, constants, and the temporaries and scratch of the largest program,
    /// temporaries once per lane.
    pub fn peak_bytes(&self) -> Result<usize, DeviceError> {
        let (mut constants, mut temporary, mut scratch) = (0, 0, 0);
        for &executable in &self.executables {
            let memory = self.device.memory(executable)?;
            constants += memory.constant_bytes;
            temporary = temporary.max(memory.temporary_bytes);
            scratch = scratch.max(memory.scratch_bytes);
        }
        Ok(self.buffer_bytes + constants + temporary * self.n_lanes + scratch)
    }
}

/// The highest slot that an action uses.
fn highest_slot(action: &GrainAction) -> usize {
    match *action {
        GrainAction::Write { slot, .. } | GrainAction::Accumulate { slot, .. } => slot,
        GrainAction::Merge { into, from } => into.max(from),
    }
}

/// The programs of a step.
struct Parts {
    write: Part,
    accumulate: Part,
    merge: Part,
    step: Part,
}

/// One set of sums, by name.
type Slot = HashMap<String, BufferId>;

fn merge_launch(parts: &Parts, into: &Slot, from: &Slot) -> Launch {
    let program = &parts.merge.program;
    let right = |name: &str| from[name.strip_prefix("right/").unwrap_or(name)];
    Launch {
        executable: parts.merge.executable,
        inputs: program.inputs().map(|(name, _)| right(name)).collect(),
        parameters: program.parameters().map(|(name, ..)| into[name]).collect(),
        outputs: Vec::new(),
    }
}

fn no_such(what: &'static str, name: &str) -> DeviceError {
    DeviceError::NoSuchName { what, name: name.to_string() }
}
