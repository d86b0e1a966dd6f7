//! A compiled program: instructions over planned memory.

use manyhands_program::{Op, Program, TensorType};

use super::aligned::AlignedBytes;
use super::announce::{Final, finals};
use super::instruction::{Context, Instruction, Stop, Trouble};
use super::kernels::Part;
use super::lower::{Bodies, Lowering, copy_instruction, lower, workspace_bytes};
use super::memory::Layout;
use super::simd::Isa;
use crate::device::MemoryPlan;
use crate::error::DeviceError;

/// A program ready to run.
pub(super) struct Compiled {
    pub(super) name: String,
    pub(super) inputs: Vec<TensorType>,
    pub(super) parameters: Vec<TensorType>,
    pub(super) outputs: Vec<TensorType>,
    /// Which parameters are updated.
    pub(super) updated: Vec<bool>,
    pub(super) n_arguments: usize,
    pub(super) arena_bytes: usize,
    /// Per thread.
    pub(super) scratch_bytes: usize,
    constants: AlignedBytes,
    instructions: Vec<Instruction>,
    /// What is written for the caller, in the order in which it becomes final.
    pub(super) finals: Vec<Final>,
    /// For messages: what each node is called and where it belongs.
    labels: Vec<(String, String)>,
}

impl Compiled {
    /// Compiles a program as it stands, passes having run, for lanes of so many threads and so many in all.
    pub(super) fn new(
        program: &Program,
        isa: Isa,
        [threads_each, n_threads]: [usize; 2],
    ) -> Result<Compiled, DeviceError> {
        let mut bodies = Vec::with_capacity(program.nodes().len());
        for node in program.nodes() {
            let compile =
                |body: &Program| Compiled::new(body, isa, [threads_each, n_threads]).map(Box::new);
            bodies.push(match &node.op {
                Op::Scan(scan) => Bodies::One(compile(&scan.body)?),
                Op::Cond(cond) => Bodies::Two(compile(&cond.then)?, compile(&cond.otherwise)?),
                _ => Bodies::None,
            });
        }
        let layout = Layout::plan(program, |idx| workspace_bytes(program, idx, &bodies[idx]));
        let env = Lowering { program, layout: &layout, isa, threads_each, n_threads };
        let mut instructions = Vec::new();
        for (idx, bodies) in bodies.into_iter().enumerate() {
            instructions.extend(lower(&env, idx, bodies)?);
        }
        instructions.extend(
            layout.copies.iter().map(|copy| copy_instruction(*copy, program.nodes().len())),
        );
        let types = |values: Vec<manyhands_program::ValueId>| {
            values.into_iter().map(|value| program.ty(value).clone()).collect::<Vec<_>>()
        };
        let inputs = types(program.inputs().map(|(_, value)| value).collect());
        let parameters = types(program.parameters().map(|(.., value)| value).collect());
        let outputs = types(program.outputs().iter().map(|output| output.value).collect());
        let is_updated = |value| program.updates().iter().any(|u| u.parameter == value);
        let out_of_memory = |bytes| DeviceError::OutOfMemory { what: "constants", bytes };
        Ok(Compiled {
            name: program.name().to_string(),
            n_arguments: inputs.len() + parameters.len() + outputs.len(),
            inputs,
            parameters,
            outputs,
            updated: program.parameters().map(|(.., value)| is_updated(value)).collect(),
            arena_bytes: layout.arena_bytes,
            scratch_bytes: instructions.iter().map(|i| i.scratch_bytes).max().unwrap_or(0),
            constants: AlignedBytes::from_slice(&layout.constants)
                .ok_or_else(|| out_of_memory(layout.constants.len()))?,
            finals: finals(program, &layout, &instructions),
            instructions,
            labels: program
                .nodes()
                .iter()
                .map(|node| (node.op.name().to_string(), node.scope.clone()))
                .collect(),
        })
    }

    /// Runs this thread's part of every instruction; threads meet after each. After a fault on any thread all stop at the
    /// same turn, so that none is left waiting and nothing is computed from what is not there.
    pub(super) fn run_part(&self, context: &Context<'_>, part: Part) -> Result<(), Stop> {
        self.run_part_then(context, part, |_| ())
    }

    /// As [`Compiled::run_part`], with something to do after each instruction, whose index it is told.
    pub(super) fn run_part_then(
        &self,
        context: &Context<'_>,
        part: Part,
        mut then: impl FnMut(usize),
    ) -> Result<(), Stop> {
        for (idx, instruction) in self.instructions.iter().enumerate() {
            match (instruction.action)(context, part) {
                Ok(()) => {}
                Err(Stop::Body) => return Err(Stop::Body),
                Err(Stop::Fault(fault)) => {
                    let none = (String::new(), String::new());
                    let (op, scope) = self.labels.get(instruction.node_idx).unwrap_or(&none);
                    context.note(fault, op, scope);
                }
            }
            context.end_turn(part)?;
            then(idx);
        }
        Ok(())
    }

    /// The error that a fault is to the caller.
    pub(super) fn data_error(&self, trouble: Trouble) -> DeviceError {
        let Trouble { op, scope, fault, .. } = trouble;
        let place = if scope.is_empty() { String::new() } else { format!(", at {scope}") };
        DeviceError::Data { program: self.name.clone(), op, place, fault }
    }

    pub(super) fn constants_ptr(&self) -> *mut u8 {
        // Constants are only read; the table of base pointers has one pointer type for all.
        self.constants.as_slice().as_ptr().cast_mut()
    }

    /// What running takes with so many threads.
    pub(super) fn memory(&self, n_threads: usize) -> MemoryPlan {
        let arguments = self.inputs.iter().chain(&self.parameters).chain(&self.outputs);
        MemoryPlan {
            argument_bytes: arguments.map(TensorType::n_bytes).sum(),
            constant_bytes: self.constants.len(),
            temporary_bytes: self.arena_bytes,
            scratch_bytes: self.scratch_bytes * n_threads,
        }
    }
}
