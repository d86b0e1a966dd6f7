//! The errors of this crate: what was asked, of what, and what would be right.

use std::fmt;

use thiserror::Error;

use crate::dtype::DType;
use crate::shape::{Shape, TensorType};

/// A host tensor that cannot be.
#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs)]
pub enum TensorError {
    #[error("a tensor {ty} takes {expected} bytes, but {found} were given")]
    Length { ty: TensorType, expected: usize, found: usize },
    #[error("a tensor {ty} is larger than any that can be held")]
    TooLarge { ty: TensorType },
    #[error("the tensor holds {found}, not {expected}")]
    Type { expected: DType, found: DType },
    #[error("a bool tensor holds bytes other than 0 and 1")]
    NotTruthValues,
    #[error("the tensor's bytes are not written in hexadecimal")]
    NotHexadecimal,
    #[error("the tensor {ty} needs exactly one of `splat`, `list` and `hex`")]
    NoData { ty: TensorType },
}

/// One operand of an operation that does not fit: what it is and where it was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// How the program calls it, such as `%3` or `parameter "w1"`.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// The source line that built it, or the scope it belongs to.
    pub origin: Option<String>,
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.ty)?;
        match &self.origin {
            Some(origin) => write!(f, " (from {origin})"),
            None => Ok(()),
        }
    }
}

