//! Elementwise expressions: what a fused kernel computes for each element.

use serde::{Deserialize, Serialize};

use crate::op::{Binary, Comparison, Unary};

/// Several elementwise operations on f32, evaluated for each element in the order of the terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expression {
    /// How each operand of the fused operation stretches over the result's shape.
    pub operands: Vec<Spread>,
    /// The terms; each refers to earlier ones by index.
    pub terms: Vec<Term>,
    /// The terms that are results.
    pub results: Vec<u32>,
}

/// How an operand of a fused operation stretches over the elements of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// One element for each.
    Full,
    /// One element for all.
    Scalar,
    /// The trailing axes: element `i` sees `i % n`.
    Trailing,
    /// The leading axes: element `i` sees `i / (elements / n)`.
    Leading,
}

/// One term of an expression. Comparisons give truth values, which only selects take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// An operand, by index.
    Operand(u32),
    /// A number.
    Number(f32),
    /// A unary operation on a term.
    Unary(Unary, u32),
    /// A binary operation on two terms.
    Binary(Binary, u32, u32),
    /// A comparison of two terms.
    Compare(Comparison, u32, u32),
    /// Condition, yes, no.
    Select(u32, u32, u32),
}
