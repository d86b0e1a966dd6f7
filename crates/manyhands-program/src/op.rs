//! The operations, with their attributes. What each takes and gives is in `infer.rs`; its gradient in `gradient/`.
//!
//! Names and meanings stay close to StableHLO. The serde form of an operation *is* its text form: a new operation with
//! `Serialize` and `Deserialize` prints and parses without another line.

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::expression::Expression;
use crate::program::Program;
use crate::shape::Shape;
use crate::tensor::Tensor;

fn is_false(flag: &bool) -> bool {
    !flag
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// A value handed in at every run.
    Input {
        /// Its name, unique among inputs.
        name: String,
        /// Its element type.
        dtype: DType,
        /// Its shape.
        shape: Shape,
    },
    /// A value that lives from run to run and that updates may replace.
    Parameter {
        /// Its name, unique among parameters.
        name: String,
        /// Its element type.
        dtype: DType,
        /// Its shape.
        shape: Shape,
        /// What it is for.
        role: Role,
        /// How its first value is made.
        init: Init,
    },
    /// A value known when the program is built.
    Constant(Tensor),
    /// Counts 0, 1, 2, ... along an axis.
    Iota {
        /// The element type.
        dtype: DType,
        /// The shape.
        shape: Shape,
        /// The axis along which it counts.
        axis: usize,
    },
    /// Random numbers from a counter-based generator. Operands: the random context (seed, step, grain as `i64[3]`),
    /// then the iteration of each scan around it, outermost first.
    Random {
        /// Which distribution.
        distribution: Distribution,
        /// The shape.
        shape: Shape,
        /// Fixed when the program is built; survives every rewrite.
        key: u64,
    },
    /// Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate). Operands: the tensor, then
    /// those of [`Op::Random`]. Linear, so its gradient is itself with the same key.
    Dropout {
        /// The probability of a zero.
        rate: f64,
        /// Fixed when the program is built; survives every rewrite.
        key: u64,
    },
    /// One operation on each element.
    Unary(Unary),
    /// One operation on each pair of elements; shapes and types are equal.
    Binary(Binary),
    /// Compares each pair of elements; gives bool.
    Compare(Comparison),
    /// `select(condition, yes, no)`, elementwise.
    Select,
    /// Converts each element: floats to integers towards zero, saturating; anything to bool by `!= 0`.
    Cast {
        /// The element type to convert to.
        dtype: DType,
    },
    /// Stretches to `shape`; axis `i` of the operand becomes axis `axes[i]`, its size equal or 1.
    Broadcast {
        /// The shape to stretch to.
        shape: Shape,
        /// Where the operand's axes go, in rising order.
        axes: Vec<usize>,
    },
    /// The same elements in the same order under another shape.
    Reshape {
        /// The shape to give.
        shape: Shape,
    },
    /// Axis `i` of the result is axis `order[i]` of the operand.
    Transpose {
        /// The order of axes.
        order: Vec<usize>,
    },
    /// Joins the operands along an axis.
    Concatenate {
        /// The axis to join along.
        axis: usize,
    },
    /// Every `stride`-th element from `start` up to but not including `limit`, along each axis.
    Slice {
        /// First index per axis.
        start: Vec<usize>,
        /// One past the last index per axis.
        limit: Vec<usize>,
        /// Step per axis.
        stride: Vec<usize>,
    },
    /// Surrounds the first operand with the second, a scalar: `low` before, `high` after, `interior` between neighbours.
    Pad {
        /// Elements before, per axis.
        low: Vec<usize>,
        /// Elements after, per axis.
        high: Vec<usize>,
        /// Elements between neighbours, per axis.
        interior: Vec<usize>,
    },
    /// `gather(x, indices)`: the slices of `x` at `indices` along `axis`; the axis is replaced by the shape of `indices`.
    /// An index outside is an error at run time.
    Gather {
        /// The axis that is indexed.
        axis: usize,
    },
    /// `scatter_add(base, indices, updates)`: `base` with the slices of `updates` added at `indices` along `axis`, in
    /// order. The transpose of gather.
    ScatterAdd {
        /// The axis that is indexed.
        axis: usize,
    },
    /// `take_rows(table, indices)`: the rows of a table at indices, zeros where an index is below zero. Says that the gradient of
    /// the table is *row-sparse*: it consists of the rows that were taken, and the update touches no others.
    TakeRows,
    /// `put_grain(random, value)`, the context of random numbers being where the grain's number is: `[grains, ..]` with the value
    /// in the grain's place and what changes nothing when it is added elsewhere (-0.0, or 0 of integers). With a third operand,
    /// that with the value in its place. The sum over grains holds the value of each grain as it was.
    PutGrain {
        /// How many grains a step has at most.
        n_grains: usize,
    },
    /// `merge_rows(codes, values, ..)`, one pair for each use of a table: codes `[grains, n]` are i32, the row plus 1, or nothing at
    /// or below 0; values are f32 `[grains, n, width]`. Gives the rows that there are, i32 in rising order and then -1, and the sum
    /// of each. A grain adds in order, grains along the tree, uses in order; what is not there is skipped, not added as zero.
    MergeRows {
        /// The most different rows.
        most: usize,
    },
    /// `put_rows(table, rows, values)`: the table with its rows at these indices replaced, the last of several. Nothing is done for
    /// indices below zero.
    PutRows,
    /// Matrix product over the last two axes: `[.., m, k] x [.., k, n]`. Leading axes are equal, or the right operand has
    /// none. Each element is one chain of fused multiply-adds over k.
    Matmul {
        /// The left operand is given as `[.., k, m]`.
        #[serde(default, skip_serializing_if = "is_false")]
        transpose_lhs: bool,
        /// The right operand is given as `[.., n, k]`.
        #[serde(default, skip_serializing_if = "is_false")]
        transpose_rhs: bool,
    },
    /// A matrix product with what surrounds it in one kernel, made by passes: `activation(lhs x rhs + bias)`, or
    /// `addend + lhs x rhs`. Operands: lhs, rhs, then the bias `[n]` or the addend where there is one.
    Dense {
        /// As in [`Op::Matmul`].
        #[serde(default, skip_serializing_if = "is_false")]
        transpose_lhs: bool,
        /// As in [`Op::Matmul`].
        #[serde(default, skip_serializing_if = "is_false")]
        transpose_rhs: bool,
        /// What is added to the product.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        add: Option<Addend>,
        /// What is applied to the sum.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        activation: Option<Unary>,
    },
    /// `convolution(x, kernel)`: x is `[n, spatial.., channels]`, the kernel `[window.., channels / groups, features]`;
    /// one or two spatial axes.
    Convolution(Window),
    /// A convolution with its bias and activation in one kernel, made by passes: `(x, kernel, bias)`. f32 only.
    BiasedConvolution {
        /// The convolution's attributes.
        window: Window,
        /// What is applied to the sum.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        activation: Option<Unary>,
    },
    /// An operation through the gate of a relu, made by passes: the operands are the operation's and, last, the relu's
    /// result; the result is zero where that is not above zero. For gradients of convolutions and max pools, f32 only.
    Gated {
        /// The operation, a `convolution_input_grad` or `max_pool_grad`.
        op: Box<Op>,
    },
    /// The gradient of a convolution with respect to x: `(dy, kernel)`.
    ConvolutionInputGrad {
        /// The convolution's attributes.
        window: Window,
        /// The spatial sizes of x.
        input: Vec<usize>,
    },
    /// The gradient of a convolution with respect to its kernel: `(x, dy)`.
    ConvolutionKernelGrad {
        /// The convolution's attributes.
        window: Window,
        /// The spatial sizes of the kernel.
        kernel: Vec<usize>,
    },
    /// The largest element of each window of `[n, spatial.., channels]`; padding never wins.
    MaxPool(Pooling),
    /// The gradient of max pooling: `(x, dy)`; the first largest of a window gets it.
    MaxPoolGrad(Pooling),
    /// The mean of each window; padding counts as zeros only where `count_padding`.
    AveragePool(Pooling),
    /// The gradient of average pooling: `(dy)`.
    AveragePoolGrad {
        /// The pooling's attributes.
        pooling: Pooling,
        /// The spatial sizes of x.
        input: Vec<usize>,
    },
    /// Reduces over axes, which disappear.
    Reduce {
        /// How elements are combined.
        kind: Reduction,
        /// Which axes, in rising order.
        axes: Vec<usize>,
    },
    /// The first index of the largest element along an axis, as i32.
    Argmax {
        /// The axis, which disappears.
        axis: usize,
    },
    /// The sum of squares of each block of [`SQUARE_BLOCK`] elements: the first half of every norm over a parameter.
    BlockSquareSums,
    /// Softmax over the last axis.
    Softmax,
    /// Logarithm of softmax over the last axis.
    LogSoftmax,
    /// `(y, dy)`.
    SoftmaxGrad,
    /// `(y, dy)`.
    LogSoftmaxGrad,
    /// `cross_entropy(logits [.., classes], labels [..])`: minus the log-probability of each label.
    CrossEntropy,
    /// `(logits, labels, d)` with one `d` per label.
    CrossEntropyGrad,
    /// `layer_norm(x, scale, bias)` over the last axis; gives y and, per row, mean and 1 / standard deviation.
    LayerNorm {
        /// Added to the variance.
        epsilon: f64,
    },
    /// `(x, scale, mean, rstd, dy)`; gives dx, dscale, dbias.
    LayerNormGrad,
    /// `batch_norm(x, scale, bias)` over all axes but the last; gives y and, per channel, mean and (biased) variance of
    /// this grain.
    BatchNorm {
        /// Added to the variance.
        epsilon: f64,
    },
    /// `(x, scale, mean, variance, dy)`; gives dx, dscale, dbias.
    BatchNormGrad {
        /// Added to the variance.
        epsilon: f64,
    },
    /// `attention(q, k, v)` or with a mask: q is `[batch, queries, heads * d]`, k and v `[batch, keys, heads * d]`, the mask
    /// a bool `[queries, keys]` or `[batch, queries, keys]` (true: may look).
    Attention(AttentionSpec),
    /// `(q, k, v, [mask,] dy)`; gives dq, dk, dv.
    AttentionGrad(AttentionSpec),
    /// Runs the body once per element along the leading axis of the scanned operands. See [`ScanSpec`].
    Scan(Box<ScanSpec>),
    /// Runs one of two bodies. See [`CondSpec`].
    Cond(Box<CondSpec>),
    /// The sum over the grains of a step, along the fixed tree. What comes before it runs per grain, what comes after it
    /// once a step.
    GrainSum,
    /// The sum over the tensor parts of a mesh, added in their order. Stands only in programs of a worker; a device refuses it.
    AllReduce,
    /// Several elementwise operations in one pass over memory, made by a pass.
    Fused(Expression),
}

