//! The layout of a step: which grain runs on which lane and when, into which slots it is summed, and with which buffers.

use std::collections::HashMap;

use manyhands_program::{
    GrainAction, GrainSplit, Partials, Program, accumulating, is_sum, joining, merging,
    partial_sum_name, partials, split_grains, tree_schedule,
};

use super::{Purpose, StepExecutor, no_such};
use crate::device::{BufferId, ExecutableId, Launch};
use crate::error::DeviceError;

/// A program laid out for a number of grains.
pub(super) struct Plan {
    /// Inputs of the per-grain part, one set per grain.
    pub(super) grain_inputs: Vec<Named>,
    /// Inputs of the once-a-step part.
    step_inputs: Named,
    /// Outputs of the per-grain part, one set per grain, and of the once-a-step part.
    grain_outputs: Vec<Named>,
    step_outputs: Named,
    /// Launches that run side by side, round after round; the last is the update.
    pub(super) rounds: Vec<Vec<Launch>>,
    /// How many launches run side by side.
    pub(super) n_lanes: usize,
}

/// Buffers by name.
type Named = HashMap<String, BufferId>;

/// A program with its compiled form.
struct Part {
    program: Program,
    executable: ExecutableId,
}

/// The two forms of the per-grain part: one writes its sums, the other adds them onto what is there.
struct GrainParts {
    write: Part,
    accumulate: Part,
}

/// The programs of a step.
struct Parts {
    grain: GrainParts,
    /// The per-grain part of a shorter last grain.
    last: Option<GrainParts>,
    merge: Part,
    step: Part,
}

impl Parts {
    fn grain(&self, grain: usize, n_grains: usize) -> &GrainParts {
        match &self.last {
            Some(last) if grain + 1 == n_grains => last,
            _ => &self.grain,
        }
    }
}

impl Plan {
    /// Compiles what the executor does not have yet, finds buffers, and lays out the launches.
    pub(super) fn new(
        executor: &mut StepExecutor,
        program: &Program,
        n_grains: usize,
        last: Option<&Program>,
    ) -> Result<Plan, DeviceError> {
        let split = split_grains(program)?;
        let last = last.map(split_grains).transpose()?;
        if let Some(last) = last.as_ref().filter(|last| last.step != split.step) {
            let (name, last) = (split.step.name().to_string(), last.step.name().to_string());
            return Err(DeviceError::LastGrain { name, last });
        }
        let shared = partials(n_grains, executor.n_lanes);
        let parts = Parts {
            grain: GrainParts::new(executor, &split)?,
            last: last.map(|last| GrainParts::new(executor, &last)).transpose()?,
            merge: Part::new(executor, merging(&split.grain)?)?,
            step: Part::new(executor, joining(&split.step, &shared)?)?,
        };
        let mut plan = Plan {
            grain_inputs: Vec::with_capacity(n_grains),
            step_inputs: Named::new(),
            grain_outputs: Vec::with_capacity(n_grains),
            step_outputs: Named::new(),
            rounds: Vec::new(),
            n_lanes: 1,
        };
        plan.find_buffers(executor, &parts, n_grains)?;
        plan.schedule(executor, &parts, &shared)?;
        Ok(plan)
    }

    /// Buffers for inputs and outputs.
    fn find_buffers(
        &mut self,
        executor: &mut StepExecutor,
        parts: &Parts,
        n_grains: usize,
    ) -> Result<(), DeviceError> {
        for grain in 0..n_grains {
            let program = &parts.grain(grain, n_grains).write.program;
            let (mut inputs, mut outputs) = (Named::new(), Named::new());
            for (name, value) in program.inputs() {
                let purpose = Purpose::GrainInput { grain };
                inputs.insert(name.to_string(), executor.buffer(purpose, name, program.ty(value))?);
            }
            for output in program.outputs().iter().filter(|output| !is_sum(&output.name)) {
                let purpose = Purpose::GrainOutput { grain };
                let buffer = executor.buffer(purpose, &output.name, program.ty(output.value))?;
                outputs.insert(output.name.clone(), buffer);
            }
            self.grain_inputs.push(inputs);
            self.grain_outputs.push(outputs);
        }
        let step = &parts.step.program;
        for (name, value) in step.inputs().filter(|(name, _)| !is_sum(name)) {
            let buffer = executor.buffer(Purpose::StepInput, name, step.ty(value))?;
            self.step_inputs.insert(name.to_string(), buffer);
        }
        for output in step.outputs() {
            let ty = step.ty(output.value);
            let buffer = executor.buffer(Purpose::StepOutput, &output.name, ty)?;
            self.step_outputs.insert(output.name.clone(), buffer);
        }
        Ok(())
    }

