//! A right but slow evaluator of any single operation for any element type.
//!
//! The device falls back to it where there is no fast kernel, and tests hold the fast kernels
//! against it. It computes in f64 by the pure Rust `libm` (C libraries differ), rounds each result
//! once, and sums in index order, so its bits are the same everywhere. It allocates nothing.
//!
//! `memory.rs` holds everything unsafe; the rest are safe functions over slices. Each is generic
//! over the element type, and one `match` per operation picks the type.

mod attention;
mod chance;
mod convolution;
mod element;
mod elementwise;
mod fused;
mod layout;
mod loss;
mod memory;
mod network;
mod norm;
mod pool;
mod reduce;

use manyhands_program::{DType, Op, TensorType};

use super::fault::Fault;
use super::layout::with_bits;
use memory::Call;

pub(crate) use chance::place;

/// An operand: its type, and its elements in row-major order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    /// Its type.
    pub ty: &'a TensorType,
    /// Its first element.
    pub data: *const u8,
}

/// A result: its type, and where its elements go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResultSlot<'a> {
    /// Its type.
    pub ty: &'a TensorType,
    /// Where its first element goes.
    pub data: *mut u8,
}

/// Evaluates `$body` with `$T` standing for the Rust type of a float element type.
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            manyhands_program::DType::F32 => {
                type $T = f32;
                $body
            }
            manyhands_program::DType::F64 => {
                type $T = f64;
                $body
            }
            manyhands_program::DType::F16 => {
                type $T = half::f16;
                $body
            }
            manyhands_program::DType::Bf16 => {
                type $T = half::bf16;
                $body
            }
            other => unreachable!("{other} is not a float, and only floats are let in here"),
        }
    };
}
use with_float;

/// The same for any number type.
macro_rules! with_number {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            manyhands_program::DType::I32 => {
                type $T = i32;
                $body
            }
            manyhands_program::DType::I64 => {
                type $T = i64;
                $body
            }
            manyhands_program::DType::U8 => {
                type $T = u8;
                $body
            }
            float => $crate::cpu::kernels::plain::with_float!(float, $T => $body),
        }
    };
}
use with_number;

/// The same for any element type.
macro_rules! with_any {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            manyhands_program::DType::Bool => {
                type $T = $crate::cpu::kernels::plain::element::Truth;
                $body
            }
            number => $crate::cpu::kernels::plain::with_number!(number, $T => $body),
        }
    };
}
use with_any;

/// Whether this evaluator has the operation, for every element type that the program's own rules let through.
pub(crate) fn supported(op: &Op) -> bool {
    !matches!(
        op,
        Op::Input { .. }
            | Op::Parameter { .. }
            | Op::Constant(_)
            | Op::Scan(_)
            | Op::Cond(_)
            | Op::GrainSum
            | Op::AllReduce
            | Op::TakeRows
            | Op::PutGrain { .. }
            | Op::MergeRows { .. }
            | Op::PutRows
            | Op::BiasedConvolution { .. }
            | Op::Gated { .. }
    )
}

/// How many bytes of scratch memory the operation needs, aligned to 8.
pub(crate) fn scratch_bytes(op: &Op, operand_types: &[&TensorType]) -> usize {
    let n_doubles = match op {
        Op::Attention(_) => attention::n_forward_scratch(operand_types),
        Op::AttentionGrad(_) => attention::n_backward_scratch(operand_types),
        Op::Fused(expression) => expression.terms.len(),
        Op::Dropout { .. } => {
            let ty = operand_types[0];
            chance::n_dropout_scratch(ty.dtype, ty.shape.n_elements())
        }
        _ => 0,
    };
    n_doubles * size_of::<f64>()
}

/// Evaluates one operation.
///
/// # Safety
/// The types of operands and results are those of a checked program; every pointer is aligned to
/// its element and valid for all of them (it may be anything where there are none); `scratch` is
/// aligned to 8 and has [`scratch_bytes`]; results overlap neither operands nor scratch nor each
/// other. Results need not be initialised; after a fault they may be written in part.
///
/// # Panics
/// Where [`supported`] says no.
pub(crate) unsafe fn run(
    op: &Op,
    operands: &[Operand<'_>],
    results: &[ResultSlot<'_>],
    scratch: *mut u8,
) -> Result<(), Fault> {
    // SAFETY: as the caller says.
    let mut call = unsafe { Call::new(operands, results, scratch) };
    match op {
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Cast { .. }
        | Op::Iota { .. } => elementwise::run(op, &call),
        Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Concatenate { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Gather { .. }
        | Op::ScatterAdd { .. } => return layout::run(op, &call),
        Op::Reduce { .. } | Op::Argmax { .. } | Op::BlockSquareSums => reduce::run(op, &call),
        Op::CrossEntropy | Op::CrossEntropyGrad => {
            return with_float!(float_type(&call), T => loss::run::<T>(op, &call));
        }
        Op::Fused(expression) => fused::run(expression, &mut call),
        Op::Random { distribution, key, .. } => chance::fill(*distribution, *key, &call),
        Op::Dropout { rate, key } => chance::dropout(*rate, *key, &mut call),
        _ => with_float!(float_type(&call), T => network::run::<T>(op, &mut call)),
    }
    Ok(())
}

/// The float type that an operation on floats works in: that of its first operand.
fn float_type(call: &Call<'_>) -> DType {
    call.operand_type(0).dtype
}

#[cfg(test)]
pub(crate) mod tests;
