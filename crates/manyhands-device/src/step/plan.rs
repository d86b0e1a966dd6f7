//! The layout of a step: which grain runs on which lane and when, into which slots it is summed, and with which buffers.

use std::collections::HashMap;

use manyhands_program::{
    GrainAction, GrainSplit, Partial, Partials, Program, TensorType, accumulating, is_sum, joining,
    merging, partial_sum_name, partials, split_grains, tree_schedule,
};

use super::announce::LateMerge;
use super::no_such;
use super::resources::{Purpose, Resources, SlotPurpose};
use super::shared_step::SharedStep;
use super::sums::SumLayout;
use crate::device::{BufferGroup, BufferId, ExecutableId, Launch};
use crate::error::DeviceError;

/// A program laid out for a number of grains.
pub(super) struct Plan {
    pub(super) parts: Parts,
    /// The sums of a slot, and their types.
    pub(super) sums: SumLayout,
    pub(super) sum_types: Vec<TensorType>,
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
    /// The same for a step that several workers share, once there is one.
    pub(super) shared_step: Option<SharedStep>,
}

/// Buffers by name.
type Named = HashMap<String, BufferId>;

/// A program with its compiled form.
pub(super) struct Part {
    pub(super) program: Program,
    executable: ExecutableId,
}

/// The two forms of the per-grain part: one writes its sums, the other adds them onto what is there.
struct GrainParts {
    write: Part,
    accumulate: Part,
}

