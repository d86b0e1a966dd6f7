//! The dataflow graph that everything else reads: shapes, operations, gradients, passes, text form.
//!
//! A [`Program`] is plain data: no I/O, no threads, no clock. [`Builder`] makes one; devices
//! execute it. It prints as text and parses back:
//!
//! ```
//! use manyhands_program::{Builder, DType, Init, Program};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let g = Builder::new("tiny");
//! let x = g.input("x", DType::F32, [8, 2])?;
//! let w = g.weight("w", [2, 3], Init::Normal(0.5))?;
//! g.output("h", &x.matmul(&w)?.relu()?)?;
//! let program = g.finish();
//!
//! let text = r#"program tiny {
//!   %0 = input {name: "x"} : f32[8, 2]
//!   %1 = parameter {name: "w", role: weight, init: normal(0.5)} : f32[2, 3]
//!   %2 = matmul %0, %1 : f32[8, 3]
//!   %3 = relu %2 : f32[8, 3]
//!   output h = %3
//! }
//! "#;
//! assert_eq!(program.to_string(), text);
//! assert_eq!(text.parse::<Program>()?, program);
//! # Ok(())
//! # }
//! ```

mod builder;
mod cost;
mod dtype;
mod error;
mod expression;
mod given_rows;
mod gradient;
mod grains;
mod infer;
pub mod mesh;
mod op;
mod optimizer;
mod partials;
mod passes;
mod program;
mod row_tables;
mod shape;
mod shard_update;
mod tensor;
mod text;
mod training;

pub use builder::{Builder, Iteration, RANDOM_CONTEXT, Scanned, Value};
pub use cost::{Cost, LiveMemory, TRANSCENDENTAL, live_memory};
pub use dtype::DType;
pub use error::{Operand, ParseError, Problem, ProgramError, TensorError};
pub use expression::{Expression, Spread, Term};
pub use given_rows::{GivenRows, NotGiven, give_rows, row_gradients, rows_input};
pub use grains::{
    GrainAction, GrainSplit, accumulating, maximal_subtrees, maximal_subtrees_of, merging,
    split_grains, tree_schedule,
};
pub use op::{
    Addend, AttentionSpec, Binary, Comparison, CondSpec, Distribution, Init, Op, Pooling,
    Reduction, Role, SQUARE_BLOCK, ScanSpec, Unary, Window,
};
pub use optimizer::{Adagrad, Adam, AdamW, Clip, Ftrl, Lamb, Optimizer, RmsProp, Sgd, UpdateRule};
pub use partials::{
    Addition, Join, Partial, Partials, Piece, is_sum, join_order, joining, partial_sum_name,
    partials, pieces, split_point, sum_name,
};
pub use passes::{
    Evaluate, MAX_OPERANDS, MAX_RESULTS, MAX_TERMS, Recompute, dead_code, fold_constants,
    fuse_attention, fuse_convolution, fuse_dense, fuse_elementwise, optimize, recompute, simplify,
    subexpressions,
};
pub use program::{Node, Output, Program, Update, ValueId};
pub use row_tables::{RowTable, row_tables};
pub use shape::{MAX_ELEMENTS, Shape, TensorType};
pub use shard_update::{
    SHARD_VALUE, SHARE, ShardUpdate, Uncut, row_update, shard_update, without_updates,
};
pub use tensor::{Element, Tensor};
pub use training::{
    LOSS, RATE, RunningStatistics, STEP, StepSize, Training, add_sized_training_step,
    add_training_step,
};
