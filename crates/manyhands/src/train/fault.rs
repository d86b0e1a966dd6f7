//! Where a loss that is not a number came from. Training is deterministic, so the steps since the last checkpoint are done
//! again, up to the one that failed, and that one is looked into: which layer first gave something that is not finite.

use manyhands_program::Tensor;

use super::recipe::Recipe;
use super::session::Session;
use crate::error::Error;
use crate::model::{PROBED_GRADIENT, PROBED_LAYER};

/// Names the first thing in a step that is not finite: a weight, the output of a layer, or a gradient.
pub(crate) fn first_not_finite(
    session: &mut Session,
    recipe: &Recipe,
    batch: &manyhands_data::Batch,
    at: (u64, u64),
) -> Result<String, Error> {
    for named in session.tensors()? {
        if !is_finite(&named.tensor) {
            return Ok(format!(
                "the weight `{}` was not finite any more before it, so the update of the step before overflowed",
                named.name
            ));
        }
    }
    for grain_idx in 0..recipe.n_grains(batch.n_samples()) {
        let first = grain_idx * recipe.grain;
        let n_samples = (batch.n_samples() - first).min(recipe.grain);
        let program = recipe.probe_program(n_samples)?;
        let outputs = session.look(&program, batch, grain_idx, at)?;
        for (output, tensor) in program.outputs().iter().zip(&outputs) {
            if is_finite(tensor) {
                continue;
            }
            let name = &output.name;
            return Ok(if let Some(layer) = name.strip_prefix(PROBED_LAYER) {
                format!("it first appeared in the output of layer `{layer}`")
            } else if let Some(weight) = name.strip_prefix(PROBED_GRADIENT) {
                format!("it first appeared in the gradient of `{weight}`")
            } else {
                "it first appeared in the loss itself".to_string()
            });
        }
    }
    Ok("every layer and gradient was finite, so the sum over the samples overflowed".to_string())
}

fn is_finite(tensor: &Tensor) -> bool {
    tensor.to_f64().iter().all(|value| value.is_finite())
}
