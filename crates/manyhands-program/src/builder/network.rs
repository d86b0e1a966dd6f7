//! Methods on values: products, convolutions, pooling, norms, attention, randomness.

use super::{Builder, Built, Value};
use crate::dtype::DType;
use crate::error::ProgramError;
use crate::op::{AttentionSpec, Distribution, Op, Pooling, Window};
use crate::shape::Shape;

impl Window {
    /// Windows next to each other without padding, for `n` spatial axes.
    pub fn valid(n: usize) -> Window {
        Window { stride: vec![1; n], padding: vec![(0, 0); n], dilation: vec![1; n], groups: 1 }
    }
}

impl Pooling {
    /// Windows side by side without padding.
    pub fn tiles(window: &[usize]) -> Pooling {
        Pooling {
            window: window.to_vec(),
            stride: window.to_vec(),
            padding: vec![(0, 0); window.len()],
            count_padding: false,
        }
    }
}

impl Value {
    /// The matrix product over the last two axes.
    #[track_caller]
    pub fn matmul(&self, rhs: &Value) -> Built {
        self.apply(Op::Matmul { transpose_lhs: false, transpose_rhs: false }, &[rhs])
    }

    /// The matrix product with either side given transposed.
    #[track_caller]
    pub fn matmul_with(&self, transpose_lhs: bool, rhs: &Value, transpose_rhs: bool) -> Built {
        self.apply(Op::Matmul { transpose_lhs, transpose_rhs }, &[rhs])
    }

    /// A 1-D or 2-D convolution of `[n, spatial.., channels]` with `[window.., channels / groups, features]`.
    #[track_caller]
    pub fn convolution(&self, kernel: &Value, window: Window) -> Built {
        self.apply(Op::Convolution(window), &[kernel])
    }

    /// The largest of each window.
    #[track_caller]
    pub fn max_pool(&self, pooling: Pooling) -> Built {
        self.apply(Op::MaxPool(pooling), &[])
    }

    /// The mean of each window.
    #[track_caller]
    pub fn average_pool(&self, pooling: Pooling) -> Built {
        self.apply(Op::AveragePool(pooling), &[])
    }

    /// Softmax along an axis.
    #[track_caller]
    pub fn softmax(&self, axis: usize) -> Built {
        self.along_last(axis, Op::Softmax)
    }

    /// The logarithm of softmax along an axis.
    #[track_caller]
    pub fn log_softmax(&self, axis: usize) -> Built {
        self.along_last(axis, Op::LogSoftmax)
    }

    /// Applies an operation on the last axis to another one, by swapping the two.
    #[track_caller]
    fn along_last(&self, axis: usize, op: Op) -> Built {
        let rank = self.shape().rank();
        if axis >= rank {
            let op = op.name().to_string();
            return Err(ProgramError::Operation {
                op,
                operands: vec![self.describe()],
                problem: Box::new(crate::error::Problem::NoSuchAxis { axis, rank }),
                at: Some(super::place(std::panic::Location::caller())),
            });
        }
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(axis, rank - 1);
        self.transpose(&order)?.apply(op, &[])?.transpose(&order)
    }

    /// Layer norm over the last axis.
    #[track_caller]
    pub fn layer_norm(&self, scale: &Value, bias: &Value, epsilon: f64) -> Built {
        self.apply(Op::LayerNorm { epsilon }, &[scale, bias])
    }

    /// Batch norm over all axes but the last: the result, and this grain's mean and variance per channel.
    #[track_caller]
    pub fn batch_norm(
        &self,
        scale: &Value,
        bias: &Value,
        epsilon: f64,
    ) -> Result<[Value; 3], ProgramError> {
        let builder = self.together(&[scale, bias]);
        let results = builder.apply_all(Op::BatchNorm { epsilon }, &[self, scale, bias])?;
        let [y, mean, variance] =
            <[Value; 3]>::try_from(results).expect("batch norm has 3 results");
        Ok([y, mean, variance])
    }

    /// Batch norm with given statistics, as at prediction.
    #[track_caller]
    pub fn normalize(
        &self,
        mean: &Value,
        variance: &Value,
        scale: &Value,
        bias: &Value,
        epsilon: f64,
    ) -> Built {
        let factor = ((variance + epsilon)?.rsqrt()? * scale)?;
        ((self - mean)? * &factor)? + bias
    }

    /// Scaled-dot-product attention: this is `[batch, queries, heads * d]`, `keys` and `values` are
    /// `[batch, keys, heads * d]`; scores are divided by sqrt(d).
    #[track_caller]
    pub fn attention(
        &self,
        keys: &Value,
        values: &Value,
        heads: usize,
        causal: bool,
        mask: Option<&Value>,
    ) -> Built {
        let d = self.shape().last() / heads.max(1);
        let scale = 1.0 / (d.max(1) as f64).sqrt();
        let spec = AttentionSpec { heads, causal, scale, masked: mask.is_some() };
        let rest: Vec<&Value> = [keys, values].into_iter().chain(mask).collect();
        self.apply(Op::Attention(spec), &rest)
    }

    /// Zeroes each element with probability `rate` and scales the others up; anew at every step and grain.
    #[track_caller]
    pub fn dropout(&self, rate: f64) -> Built {
        let builder = self.builder();
        let (key, random) = (builder.next_key(), builder.random_operands()?);
        self.apply(Op::Dropout { rate, key }, &random.iter().collect::<Vec<_>>())
    }
}

impl Builder {
    /// Random numbers, anew at every step and grain.
    #[track_caller]
    pub fn random(&self, distribution: Distribution, shape: impl Into<Shape>) -> Built {
        let (key, random) = (self.next_key(), self.random_operands()?);
        let op = Op::Random { distribution, shape: shape.into(), key };
        self.apply(op, &random.iter().collect::<Vec<_>>())
    }

    /// One-hot rows of the given labels, as f32.
    #[track_caller]
    pub fn one_hot(&self, labels: &Value, n_classes: usize) -> Built {
        let shape: Shape = labels.shape().iter().copied().chain([n_classes]).collect();
        let classes = self.iota(labels.dtype(), shape.clone(), shape.rank() - 1)?;
        let axes: Vec<usize> = (0..labels.shape().rank()).collect();
        labels.broadcast(shape, &axes)?.equal(&classes)?.cast(DType::F32)
    }
}