    /// Lays out the launches of a step.
    fn schedule(
        &mut self,
        executor: &mut StepExecutor,
        parts: &Parts,
        shared: &Partials,
    ) -> Result<(), DeviceError> {
        let n_lanes = shared.partials.iter().map(|partial| partial.lane + 1).max().unwrap_or(1);
        let mut queues: Vec<Vec<Launch>> = vec![Vec::new(); n_lanes];
        let mut totals = Vec::new();
        for (partial_idx, partial) in shared.partials.iter().enumerate() {
            let lane = partial.lane;
            let actions = tree_schedule(partial.grains.len());
            let n_slots = actions.iter().map(|action| highest_slot(action) + 1).max().unwrap_or(1);
            let mut slots = vec![sums(executor, parts, Purpose::Total { partial_idx })?];
            for slot in 1..n_slots {
                slots.push(sums(executor, parts, Purpose::Spare { lane, slot })?);
            }
            for action in actions {
                let first = partial.grains.start;
                let launch = match action {
                    GrainAction::Write { grain, slot } => {
                        self.write_launch(executor, parts, first + grain, &slots[slot])
                    }
                    GrainAction::Accumulate { grain, slot } => {
                        self.accumulate_launch(executor, parts, first + grain, &slots[slot])
                    }
                    GrainAction::Merge { into, from } => {
                        merge_launch(parts, &slots[into], &slots[from])
                    }
                };
                // Without sums there is nothing to merge.
                if !(launch.parameters.is_empty() && matches!(action, GrainAction::Merge { .. })) {
                    queues[lane].push(launch);
                }
            }
            totals.push(slots.swap_remove(0));
        }
        let n_rounds = queues.iter().map(Vec::len).max().unwrap_or(0);
        for round in 0..n_rounds {
            let launches = queues.iter().filter_map(|queue| queue.get(round).cloned());
            self.rounds.push(launches.collect());
        }
        self.n_lanes = n_lanes;
        let step = &parts.step.program;
        if !(step.outputs().is_empty() && step.updates().is_empty()) {
            let update = self.step_launch(executor, parts, &totals);
            self.rounds.push(vec![update]);
        }
        Ok(())
    }

    fn write_launch(
        &self,
        executor: &StepExecutor,
        parts: &Parts,
        grain: usize,
        slot: &Named,
    ) -> Launch {
        let part = &parts.grain(grain, self.grain_inputs.len()).write;
        let outputs = &self.grain_outputs[grain];
        let output = |name: &str| *slot.get(name).unwrap_or_else(|| &outputs[name]);
        let program = &part.program;
        Launch {
            executable: part.executable,
            inputs: program.inputs().map(|(name, _)| self.grain_inputs[grain][name]).collect(),
            parameters: program.parameters().map(|(name, ..)| executor.parameters[name]).collect(),
            outputs: program.outputs().iter().map(|one| output(&one.name)).collect(),
        }
    }