/// Why an operation does not fit its operands. Reads as the end of a sentence that starts with the operands.
#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs)]
pub enum Problem {
    #[error("it takes {expected} operands, not {found}")]
    OperandCount { expected: &'static str, found: usize },
    #[error("operand {operand} must be {expected}, not {found}")]
    ElementType { operand: usize, expected: &'static str, found: DType },
    #[error("their element types {lhs} and {rhs} differ; cast one of them")]
    ElementTypesDiffer { lhs: DType, rhs: DType },
    #[error("their shapes {lhs} and {rhs} differ")]
    ShapesDiffer { lhs: Shape, rhs: Shape },
    #[error("operand {operand} must have shape {expected}, not {found}")]
    OperandShape { operand: usize, expected: Shape, found: Shape },
    #[error("operand {operand} must have {expected} axes, not {found}")]
    Rank { operand: usize, expected: &'static str, found: usize },
    #[error("axis {axis} is not among the {rank} axes")]
    NoSuchAxis { axis: usize, rank: usize },
    #[error("the axes {axes:?} must be different axes of the {rank}, in rising order")]
    Axes { axes: Vec<usize>, rank: usize },
    #[error("the order {order:?} is not an order of all {rank} axes")]
    NotAPermutation { order: Vec<usize>, rank: usize },
    #[error("the inner sizes {lhs} and {rhs} differ")]
    InnerSizes { lhs: usize, rhs: usize },
    #[error("{from} elements cannot be seen as {shape}, which has {to}")]
    ElementCount { from: usize, to: usize, shape: Shape },
    #[error("shape {from} does not stretch to {to} with its axes at {axes:?}")]
    NotBroadcastable { from: Shape, to: Shape, axes: Vec<usize> },
    #[error("the part {start:?} to {limit:?} by {stride:?} does not lie in shape {shape}")]
    SliceOutside { start: Vec<usize>, limit: Vec<usize>, stride: Vec<usize>, shape: Shape },
    #[error("`{attribute}` needs {expected} entries, not {found}")]
    AttributeLength { attribute: &'static str, expected: usize, found: usize },
    #[error("`{attribute}` must be {expected}, not {found}")]
    Attribute { attribute: &'static str, expected: &'static str, found: String },
    #[error("the {what} of size {size} does not divide into {parts}")]
    NotDivisible { what: &'static str, size: usize, parts: usize },
    #[error("a window of {window} does not fit in {size} (with padding)")]
    Window { window: usize, size: usize },
    #[error("{value} is not defined in this program")]
    Undefined { value: String },
    #[error("the operand belongs to another program")]
    Foreign,
    #[error("the result {ty} would be larger than any tensor that can be held")]
    TooLarge { ty: TensorType },
    #[error("the body's {role} {idx} is {found}, where {expected} is needed")]
    Body { role: &'static str, idx: usize, expected: TensorType, found: TensorType },
    #[error("the body has {found} {role}, where {expected} are needed")]
    BodyCount { role: &'static str, expected: usize, found: usize },
    #[error("bodies would be nested deeper than {limit}")]
    TooDeep { limit: usize },
    #[error("the result would have {rank} axes, and a tensor has at most {limit}")]
    TooManyAxes { rank: usize, limit: usize },
    #[error("the body may hold only inputs, constants and operations, not {found}")]
    BodyNotPure { found: &'static str },
}

/// An error of building, differentiating or rewriting a program.
#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs)]
pub enum ProgramError {
    /// An operation whose operands or attributes do not fit.
    #[error("{}", describe_operation(op, operands, problem, at))]
    Operation { op: String, operands: Vec<Operand>, problem: Box<Problem>, at: Option<String> },
    /// The name of an input, parameter or output is taken.
    #[error("there are two {what}s called \"{name}\"")]
    DuplicateName { what: &'static str, name: String },
    #[error("\"{name}\" is a name that sums over grains get; choose another")]
    ReservedName { name: String },
    /// An output or update of a value that is not there.
    #[error("{what} \"{name}\" is {value}, which is not defined in this program")]
    UndefinedResult { what: &'static str, name: String, value: String },
    /// An update of something that is not a parameter, or of another type.
    #[error("the update of {target} is {found}, where a parameter takes {expected}")]
    UpdateType { target: String, expected: TensorType, found: TensorType },
    #[error("{target} is not a parameter, so it cannot be updated")]
    NotAParameter { target: String },
    #[error("parameter \"{name}\" is updated twice")]
    UpdatedTwice { name: String },
    /// A gradient of something that has none.
    #[error(
        "no gradient with respect to {name}: it is {ty}, and only floating-point values have one"
    )]
    GradientOfType { name: String, ty: TensorType },
    #[error("no gradient of {name}, which is {ty}: a gradient is taken of a scalar float")]
    GradientOfNonScalar { name: String, ty: TensorType },
    #[error("no gradient through `{op}` ({name}): {reason}")]
    NotDifferentiable { op: String, name: String, reason: &'static str },
    #[error("no gradient of {loss} with respect to {name}: the one does not depend on the other")]
    Independent { loss: String, name: String },
    #[error(
        "rows of {name} are taken, so that its gradient is row-sparse, but `{op}` uses it too; gather its rows instead, or use it in no other way"
    )]
    NotOnlyRows { name: String, op: String },
    #[error(
        "rows of {name} are taken, for which a training step must know how many grains of how many samples there are (`StepSize`)"
    )]
    NoStepSize { name: String },
    /// A setting of an optimizer or loss that makes no sense.
    #[error("{what} must be {expected}, not {found}")]
    Setting { what: &'static str, expected: &'static str, found: String },
    /// A value that crosses from the once-a-step part into the per-grain part.
    #[error(
        "{name} depends on a sum over grains, so it is known once a step and cannot feed {used_by}, which runs per grain"
    )]
    StepValueInGrain { name: String, used_by: String },
    #[error(
        "{name} differs from grain to grain; an output or update after a sum over grains needs a `grain_sum` of it"
    )]
    GrainValueInStep { name: String },
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

fn describe_operation(
    op: &str,
    operands: &[Operand],
    problem: &Problem,
    at: &Option<String>,
) -> String {
    let operands: Vec<String> = operands.iter().map(Operand::to_string).collect();
    let of =
        if operands.is_empty() { String::new() } else { format!(" of {}", operands.join(" and ")) };
    let at = at.as_ref().map(|at| format!(", at {at}")).unwrap_or_default();
    format!("`{op}`{of}{at}: {problem}")
}

/// An error in the text form of a program: what is wrong, and the line and column where.
#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs)]
pub enum ParseError {
    #[error(
        "`{found}` is not an element type; there are f32, f64, f16, bf16, i32, i64, u8 and bool"
    )]
    UnknownType { found: String },
    #[error("line {line}, column {column}: expected {expected}, found {found}")]
    Unexpected { line: usize, column: usize, expected: String, found: String },
    #[error("line {line}: there is no operation `{op}`{}", suggest(suggestion))]
    UnknownOperation { line: usize, op: String, suggestion: Option<String> },
    #[error("line {line}, column {column}: {found} is not a number that can be held")]
    Number { line: usize, column: usize, found: String },
    #[error("line {line}: `{op}` has no attribute `{attribute}`; {}", known_attributes(known))]
    UnknownAttribute { line: usize, op: String, attribute: String, known: Vec<&'static str> },
    #[error("line {line}: attribute `{attribute}` is given twice")]
    DuplicateAttribute { line: usize, attribute: String },
    #[error("line {line}: the attributes of `{op}` do not fit: {message}")]
    Attributes { line: usize, op: String, message: String },
    #[error("line {line}: `{op}` needs its type, such as `: f32[2, 3]`")]
    TypeNeeded { line: usize, op: String },
    #[error("line {line}: the text names {named} results of `{op}`, which gives {found}")]
    ResultCount { line: usize, op: String, named: usize, found: usize },
    #[error("line {line}: `{op}` needs a body called `{role}`")]
    MissingBody { line: usize, op: String, role: &'static str },
    #[error(
        "line {line}: constants written as one value would take more than {limit} bytes of memory in all"
    )]
    ConstantsTooLarge { line: usize, limit: usize },
    #[error(
        "line {line}: %{name} is used before it is defined; a program has no cycles, and operands come first"
    )]
    UsedBeforeDefined { line: usize, name: String },
    #[error("line {line}: %{name} is not defined")]
    Undefined { line: usize, name: String },
    #[error("line {line}: %{name} is defined twice")]
    DefinedTwice { line: usize, name: String },
    #[error("line {line}: the text says {said}, but `{op}` gives {inferred}")]
    WrongType { line: usize, op: String, said: String, inferred: String },
    #[error("line {line}: {error}")]
    Program { line: usize, error: ProgramError },
    #[error("line {line}: nested deeper than {limit}")]
    TooDeep { line: usize, limit: usize },
}

fn known_attributes(known: &[&str]) -> String {
    match known {
        [] => "it has none".to_string(),
        known => format!("there are {}", known.join(", ")),
    }
}

fn suggest(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map(|s| format!("; did you mean `{s}`?")).unwrap_or_default()
}
