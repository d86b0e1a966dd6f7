//! The dataflow graph that everything else reads: shapes, operations, gradients, passes, text form.
//!
//! A [`Program`] is plain data: no I/O, no threads, no clock. [`Builder`] makes one; devices execute it.

mod builder;
mod dtype;
mod error;
mod expression;
mod infer;
mod op;
mod program;
mod shape;
mod tensor;

pub use builder::{Builder, Iteration, RANDOM_CONTEXT, Scanned, Value};
pub use dtype::DType;
pub use error::{Operand, ParseError, Problem, ProgramError, TensorError};
pub use expression::{Expression, Spread, Term};
pub use op::{
    Addend, AttentionSpec, Binary, Comparison, CondSpec, Distribution, Init, Op, Pooling, Reduction,
    Role, SQUARE_BLOCK, ScanSpec, Unary, Window,
};
pub use program::{Node, Output, Program, Update, ValueId};
pub use shape::{MAX_ELEMENTS, Shape, TensorType};
pub use tensor::{Element, Tensor};