    fn accumulate_launch(
        &self,
        executor: &StepExecutor,
        parts: &Parts,
        grain: usize,
        slot: &Named,
    ) -> Launch {
        let part = &parts.grain(grain, self.grain_inputs.len()).accumulate;
        let parameter = |name: &str| *slot.get(name).unwrap_or_else(|| &executor.parameters[name]);
        let program = &part.program;
        let outputs = program.outputs().iter();
        Launch {
            executable: part.executable,
            inputs: program.inputs().map(|(name, _)| self.grain_inputs[grain][name]).collect(),
            parameters: program.parameters().map(|(name, ..)| parameter(name)).collect(),
            outputs: outputs.map(|output| self.grain_outputs[grain][&output.name]).collect(),
        }
    }

    fn step_launch(&self, executor: &StepExecutor, parts: &Parts, totals: &[Named]) -> Launch {
        let program = &parts.step.program;
        // One total goes by the name of its sum, several by those of its parts.
        let mut sums = Named::new();
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
            parameters: program.parameters().map(|(name, ..)| executor.parameters[name]).collect(),
            outputs: program.outputs().iter().map(|o| self.step_outputs[&o.name]).collect(),
        }
    }

    /// The buffers of an input wherever it is used.
    pub(super) fn shared_input(&self, name: &str) -> impl Iterator<Item = BufferId> {
        let per_grain = self.grain_inputs.iter().filter_map(move |inputs| inputs.get(name));
        per_grain.chain(self.step_inputs.get(name)).copied()
    }

    pub(super) fn grain_input(&self, grain: usize, name: &str) -> Result<BufferId, DeviceError> {
        let inputs = self.grain_inputs.get(grain).ok_or_else(|| self.no_such_grain(grain))?;
        inputs.get(name).copied().ok_or_else(|| no_such("input", name))
    }

    pub(super) fn grain_output(&self, grain: usize, name: &str) -> Result<BufferId, DeviceError> {
        let outputs = self.grain_outputs.get(grain).ok_or_else(|| self.no_such_grain(grain))?;
        outputs.get(name).copied().ok_or_else(|| no_such("output", name))
    }

    pub(super) fn step_output(&self, name: &str) -> Result<BufferId, DeviceError> {
        self.step_outputs.get(name).copied().ok_or_else(|| no_such("output", name))
    }

    fn no_such_grain(&self, idx: usize) -> DeviceError {
        DeviceError::NoSuchIndex { what: "grain", idx, n: self.grain_inputs.len() }
    }
}

impl Part {
    fn new(executor: &mut StepExecutor, program: Program) -> Result<Part, DeviceError> {
        let executable = executor.compile(&program)?;
        Ok(Part { program, executable })
    }
}

impl GrainParts {
    fn new(executor: &mut StepExecutor, split: &GrainSplit) -> Result<GrainParts, DeviceError> {
        Ok(GrainParts {
            accumulate: Part::new(executor, accumulating(&split.grain)?)?,
            write: Part::new(executor, split.grain.clone())?,
        })
    }
}

/// Buffers for one set of sums.
fn sums(
    executor: &mut StepExecutor,
    parts: &Parts,
    purpose: Purpose,
) -> Result<Named, DeviceError> {
    let grain = &parts.grain.write.program;
    let sums = grain.outputs().iter().filter(|output| is_sum(&output.name));
    sums.map(|output| {
        let buffer = executor.buffer(purpose, &output.name, grain.ty(output.value))?;
        Ok((output.name.clone(), buffer))
    })
    .collect()
}

/// The highest slot that an action uses.
fn highest_slot(action: &GrainAction) -> usize {
    match *action {
        GrainAction::Write { slot, .. } | GrainAction::Accumulate { slot, .. } => slot,
        GrainAction::Merge { into, from } => into.max(from),
    }
}

fn merge_launch(parts: &Parts, into: &Named, from: &Named) -> Launch {
    let program = &parts.merge.program;
    let right = |name: &str| from[name.strip_prefix("right/").unwrap_or(name)];
    Launch {
        executable: parts.merge.executable,
        inputs: program.inputs().map(|(name, _)| right(name)).collect(),
        parameters: program.parameters().map(|(name, ..)| into[name]).collect(),
        outputs: Vec::new(),
    }
}