/// The programs of a step.
pub(super) struct Parts {
    grain: GrainParts,
    /// The per-grain part of a shorter last grain.
    last: Option<GrainParts>,
    merge: Part,
    /// What follows the sums, from one total per sum.
    pub(super) step: Program,
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
        resources: &mut Resources,
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
        let (sums, sum_types) = SumLayout::new(&split.grain);
        let parts = Parts {
            grain: GrainParts::new(resources, &split)?,
            last: last.map(|last| GrainParts::new(resources, &last)).transpose()?,
            merge: Part::new(resources, merging(&split.grain)?)?,
            step: split.step,
        };
        let mut plan = Plan {
            parts,
            sums,
            sum_types,
            grain_inputs: Vec::with_capacity(n_grains),
            step_inputs: Named::new(),
            grain_outputs: Vec::with_capacity(n_grains),
            step_outputs: Named::new(),
            rounds: Vec::new(),
            n_lanes: 1,
            shared_step: None,
        };
        plan.find_buffers(resources, n_grains)?;
        plan.schedule(resources, &partials(n_grains, resources.n_lanes))?;
        Ok(plan)
    }

    /// Buffers for inputs and outputs.
    fn find_buffers(
        &mut self,
        resources: &mut Resources,
        n_grains: usize,
    ) -> Result<(), DeviceError> {
        let parts = &self.parts;
        for grain in 0..n_grains {
            let program = &parts.grain(grain, n_grains).write.program;
            let (mut inputs, mut outputs) = (Named::new(), Named::new());
            for (name, value) in program.inputs() {
                let purpose = Purpose::GrainInput { grain };
                inputs
                    .insert(name.to_string(), resources.buffer(purpose, name, program.ty(value))?);
            }
            for output in program.outputs().iter().filter(|output| !is_sum(&output.name)) {
                let purpose = Purpose::GrainOutput { grain };
                let buffer = resources.buffer(purpose, &output.name, program.ty(output.value))?;
                outputs.insert(output.name.clone(), buffer);
            }
            self.grain_inputs.push(inputs);
            self.grain_outputs.push(outputs);
        }
        let step = &parts.step;
        for (name, value) in step.inputs().filter(|(name, _)| !is_sum(name)) {
            let buffer = resources.buffer(Purpose::StepInput, name, step.ty(value))?;
            self.step_inputs.insert(name.to_string(), buffer);
        }
        for output in step.outputs() {
            let ty = step.ty(output.value);
            let buffer = resources.buffer(Purpose::StepOutput, &output.name, ty)?;
            self.step_outputs.insert(output.name.clone(), buffer);
        }
        Ok(())
    }

    /// Lays out the launches of a step that runs on this device alone.
    fn schedule(
        &mut self,
        resources: &mut Resources,
        shared: &Partials,
    ) -> Result<(), DeviceError> {
        let mut lanes = Lanes::default();
        let mut slots = Vec::new();
        for (idx, partial) in shared.partials.iter().enumerate() {
            let slot = resources.slot(SlotPurpose::Partial { idx }, &self.sum_types)?;
            self.sum_grains(resources, partial, &slot, &mut lanes)?;
            slots.push(slot);
        }
        self.n_lanes = lanes.queues.len().max(1);
        self.rounds = lanes.rounds();
        let step = Part::new(resources, joining(&self.parts.step, shared)?)?;
        self.rounds.extend(self.update_launch(resources, &step, &slots).map(|update| vec![update]));
        Ok(())
    }

    /// Queues what sums the grains of a partial sum into a slot.
    pub(super) fn sum_grains(
        &self,
        resources: &mut Resources,
        partial: &Partial,
        slot: &BufferGroup,
        lanes: &mut Lanes,
    ) -> Result<(), DeviceError> {
        let lane = partial.lane;
        let actions = tree_schedule(partial.grains.len());
        let n_slots = actions.iter().map(|action| highest_slot(action) + 1).max().unwrap_or(1);
        let mut slots = vec![slot.clone()];
        for idx in 1..n_slots {
            slots.push(resources.slot(SlotPurpose::Spare { lane, idx }, &self.sum_types)?);
        }
        let first = partial.grains.start;
        for action in actions {
            let (launch, sums) = match action {
                GrainAction::Write { grain, slot } => {
                    let launch = self.write_launch(resources, first + grain, &slots[slot]);
                    (Some(launch), Sums::Grain(slots[slot].clone()))
                }
                GrainAction::Accumulate { grain, slot } => {
                    let launch = self.accumulate_launch(resources, first + grain, &slots[slot]);
                    (Some(launch), Sums::Grain(slots[slot].clone()))
                }
                GrainAction::Merge { into, from } => {
                    let (into, from) = (slots[into].clone(), slots[from].clone());
                    (self.merge_launch(&into, &from), Sums::Merge(LateMerge { into, from }))
                }
            };
            lanes.queue(lane).extend(launch.map(|launch| (launch, sums)));
        }
        Ok(())
    }

    /// The buffers of a slot by the names of the sums.
    fn named(&self, slot: &BufferGroup) -> Named {
        let names = self.sums.sums.iter().map(|sum| sum.name.clone());
        names.zip(slot.buffers.iter().copied()).collect()
    }

    fn write_launch(&self, resources: &Resources, grain: usize, slot: &BufferGroup) -> Launch {
        let slot = self.named(slot);
        let part = &self.parts.grain(grain, self.grain_inputs.len()).write;
        let outputs = &self.grain_outputs[grain];
        let output = |name: &str| *slot.get(name).unwrap_or_else(|| &outputs[name]);
        let program = &part.program;
        Launch {
            executable: part.executable,
            inputs: program.inputs().map(|(name, _)| self.grain_inputs[grain][name]).collect(),
            parameters: program.parameters().map(|(name, ..)| resources.parameters[name]).collect(),
            outputs: program.outputs().iter().map(|one| output(&one.name)).collect(),
        }
    }

    fn accumulate_launch(&self, resources: &Resources, grain: usize, slot: &BufferGroup) -> Launch {
        let slot = self.named(slot);
        let part = &self.parts.grain(grain, self.grain_inputs.len()).accumulate;
        let parameter = |name: &str| *slot.get(name).unwrap_or_else(|| &resources.parameters[name]);
        let program = &part.program;
        let outputs = program.outputs().iter();
        Launch {
            executable: part.executable,
            inputs: program.inputs().map(|(name, _)| self.grain_inputs[grain][name]).collect(),
            parameters: program.parameters().map(|(name, ..)| parameter(name)).collect(),
            outputs: outputs.map(|output| self.grain_outputs[grain][&output.name]).collect(),
        }
    }

    /// Adds the sums of one slot to those of another; without sums there is nothing to do.
    pub(super) fn merge_launch(&self, into: &BufferGroup, from: &BufferGroup) -> Option<Launch> {
        let (into, from) = (self.named(into), self.named(from));
        let Part { program, executable } = &self.parts.merge;
        let right = |name: &str| from[name.strip_prefix("right/").unwrap_or(name)];
        (!into.is_empty()).then(|| Launch {
            executable: *executable,
            inputs: program.inputs().map(|(name, _)| right(name)).collect(),
            parameters: program.parameters().map(|(name, ..)| into[name]).collect(),
            outputs: Vec::new(),
        })
    }

    /// Runs what follows the sums, if anything does, on the slots that hold its partial sums.
    pub(super) fn update_launch(
        &self,
        resources: &Resources,
        step: &Part,
        slots: &[BufferGroup],
    ) -> Option<Launch> {
        let program = &step.program;
        if program.outputs().is_empty() && program.updates().is_empty() {
            return None;
        }
        // One slot's sums go by their own names, those of several by the names of parts.
        let mut sums = Named::new();
        for (idx, slot) in slots.iter().enumerate() {
            for (name, buffer) in self.named(slot) {
                let one = if slots.len() == 1 { name } else { partial_sum_name(&name, idx) };
                sums.insert(one, buffer);
            }
        }
        let input = |name: &str| sums.get(name).copied().unwrap_or_else(|| self.step_inputs[name]);
        let parameters = program.parameters();
        Some(Launch {
            executable: step.executable,
            inputs: program.inputs().map(|(name, _)| input(name)).collect(),
            parameters: parameters.map(|(name, ..)| resources.parameters[name]).collect(),
            outputs: program.outputs().iter().map(|o| self.step_outputs[&o.name]).collect(),
        })
    }

    pub(super) fn n_grains(&self) -> usize {
        self.grain_inputs.len()
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

/// Launches that wait for their lane, with what they do to sums.
#[derive(Default)]
pub(super) struct Lanes {
    queues: Vec<Vec<(Launch, Sums)>>,
}

/// What a launch does to sums.
enum Sums {
    /// A grain's go to a slot.
    Grain(BufferGroup),
    /// Those of one slot are added to those of another.
    Merge(LateMerge),
}

impl Lanes {
    /// Where there is one lane: takes away the merges that follow its last grain, and says where that one's sums go.
    pub(super) fn take_late_merges(&mut self) -> (Option<BufferGroup>, Vec<LateMerge>) {
        let [queue] = &mut self.queues[..] else { return (None, Vec::new()) };
        let is_grain = |(_, sums): &(Launch, Sums)| matches!(sums, Sums::Grain(_));
        let n_kept = queue.iter().rposition(is_grain).map_or(0, |idx| idx + 1);
        let late = queue.split_off(n_kept).into_iter().filter_map(|(_, sums)| match sums {
            Sums::Merge(merge) => Some(merge),
            Sums::Grain(_) => None,
        });
        let last = queue.last().and_then(|(_, sums)| match sums {
            Sums::Grain(slot) => Some(slot.clone()),
            Sums::Merge(_) => None,
        });
        (last, late.collect())
    }

    fn queue(&mut self, lane: usize) -> &mut Vec<(Launch, Sums)> {
        let n_lanes = self.queues.len().max(lane + 1);
        self.queues.resize_with(n_lanes, Vec::new);
        &mut self.queues[lane]
    }

    /// What runs side by side, round after round.
    pub(super) fn rounds(&self) -> Vec<Vec<Launch>> {
        let n_rounds = self.queues.iter().map(Vec::len).max().unwrap_or(0);
        let one = |queue: &Vec<(Launch, Sums)>, idx: usize| {
            queue.get(idx).map(|(launch, _)| launch.clone())
        };
        let round = |idx| self.queues.iter().filter_map(|queue| one(queue, idx)).collect();
        (0..n_rounds).map(round).collect()
    }
}

impl Part {
    pub(super) fn new(resources: &mut Resources, program: Program) -> Result<Part, DeviceError> {
        let executable = resources.compile(&program)?;
        Ok(Part { program, executable })
    }
}

impl GrainParts {
    fn new(resources: &mut Resources, split: &GrainSplit) -> Result<GrainParts, DeviceError> {
        Ok(GrainParts {
            accumulate: Part::new(resources, accumulating(&split.grain)?)?,
            write: Part::new(resources, split.grain.clone())?,
        })
    }
}

/// The highest slot that an action uses.
fn highest_slot(action: &GrainAction) -> usize {
    match *action {
        GrainAction::Write { slot, .. } | GrainAction::Accumulate { slot, .. } => slot,
        GrainAction::Merge { into, from } => into.max(from),
    }
}