/// What a parameter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Trained by gradients.
    Weight,
    /// Kept by the model but not trained by gradients, such as running statistics.
    Statistic,
    /// Kept by the optimizer, such as momentum.
    Slot,
}

/// How the first value of a parameter is made, from the job's seed and the parameter's name.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Every element the same.
    Constant(f64),
    /// Uniform between minus and plus the bound.
    Uniform(f64),
    /// Normal with mean 0 and the given standard deviation.
    Normal(f64),
}

/// What random numbers are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Uniform in [0, 1).
    Uniform,
    /// Normal with mean 0 and standard deviation 1.
    Normal,
}

/// What a dense operation adds to its product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Addend {
    /// One value per column, before the activation.
    Bias,
    /// A whole matrix.
    Matrix,
}

/// Declares an enum whose variants print as their snake-case names.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vmeta])* #[serde(rename = $text)] $variant),* }

        impl $name {
            /// Every variant.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The name in the text form.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }
    };
}

named! {
    /// Operations on one element. All but `neg`, `abs`, `sign`, `relu` and `not` are for floats.
    Unary {
        /// -x
        Neg = "neg",
        /// |x|
        Abs = "abs",
        /// -1, 0 or 1
        Sign = "sign",
        /// e^x
        Exp = "exp",
        /// e^x - 1
        Expm1 = "expm1",
        /// Natural logarithm.
        Log = "log",
        /// log(1 + x)
        Log1p = "log1p",
        /// Square root.
        Sqrt = "sqrt",
        /// 1 / sqrt(x)
        Rsqrt = "rsqrt",
        /// Hyperbolic tangent.
        Tanh = "tanh",
        /// 1 / (1 + e^-x)
        Logistic = "logistic",
        /// The error function.
        Erf = "erf",
        /// Sine.
        Sin = "sin",
        /// Cosine.
        Cos = "cos",
        /// Largest integer not above x.
        Floor = "floor",
        /// Smallest integer not below x.
        Ceil = "ceil",
        /// Nearest integer, ties to even.
        Round = "round",
        /// max(x, 0), with derivative 0 at 0.
        Relu = "relu",
        /// x Phi(x), with the exact normal distribution function.
        Gelu = "gelu",
        /// The derivative of gelu.
        GeluSlope = "gelu_slope",
        /// x logistic(x)
        Silu = "silu",
        /// log(1 + e^x)
        Softplus = "softplus",
        /// Logical not, of bool.
        Not = "not",
    }
}

