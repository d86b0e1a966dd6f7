//! Methods on values: elementwise operations, layout, reductions.

use super::{Builder, Built, Value};
use crate::dtype::DType;
use crate::error::{Problem, ProgramError};
use crate::op::{Binary, Comparison, Op, Reduction, Unary};
use crate::shape::Shape;

/// Unary methods, one per operation.
macro_rules! unary_methods {
    ($($(#[$meta:meta])* $name:ident = $op:ident;)*) => {$(
        $(#[$meta])*
        #[track_caller]
        pub fn $name(&self) -> Built {
            self.unary(Unary::$op)
        }
    )*};
}

/// Binary methods, with operands stretched to a common shape.
macro_rules! binary_methods {
    ($($(#[$meta:meta])* $name:ident = $op:expr;)*) => {$(
        $(#[$meta])*
        #[track_caller]
        pub fn $name(&self, other: &Value) -> Built {
            self.pairwise($op, other)
        }
    )*};
}

impl Value {
    unary_methods! {
        /// |x|
        abs = Abs;
        /// -1, 0 or 1.
        sign = Sign;
        /// e^x
        exp = Exp;
        /// e^x - 1, accurate near 0.
        expm1 = Expm1;
        /// The natural logarithm.
        log = Log;
        /// log(1 + x), accurate near 0.
        log1p = Log1p;
        /// The square root.
        sqrt = Sqrt;
        /// 1 / sqrt(x)
        rsqrt = Rsqrt;
        /// The hyperbolic tangent.
        tanh = Tanh;
        /// 1 / (1 + e^-x)
        logistic = Logistic;
        /// The error function.
        erf = Erf;
        /// The sine.
        sin = Sin;
        /// The cosine.
        cos = Cos;
        /// The largest integer not above.
        floor = Floor;
        /// The smallest integer not below.
        ceil = Ceil;
        /// The nearest integer, ties to even.
        round = Round;
        /// max(x, 0)
        relu = Relu;
        /// x Phi(x)
        gelu = Gelu;
        /// x logistic(x)
        silu = Silu;
        /// log(1 + e^x)
        softplus = Softplus;
        /// Logical not.
        logical_not = Not;
    }

    binary_methods! {
        /// The larger of each pair.
        maximum = Op::Binary(Binary::Max);
        /// The smaller of each pair.
        minimum = Op::Binary(Binary::Min);
        /// a^b
        pow = Op::Binary(Binary::Pow);
        /// The remainder with the sign of a.
        remainder = Op::Binary(Binary::Rem);
        /// Logical and.
        and = Op::Binary(Binary::And);
        /// Logical or.
        or = Op::Binary(Binary::Or);
        /// Exclusive or.
        xor = Op::Binary(Binary::Xor);
        /// a == b
        equal = Op::Compare(Comparison::Eq);
        /// a != b
        not_equal = Op::Compare(Comparison::Ne);
        /// a < b
        less = Op::Compare(Comparison::Lt);
        /// a <= b
        less_equal = Op::Compare(Comparison::Le);
        /// a > b
        greater = Op::Compare(Comparison::Gt);
        /// a >= b
        greater_equal = Op::Compare(Comparison::Ge);
    }

    /// Applies a unary operation.
    #[track_caller]
    pub fn unary(&self, op: Unary) -> Built {
        self.apply(Op::Unary(op), &[])
    }

    /// Adds an operation whose first operand is this value.
    #[track_caller]
    pub(super) fn apply(&self, op: Op, rest: &[&Value]) -> Built {
        let operands: Vec<&Value> = std::iter::once(self).chain(rest.iter().copied()).collect();
        self.together(rest).apply(op, &operands)
    }

    /// The innermost graph among this value's and the others'.
    pub(super) fn together(&self, rest: &[&Value]) -> Builder {
        let mut inner = self.clone();
        for other in rest {
            inner = Value { graph: inner.innermost(other).graph, id: inner.id };
        }
        inner.builder().branch()
    }

    /// Applies a binary operation to operands stretched to a common shape.
    #[track_caller]
    pub(super) fn pairwise(&self, op: Op, other: &Value) -> Built {
        match self.shape().stretched(&other.shape()) {
            Some(shape) if self.shape() == shape && other.shape() == shape => {
                self.apply(op, &[other])
            }
            Some(shape) => {
                let lhs = self.stretch(shape.clone())?;
                let rhs = other.stretch(shape)?;
                lhs.apply(op, &[&rhs])
            }
            // The operation itself says what does not fit.
            None => self.apply(op, &[other]),
        }
    }

    /// Stretches to a shape by the usual rule: axes aligned at the last, missing ones and those of size 1 repeated.
    #[track_caller]
    pub fn stretch(&self, shape: impl Into<Shape>) -> Built {
        let shape = shape.into();
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let first = shape.rank().saturating_sub(self.shape().rank());
        let axes: Vec<usize> = (first..first + self.shape().rank()).collect();
        self.broadcast(shape, &axes)
    }

    /// Stretches to `shape`; axis `i` becomes axis `axes[i]`.
    #[track_caller]
    pub fn broadcast(&self, shape: impl Into<Shape>, axes: &[usize]) -> Built {
        let shape = shape.into();
        if self.shape() == shape && axes.iter().copied().eq(0..shape.rank()) {
            return Ok(self.clone());
        }
        self.apply(Op::Broadcast { shape, axes: axes.to_vec() }, &[])
    }

    /// The same elements under another shape.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Built {
        let shape = shape.into();
        if self.shape() == shape {
            return Ok(self.clone());
        }
        self.apply(Op::Reshape { shape }, &[])
    }

    /// Axis `i` of the result is axis `order[i]` of this.
    #[track_caller]
    pub fn transpose(&self, order: &[usize]) -> Built {
        if order.iter().copied().eq(0..self.shape().rank()) {
            return Ok(self.clone());
        }
        self.apply(Op::Transpose { order: order.to_vec() }, &[])
    }

    /// The part from `start` up to `limit` along one axis.
    #[track_caller]
    pub fn slice_axis(&self, axis: usize, start: usize, limit: usize) -> Built {
        let shape = self.shape();
        let mut starts = vec![0; shape.rank()];
        let mut limits = shape.to_vec();
        if let (Some(s), Some(l)) = (starts.get_mut(axis), limits.get_mut(axis)) {
            (*s, *l) = (start, limit);
        } else {
            return Err(self.refuse("slice", Problem::NoSuchAxis { axis, rank: shape.rank() }));
        }
        self.slice(&starts, &limits, &vec![1; shape.rank()])
    }

    #[track_caller]
    fn refuse(&self, op: &str, problem: Problem) -> ProgramError {
        ProgramError::Operation {
            op: op.to_string(),
            operands: vec![self.describe()],
            problem: Box::new(problem),
            at: Some(super::place(std::panic::Location::caller())),
        }
    }

    /// Every `stride`-th element from `start` up to `limit` along each axis.
    #[track_caller]
    pub fn slice(&self, start: &[usize], limit: &[usize], stride: &[usize]) -> Built {
        let (start, limit) = (start.to_vec(), limit.to_vec());
        self.apply(Op::Slice { start, limit, stride: stride.to_vec() }, &[])
    }

    /// Cuts an axis into equal parts.
    #[track_caller]
    pub fn split(&self, axis: usize, parts: usize) -> Result<Vec<Value>, ProgramError> {
        let size = self.shape().get(axis).copied().unwrap_or(0);
        if parts == 0 || !size.is_multiple_of(parts) {
            return Err(self.refuse("split", Problem::NotDivisible { what: "axis", size, parts }));
        }
        let part = size / parts;
        (0..parts).map(|idx| self.slice_axis(axis, idx * part, (idx + 1) * part)).collect()
    }

    /// Surrounds with a scalar: `low` before and `high` after along each axis, `interior` between neighbours.
    #[track_caller]
    pub fn pad(&self, value: &Value, low: &[usize], high: &[usize], interior: &[usize]) -> Built {
        let (low, high, interior) = (low.to_vec(), high.to_vec(), interior.to_vec());
        self.apply(Op::Pad { low, high, interior }, &[value])
    }

    /// Converts the elements.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Built {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        self.apply(Op::Cast { dtype }, &[])
    }

    /// `yes` where this bool holds, `no` elsewhere; all three stretched to a common shape.
    #[track_caller]
    pub fn select(&self, yes: &Value, no: &Value) -> Built {
        let common = yes.shape().stretched(&no.shape()).and_then(|s| s.stretched(&self.shape()));
        match common {
            Some(shape) => {
                let (yes, no) = (yes.stretch(shape.clone())?, no.stretch(shape.clone())?);
                self.stretch(shape)?.apply(Op::Select, &[&yes, &no])
            }
            None => self.apply(Op::Select, &[yes, no]),
        }
    }

    /// The slices at `indices` along an axis, which is replaced by the shape of `indices`.
    #[track_caller]
    pub fn gather(&self, axis: usize, indices: &Value) -> Built {
        self.apply(Op::Gather { axis }, &[indices])
    }

    /// The rows of this table at `indices`, zeros where one is below zero; the table's gradient is row-sparse ([`Op::TakeRows`]).
    #[track_caller]
    pub fn take_rows(&self, indices: &Value) -> Built {
        self.apply(Op::TakeRows, &[indices])
    }

    /// This with the slices of `updates` added at `indices` along an axis.
    #[track_caller]
    pub fn scatter_add(&self, axis: usize, indices: &Value, updates: &Value) -> Built {
        self.apply(Op::ScatterAdd { axis }, &[indices, updates])
    }

    /// Reduces over axes, which disappear.
    #[track_caller]
    pub fn reduce(&self, kind: Reduction, axes: &[usize]) -> Built {
        if axes.is_empty() {
            return Ok(self.clone());
        }
        self.apply(Op::Reduce { kind, axes: axes.to_vec() }, &[])
    }

    /// The sum over axes, which disappear.
    #[track_caller]
    pub fn sum(&self, axes: &[usize]) -> Built {
        self.reduce(Reduction::Sum, axes)
    }

    /// The sum of all elements.
    #[track_caller]
    pub fn sum_all(&self) -> Built {
        self.sum(&self.all_axes())
    }

    /// The mean over axes, which disappear.
    #[track_caller]
    pub fn mean(&self, axes: &[usize]) -> Built {
        let shape = self.shape();
        let n: usize = axes.iter().filter_map(|&axis| shape.get(axis)).product();
        self.sum(axes)? / n as f64
    }

    /// The mean of all elements.
    #[track_caller]
    pub fn mean_all(&self) -> Built {
        self.mean(&self.all_axes())
    }

    /// The largest over axes, which disappear.
    #[track_caller]
    pub fn max(&self, axes: &[usize]) -> Built {
        self.reduce(Reduction::Max, axes)
    }

    /// The smallest over axes, which disappear.
    #[track_caller]
    pub fn min(&self, axes: &[usize]) -> Built {
        self.reduce(Reduction::Min, axes)
    }

    /// The first index of the largest element along an axis, as i32.
    #[track_caller]
    pub fn argmax(&self, axis: usize) -> Built {
        self.apply(Op::Argmax { axis }, &[])
    }

    /// The sum over the grains of a step.
    #[track_caller]
    pub fn grain_sum(&self) -> Built {
        self.apply(Op::GrainSum, &[])
    }

    /// The sum over the tensor parts of a mesh, for programs of a worker.
    #[track_caller]
    pub fn all_reduce(&self) -> Built {
        self.apply(Op::AllReduce, &[])
    }

    fn all_axes(&self) -> Vec<usize> {
        (0..self.shape().rank()).collect()
    }
}

impl Builder {
    /// Joins values along an axis.
    #[track_caller]
    pub fn concatenate(&self, axis: usize, values: &[&Value]) -> Built {
        self.apply(Op::Concatenate { axis }, values)
    }
}
