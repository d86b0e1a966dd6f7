//! Passes: functions from a program to one with the same results, bit for bit, that is smaller or faster.
//!
//! Each keeps names, signature, outputs, updates and random keys; each is run on bodies of scans and conds as well.

mod dead_code;
mod fold_constants;
mod fuse_attention;
mod fuse_convolution;
mod fuse_dense;
mod fuse_elementwise;
#[cfg(test)]
pub(crate) mod interpreter;
mod recompute;
pub(crate) mod rewrite;
mod simplify;
mod subexpressions;
#[cfg(test)]
mod tests;

pub use dead_code::dead_code;
pub use fold_constants::{Evaluate, fold_constants};
pub use fuse_attention::fuse_attention;
pub use fuse_convolution::fuse_convolution;
pub use fuse_dense::fuse_dense;
pub use fuse_elementwise::{MAX_OPERANDS, MAX_RESULTS, MAX_TERMS, fuse_elementwise};
pub use recompute::{Recompute, recompute};
pub use simplify::simplify;
pub use subexpressions::subexpressions;

use crate::error::ProgramError;
use crate::program::Program;

/// The passes in their usual order. Running it on its own result changes nothing.
pub fn optimize(program: &Program, device: &dyn Evaluate) -> Result<Program, ProgramError> {
    // What is dropped or shared here need not be looked at again below.
    let program = subexpressions(&dead_code(program)?)?;
    let program = fuse_attention(&program)?;
    let program = simplify(&program)?;
    let program = fold_constants(&program, device)?;
    // Folding shows new scalars, and simplification new equals.
    let program = subexpressions(&simplify(&program)?)?;
    let program = fuse_convolution(&fuse_dense(&program)?)?;
    let program = fuse_elementwise(&program)?;
    // Fusion turned operations that differed in their broadcasts into the same one.
    dead_code(&subexpressions(&program)?)
}
