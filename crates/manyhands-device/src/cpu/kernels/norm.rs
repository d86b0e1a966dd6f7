//! Layer norm and batch norm of a matrix of rows x columns, with their gradients.
//!
//! Means come first and squares are taken of the differences, so a large mean costs no precision.
//! Sums along a row run in 64 striped chains; sums over rows go by blocks of 64 rows, as in
//! [`reduce`](super::reduce). Every kernel's parts are independent: rows for what belongs to a row,
//! columns for what belongs to a column.

mod batch;
mod layer;

pub(crate) use batch::{BatchNorm, BatchNormGrad, batch_norm, batch_norm_grad};
pub(crate) use layer::{
    LayerNorm, LayerNormGrad, LayerNormGradScale, layer_norm, layer_norm_grad,
    layer_norm_grad_scale,
};

#[cfg(test)]
mod tests;