named! {
    /// Operations on two elements.
    Binary {
        /// a + b
        Add = "add",
        /// a - b
        Sub = "sub",
        /// a * b
        Mul = "mul",
        /// a / b; integers towards zero, by zero gives zero
        Div = "div",
        /// The remainder with the sign of a.
        Rem = "rem",
        /// a^b, of floats
        Pow = "pow",
        /// The larger; NaN if either is.
        Max = "max",
        /// The smaller; NaN if either is.
        Min = "min",
        /// Logical and, of bool.
        And = "and",
        /// Logical or, of bool.
        Or = "or",
        /// Exclusive or, of bool.
        Xor = "xor",
    }
}

named! {
    /// Comparisons; any with NaN is false but `ne`.
    Comparison {
        /// a == b
        Eq = "eq",
        /// a != b
        Ne = "ne",
        /// a < b
        Lt = "lt",
        /// a <= b
        Le = "le",
        /// a > b
        Gt = "gt",
        /// a >= b
        Ge = "ge",
    }
}

named! {
    /// How a reduction combines.
    Reduction {
        /// Their sum.
        Sum = "sum",
        /// Their product.
        Product = "product",
        /// The largest; NaN if any is.
        Max = "max",
        /// The smallest; NaN if any is.
        Min = "min",
    }
}

