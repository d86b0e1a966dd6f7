//! Fused elementwise expressions: several operations in one pass over memory.
//!
//! An expression is compiled once into a [`Tape`] of instructions, each a loop over one block of
//! elements (`superoperators` has them, `graph` chooses them, `compile` gives every value a place),
//! which [`run()`] then carries out as often as wanted. The operations and their order for an element
//! are those of the expression, each rounded by itself, so fusing never changes a bit.

mod compile;
mod elementwise;
mod graph;
mod run;
mod superoperators;

pub(crate) use compile::Tape;
pub(crate) use run::run;

#[cfg(test)]
mod tests;
