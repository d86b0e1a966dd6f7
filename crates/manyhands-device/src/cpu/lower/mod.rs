//! From operations to instructions: for each node, which kernel runs on which memory.
//!
//! f32 has fast kernels; every other element type, and what is rare, goes to the plain evaluator.

mod attention;
mod moves;
mod products;
mod regions;
mod rows;
mod tables;
mod windows;

pub(super) use attention::{reads_rows, writes_rows};

use manyhands_program::{Binary, DType, Node, Op, Program, Shape, TensorType};

use super::compile::Compiled;
use super::instruction::{Action, Instruction};
use super::memory::{ARENA, Copy, Layout, Place, alias_offset};
use super::simd::Isa;
use crate::error::DeviceError;

/// What lowering knows besides the node.
pub(super) struct Lowering<'a> {
    pub(super) program: &'a Program,
    pub(super) layout: &'a Layout,
    pub(super) isa: Isa,
    /// Threads of a lane, and of all lanes.
    pub(super) threads_each: usize,
    pub(super) n_threads: usize,
}

/// A node's own compiled bodies, made before memory is planned because their arenas are part of the plan.
pub(super) enum Bodies {
    None,
    One(Box<Compiled>),
    Two(Box<Compiled>, Box<Compiled>),
}

/// One node while it is lowered.
pub(super) struct Lowered<'a> {
    pub(super) env: &'a Lowering<'a>,
    pub(super) node: &'a Node,
    pub(super) node_idx: usize,
    instructions: Vec<Instruction>,
}

impl<'a> Lowered<'a> {
    fn operand(&self, idx: usize) -> Place {
        self.env.layout.place(self.node.operands[idx])
    }

    fn result(&self, idx: usize) -> Place {
        self.env.layout.place(self.node.results[idx])
    }

    fn operand_type(&self, idx: usize) -> &'a TensorType {
        self.env.program.ty(self.node.operands[idx])
    }

    fn result_type(&self, idx: usize) -> &'a TensorType {
        self.env.program.ty(self.node.results[idx])
    }

    fn workspace(&self) -> Place {
        // One of no bytes has no place, and nobody looks there.
        let nowhere = Place { base: ARENA, offset: 0 };
        self.env.layout.workspace(self.node_idx).unwrap_or(nowhere)
    }

    /// Adds an instruction whose threads each need so many floats of scratch.
    fn emit(&mut self, scratch_floats: usize, action: Action) {
        self.emit_bytes(scratch_floats * 4, action);
    }

    fn emit_bytes(&mut self, scratch_bytes: usize, action: Action) {
        self.instructions.push(Instruction { action, scratch_bytes, node_idx: self.node_idx });
    }

    fn is_f32(&self) -> bool {
        let all = self.node.operands.iter().chain(&self.node.results);
        all.map(|&value| self.env.program.ty(value)).all(|ty| ty.dtype == DType::F32)
    }
}

/// The arena bytes that a node needs for itself while it runs.
pub(super) fn workspace_bytes(program: &Program, node_idx: usize, bodies: &Bodies) -> usize {
    let node = &program.nodes()[node_idx];
    match &node.op {
        Op::Scan(scan) => regions::scan_workspace(program, node, scan, bodies),
        Op::Cond(_) => regions::cond_workspace(bodies),
        _ => windows::workspace_bytes(program, node),
    }
}

/// The instructions of one node.
pub(super) fn lower(
    env: &Lowering<'_>,
    node_idx: usize,
    bodies: Bodies,
) -> Result<Vec<Instruction>, DeviceError> {
    let node = &env.program.nodes()[node_idx];
    if node.op.is_argument()
        || matches!(node.op, Op::Constant(_))
        || alias_offset(env.program, node_idx).is_some()
    {
        return Ok(Vec::new());
    }
    let mut out = Lowered { env, node, node_idx, instructions: Vec::new() };
    match &node.op {
        Op::GrainSum => return Err(DeviceError::UnsplitGrains { op: node.op.name() }),
        Op::AllReduce => return Err(DeviceError::Communication { op: node.op.name() }),
        Op::Scan(scan) => regions::scan(&mut out, scan, bodies),
        Op::Cond(_) => regions::cond(&mut out, bodies),
        op => lower_kernel(&mut out, op),
    }
    Ok(out.instructions)
}

fn lower_kernel(out: &mut Lowered<'_>, op: &Op) {
    match op {
        Op::Broadcast { .. }
        | Op::Transpose { .. }
        | Op::Concatenate { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Gather { .. }
        | Op::TakeRows => moves::layout(out),
        Op::PutGrain { n_grains } => tables::put_grain(out, *n_grains),
        Op::MergeRows { most } => tables::merge_rows(out, *most),
        Op::PutRows => tables::put_rows(out),
        Op::Fused(expression) => moves::fused(out, expression),
        Op::Unary(_) | Op::Binary(_) if out.is_f32() => moves::elementwise(out),
        Op::Binary(Binary::Add) if out.result_type(0).dtype == DType::I32 => {
            moves::add_integers(out);
        }
        Op::Cast { dtype: DType::F32 } if out.operand_type(0).dtype == DType::U8 => {
            moves::widen(out);
        }
        Op::Random { .. } | Op::Dropout { .. } => moves::random(out),
        Op::CrossEntropy | Op::CrossEntropyGrad if out.result_type(0).dtype == DType::F32 => {
            rows::cross_entropy(out);
        }
        Op::Argmax { axis } if out.operand_type(0).dtype == DType::F32 => rows::argmax(out, *axis),
        Op::ScatterAdd { axis } if out.result_type(0).dtype == DType::F32 => {
            moves::scatter_add(out, *axis);
        }
        Op::Attention(spec) | Op::AttentionGrad(spec)
            if out.operand_type(0).dtype == DType::F32 =>
        {
            attention::attention(out, spec);
        }
        _ if out.is_f32() => lower_f32(out, op),
        _ => moves::plain(out),
    }
}

fn lower_f32(out: &mut Lowered<'_>, op: &Op) {
    match op {
        Op::Matmul { .. } | Op::Dense { .. } => products::product(out),
        Op::Gated { op } if matches!(**op, Op::MaxPoolGrad(_)) => windows::pooling(out),
        Op::BiasedConvolution { .. }
        | Op::Gated { .. }
        | Op::Convolution(_)
        | Op::ConvolutionInputGrad { .. }
        | Op::ConvolutionKernelGrad { .. } => {
            windows::convolution(out);
        }
        Op::MaxPool(_) | Op::MaxPoolGrad(_) | Op::AveragePool(_) | Op::AveragePoolGrad { .. } => {
            windows::pooling(out);
        }
        Op::Reduce { kind, axes } => rows::reduce(out, *kind, axes),
        Op::BlockSquareSums => rows::block_square_sums(out),
        Op::Softmax | Op::LogSoftmax | Op::SoftmaxGrad | Op::LogSoftmaxGrad => rows::softmax(out),
        Op::LayerNorm { .. } | Op::LayerNormGrad => rows::layer_norm(out),
        Op::BatchNorm { .. } | Op::BatchNormGrad { .. } => rows::batch_norm(out),
        _ => moves::plain(out),
    }
}

/// The instruction of a copy at the end of a run.
pub(super) fn copy_instruction(copy: Copy, node_idx: usize) -> Instruction {
    Instruction { action: moves::copy_action(copy), scratch_bytes: 0, node_idx }
}

/// A shape seen as a matrix: all axes but the last, and the last.
fn as_matrix(shape: &Shape) -> (usize, usize) {
    let cols = shape.last();
    let rows = shape.iter().rev().skip(1).product();
    (rows, cols)
}