/// The attributes of a convolution; one entry per spatial axis in each list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Distance between neighbouring windows.
    pub stride: Vec<usize>,
    /// Zeros before and after.
    pub padding: Vec<(usize, usize)>,
    /// Distance between neighbouring taps.
    pub dilation: Vec<usize>,
    /// Channels and features are cut into so many groups that do not see each other.
    pub groups: usize,
}

/// The attributes of a pooling; one entry per spatial axis in each list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pooling {
    /// The size of a window.
    pub window: Vec<usize>,
    /// Distance between neighbouring windows.
    pub stride: Vec<usize>,
    /// Padding before and after.
    pub padding: Vec<(usize, usize)>,
    /// Whether padding counts in an average.
    #[serde(default, skip_serializing_if = "is_false")]
    pub count_padding: bool,
}

/// The attributes of attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionSpec {
    /// Into how many heads the last axis is cut.
    pub heads: usize,
    /// Whether query i looks only at keys up to i + keys - queries.
    pub causal: bool,
    /// Multiplies the scores.
    pub scale: f64,
    /// Whether there is a mask operand.
    #[serde(default, skip_serializing_if = "is_false")]
    pub masked: bool,
}

/// A loop over a sequence with carried state.
///
/// Operands: the initial carried values, then the scanned values (`length` along axis 0), then what the body captures.
/// Results: the final carried values, then the body's other outputs stacked along a new axis 0. The body's inputs are the
/// iteration (an i32 scalar), carried, scanned (without axis 0), captured; its outputs the new carried values, then the
/// others. Iteration `t` always means element `t`, also where `reverse` visits the last first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScanSpec {
    /// What runs per element.
    pub body: Program,
    /// How many values are carried.
    pub n_carried: usize,
    /// How many operands are scanned.
    pub n_scanned: usize,
    /// How many elements there are.
    pub length: usize,
    /// Whether the last element comes first.
    #[serde(default, skip_serializing_if = "is_false")]
    pub reverse: bool,
}

/// A choice between two bodies with the same result types.
///
/// Operands: the condition (a bool scalar), then what the first body captures, then what the second does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CondSpec {
    /// Runs when the condition is true.
    pub then: Program,
    /// Runs when it is false.
    pub otherwise: Program,
}

/// Elements per block of [`Op::BlockSquareSums`].
pub const SQUARE_BLOCK: usize = 1024;

impl Op {
    /// The name in the text form and in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input { .. } => "input",
            Op::Parameter { .. } => "parameter",
            Op::Constant(_) => "constant",
            Op::Iota { .. } => "iota",
            Op::Random { .. } => "random",
            Op::Dropout { .. } => "dropout",
            Op::Unary(unary) => unary.name(),
            Op::Binary(binary) => binary.name(),
            Op::Compare(comparison) => comparison.name(),
            Op::Select => "select",
            Op::Cast { .. } => "cast",
            Op::Broadcast { .. } => "broadcast",
            Op::Reshape { .. } => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::Concatenate { .. } => "concatenate",
            Op::Slice { .. } => "slice",
            Op::Pad { .. } => "pad",
            Op::Gather { .. } => "gather",
            Op::ScatterAdd { .. } => "scatter_add",
            Op::TakeRows => "take_rows",
            Op::PutGrain { .. } => "put_grain",
            Op::MergeRows { .. } => "merge_rows",
            Op::PutRows => "put_rows",
            Op::Matmul { .. } => "matmul",
            Op::Dense { .. } => "dense",
            Op::Convolution(_) => "convolution",
            Op::BiasedConvolution { .. } => "biased_convolution",
            Op::Gated { .. } => "gated",
            Op::ConvolutionInputGrad { .. } => "convolution_input_grad",
            Op::ConvolutionKernelGrad { .. } => "convolution_kernel_grad",
            Op::MaxPool(_) => "max_pool",
            Op::MaxPoolGrad(_) => "max_pool_grad",
            Op::AveragePool(_) => "average_pool",
            Op::AveragePoolGrad { .. } => "average_pool_grad",
            Op::Reduce { .. } => "reduce",
            Op::Argmax { .. } => "argmax",
            Op::BlockSquareSums => "block_square_sums",
            Op::Softmax => "softmax",
            Op::LogSoftmax => "log_softmax",
            Op::SoftmaxGrad => "softmax_grad",
            Op::LogSoftmaxGrad => "log_softmax_grad",
            Op::CrossEntropy => "cross_entropy",
            Op::CrossEntropyGrad => "cross_entropy_grad",
            Op::LayerNorm { .. } => "layer_norm",
            Op::LayerNormGrad => "layer_norm_grad",
            Op::BatchNorm { .. } => "batch_norm",
            Op::BatchNormGrad { .. } => "batch_norm_grad",
            Op::Attention(_) => "attention",
            Op::AttentionGrad(_) => "attention_grad",
            Op::Scan(_) => "scan",
            Op::Cond(_) => "cond",
            Op::GrainSum => "grain_sum",
            Op::AllReduce => "all_reduce",
            Op::Fused(_) => "fused",
        }
    }

    /// Whether it works element by element on operands of its result's shape.
    pub fn is_elementwise(&self) -> bool {
        matches!(self, Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast { .. })
    }

    /// Whether it stands for a value from outside: an input or a parameter.
    pub fn is_argument(&self) -> bool {
        matches!(self, Op::Input { .. } | Op::Parameter { .. })
    }
}
